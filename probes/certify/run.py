"""From a model and its task to a theorem: every strategy that fits, the best bound first.

Covers from roles: which cases a model's parts distinguish, and what they leave free.

    memory-location (a head attends to lag T),  the inputs at these lags are the cases; at others
    memory-mixture (to several)                 they are free, and what attention leaks there is
                                                the size of the cell
    counter (attention ignores order)           strings with the same counts are one case
    memory kernel (heads hold ρ)                the cases are intervals of m = ρ * x; how the heads'
                                                kernels differ from multiples of ρ is left free
    adaptive memory (the token names the lag)   the cases are the addresses at the judged position
                                                and at the location, values in intervals
    induction (two attention layers)            the cases are the last token and the answer
                                                (:mod:`probes.certify.two_layers`)
    counters (two layers, no positions)         the cases are letters of each kind, and blocks

Each role is a lemma with a number from the weights. A wrong role leaves the inputs free that
matter: its number and the bound are then large, and still true.

A certificate that claims nothing is checked too (:func:`check_vacuous`), because it could have been
made to claim nothing.

Its strategies are bounded again as if they claimed something. A strategy is rightly vacuous if its
bound is no better than the best constant answer, both as written and as found. For a black box over
inputs that the checker enumerates, only the written bound is compared, because a black box proves
less than enumeration does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from interp.bounds.affine import UP, Affine, Arithmetic
from interp.bounds.network import not_covered
from interp.bounds.passed_on import (
    along,
    bound_named_lag,
    not_along,
    not_named,
    not_orderless,
    values_of,
)
from interp.bounds.three_paths import Tables, not_three_paths, tables_of
from interp.bounds.two_layers import Watch
from interp.errors import ArgumentError, Problems, ProoflensError, need
from interp.tasks.base import answers_of, memories_of
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory
from interp.tasks.template import TemplateTask
from probes.certify import maximum
from probes.certify.certificate import TheoremFile, weights_of
from probes.certify.check import CheckResult, check
from probes.certify.cover import Cells, Proof, prove
from probes.certify.domains import (
    Addressed,
    AllRows,
    Averages,
    Domain,
    Members,
    Signs,
    Strings,
    Templates,
)
from probes.certify.lemmas import lemmas_of
from probes.certify.search import search
from probes.certify.two_layers import by_counts_and_blocks, by_last_and_answer

Lags = Mapping[tuple[int, int], tuple[int, ...]]

SLICES = 96
PIECES = 8


@dataclass(frozen=True)
class MechanismProof:
    """A cover by mechanism.

    Attributes:
        cells: A function that makes the cells.
        data: What the checker needs to make the cover and its lemmas again.
        final: The argument ``final`` of :func:`~probes.certify.cover.prove`.
    """

    cells: Callable[[], Iterator[Cells]]
    data: dict[str, Any]
    final: Callable[[Any, Cells, Arithmetic], Affine] | None = None


def mechanism(model: Any, domain: Domain, lags: Lags) -> MechanismProof | str:
    """Return the cover that roles suggest, or in words why there is none.

    Args:
        model: A covered model.
        domain: The domain.
        lags: (layer, head) → the lags that it attends to (:func:`lags_of`).
    """
    if isinstance(domain, Signs):
        return _lag_cases(model, domain, lags)
    if isinstance(domain, Strings):
        return _counts(model, domain)
    if isinstance(domain, Averages):
        return _kernel(model, domain)
    if isinstance(domain, Addressed):
        return _address_pairs(model, domain)
    return "where letters stand decides, so each string is a case: no fewer than brute force"


def lags_of(roles: pd.DataFrame, task: Any) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the lags that heads attend to, according to their roles.

    Roles that are only candidates count too: a wrong one makes the bound less tight, never false.

    Args:
        roles: The role table.
        task: The task, whose memories give the lags.

    Returns:
        (layer, head) → lags, for heads with the role of a memory (the strongest if they have
        several) or of a mixture of memories.
    """
    told = getattr(task, "memories", tuple)
    known = {m.name: m.location for m in told() if isinstance(m.location, int)}
    rows = roles[roles["role"].isin(["memory-location", "memory-mixture"])]
    rows = rows.sort_values(["status", "strength"], ascending=[True, False])
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    columns = ["layer", "head", "role", "target", "group"]
    for layer, head, role, target, group in rows[columns].itertuples(index=False):
        names = [target] if role == "memory-location" else str(group).split(" + ")
        lags = tuple(sorted(known[name] for name in names if name in known))
        if lags:
            found.setdefault((int(layer), int(head)), lags)
    return found


