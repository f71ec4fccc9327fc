"""Run what roles say in the components' place, all at once: does the explanation carry the model?

    kept = (loss without any − loss explained) / (loss without any − loss whole)

*Without any* is every head and FFN at its mean over rows; *explained* is every component with a
confirmed role as its role's program (:mod:`probes.roles.surrogates`), and all others at their mean.
1 is as good as the model, 0 as bad as without heads and FFNs. Beside it stand

    own       the components that have roles themselves, in place of their programs
    others    programs of other roles of the same kind: other classes of keys, fitted as these
              were; other tokens; the FFN's table with its entries shuffled
    random    as many components themselves, drawn at random, instead of those that have roles

Numbers are fitted on some rows and judged on others. That an explanation carries a model does not
say that each part of it is needed: that is the roles' own test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb, nan
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.interventions.components import Component, components
from interp.run import Edit, Mean, Run, output_site
from interp.run.gate import admit_batch
from interp.stats.bootstrap import row_interval
from interp.tasks.base import Batch, Memory, answers_of, memories_of
from probes.roles.examined import Watch
from probes.roles.fitting import Fitting
from probes.roles.registry import ROLES
from probes.roles.surrogates import Fitted, Surrogate, fit_roles, others

_DRAWS = 40
"""The most random sets of components."""
_LEAST = 1e-6
"""The least loss without any component, beyond the model's own, of which a share can be told."""

_Edits = Mapping[Component, Sequence[Edit]]
Losses = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Kept:
    """The share of the effect of all heads and FFNs together that a changed model keeps.

    Attributes:
        share: (loss without any − loss of the changed model) / (loss without any − loss of the
            whole model): 1 is as good as the whole model, 0 as bad as all heads and FFNs at their
            means.
        low, high: Its 95 % interval over rows.
    """

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class ExplainedPart:
    """What is said of a component.

    Attributes:
        name: Such as ``L0H1`` or ``L0 FFN``.
        roles: Its confirmed roles.
        program: What runs in its place, in words; empty where it has no program.
        unnamed: What of it no role says: ``where it looks``, ``what it writes`` (these stay the
            model's own), or ``all`` (it is at its mean).
        repaired: What is kept with the component itself in place of its program or mean, and all
            else as explained.
    """

    name: str
    roles: tuple[str, ...]
    program: str
    unnamed: str
    repaired: float

    def __str__(self) -> str:
        if not self.program:
            named = f" ({', '.join(self.roles)}: no program)" if self.roles else ""
            return f"{self.name}: unnamed{named}, at its mean"
        own = f"; {self.unnamed} is the model's own" if self.unnamed else ""
        return f"{self.name}: {self.program}{own}    # {', '.join(self.roles)}"


@dataclass(frozen=True)
class Explanation:
    """A model as the programs of its roles, and how much of it these carry.

    Attributes:
        parts: Every head and FFN, with its program.
        kept: What is kept with all programs in their components' place.
        own: The same, with these components themselves.
        others: The mean of what programs of other roles keep; NaN without a program.
        random: The mean of what as many other components themselves keep; NaN where there is no
            other set.
        losses: Mean losses of the rows: ``whole``, ``explained``, ``own`` and ``none``.
    """

    parts: tuple[ExplainedPart, ...]
    kept: Kept
    own: Kept
    others: float
    random: float
    losses: Mapping[str, float]

    @property
    def unnamed(self) -> tuple[str, ...]:
        """Names of the components that have no program."""
        return tuple(part.name for part in self.parts if not part.program)

    @property
    def missing(self) -> str:
        """The component that would mend most if it were itself; empty if none would."""
        best = max(self.parts, key=lambda part: part.repaired, default=None)
        return best.name if best is not None and best.repaired > self.kept.share + 0.01 else ""

    def __str__(self) -> str:
        last = f"; most is missing of {self.missing}" if self.missing else ""
        return "\n".join([
            *map(str, self.parts),
            f"kept: {self.kept}; with the components themselves {self.own}",
            f"controls: programs of other roles {self.others:.3f}, random components "
            f"{self.random:.3f}{last}",
        ])  # fmt: skip


@dataclass(frozen=True)
class _Made:
    kind: str
    program: Fitted
    wrong: tuple[Fitted, ...]


