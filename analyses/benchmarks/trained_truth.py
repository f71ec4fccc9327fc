"""What exchange says that a trained model's components do, as claims that roles are compared with.

    held by a head                          role it must have
    x[t−T], x[t−t_i], token[t−t_i] (output)   memory-location of that memory
    the same of nested rounds                 nested-round of the layer
    ρ*x, by a layer's heads                   memory-location of the heads with a part
    previous (output)                         previous-token
    several memories, or every lag's tokens, by a layer's heads of which none holds one memory alone
                                            memory-mixture of the heads that have a part in it
    label by attention, of a task of equal symbols   symbol-equality of the heads with a part
    answer by output, of a task that copies          copying of the heads with a part
    source by attention, previous before it          induction
    a count (the last layer that holds it)  counting
    the weights of an average (attention)   dense

and of an FFN that holds a location or the answer: readout. A head has a part in a group if its own
exchange changes more than a tenth of what the group's does; where none does, all have.

Not scored are components that move the answer and hold no latent that the task names (of these
nothing is known), those that hold a latent which a later layer holds as well (an earlier exchange
carries its causes), and what a role says besides: that a head which holds a memory at lag 1 also
attends to the token before, that one which copies or compares attends unevenly, that one which
writes the answer copies it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analyses.benchmarks.scoring import Claim

__all__ = ["claims_of"]

Where = tuple[str, int, int]
_CONTENT = re.compile(r"(?:x|token)\[(t-(?:t_)?\d+)\]")
_COUNTS = re.compile(r"E\d+(_counted)?|last")
_PART = 0.1
_ATTENDING = ("previous-token", "sink", "local", "dense", "uniform", "duplicate-token")
_MIXED = ("memories", "window")
_GROUPS: Mapping[str, tuple[str, str]] = {
    "label": ("attention", "symbol-equality"),
    "answer": ("output", "copying"),
}
"""Latent of a template task → the kind of circuit that carries it, and the role of its heads."""


def claims_of(table: pd.DataFrame, task: Any) -> tuple[set[Claim], set[Where], set[Claim]]:
    """Derive what is true of a model from exchanging its latents.

    Args:
        table: The table of :func:`probes.locate.locate`.
        task: The model's task.

    Returns:
        The true claims; the components about which nothing is known; and the exempt claims.
    """
    kind = task.to_dict()["kind"]
    held = table[table["verdict"] == "holds"]
    claims = {*_of_heads(held, kind), *_of_ffns(held), *_of_groups(table, held, kind)}
    known = {claim[:3] for claim in claims}
    moved = table[table["verdict"].isin(("holds", "part", "otherwise"))]
    seen = {where for row in _rows(moved) for where in _places(row)}
    also = {(*where, role, "") for where in known for role in _ATTENDING}
    spoken = held[(held["latent"] == "answer") & (held["circuit"] == "output")]
    also |= {(*where, "copying", "") for row in _rows(spoken) for where in _places(row)}
    return claims, seen - known, also - claims


def _rows(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples())


def _places(row: Any) -> Iterator[Where]:
    """Yield the heads, or the FFN, that an exchanged component consists of; none for a whole
    layer."""
    if row.component == f"L{row.layer}":
        return
    heads = [int(head) for head in row.heads.split("+") if head]
    yield from (("head", int(row.layer), head) for head in heads)
    if not heads:
        yield "ffn", int(row.layer), -1


def _of_heads(held: pd.DataFrame, kind: str) -> Iterator[Claim]:
    single = held[held["heads"].str.fullmatch(r"\d+") & held["component"].str.contains("H")]
    induces = "previous" in set(single["latent"])
    for latent, rows in single.groupby("latent", sort=False):
        content, last = _CONTENT.fullmatch(str(latent)), rows["layer"].max()
        for row in _rows(rows):
            head = ("head", int(row.layer), int(row.heads))
            if content and row.circuit == "output":
                name = f"x[{content[1]}]"
                yield (*head, "memory-location", name)
                number = content[1].removeprefix("t-t_")
                if number.isdigit() and _is_nested(held, int(number)):
                    yield "layer", int(row.layer), -1, "nested-round", name
            elif latent == "source" and row.circuit == "attention" and induces:
                yield (*head, "induction", "")
            elif latent == "previous" and row.circuit == "output":
                yield (*head, "previous-token", "")
            elif latent == "attention" and row.circuit == "attention" and "coupling" in kind:
                yield (*head, "dense", "")
            elif _COUNTS.fullmatch(str(latent)) and row.circuit == "output" and row.layer == last:
                yield (*head, "counting", "")


def _is_nested(held: pd.DataFrame, number: int) -> bool:
    """Return whether a round of a nested memory passes an address on, or has one from the round
    before."""
    rounds = {f"token[t-t_{number}]", f"token[t-t_{number - 1}]"}
    return bool(rounds & set(held["latent"]))


def _of_ffns(held: pd.DataFrame) -> Iterator[Claim]:
    for row in _rows(held[(held["heads"] == "") & (held["component"] != "")]):
        if row.latent == "f" or re.fullmatch(r"t_\d+", row.latent):
            yield "ffn", int(row.layer), -1, "readout", row.latent


def _of_groups(table: pd.DataFrame, held: pd.DataFrame, kind: str) -> Iterator[Claim]:
    whole = held["component"].str.fullmatch(r"L\d+ heads") | (
        held["heads"].str.fullmatch(r"\d+") & held["component"].str.contains("H")
    )
    for row in _rows(held[whole]):
        circuit, role = _GROUPS.get(row.latent, ("", ""))
        if kind.startswith("template") and row.circuit == circuit:
            yield from (("head", int(row.layer), h, role, "") for h in _parts(table, row))
        average = re.fullmatch(r"rho_\d+\*x", str(row.latent)) and row.circuit == "output"
        at = int(row.layer)
        if average:
            parts = _parts(table, row)
            yield from (("head", at, h, "memory-location", str(row.latent)) for h in parts)
        if row.latent in _MIXED and "+" in row.heads and not _has_own_memory(held, row):
            yield from (("head", at, h, "memory-mixture", "") for h in _parts(table, row))


def _has_own_memory(held: pd.DataFrame, group: Any) -> bool:
    """Return whether some single head of the group's layer holds a memory of its own."""
    mine = held[(held["layer"] == group.layer) & held["heads"].str.fullmatch(r"\d+")]
    return bool(mine["latent"].str.fullmatch(_CONTENT.pattern).any())


def _parts(table: pd.DataFrame, group: Any) -> list[int]:
    """Return the heads of a group whose own exchange moves the output, or all of them if none does:
    such heads do the same, and any of them may stand in for another."""
    same = (table["latent"] == group.latent) & (table["circuit"] == group.circuit)
    heads = list(map(int, group.heads.split("+")))
    moved = {}
    for head in heads:
        mine = table[same & (table["layer"] == group.layer) & (table["heads"] == str(head))]
        moved[head] = float(mine["changed"].max())
    return [head for head in heads if moved[head] > _PART] or heads