def _lag_cases(model: Any, domain: Signs, said: Lags) -> MechanismProof | str:
    named = (0, *sorted({lag for lags in said.values() for lag in lags}))
    if len(named) > 14:
        return f"{len(named)} lags are too many cases"
    heads = [(layer, head, lags) for (layer, head), lags in sorted(said.items())]

    def cells() -> Iterator[Cells]:
        for t in domain.judged_positions:
            yield domain.cases(t, named)

    return MechanismProof(cells, {"cover": "cases", "lags": list(named), "heads": heads})


def _counts(model: Any, domain: Strings) -> MechanismProof | str:
    return MechanismProof(domain.multisets, {"cover": "multisets"})


def _kernel(model: Any, domain: Averages) -> MechanismProof | str:
    if reason := not_along(model):
        return reason

    def cells() -> Iterator[Cells]:
        for t in domain.judged_positions:
            yield domain.slices(t, SLICES)

    def final(m: Any, cells: Cells, ar: Arithmetic) -> Affine:
        t, n, ar.symbols = cells.position, len(cells.weight), cells.symbols
        ends = np.linspace(-domain.reach(t), domain.reach(t), n + 1)
        middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * UP
        free: Any = cells.inputs
        return along(m, free, domain.rho[: t + 1][::-1], middle, half, ar)

    return MechanismProof(cells, {"cover": "slices", "slices": SLICES}, final)


def _address_pairs(model: Any, domain: Addressed) -> MechanismProof | str:
    if domain.task.rounds != 1 or domain.task.concurrent or domain.task.readout != "single":
        return "only one round that is passed on as it is"
    if reason := not_named(model):
        return reason
    every = domain.tokens(PIECES)
    lengths = [t + 1 for t in domain.judged_positions]

    def cells() -> Iterator[Cells]:
        for code in range(len(domain.codes)):
            yield domain.pairs(code, PIECES)

    def final(m: Any, cells: Cells, ar: Arithmetic) -> Affine:
        pair: Any = cells.inputs
        ar.symbols = cells.symbols
        others = values_of(m, every, Arithmetic(ar.dtype, symbols=1))
        lag = int(domain.lags[domain.code_of(pair.centre[0, 1, 1:])])
        return bound_named_lag(m, pair[:, :1], pair[:, 1:], lag, lengths, others, ar)

    return MechanismProof(cells, {"cover": "pairs", "pieces": PIECES}, final)


STRATEGIES = ("brute force", "mechanism", "cubic", "black box")
_LARGEST = 2**24
_PATIENCE = 6e7
_ROWS = 256


