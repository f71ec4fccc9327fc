"""Does a model work as the proof says? The proof's statements are checked one by one, and summed up
in one number.

A :class:`~interp.proofs.mechanism.Mechanism` says which kind of component serves what. Each of its
statements is checked against a model's role table: *x_{t−T} is extracted by attention heads*, *each
memory owns its heads*, *f is computed by an FFN that comes after them*, *round r comes after round
r − 1*, *a head is a previous-token head, and the induction head comes after it*, *a head's QK is
aI*, *this formula is readable only after what it counts*. A statement holds if confirmed roles (for
formulas: probes along the layers) say so. Its ``strength`` is that of the strongest such component;
NaN for a statement that is only true or false. Its ``score`` is the strength limited to [0, 1] (1
for a statement that is only true or false), and 0 if it does not hold. q is the least q of those
roles; for a statement that is only true or false, the largest of the roles it is about, and 1 if it
does not hold. A formula is readable from the first place on at which a probe decodes it, against
permuted rows. It counts if it is decoded better there than from a thousand models with fresh
weights; q is of that test.

    agreement = (S − S_random) / (S_construction − S_random),   S the mean score of the statements

is 1 for the construction and 0 for models with random weights, and at most 1: a model whose roles
are stronger than the construction's does not work more as the proof says than the proof does. The
interval accounts for the spread over draws of rows and for that over random models.

Trained models are judged by kind and order of their components, not by how many heads serve a
memory or in which layer. Disagreement means that another mechanism was found, not that the proof is
wrong. What a proof says of components that have no role (snaps, fixed positions) is not among the
statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import stdtrit

from interp.errors import Problems, refuse_unless
from interp.hooks.capture import evaluating, model_device
from interp.interventions.components import Component
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Construction, Mechanism
from interp.stats.head_table import adjust
from interp.tasks.base import Batch, answers_of, memories_of
from probes.roles.effects import Effects
from probes.roles.find import examine, role_table
from probes.roles.gathering import evidence_of
from probes.roles.profile import TASK
from probes.roles.reader import Reader

_LEVEL = 0.01
_EFFECT, _ANSWERED = 0.1, 0.5
_LOCATED = ("memory-location", "memory-correction")
_KERNELS = ("memory-location", "memory-kernel")

_ONE_HEAD = {
    "previous-token": "a head attends to the previous token",
    "duplicate-token": "a head attends to earlier equal tokens",
    "induction": "a head attends to what followed earlier equal tokens",
    "sink": "a head attends to the first position",
    "uniform": "a head attends evenly to everything before",
    "local": "a head attends to the last few positions",
    "dense": "a head attends in a way that has no name",
    "symbol-equality": "a head's QK circuit is aI on the tokens",
    "copying": "a head's OV circuit is bI on the tokens",
}


@dataclass(frozen=True)
class Agreement:
    """How far a model works as a proof does: one number for all its statements.

    Attributes:
        score: The agreement: 0 for random weights, 1 for the construction.
        low, high: The 95 % interval of the score.
        parts: The statements, with their scores averaged over the draws.
    """

    score: float
    low: float
    high: float
    parts: pd.DataFrame


def agree(
    model: Any,
    construction: Construction,
    *,
    rows: int = 96,
    draws: int = 3,
    random: int = 4,
    seed: int = 0,
) -> Agreement:
    """Measure whether a model does what a proof does, on rows of the construction's task.

    Args:
        model: A model of the task's inputs: trained, constructed, or in a random basis.
        construction: The construction whose mechanism and task are used.
        rows: How many rows each draw has.
        draws: How many draws of rows the model is measured on; the construction is measured on the
            first.
        random: How many re-initialised models of the same shapes are measured, on a draw of rows
            each.
        seed: Seed of the rows and of the random models.

    Raises:
        ArgumentError: as :func:`overall`, or for a model without a spec, which has no fresh ones.
    """
    rule, advice = "must be a Construction", "pl.construct(task) gives one"
    good = isinstance(construction, Construction)
    refuse_unless(good, "construction", rule, construction, advice)
    problems, spec = Problems("agree"), getattr(model, "spec", None)
    problems.need(spec is not None, "model", "must have a spec", type(model).__name__, "use ours")
    problems.raise_if_any()
    task, mechanism = construction.task, construction.mechanism
    batches = [task.sample(rows, seed=seed + i) for i in range(max(draws, random))]
    fresh = [SequenceTransformer(model.spec, seed=seed + 500 + i) for i in range(random)]
    return overall(
        [statements_of(model, mechanism, task, batch) for batch in batches[:draws]],
        [statements_of(m, mechanism, task, b) for m, b in zip(fresh, batches, strict=False)],
        statements_of(construction.model, mechanism, task, batches[0]),
    )


def statements_of(
    model: Any, mechanism: Mechanism, task: Any, batch: Batch, *, seed: int = 0
) -> pd.DataFrame:
    """Check the statements of a mechanism (:func:`agreement`) on a model and rows of its task.

    Args:
        model: The hooked model.
        mechanism: The proof's mechanism.
        task: The task, with its memories and answers.
        batch: Rows of the task.
        seed: Seed of the permutations and of the freshly initialised models.
    """
    names = [p.target for p in mechanism.parts if p.role == "formula" and p.target in batch.latents]
    roles, layers = roles_and_layers(model, batch, task, names, seed=seed)
    return agreement(mechanism, roles, layers=layers, answered=answered_share(model, batch))


def roles_and_layers(
    model: Any, batch: Batch, task: Any, names: Sequence[str], *, seed: int = 0
) -> tuple[pd.DataFrame, dict[str, Readable]]:
    """Find the roles of a model on a task, and the first layer at which each formula is decodable.

    Args:
        model: The hooked model.
        batch: Rows of the task.
        task: The task, which says which memories and answers there are.
        names: The latents that hold the mechanism's formulas.
        seed: Seed of the permutations and of the freshly initialised models.

    Returns:
        The role table, and formula → where it is first decodable; formulas that are nowhere
        decodable are left out.
    """
    known, layers = (memories_of(task), answers_of(task)), dict[str, Readable]()
    read = bool(names) or any(map(bool, known))
    with evaluating(model):
        evidence = evidence_of(
            model, batch, TASK, latents=read, memories=known[0], answers=known[1], seed=seed
        )
        if names:
            reader = Reader(evidence, Effects(evidence))
            sites = {name: reader.first_site(name, level=_LEVEL) for name in names}
            for name, site in sites.items():
                if site is not None:
                    layers[name] = Readable(site[0], reader.beyond_fresh(site[1], name).p)
        return role_table(examine(evidence, *known), TASK), layers


@torch.no_grad()
def answered_share(model: Any, batch: Batch) -> float:
    """Return the share of the targets' variance that the output explains; 0 if their shapes differ
    or targets are not real."""
    output, targets = model(batch.inputs.to(model_device(model))).cpu(), batch.targets
    if output.shape != targets.shape or not targets.is_floating_point():
        return 0.0
    found, wanted = output[batch.mask].double(), targets[batch.mask].double()
    spread = float((wanted - wanted.mean(0)).square().sum())
    return max(1 - float((found - wanted).square().sum()) / spread, 0.0) if spread > 0 else 0.0


@dataclass(frozen=True)
class Readable:
    """The first layer after which a formula is decodable, compared with models with fresh weights.

    Attributes:
        layer: The layer; −1 for the start of the residual stream.
        p: The p-value of the null that the formula is decoded as well from the activations of
            freshly initialised models at the same hook.
    """

    layer: int
    p: float


def agreement(
    mechanism: Mechanism,
    roles: pd.DataFrame,
    *,
    layers: Mapping[str, Readable] | None = None,
    answered: float = 0.0,
) -> pd.DataFrame:
    """Check every statement of a mechanism against a model's role table.

    Args:
        mechanism: The proof's mechanism.
        roles: The role table from :func:`probes.roles.find_roles`.
        layers: Where formulas are decodable, from :func:`roles_and_layers`, for mechanisms whose
            FFNs compute formulas; a formula that is missing is decodable nowhere. By default there
            are no statements about formulas.
        answered: Share of the targets' variance that the output explains; for couplings.

    Returns:
        Columns ``statement``, ``holds``, ``strength``, ``score``, ``q`` and ``by`` (the components,
        in words).
    """
    confirmed = roles[(roles["status"] == "confirmed") & (roles["component"] != "group")]
    rows = [
        *_statements(mechanism, confirmed),
        *_rounds(mechanism, confirmed),
        *_heads(mechanism, confirmed),
        *_coupling(mechanism, roles, answered),
        *(_formulas(mechanism, layers) if layers is not None else ()),
    ]
    return pd.DataFrame(rows, columns=["statement", "holds", "strength", "score", "q", "by"])


def overall(
    draws: Sequence[pd.DataFrame],
    random: Sequence[pd.DataFrame],
    construction: pd.DataFrame,
) -> Agreement:
    """Compute the agreement from the statements of a model, of random models and of the
    construction.

    Args:
        draws: The model's :func:`agreement` on each of two or more draws of rows.
        random: The statements of two or more re-initialised models of the same shapes.
        construction: The construction's own statements.

    Raises:
        ArgumentError: for fewer than two tables, or a construction that is no better than random.
    """
    problems = Problems("overall")
    for name, tables in (("draws", draws), ("random", random)):
        problems.need(len(tables) >= 2, name, "must be two or more", len(tables), "measure more")
    problems.raise_if_any()
    found, null = (np.array([t["score"].mean() for t in tables]) for tables in (draws, random))
    unit = float(construction["score"].mean()) - float(null.mean())
    rule, advice = "must score above random models", "its roles were not found"
    problems.need(unit > 0, "construction", rule, unit, advice)
    problems.raise_if_any()
    score = (found.mean() - null.mean()) / unit
    spread = found.var(ddof=1) / len(found) + null.var(ddof=1) * (1 + 1 / len(null))
    reach = float(stdtrit(min(len(found), len(null)) - 1, 0.975) * np.sqrt(spread) / unit)
    parts = draws[0].assign(score=np.mean([t["score"].to_numpy() for t in draws], axis=0))
    low, score, high = (min(float(one), 1.0) for one in (score - reach, score, score + reach))
    return Agreement(low=low, score=score, high=high, parts=parts)


def _statements(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the statements about who extracts the memories, and what is read out after them."""
    heads = confirmed[confirmed["role"] == "memory-location"]
    readouts = confirmed[confirmed["role"] == "readout"]
    memories = {part.target: part for part in mechanism.parts if part.role in _KERNELS}
    for memory, part in memories.items():
        serving = heads[heads["target"] == memory]
        where = f"lag {part.lag}" if part.lag is not None else "its location"
        where = "lags by its kernel" if part.role == "memory-kernel" else where
        yield _row(f"{memory} is extracted by attention heads that select {where}", serving)
    if memories:
        yield _ownership(confirmed, set(memories))
    targets = [part.target for part in mechanism.parts if part.role == "readout"]
    for target in dict.fromkeys(targets):
        serving = readouts[readouts["target"] == target]
        if not memories or target.startswith("t_"):
            yield _row(f"{target} is computed by an FFN", serving)
            continue
        found = heads[heads["target"].isin(memories)].groupby("target")["layer"].min()
        complete = len(found) == len(memories)
        after = serving[serving["layer"] >= found.max()] if complete else serving.iloc[:0]
        yield _row(f"{target} is computed by an FFN after the memories are there", after)