def explain(
    model: Any,
    roles: pd.DataFrame,
    rows: Any = None,
    *,
    judged: Any = None,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
    watch: Watch = iter,
) -> Explanation:
    """Put the programs of confirmed roles in their components' place, and measure what is kept.

    Args:
        model: A hooked model.
        roles: Its role table, of :func:`~probes.roles.find.find_roles`.
        rows: The rows on which the programs' numbers are fitted, with targets; a shipped model's
            task gives them by default.
        judged: Other rows, on which the explanation is judged, of any length that the model takes;
            by default other rows of the task, or else every second one of ``rows``.
        memories, answers: As for ``find_roles``; a shipped model's task tells them by default.
        seed: Seed of the rows, the random sets, and the intervals.
        watch: A wrapper around the loops over components, one for fitting and one for judging,
            for a progress bar.

    Raises:
        ArgumentError: for a table without roles of this model, for rows that are missing or too
            few, and for a model that is no better than without heads and FFNs.
    """
    fit, judge, task = _rows(model, rows, judged, seed)
    memories, answers = memories or memories_of(task), answers or answers_of(task)
    with evaluating(model):
        every = components(model)
        confirmed = _confirmed_roles(roles, every)
        made = _fit_programs(Run(model, fit), watch(every), confirmed, (memories, answers))
        return _judge(Run(model, judge), every, confirmed, made, seed, watch)


def _rows(model: Any, rows: Any, judged: Any, seed: int) -> tuple[Batch, Batch, Any]:
    problems = Problems("explain")
    task: Any = getattr(getattr(model, "card", None), "task", None)
    rule = "must be given for a model without a task of its own"
    problems.need(rows is not None or task is not None, "rows", rule, rows, "rows with targets")
    problems.raise_if_any()
    fit = admit_batch(model, rows) if rows is not None else task.sample(512, seed=1000 + seed)
    if judged is not None:
        judge = admit_batch(model, judged)
    elif rows is None:
        judge = task.sample(128, seed=2000 + seed)
    else:
        fit, judge = _half(fit, 0), _half(fit, 1)
    few = min(len(fit), len(judge))
    problems.need(few >= 8, "rows", "must be at least 8 to fit, and 8 to judge", few, "add rows")
    problems.raise_if_any()
    return fit, judge, task


def _half(batch: Batch, first: int) -> Batch:
    return batch[slice(first, None, 2)]


def _confirmed_roles(roles: pd.DataFrame, every: Sequence[Component]) -> dict[Component, list[Any]]:
    problems = Problems("explain")
    lacking = {"component", "layer", "head", "role", "status"} - {*getattr(roles, "columns", ())}
    rule = "must be a role table of find_roles"
    problems.need(not lacking, "roles", rule, type(roles).__name__, "pl.find_roles(model, rows)")
    problems.raise_if_any()
    found: dict[Component, list[Any]] = {}
    kept = roles[(roles["status"] == "confirmed") & roles["component"].isin(["head", "ffn"])]
    rows: Sequence[Any] = [*kept.itertuples()]
    for row in rows:
        part = Component(str(row.component), int(row.layer), int(row.head))
        found.setdefault(part, []).append(row)
    foreign = ", ".join(sorted(part.name for part in found if part not in every))
    problems.need(not foreign, "roles", "must be of this model", foreign, "find its own roles")
    problems.raise_if_any()
    return found


def _fit_programs(
    run: Run,
    every: Iterable[Component],
    confirmed: Mapping[Component, Sequence[Any]],
    of_task: tuple[Sequence[Memory], Mapping[str, Sequence[str]] | None],
) -> dict[Component, list[_Made]]:
    """Fit the programs, component by component.

    Each is fitted to what its component does of what the programs before it leave: to mend what
    other components lack is not its part.
    """
    made: dict[Component, list[_Made]] = {}
    edits: list[Edit] = []
    for part in every:
        changed = run.with_(*edits)
        told = Fitting(None, run, changed, *of_task)
        programs = _programs(confirmed[part], told) if part in confirmed else []
        if programs:
            made[part] = programs
            edits += [edit for one in programs for edit in one.program.edits(changed)]
        else:
            edits.append(Mean(output_site(run.model, part.layer, part.head)))
    return made


def _programs(found: Sequence[Any], told: Fitting) -> list[_Made]:
    """The programs that the roles of one component make together."""
    parts: dict[str, list[tuple[Surrogate, Any]]] = {}
    for row in found:
        surrogate = ROLES[row.role].surrogate
        terms = surrogate and surrogate.of(replace(told, role=row))
        if surrogate and (terms or surrogate.kind == "ffn"):
            parts.setdefault(surrogate.kind, []).append((surrogate, terms))
    about, made = replace(told, role=found[0]), []
    for kind, some in parts.items():
        program = fit_roles(kind, [terms for _, terms in some], about)
        if program is None:
            continue
        wrong = others(kind, [surrogate for surrogate, _ in some], program, about)
        made.append(_Made(kind, program, tuple(wrong)))
    return made