def domain_of(task: Any, *, length: int | None = None, box: float = 1.0) -> Domain:
    """Return the domain that a theorem about a model of a task is about.

    Args:
        task: ``FixedMemory``, ``KernelMemory`` (one kernel, read by ``waves``), ``AdaptiveMemory``
            (one round, readout ``single``), ``TemplateTask``, ``PrefixPrediction`` of an L_k,
            ``Membership``, ``Maximum``.
        length: The longest row; the task's own by default.
        box: The largest size of a real input.

    Raises:
        ArgumentError: for other tasks, a length outside the task's, or a box that is not positive.
    """
    problems = Problems("certify")
    problems.need(0 < box < np.inf, "box", "must be positive", box, "e.g. 1")
    fixed = isinstance(task, TemplateTask | Maximum)
    rule = "must be left out: this task's rows have one length"
    problems.need(not fixed or length is None, "length", rule, length, "leave it out")
    problems.raise_if_any()
    longest: Any = getattr(task, "length", None)
    if isinstance(task, PrefixPrediction | Membership):
        longest = max(high for _, high in task.bins)
    n: Any = longest if length is None else length
    if isinstance(task, FixedMemory):
        _check_length(n, max(task.lags) + 1, longest)
        return Signs(task, int(n))
    waves = isinstance(task, KernelMemory) and task.readout == "waves" and len(task.kernels) == 1
    if isinstance(task, KernelMemory) and waves:
        _check_length(n, task.burn_in + 1, longest)
        return Averages(task, int(n), box)
    if isinstance(task, AdaptiveMemory) and task.rounds == 1 and task.readout == "single":
        _check_length(n, max(task.locations) + 1, longest)
        return Addressed(task, int(n), box)
    if isinstance(task, TemplateTask):
        return Templates(task)
    if isinstance(task, PrefixPrediction) and task.language.startswith("L_"):
        _check_length(n, min(low for low, _ in task.bins), longest)
        return Strings(task, int(n))
    if isinstance(task, Membership):
        _check_length(n, min(low for low, _ in task.bins), longest)
        return Members(task, int(n))
    if isinstance(task, Maximum):
        return AllRows(task)
    name = getattr(task, "name", type(task).__name__)
    raise ArgumentError(
        f"certify must be given a task whose right answers it knows for every input, got {name}: "
        "fixed memory, a kernel memory read by one sine, an adaptive memory of one round, "
        "templates, prefix prediction of L_k, membership, or the maximum"
    )


def _check_length(n: Any, least: int, most: int) -> None:
    rule = f"must lie between {least} and the task's {most}"
    need("certify", least <= n <= most, "length", rule, n, "change it")


def certify(
    model: Any,
    domain: Any = None,
    *,
    name: str | None = None,
    strategies: Sequence[str] | None = None,
    length: int | None = None,
    box: float = 1.0,
    lags: Mapping[tuple[int, int], int | tuple[int, ...]] | None = None,
    seed: int = 0,
    watch: Watch = iter,
) -> TheoremFile:
    """Prove a bound that holds for every input of a domain, by every strategy that fits.

    Args:
        model: A ``SequenceTransformer`` (no RoPE, no ``pair_sign``).
        domain: A task (:func:`domain_of`) or a domain; by default the task in the model's card.
        name: The model's name, for the certificate; by default that in its card.
        strategies: Names from :data:`STRATEGIES`; by default all, except a brute force that would
            take long.
        length: The longest row.
        box: The largest size of a real input.
        lags: (layer, head) → the lag or lags that the head is said to attend to; by default from
            the roles that :func:`~probes.roles.find.find_roles` finds on the task's rows. They may
            be wrong.
        seed: Seed of the rows for roles and of the search for bad inputs.
        watch: A wrapper around long loops, for a progress bar.

    Returns:
        The theorem; ``.best`` is the best proof, which may be vacuous and then says why.

    Raises:
        ArgumentError: for a model, task, strategy, length or box that is not covered.
    """
    card = getattr(model, "card", None)
    name = name or getattr(card, "name", None) or "model"
    domain = getattr(card, "task", None) if domain is None else domain
    if not isinstance(domain, Domain):
        domain = domain_of(domain, length=length, box=box)
    problems = Problems("certify")
    reason = not_covered(model) or _unlike(model.spec, domain)
    problems.need(not reason, "model", "must be covered", reason, "see docs/howto-certify")
    for chosen in strategies or ():
        rule = f"must be one of {', '.join(STRATEGIES)}"
        problems.need(chosen in STRATEGIES, "strategies", rule, chosen, "pick some")
    problems.raise_if_any()
    if not model.spec.causal and not isinstance(domain, Templates | AllRows):
        raise ArgumentError("certify must be given a causal model for this task: got causal=False")
    wanted = STRATEGIES if strategies is None else tuple(strategies)
    attempts = _Attempts(model, domain, strategies is not None, lags, seed, watch)
    proofs, skipped = [], {}
    for chosen in wanted:
        found = attempts.by(chosen)
        if isinstance(found, Proof):
            proofs.append(found)
        elif found:
            skipped[chosen] = found
    if not proofs:
        reasons = "; ".join(skipped.values()) or f"{', '.join(wanted)} is of another kind of task"
        raise ArgumentError(f"certify: no strategy fits: {reasons}")
    sign = 1 if domain.kind == "error" else -1
    proofs.sort(key=lambda p: (bool(p.vacuous), sign * p.bound, p.multiplications))
    measured, where = attempts.measured_value(proofs)
    weights = (model.spec.to_dict(), weights_of(model))
    about = (*weights, domain.describe(), domain.statement, domain.kind, domain.trivial)
    return TheoremFile(name, *about, tuple(proofs), measured, where, skipped)