def _ownership(confirmed: pd.DataFrame, memories: set[str]) -> dict[str, Any]:
    acting = confirmed[confirmed["role"].isin(_LOCATED)]
    located = set(acting.loc[acting["role"] == "memory-location", "target"])
    owners = acting.groupby(["layer", "head"])["target"].nunique()
    alone = len(owners) > 0 and bool((owners == 1).all()) and located == memories
    by = "; ".join(f"{name}: {_names(group)}" for name, group in acting.groupby("target"))
    return _fact("each memory owns its heads", alone, by, acting["q"].max())


def _rounds(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the statements that each nested round comes after the one before."""
    rounds: dict[int, set[str]] = {}
    for part in mechanism.parts:
        if part.round is not None and part.role == "memory-location":
            rounds.setdefault(part.round, set()).add(part.target)
    found = confirmed[confirmed["role"] == "nested-round"]
    layers = {r: found.loc[found["target"].isin(names), "layer"] for r, names in rounds.items()}
    for r in sorted(rounds)[1:]:
        before, here = layers.get(r - 1, layers[r].iloc[:0]), layers[r]
        known = len(before) > 0 and len(here) == len(rounds[r])
        holds = known and bool(before.max() < here.min())
        by = f"layers {sorted(before)} and {sorted(here)}" if known else ""
        both = found[found["target"].isin(rounds[r] | rounds.get(r - 1, set()))]
        yield _fact(f"round {r} comes after round {r - 1}", holds, by, both["q"].max())


def _heads(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the statements about heads that are known by where they attend or by their weights."""
    roles = {part.role for part in mechanism.parts if part.component == "head"}
    for role, statement in _ONE_HEAD.items():
        if role in roles:
            yield _row(statement, confirmed[confirmed["role"] == role])
    if {"induction", "previous-token"} <= roles:
        both = confirmed[confirmed["role"].isin(["previous-token", "induction"])]
        before, after = (
            both.loc[both["role"] == role, "layer"] for role in ("previous-token", "induction")
        )
        known = len(before) > 0 and len(after) > 0
        holds = known and bool(before.min() < after.min())
        by = f"layers {before.min()} and {after.min()}" if known else ""
        yield _fact(
            "the induction head comes after a previous-token head", holds, by, both["q"].max()
        )


def _coupling(
    mechanism: Mechanism, roles: pd.DataFrame, answered: float
) -> Iterator[dict[str, Any]]:
    """Yield the statement that a head couples positions and the answer follows it.

    In so small a model fresh heads attend as unevenly, so that candidates count too, and the score
    is the share of the answer's variance that the output explains.
    """
    if any(part.role == "coupling" for part in mechanism.parts):
        lost = roles[["effect", "effect_of_group"]].max(axis=1)
        serving = roles[(roles["role"] == "dense") & (lost >= _EFFECT)]
        row = _row("a head attends unevenly, and the answer follows it", serving)
        good = row["holds"] and answered >= _ANSWERED
        yield row | {"holds": good, "strength": answered, "score": answered if good else 0.0}


def _formulas(mechanism: Mechanism, layers: Mapping[str, Readable]) -> Iterator[dict[str, Any]]:
    """Yield the statements that nested formulas become decodable in the order of their depth, and
    not in fresh models."""
    depth = {p.target: p.layer for p in mechanism.parts if p.role == "formula"}
    levels = sorted(set(depth.values()))
    later = [name for level in levels[1:] for name, at in depth.items() if at == level]
    adjusted = adjust(np.array([layers[name].p if name in layers else 1.0 for name in later]))
    for name, q in zip(later, adjusted.tolist(), strict=True):
        before = [other for other, at in depth.items() if at < depth[name]]
        known = all(other in layers for other in before)
        last = max((layers[other].layer for other in before if other in layers), default=-1)
        there = name in layers
        holds = known and there and last < layers[name].layer and q < _LEVEL
        by = f"layer {layers[name].layer} after {last}" if there else ""
        yield _fact(f"{name} is readable only after what it counts", holds, by, q)


def _row(statement: str, serving: pd.DataFrame) -> dict[str, Any]:
    strength = float(serving["strength"].abs().max()) if len(serving) else 0.0
    return {
        "statement": statement,
        "holds": len(serving) > 0,
        "strength": strength,
        "score": min(max(strength, 0.0), 1.0),
        "q": float(serving["q"].min()) if len(serving) else 1.0,
        "by": _names(serving),
    }


def _fact(statement: str, holds: bool, by: str, q: float) -> dict[str, Any]:
    """Return a statement that is only true or false, with the q of the roles that it rests on."""
    return {
        "statement": statement,
        "holds": holds,
        "strength": float("nan"),
        "score": float(holds),
        "q": q if holds else 1.0,
        "by": by,
    }


def _names(rows: pd.DataFrame) -> str:
    columns = rows[["component", "layer", "head"]].itertuples(index=False, name=None)
    return ", ".join(Component(*values).name for values in columns)
