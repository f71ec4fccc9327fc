"""Does evidence that is bought where it decides, decide as all rows would?

    python -m analyses benchmark evidence MODEL --exhaustive   run every edit on every row, keep it
    python -m analyses benchmark evidence --cases --exhaustive the same for the language cases
    python -m analyses benchmark evidence                      judge the rule on all kept tables

The exhaustive run makes four edits of every head, each by itself, on every row of repeated random
tokens: the head at its mean, and without its attention to the token before, to what followed equal
tokens, to the first position. Kept are the rise of the loss on each row and what first order says
of it (slopes), in ``analyses/tables/evidence-NAME.npz``; the language cases are all models that
role detectors are judged on (:mod:`analyses.benchmarks.language` and its neighbours), in one file.
The rule of :func:`prooflens.run.gather_evidence` is then replayed on the kept numbers, model by
model, for several orders of the rows, and compared with what all rows say:

    needed     on all rows the t-interval of the edit lies above the floor
    recall     the share of needed edits that end ``above``
    false      edits that end ``above`` though their mean on all rows is below the floor
    wrong      edits that end ``below`` though their mean on all rows is above the floor

Where edits times rows are few the rule runs all (``--cheap``; 0 replays it without that).
The truth is of the same rows: how other rows would decide is not asked here. The last line is JSON:
``recall``, ``false``, ``wrong``, ``rows`` (rows run a edit, on average; all by the exhaustive run).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from joblib import Parallel, delayed
from scipy.stats import t as student
from torch import Tensor

from analyses.benchmarks import by_content, composed, language
from analyses.benchmarks.known import LanguageSubject, load_back
from analyses.benchmarks.result import write_result
from prooflens.architectures import Pretrained, load_pretrained
from prooflens.roles import LANGUAGE, evidence_of, rows_of, token_trials
from prooflens.run import DropKeys, Edit, Mean, Site, gather_evidence
from prooflens.trained import folder_of

__all__ = ["CASES", "TABLES", "KeptRises", "main"]

TABLES = Path(__file__).parents[1] / "tables"
CASES = Path("out/cases")
"""Default folder in which finished language cases are kept."""

_NAMES = ("mean", "previous", "after_same", "first")
_FLOOR, _MISSED = 0.1, 0.05


def main(
    model: Annotated[str, typer.Argument(help="A model, for the exhaustive run.")] = "",
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Run and keep a table.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of the exhaustive run.")] = 32,
    edits: Annotated[str, typer.Option(help="Which edits the exhaustive run makes.")] = "all",
    cases: Annotated[bool, typer.Option("--cases", help="Run the language cases.")] = False,
    orders: Annotated[int, typer.Option(help="Orders of the rows that are replayed.")] = 20,
    cheap: Annotated[int, typer.Option(help="Edits × rows up to which all are run.")] = 512,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 2,
    jobs: Annotated[int, typer.Option(help="Processes for the language cases.")] = 1,
    folder: Annotated[Path, typer.Option(help="Where finished cases are kept.")] = CASES,
) -> None:
    """Print a table of models and edits, and the whole as JSON in the last line."""
    torch.set_num_threads(threads)
    if exhaustive:
        names = _NAMES if edits == "all" else edits.split(",")
        if cases:
            _run_cases(rows, names, jobs, folder)
        else:
            _run(model, rows, names)
    counts = {"needed": 0, "found": 0, "false": 0, "wrong": 0, "rows": 0.0, "edits": 0}
    for path in sorted(TABLES.glob("evidence-*.npz")):
        told: dict[str, dict[str, float]] = {}
        with np.load(path) as kept:
            for key in [one.removesuffix("-exact") for one in kept if one.endswith("-exact")]:
                numbers = KeptRises(kept[f"{key}-exact"], kept[f"{key}-slopes"])
                found = _judge(numbers, orders, cheap)
                name = key.rpartition("|")[2]
                sums = told.setdefault(name, dict.fromkeys(found, 0.0))
                told[name] = {what: sums[what] + found[what] for what in found}
        for name, one in told.items():
            words = ", ".join(f"{key} {value:g}" for key, value in one.items())
            typer.echo(f"{path.stem.removeprefix('evidence-')} {name}: {words}")
            counts = {key: counts[key] + one[key] for key in counts}
    needed, made = max(counts["needed"], 1), max(counts["edits"], 1)
    result = {"recall": counts["found"] / needed, "rows": counts["rows"] / made}
    write_result({**result, "false": counts["false"], "wrong": counts["wrong"]}, None)


class KeptRises:
    """Stored rises of edits on rows, which are read in place of running a model.

    Args:
        exact: The measured rises, ``[edit, row]``.
        slopes: Their first-order estimates, ``[edit, row]``.
    """

    def __init__(self, exact: np.ndarray, slopes: np.ndarray) -> None:
        self.exact, self._slopes = torch.from_numpy(exact), torch.from_numpy(slopes)
        self.bought = 0.0
        self.edits = [(Mean(Site(0, "z", at)),) for at in range(len(exact))]
        self._place = {edits: at for at, edits in enumerate(self.edits)}

    def __len__(self) -> int:
        return self.exact.shape[1]

    def slopes(self, many: Sequence[Any], metric: Any) -> Tensor:
        """Return the first-order estimates, ``[edit, row]``."""
        return self._slopes[[self._place[one] for one in many]]

    def rises(self, many: Sequence[Any], metric: Any, rows: Sequence[int]) -> Iterator[Tensor]:
        """Each edit's rise on some rows, ``[row, 1]``."""
        for one in many:
            yield self.exact[self._place[one]][list(rows), None]

    def by_row(self, values: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the values unchanged, since each row has a single one."""
        return values[:, 0]


def _judge(kept: KeptRises, orders: int, cheap: int) -> dict[str, float]:
    """Count how often the rule decides as all rows do, over several orders of the rows."""
    exact = kept.exact.numpy()
    mean, count = exact.mean(1), exact.shape[1]
    error = exact.std(1, ddof=1) / count**0.5
    odds = 2 * LANGUAGE.level / len(exact)
    needed = mean - student.isf(odds / 2, count - 1) * error > _FLOOR
    alpha = _MISSED, odds
    found = dict.fromkeys(("needed", "found", "false", "wrong", "rows", "edits"), 0.0)
    for seed in range(orders):
        told = gather_evidence(kept, kept.edits, floor=_FLOOR, alpha=alpha, cheap=cheap, seed=seed)
        status = np.array([one.status for one in told])
        found["needed"] += int(needed.sum())
        found["found"] += int((needed & (status == "above")).sum())
        found["false"] += int(((status == "above") & (mean < _FLOOR)).sum())
        found["wrong"] += int(((status == "below") & (mean > _FLOOR)).sum())
        found["rows"] += sum(one.rows for one in told)
        found["edits"] += len(told)
    return found


def _run(model: str, rows: int, names: Sequence[str]) -> None:
    """Measure every edit of every head on every row, with slopes, and store the table under the
    model's name."""
    kept: dict[str, Any] = _every_row(load_pretrained(folder_of(model)), rows, names, 0)
    typer.echo(f"{model}: {', '.join(names)} of every head on {rows} rows")
    np.savez_compressed(TABLES / f"evidence-{Path(model).name}.npz", **kept)


def _run_cases(rows: int, names: Sequence[str], jobs: int, folder: Path) -> None:
    """Do the same as :func:`_run` for every language case, and store all in one file as float32.

    A finished case is stored in a file of its own, so that an interrupted run can continue.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.npz" for number in range(len(_cases()))]
    todo = [number for number, path in enumerate(paths) if not path.exists()]
    work = (delayed(_run_case)(number, rows, names, paths[number]) for number in todo)
    for name in Parallel(n_jobs=jobs, return_as="generator_unordered")(work):
        typer.echo(f"{sum(path.exists() for path in paths)} of {len(paths)}: {name}")
    kept = dict[str, Any]()
    for number, path in enumerate(paths):
        with np.load(path) as numbers:
            kept |= {f"{number}|{key}": numbers[key] for key in numbers}
    np.savez_compressed(TABLES / "evidence-language.npz", **kept)


def _cases() -> list[LanguageSubject]:
    """Return every language model that role detectors are judged on: those with known heads and the
    decoys."""
    modules = (language, by_content, composed)
    return [one for module in modules for one in (*module.subjects(), *module.decoys())]


def _run_case(number: int, rows: int, names: Sequence[str], path: Path) -> str:
    """Measure one case in a process of its own, write its numbers to a file, and return its
    name."""
    torch.set_num_threads(1)
    subject = _cases()[number]
    model = load_back(subject.make(), subject.name)
    numbers = _every_row(model, rows, names, subject.seed)
    part = path.with_suffix(".part.npz")
    np.savez(part, **{key: values.astype(np.float32) for key, values in numbers.items()})
    part.rename(path)
    return subject.name


@torch.no_grad()
def _every_row(model: Pretrained, rows: int, names: Sequence[str], seed: int) -> dict[str, Any]:
    trials, _ = token_trials(model, rows=rows, seed=seed)
    evidence = evidence_of(model.model, rows_of(trials), LANGUAGE, seed=seed)
    run, kept = evidence.run("repeated"), dict[str, Any]()
    for name in names:
        many: list[tuple[Edit, ...]] = [(Mean(evidence.site(p)),) for p in evidence.heads]
        if name != "mean":
            many = [
                (DropKeys(Site(p[0], "pattern", p[1]), evidence.key_array("repeated", name)),)
                for p in evidence.heads
            ]
        exact = [run.by_row(rise).numpy() for rise in run.rises(many)]
        kept[f"{name}-exact"] = np.stack(exact)
        kept[f"{name}-slopes"] = run.slopes(many).numpy()
        run.forget()
    return kept