def _judge(
    run: Run,
    every: Sequence[Component],
    confirmed: Mapping[Component, Sequence[Any]],
    made: Mapping[Component, Sequence[_Made]],
    seed: int,
    watch: Watch,
) -> Explanation:
    means = {part: Mean(output_site(run.model, part.layer, part.head)) for part in every}
    told = {part: [one.program for one in some] for part, some in made.items()}
    programs = _edits(run, every, told, means)

    def losses(kept: Sequence[Component], instead: _Edits) -> Losses:
        edits: list[Edit] = [means[part] for part in every if part not in kept]
        edits += [edit for part, some in instead.items() if part in kept for edit in some]
        changed = run.with_(*edits)
        found = changed.by_row(changed.value()).double().numpy()
        run.forget()
        return np.asarray(found)

    none, whole = losses([], {}), losses(every, {})
    problems, gap = Problems("explain"), float((none - whole).mean())
    rule = "must lose something when all heads and FFNs are at their mean"
    problems.need(gap > _LEAST, "model", rule, gap, "take rows that it was trained on")
    problems.raise_if_any()

    def share_interval(some: Losses) -> Kept:
        terms = np.stack([none - some, none - whole], 1)
        low, high = row_interval(terms, lambda mean: mean[:, 0] / mean[:, 1], seed=seed)
        return Kept(share(some), low, high)

    def share(some: Losses) -> float:
        return float((none - some).mean()) / gap

    named = [part for part in every if part in programs]
    own = [part for part in every if part in confirmed]
    explained, themselves = losses(named, programs), losses(own, {})
    sets = [share(losses(some, {})) for some in _sets(every, own, seed)]
    wrong = [share(losses(named, _edits(run, every, some, means))) for some in _wrong(made)]
    parts = []
    for part in watch(every):
        rest = {other: some for other, some in programs.items() if other != part}
        repaired = share(losses([*named, part], rest))
        parts.append(_part(part, confirmed.get(part, ()), made.get(part, ()), repaired))
    return Explanation(
        tuple(parts),
        share_interval(explained),
        share_interval(themselves),
        float(np.mean(wrong)) if wrong else nan,
        float(np.mean(sets)) if sets else nan,
        {
            "whole": float(whole.mean()),
            "explained": float(explained.mean()),
            "own": float(themselves.mean()),
            "none": float(none.mean()),
        },
    )


def _edits(
    run: Run,
    every: Sequence[Component],
    programs: Mapping[Component, Sequence[Fitted]],
    means: Mapping[Component, Edit],
) -> dict[Component, list[Edit]]:
    """What runs in each component's place, each told what those before it leave."""
    found: dict[Component, list[Edit]] = {}
    before: list[Edit] = []
    for part in every:
        changed = run.with_(*before)
        own = [edit for one in programs.get(part, ()) for edit in one.edits(changed)]
        found |= {part: own} if own else {}
        before += own or [means[part]]
    return found


def _part(
    part: Component, rows: Sequence[Any], programs: Sequence[_Made], repaired: float
) -> ExplainedPart:
    names = tuple(dict.fromkeys(row.role for row in rows))
    words = "; ".join(one.program.words for one in programs)
    kinds = [one.kind for one in programs]
    lacking = {"where": "where it looks", "what": "what it writes"}
    left = [said for kind, said in lacking.items() if part.kind == "head" and kind not in kinds]
    return ExplainedPart(
        part.name, names, words, " and ".join(left) if programs else "all", repaired
    )


def _wrong(made: Mapping[Component, Sequence[_Made]]) -> Iterator[dict[Component, list[Fitted]]]:
    """Yield every component's programs of other roles, as often as there are others."""
    for turn in range(max((len(one.wrong) for some in made.values() for one in some), default=0)):
        yield {
            part: [one.wrong[turn % len(one.wrong)] for one in some] for part, some in made.items()
        }


def _sets(
    every: Sequence[Component], own: Sequence[Component], seed: int
) -> Iterator[list[Component]]:
    """Yield sets of as many components other than the given one: all, or some at random."""
    if comb(len(every), len(own)) <= _DRAWS:
        yield from ([*some] for some in combinations(every, len(own)) if [*some] != [*own])
        return
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        some = [every[i] for i in sorted(rng.choice(len(every), len(own), replace=False))]
        if some != own:
            yield some
