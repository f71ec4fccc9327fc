"""Roles on a fixed-memory task, from a table of scores of a one-layer model.

:mod:`probes.roles.extraction` finds the same roles at any depth, from the model itself.

A component is ``confirmed`` in a role when what it does (behaviour) and what is lost without it
(cause) both pass; with behaviour alone it is a ``candidate``; else it has no row. Every test needs
a q below the level *and* a score above a floor, because almost any trained component differs from
its null. (Belonging to a group has floors only: in a large group every share is small.)

    memory-location (lag T)
        behaviour  the layer's kernel for x_{t−T} concentrates at lag T and the head is of its
                   group; x_{t−T} is decodable after the layer's attention and was not before
        cause      without the group x_{t−T} is less decodable there and the loss rises, and
                   without the head alone it is less decodable too
    memory-correction (lag T)
        behaviour  as memory-location, but the head only cancels what the group leaks at other lags
        cause      without the head alone x_{t−T} is less decodable there and the loss rises
    readout (of f)
        behaviour  f is linearly decodable after the FFN and less so before, while a nonlinear
                   probe reads f before: the arguments are there, the form is new
        cause      without the FFN f is less decodable, its arguments nearly as much as before,
                   and the loss rises

A confirmed role says what a component does on this task's inputs; elsewhere it may do more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probes.roles.decision import ROLE_COLUMNS

__all__ = ["Floors", "decide_roles"]


@dataclass(frozen=True)
class Floors:
    """The level for q and the least effect of each test.

    Attributes:
        q: False-discovery rate that every test must stay below.
        concentration: Of a layer's kernel at its lag.
        share: Of a head in the kernel's absolute weight.
        part: Of a head's own kernel at the lag, relative to the sum there.
        decodable: Squared correlation that counts as decodable.
        absent: Squared correlation that counts as not decodable.
        gain: Rise in decodability that counts.
        drop: Fall in decodability that counts as lost.
        kept: Largest fall that counts as kept.
        loss: Rise of the loss that counts, as a share of the target's variance.
    """

    q: float = 0.01
    concentration: float = 0.8
    share: float = 0.05
    part: float = 0.001
    decodable: float = 0.9
    absent: float = 0.1
    gain: float = 0.2
    drop: float = 0.2
    kept: float = 0.1
    loss: float = 0.05


Score = Mapping[str, float]
"""``score``, ``p`` and ``q`` of one row of a head table."""


@dataclass(frozen=True)
class _Cause:
    """What is lost: drops in decodability, the first of which is the role's strength; a rise of
    the loss; ``lost`` is the most that the arguments lose."""

    drops: tuple[Score, ...]
    loss: Score
    lost: float = 0.0

    def holds(self, floors: Floors) -> bool:
        dropped = all(d["score"] >= floors.drop and d["q"] < floors.q for d in self.drops)
        worse = self.loss["score"] >= floors.loss and self.loss["q"] < floors.q
        return dropped and worse and self.lost <= floors.kept


class _Scores:
    """Look-up of the one row with given values."""

    def __init__(self, table: pd.DataFrame) -> None:
        groups = table["group"].where(table["component"] == "group", "")
        table = table.assign(group=groups)
        keys = ["metric", "component", "layer", "head", "group", "circuit", "target"]
        names = table[keys].itertuples(index=False, name=None)
        values = table[["score", "p", "q"]].itertuples(index=False, name=None)
        self.rows: dict[tuple[Any, ...], Score] = {
            name: {"score": score, "p": p, "q": q}
            for name, (score, p, q) in zip(names, values, strict=True)
        }

    def __call__(
        self, metric: str, component: str, layer: int, target: str, head: int = -1, *,
        site: str = "", group: str = "",
    ) -> Score:  # fmt: skip
        return self.rows[metric, component, layer, head, group, site, target]


def decide_roles(
    table: pd.DataFrame,
    memories: Mapping[str, int],
    answer: str,
    arguments: Sequence[str],
    *,
    floors: Floors | None = None,
) -> pd.DataFrame:
    """Decide every head's and FFN's role from a table of scores.

    Args:
        table: Head tables of :mod:`probes.layerwise`, :mod:`probes.kernels` and
            :mod:`probes.ablation` of one model, together.
        memories: Latent → its lag.
        answer: The latent that is the task's answer.
        arguments: The latents that the answer reads.
        floors: Levels and least effects.

    Returns:
        One row a component and role, columns :data:`ROLE_COLUMNS`; ``strength`` is the
        decodability lost and ``effect`` the rise of the loss without the component (for heads:
        without its group), p and q the largest of the tests it rests on.
    """
    floors = floors or Floors()
    scores = _Scores(table)
    parts = table[(table["metric"] == "loss_increase") & (table["component"] != "group")]
    rows: list[dict[str, Any]] = []
    for component, layer, head in parts[["component", "layer", "head"]].itertuples(index=False):
        if component == "head":
            for memory, lag in memories.items():
                rows += _memory_location(scores, layer, head, memory, lag, floors)
        else:
            rows += _readout(scores, layer, answer, arguments, floors)
    return pd.DataFrame(rows, columns=list(ROLE_COLUMNS))


def _memory_location(
    scores: _Scores, layer: int, head: int, memory: str, lag: int, floors: Floors
) -> Iterator[dict[str, Any]]:
    share = scores("kernel_share", "head", layer, memory, head)["score"]
    part = scores("kernel_part", "head", layer, memory, head)["score"]
    if share < floors.share:
        return
    corrects = part < floors.part
    mid, before = f"blocks.{layer}.hook_resid_mid", _site_before(layer, scores)
    kernel = scores("kernel_concentration", "group", layer, memory, group=memory)
    after = scores("decodability", "layer", layer, memory, site=mid)
    earlier = scores("decodability", "layer", layer - 1, memory, site=before)
    alone = scores("decodability_drop", "head", layer, memory, head)
    drop, loss = alone, scores("loss_increase", "head", layer, "output", head)
    if not corrects:
        drop = scores("decodability_drop", "group", layer, memory, group=memory)
        loss = scores("loss_increase", "group", layer, "output", group=memory)
    behaviour = (
        kernel["score"] >= floors.concentration
        and kernel["q"] < floors.q
        and after["score"] >= floors.decodable
        and after["q"] < floors.q
        and earlier["score"] <= floors.absent
    )
    evidence = (
        f"the layer's kernel for {memory} puts {kernel['score']:.1%} of its weight on lag {lag}, "
        f"and {share:.1%} of the heads' absolute weight is this head's; {memory} becomes decodable "
        f"here (r² {earlier['score']:.2f} → {after['score']:.2f}); without this head r² is "
        f"{after['score'] - alone['score']:.2f}, without "
        f"{'it' if corrects else 'its group'} {after['score'] - drop['score']:.2f} and the loss is "
        f"up by {_percent(loss)} of the target's variance"
    )
    if behaviour:
        where = {"component": "head", "layer": layer, "head": head, "group": memory}
        cause, role = _Cause((drop, alone), loss), "memory-location"
        if corrects:
            role = "memory-correction"
            evidence = f"it has no part of its own at lag {lag}; {evidence}"
        yield _decision(role, memory, where, (kernel, after), cause, floors, evidence)


def _readout(
    scores: _Scores, layer: int, answer: str, arguments: Sequence[str], floors: Floors
) -> Iterator[dict[str, Any]]:
    mid, post = f"blocks.{layer}.hook_resid_mid", f"blocks.{layer}.hook_resid_post"
    before = scores("decodability", "layer", layer, answer, site=mid)
    there = scores("nonlinear_decodability", "layer", layer, answer, site=mid)
    after = scores("decodability", "layer", layer, answer, site=post)
    drop = scores("decodability_drop", "ffn", layer, answer)
    loss = scores("loss_increase", "ffn", layer, "output")
    lost = max(scores("decodability_drop", "ffn", layer, name)["score"] for name in arguments)
    behaviour = (
        after["score"] >= floors.decodable
        and after["q"] < floors.q
        and after["score"] - before["score"] >= floors.gain
        and there["score"] >= floors.decodable
        and there["q"] < floors.q
    )
    evidence = (
        f"{answer} becomes linearly decodable here (r² {before['score']:.2f} → "
        f"{after['score']:.2f}) while a nonlinear probe reads it before (r² {there['score']:.2f}); "
        f"without this FFN r² is {after['score'] - drop['score']:.2f}, its arguments lose at most "
        f"{max(lost, 0.0):.2f}, and the loss rises by {_percent(loss)} of the target's variance"
    )
    if behaviour:
        where = {"component": "ffn", "layer": layer, "head": -1, "group": ""}
        cause = _Cause((drop,), loss, lost)
        yield _decision("readout", answer, where, (after, there), cause, floors, evidence)


def _decision(
    role: str,
    target: str,
    where: Mapping[str, Any],
    behaviour: Sequence[Score],
    cause: _Cause,
    floors: Floors,
    evidence: str,
) -> dict[str, Any]:
    tests = (*behaviour, *cause.drops, cause.loss)
    return {
        **where,
        "role": role,
        "target": target,
        "status": "confirmed" if cause.holds(floors) else "candidate",
        "strength": cause.drops[0]["score"],
        "p": max(test["p"] for test in tests),
        "q": max(test["q"] for test in tests),
        "effect": cause.loss["score"],
        "evidence": evidence,
    }


def _percent(loss: Score) -> str:
    return f"{loss['score']:.0%}"


def _site_before(layer: int, scores: _Scores) -> str:
    """Where the residual stream enters a layer: the last probed site of the layer before."""
    sites = ("hook_resid_post", "hook_resid_mid")
    names = [f"blocks.{layer - 1}.{site}" for site in sites] if layer else ["hook_embed"]
    probed = {key[5] for key in scores.rows if key[0] == "decodability"}
    return next(name for name in names if name in probed)