def _unlike(spec: Any, domain: Domain) -> str:
    """Return why a model cannot take a domain's inputs; empty if it can."""
    kind, d_in, d_out, positions = domain.shape
    exact = kind == "real" or isinstance(domain, AllRows)
    if spec.input != kind:
        return f"it takes {spec.input} where the task gives {kind}"
    if (
        spec.d_in < d_in
        or spec.d_out < d_out
        or (exact and (spec.d_in, spec.d_out) != (d_in, d_out))
    ):
        return f"d_in {spec.d_in} and d_out {spec.d_out} where the task has {d_in} and {d_out}"
    if spec.n_ctx < positions:
        return f"its context is {spec.n_ctx} where the task has {positions} positions"
    return ""


class _Attempts:
    """Tries strategies one after another, on one model and domain."""

    def __init__(
        self,
        model: Any,
        domain: Domain,
        asked: bool,
        lags: Mapping[tuple[int, int], int | tuple[int, ...]] | None,
        seed: int,
        watch: Watch,
    ) -> None:
        self.model, self.domain, self.asked, self.seed = model, domain, asked, seed
        self.watch = watch
        self.lags: Lags | None = None
        if lags is not None:
            self.lags = {head: tuple(np.atleast_1d(n).tolist()) for head, n in lags.items()}
        self.three_paths = isinstance(domain, AllRows) and not not_three_paths(model)
        self._tables: Tables | None = None

    def by(self, strategy: str) -> Proof | str:
        """Return the proof by a strategy, or why it was not tried; empty if it does not apply to
        the domain."""
        if strategy == "brute force":
            return self._brute_force()
        if strategy == "black box":
            found = self._prove_cover("black box", self.domain.boxes, budget=2**22)
            return replace(found, data={"cover": "boxes"})
        if strategy == "mechanism":
            return "" if isinstance(self.domain, AllRows) else self._mechanism()
        if not isinstance(self.domain, AllRows):
            return ""
        if not self.three_paths:
            return not_three_paths(self.model)
        return maximum.by_cubes(self.tables, self.watch)

    @property
    def tables(self) -> Tables:
        """The tables of the three paths, made on first use."""
        if self._tables is None:
            self._tables = tables_of(self.model, self.domain.task.length)  # type: ignore[attr-defined]
        return self._tables

    def _brute_force(self) -> Proof | str:
        size, spec, n = self.domain.size, self.model.spec, self.domain.shape[3]
        if size is None:
            return "real inputs cannot be enumerated"
        if size > _LARGEST:
            return f"{size} inputs are more than 2^24"
        if self.three_paths:
            found = maximum.brute_force(self.tables, self.watch)
            return replace(found, data={"cover": "points"})
        deep = 1 + (spec.n_layers - 1) * n
        work = (self.domain.cells or 0) * n * deep * (4 if spec.score == "dot" else 1)
        work *= max(1, spec.d_out // 32)
        if work > _PATIENCE and not self.asked:
            return f"{size} inputs would take long: ask for it with --strategy 'brute force'"
        found = self._prove_cover("brute force", self.domain.points, budget=0)
        return replace(found, data={"cover": "points"})

    def _mechanism(self) -> Proof | str:
        options: dict[str, Any] = {"asked": self.asked, "watch": self.watch}
        if isinstance(self.domain, Templates):
            return by_last_and_answer(self.model, self.domain, **options)
        if isinstance(self.domain, Strings) and not_orderless(self.model):
            return by_counts_and_blocks(self.model, self.domain, **options)
        lags = self._lags() if isinstance(self.domain, Signs) else {}
        found = mechanism(self.model, self.domain, lags)
        if isinstance(found, str):
            return found
        budget = 0 if isinstance(self.domain, Strings) else 2**24
        task, about = self.domain.task, self.domain.describe()  # type: ignore[attr-defined]
        lemmas = lemmas_of(self.model, task, about, found.data)
        how = {"budget": budget, "final": found.final, "lemmas": lemmas}
        return replace(self._prove_cover("mechanism", found.cells, **how), data=found.data)

    def _lags(self) -> Lags:
        if self.lags is None:
            from probes.roles.find import find_roles

            task: Any = self.domain.task  # type: ignore[attr-defined]
            with warnings.catch_warnings(), suppress(ProoflensError):
                warnings.simplefilter("ignore")
                roles = find_roles(
                    self.model,
                    task.sample(_ROWS, seed=self.seed),
                    memories=memories_of(task),
                    answers=answers_of(task),
                    seed=self.seed,
                )
                self.lags = lags_of(roles, task)
        return self.lags or {}

    def _prove_cover(self, strategy: str, cover: Callable[[], Any], **options: Any) -> Proof:
        """Prove the bound of a cover, in the model's dtype if that makes the bound at most a
        twentieth worse, else in real arithmetic.

        A bound that is near the measured error, or a vacuous one, is not computed a second time.
        """
        domain, error = self.domain, self.domain.kind == "error"
        common = {"trivial": domain.trivial, **options}

        def bound(arithmetic: str) -> Proof:
            cells = self.watch(cover())
            return prove(self.model, strategy, domain.kind, cells, arithmetic=arithmetic, **common)

        if strategy == "black box":
            real = bound("real")
            if real.vacuous:
                return real
        full = bound(self.model.spec.dtype)
        seen = full.parts.get("answer at the cell's centre", 0.0)
        if full.bound <= 1.05 * seen if error else full.bound >= 0.999:
            return full
        real = bound("real")
        near = full.bound <= 1.05 * real.bound if error else full.bound >= real.bound - 0.001
        return full if near else real

    def measured_value(self, proofs: Sequence[Proof]) -> tuple[float, str]:
        """Return the largest error or the accuracy that was measured in float64, and on which
        inputs."""
        exact = [p for p in proofs if p.data.get("cover") in ("points", "multisets")]
        if exact:
            parts = exact[0].parts
            if self.domain.kind == "error":
                return parts["answer at the cell's centre"], "every input"
            return parts.get("right in real arithmetic", exact[0].bound), "every input"
        return search(self.model, self.domain, self.seed)


_ENUMERATED = ("strings", "templates", "rows")


def check_vacuous(certificate: dict[str, Any], model: Any, sha256: str) -> list[CheckResult]:
    """Check a certificate whose strategies are all vacuous, by bounding each again on ``model``.

    A strategy is vacuous if its bound is no better than what a constant answer reaches. A result
    holds if the check confirms the claimed bound, and both the claimed and the recomputed bound are
    vacuous. For strategies that cover strings, templates or rows by boxes, only the claimed bound
    must be.

    Args:
        certificate: The certificate as JSON data.
        model: The model.
        sha256: The SHA-256 of the model's weights.

    Raises:
        CheckpointError: if the certificate lacks something, or makes no sense.
    """
    error, trivial = certificate["kind"] == "error", float(certificate["trivial"])
    proofs = [
        proof | {"vacuous": "", "bound": inf if proof.get("bound") is None else proof["bound"]}
        for proof in certificate["strategies"]
    ]
    verdicts = check(certificate | {"strategies": proofs}, model, sha256)
    if len(verdicts) < len(proofs) or not all(verdict.holds for verdict in verdicts):
        return verdicts
    listed = certificate["domain"]["kind"] in _ENUMERATED
    found = []
    for proof, verdict in zip(proofs, verdicts, strict=True):
        box = listed and proof["data"]["cover"] == "boxes"
        bounds = [verdict.claimed, *([] if box else [verdict.found])]
        if any(bound < trivial if error else bound > trivial for bound in bounds):
            note = f"told as vacuous with {verdict.claimed:.9g}, it is {verdict.found:.9g} where a "
            note += f"constant answer reaches {trivial:.9g}"
            verdict = replace(verdict, holds=False, note=note)
        found.append(verdict)
    return found
