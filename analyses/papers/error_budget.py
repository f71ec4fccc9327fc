"""The error budget of a claim: what of an error is the architecture's, the training's, the rows'.

    approximation   the best weights known, those of a proof: the certificate bounds the largest
                    error on the whole domain; beside it the largest error on fresh rows
    optimisation    training from w + s · rms(w) · ε, each tensor with its own RMS, ε Gaussian:
                    the largest s up to which every seed ends within 2 × the certificate
    estimation      mean error on fresh rows less that on the training rows; 0 by definition
                    where every step has rows of its own

Errors are |output − target| in the target's unit, or the share of wrong tokens. Many certificates
are rounding (1e-14) or 0, which AdamW does not reach in float64 either: the rule stays as it is,
and beside it stand the least error that was reached, and the largest s from which the mean square
error is at most 0.01 of the variance, a level that claims about training use.

A construction is one of the proofs' catalogue, in float64 and of its own sizes, not of the claim's.
That training does not come back to it says that these weights are hard to hold, not that training
from random weights must fail: it may find others. That it comes back says nothing of how to get
near. Not for claims without a construction, which the ledger says with a reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from analyses.papers.ledger import Claim
from analyses.papers.results import plain
from prooflens.architectures import build
from prooflens.errors import OutputError, Problems
from prooflens.files import output_folder, read_json, table, text, whole
from prooflens.machine import one_thread
from prooflens.plot import save, sweep
from prooflens.proofs import COMPILED as PROGRAMS
from prooflens.proofs import Case, catalogue, construct_gated_memory, coupling, induction, template
from prooflens.tasks import AdaptiveMemory, Batch
from prooflens.trained import Ensemble, Run, Training, training_set

__all__ = ["BUDGETS", "Budget", "Nearby", "cases", "measure", "measure_budgets", "read_budget"]

BUDGETS, FIGURE = "budgets", "noise.png"
_FILE, _RUNS = "budget.json", "runs.csv"
_ROWS, _SEED = 256, 2**63 - 7
_FACTOR, _SOLVED, _LEAST = 2.0, 0.01, 1e-17
_SCHEMA = table(
    {"format": whole(1, 1), "construction": text(), "unit": text(), "options": table({})}
)


@dataclass(frozen=True)
class Nearby:
    """How training from near a construction is tried.

    Attributes:
        noises: Sizes s of the noise, as a share of each tensor's RMS, rising.
        seeds: How many seeds; each draws the noise and the rows.
        steps, batch: Of the training.
        learning_rates: Of a noise the rate counts whose training loss (the median over seeds) ends
            lowest.
    """

    noises: tuple[float, ...] = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    seeds: int = 3
    steps: int = 200
    batch: int = 16
    learning_rates: tuple[float, ...] = (1e-2, 1e-3)

    def __post_init__(self) -> None:
        problems, noises = Problems("claims budget"), self.noises
        good = bool(noises) and all(0 < s < math.inf for s in noises)
        good = good and list(noises) == sorted(set(noises))
        problems.need(good, "--noise", "must be positive and rise", noises, "e.g. 0.001 0.1")
        for name in ("seeds", "steps", "batch"):
            value = getattr(self, name)
            problems.need(value >= 1, f"--{name}", "must be at least 1", value, "raise it")
        problems.raise_if_any()


@dataclass(frozen=True)
class Budget:
    """The measured budget of one construction.

    Attributes:
        construction: The case's name.
        certificate: The bound on the error, over the whole domain.
        measured: The construction's largest error on fresh rows.
        unit: What errors are measured in.
        rows: Size of the training set; 0 for fresh rows at every step.
        options: The fields of :class:`Nearby`.
        runs: A row a training: ``noise``, ``seed``, ``learning_rate``, ``start`` and ``error``
            (the largest error before and after), ``mean`` and ``train_mean`` (the mean square
            error as a share of the variance, or the share of wrong tokens, on fresh rows and on
            the training set), ``loss`` (the smoothed training loss). Infinite where it diverged.
    """

    construction: str
    certificate: float
    measured: float
    unit: str
    rows: int
    options: Mapping[str, Any]
    runs: pd.DataFrame

    @cached_property
    def kept(self) -> pd.DataFrame:
        """The runs of each noise at the rate that counts."""
        means = self.runs.groupby(["noise", "learning_rate"])["loss"].median().reset_index()
        best = means.sort_values(["noise", "loss"]).drop_duplicates("noise")
        return self.runs.merge(best[["noise", "learning_rate"]])

    def returns(self, column: str, level: float) -> float | None:
        """The largest noise up to which every seed ends at ``level`` or below; None if at none."""
        worst, found = self.kept.groupby("noise")[column].max(), None
        for noise, value in worst.items():
            if value > level:
                break
            found = float(str(noise))
        return found

    @property
    def optimisation(self) -> float | None:
        """The largest noise from which training returns within twice the certificate."""
        return self.returns("error", _FACTOR * self.certificate)

    @property
    def estimation(self) -> float:
        """The median difference of mean errors, where training returns or at the least noise."""
        if not self.rows:
            return 0.0
        at = self.optimisation or self.kept["noise"].min()
        mine = self.kept[self.kept["noise"] == at]
        return float((mine["mean"] - mine["train_mean"]).median())

    @property
    def words(self) -> str:
        """The budget in a sentence for each part."""
        reached = self.kept.groupby("noise")["error"].median()
        looser, level = self.returns("mean", _SOLVED), _FACTOR * self.certificate
        where = _from(self.optimisation)
        of = "share of wrong tokens" if self.unit != _TARGET else "mean square error"
        rows = (
            f"trained on {self.rows} rows, {self.estimation:.2g} ({of}, fresh less training rows)"
        )
        return (
            f"approximation: at most {self.certificate:.2g} {self.unit} by the certificate, "
            f"{self.measured:.2g} on {_ROWS} fresh rows; optimisation: trained from noise, every "
            f"one of {self.options['seeds']} seeds ends within 2 × the certificate ({level:.2g}) "
            f"{where} (least error reached {reached.min():.2g}, the median over seeds from noise "
            f"{reached.idxmin():.0e}), and at a mean error of at most {_SOLVED} {_from(looser)}; "
            f"estimation: {rows if self.rows else '0 by definition, rows are fresh'}."
        )


_TARGET, _TOKENS = "in the target's unit", "of tokens wrong"


def _from(noise: float | None) -> str:
    return "from no noise that was tried" if noise is None else f"from noise up to {noise:.0e}"


def cases() -> dict[str, Case]:
    """The constructions that a budget can be of, by name: the catalogue of memories, templates,
    relations, programs and couplings, and the gated memory."""
    gated = AdaptiveMemory((1, 2), rounds=1, length=16)
    pods = [
        Case(f"{task.name}-{width}", partial(coupling.construct_pod, task, width))
        for task, width in coupling.TASKS
    ]
    others = [Case(f"gated-{gated.name}", partial(construct_gated_memory, gated)), *pods]
    listed = [*catalogue.cases(), *template.CASES, *induction.CASES, *PROGRAMS, *others]
    return {case.name: case for case in listed}


@one_thread()
def measure(case: Case, nearby: Nearby, rows: int = 0) -> Budget:
    """Measure the budget of a construction; the same options give the same numbers.

    Args:
        case: The construction.
        nearby: How training is tried.
        rows: Size of a fixed training set; 0 for fresh rows. Templates are then tested on
            symbols that no training row has.
    """
    built = case.construct()
    task, model = built.task, built.model
    points = [
        (s, i, r) for s in nearby.noises for i in range(nearby.seeds) for r in nearby.learning_rates
    ]
    starts = [_noisy(model, noise, seed) for noise, seed, _ in points]
    runs = [
        Run(
            f"run-{number}",
            task,
            model.spec,
            Training(
                nearby.steps, nearby.batch, rate, warmup=nearby.steps // 10, seed=seed, rows=rows
            ),
        )
        for number, (_, seed, rate) in enumerate(points)
    ]
    ensemble = Ensemble(runs, starts=starts)
    for _ in ensemble.run():
        pass
    fresh = (task.unseen() if rows and hasattr(task, "unseen") else task).sample(_ROWS, seed=_SEED)
    found = []
    for member, trained in enumerate(ensemble.models()):
        noise, seed, rate = points[member]
        error, mean = _errors(trained, fresh)
        seen = _errors(trained, training_set(task, runs[member].training))[1] if rows else mean
        loss = _finite(float(ensemble.state.smooth[member]))
        found.append(
            (noise, seed, rate, _errors(starts[member], fresh)[0], error, mean, seen, loss)
        )
    columns = ["noise", "seed", "learning_rate", "start", "error", "mean", "train_mean", "loss"]
    unit = _TARGET if fresh.targets.is_floating_point() else _TOKENS
    return Budget(
        case.name,
        built.certificate.error,
        _errors(model, fresh)[0],
        unit,
        rows,
        plain(asdict(nearby)),
        pd.DataFrame(found, columns=columns),
    )


@torch.no_grad()
def _noisy(model: Any, noise: float, seed: int) -> Any:
    """A copy of the model with Gaussian noise on every tensor, as a share of its own RMS."""
    moved, generator = build(model.spec), torch.Generator().manual_seed(seed)
    for new, old in zip(moved.parameters(), model.parameters(), strict=True):
        drawn = torch.randn(old.shape, generator=generator, dtype=old.dtype)
        new.copy_(old + noise * old.square().mean().sqrt() * drawn)
    return moved


@torch.no_grad()
def _errors(model: Any, batch: Batch) -> tuple[float, float]:
    """The largest and the mean error over scored positions."""
    output, mask = model(batch.inputs)[batch.mask], batch.mask
    if not batch.targets.is_floating_point():
        wrong = float((output.argmax(-1) != batch.targets[mask]).double().mean())
        return wrong, wrong
    scored = batch.targets[mask].to(output.dtype)
    error, variance = output - scored, (scored - scored.mean(0)).square().mean()
    return _finite(float(error.abs().max())), _finite(float(error.square().mean() / variance))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def measure_budgets(
    claims: Sequence[Claim],
    out: Path,
    nearby: Nearby,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[list[Any]], Iterable[Any]] = iter,
) -> dict[str, Budget]:
    """Measure every construction that the claims name, each kept as soon as it is there.

    Args:
        claims: The claims; those without a construction are passed over.
        out: The folder of claims; budgets lie in ``budgets`` there, a folder a construction.
        nearby: How training is tried.
        resume: Keep what is there with the same options.
        overwrite: Replace what is there.
        watch: Wraps the iteration over constructions, for a progress bar.

    Returns:
        Name of the folder → budget.

    Raises:
        ArgumentError: before any work, naming every construction that is not in the catalogue.
        OutputError: if a budget is there that is neither to be kept nor replaced.
    """
    known, problems = cases(), Problems("claims budget")
    wanted = {folder_of(name, c.rows): (name, c.rows) for c in claims for name in c.constructions}
    for name, _ in wanted.values():
        rule, advice = "must be in the proofs' catalogue", "mend the ledger"
        problems.need(name in known, "constructions", rule, name, advice)
    problems.raise_if_any()
    there = {folder: read_budget(out / BUDGETS / folder) for folder in wanted}
    same = plain(asdict(nearby))
    kept = {f: b for f, b in there.items() if b is not None and resume and b.options == same}
    taken = [folder for folder, b in there.items() if b is not None and folder not in kept]
    if taken and not overwrite:
        words = f"{out / BUDGETS} holds {', '.join(taken[:3])}: keep what has the same options"
        raise OutputError(f"{words} (--resume), replace it (--overwrite) or name another --out")
    for folder in watch([folder for folder in wanted if folder not in kept]):
        name, rows = wanted[folder]
        kept[folder] = measure(known[name], nearby, rows)
        _write(kept[folder], out / BUDGETS / folder)
    return {folder: kept[folder] for folder in wanted}


def folder_of(construction: str, rows: int) -> str:
    """The name of a budget's folder."""
    return f"{construction}-rows-{rows}" if rows else construction


def drawn(budget: Budget) -> Figure:
    """The largest error after training against the noise that it started from."""
    kinds = {"start": "before training", "error": "after training"}
    frames = [budget.kept.assign(kind=kind, shown=budget.kept[y]) for y, kind in kinds.items()]
    least = max(_LEAST, budget.certificate / 100)
    levels = {
        f"{words} {size:.2g}" + ("" if size else f" (drawn at {least:.0e})"): max(size, least)
        for words, size in (
            ("certificate", budget.certificate),
            ("2 × certificate", _FACTOR * budget.certificate),
        )
    }
    return sweep(
        pd.concat(frames, ignore_index=True).replace(math.inf, math.nan),
        x="noise",
        across="noise, share of each tensor's RMS",
        by="kind",
        label=f"largest error on fresh rows,\n{budget.unit}",
        y="shown",
        levels=levels,
        least=least,
    )


def _write(budget: Budget, folder: Path) -> None:
    data = {k: v for k, v in vars(budget).items() if k in Budget.__annotations__ and k != "runs"}
    told = {"optimisation": budget.optimisation, "estimation": budget.estimation}
    with output_folder(folder, overwrite=True, marker=_FILE) as draft:
        budget.runs.to_csv(draft / _RUNS, index=False)
        save(drawn(budget), draft / FIGURE)
        stored = plain({"format": 1, **data, **told, "words": budget.words})
        (draft / _FILE).write_text(json.dumps(stored, indent=1, allow_nan=False) + "\n")


def read_budget(folder: Path) -> Budget | None:
    """The budget that is kept in a folder; None if there is none.

    Raises:
        OutputError: for a file that cannot be read.
    """
    if not (folder / _FILE).exists():
        return None
    data = read_json(folder / _FILE, "error budget", OutputError, _SCHEMA)
    names = [name for name in Budget.__annotations__ if name != "runs"]
    try:
        given = {name: data[name] for name in names}
        numbers = {name: float(given[name]) for name in ("certificate", "measured")}
        return Budget(**{**given, **numbers}, runs=pd.read_csv(folder / _RUNS))
    except (OSError, ValueError, KeyError) as error:
        raise OutputError(f"{folder}: holds no error budget: {error}") from error
