"""Are heads that back each other up found, as one group each, among decoys that attend alike?

    python -m analyses benchmark backups [--out FILE.json] [--workers N] [--tune] [--only WORD]

Every model is a circuit of :mod:`analyses.benchmarks.circuits` in GPT-2's format in which two or
three heads do one job: each does all of it, so that none is missed alone, or each its part. All
other heads, at least twenty, attend as those do and write where nobody reads. A group is found if a
row of the role table names exactly its members, and each member is confirmed in it.

JSON keys: ``found`` (share of the planted groups), ``pairs`` and ``triples`` (the same of each),
``decoys_grouped`` (share of the decoys that are in a group), ``models``, ``decoys``, ``shares``
(the largest difference of a share from an even one), ``wrong`` and ``seconds``. ``--tune`` runs
the models that the search was tuned on: other sizes and seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses.benchmarks.circuits import CIRCUITS, Shared, Sizes, construct_circuit
from analyses.benchmarks.known import Built, load_back
from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.result import write_result
from prooflens.roles import LANGUAGE, find_roles, rows_of, token_trials

__all__ = ["Backup", "backups", "main", "measure"]

_DECOYS = 20

_JOBS = (
    ("induction", 0, "previous-token"),
    ("induction", 1, "induction"),
    ("pointer", 0, "duplicate-token"),
    ("previous-copy", 0, "previous-token"),
    ("window-copy", 0, "positional"),
)
"""The jobs that several heads share: circuit, layer of the job, and its role."""

_SIZES = ((20, 20), (26, 24), (32, 22))
_TUNED = ((22, 21),)
"""(Vocabulary, length) of each model. Of the scored sizes the first two are models in which two
heads share a job, and the third one in which three do; the tuned size is used for both."""


@dataclass(frozen=True)
class Backup:
    """A model in which several heads share a job.

    Attributes:
        name: What is planted, in words.
        circuit, role: The circuit, and the role of the shared job.
        sizes: The sizes of the model.
        shared: The job, and how it is shared.
        seed: Seed of the weights, the rows and the nulls.
    """

    name: str
    circuit: str
    role: str
    sizes: Sizes
    shared: Shared
    seed: int


def backups(*, tuning: bool = False) -> list[Backup]:
    """Return the models in which heads share a job: for scoring twenty pairs and ten triples, for
    tuning two of each for every job."""
    found: list[Backup] = []
    sizes = [(2, size) for size in (_TUNED if tuning else _SIZES[:2])]
    sizes.append((3, _TUNED[0] if tuning else _SIZES[2]))
    for circuit, layer, role in _JOBS:
        for heads, (vocabulary, length) in sizes:
            for split in (False, True):
                seed = (700 if tuning else 47_000) + len(found)
                layers = len(CIRCUITS[circuit].heads)
                wide = -(-(_DECOYS + heads + layers - 1) // layers)
                name = f"{circuit} {role}, {heads} {'parts' if split else 'wholes'}, {vocabulary}"
                shape = Sizes(vocabulary, length, wide, False)
                shared = Shared(layer, heads, split)
                found.append(Backup(name, circuit, role, shape, shared, seed))
    return found


def measure(one: Backup) -> dict[str, Any]:
    """Find the groups of one model and compare them with the planted group."""
    torch.set_num_threads(1)
    made = construct_circuit(one.circuit, one.sizes, seed=one.seed, shared=one.shared)
    model = load_back(Built(made.model, frozenset(), frozenset(), -1), one.name)
    rows = rows_of(token_trials(model, seed=one.seed)[0])
    roles = find_roles(model.model, rows, profile=LANGUAGE, seed=one.seed)
    planted = {(part.layer, int(part.head or 0)) for part in made.mechanism.parts}
    mine = {place for place in planted if place[0] == one.shared.layer}
    name = "+".join(f"L{layer}H{head}" for layer, head in sorted(mine))
    groups = roles[roles["component"] == "group"]
    grouped = {place for text in groups["group"] for place in text.split("+")}
    right = groups[(groups["group"] == name) & (groups["role"] == one.role)]
    members = roles[(roles["group"] == name) & (roles["role"] == one.role)]
    held = len(right) == 1 and bool((members["status"] == "confirmed").all())
    decoys = {f"L{part}H{head}" for part, head in _others(one, planted)}
    told = "; ".join(f"{row.role} {row.group} {row.status}" for row in groups.itertuples())
    return {
        "name": one.name,
        "found": held and len(members) == len(mine) + 1,
        "heads": one.shared.heads,
        "decoys": len(decoys),
        "grouped": sorted(grouped & decoys),
        "uneven": _uneven(right, one.shared.heads),
        "told": "" if held else told,
    }


def _others(one: Backup, planted: set[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    layers = len(CIRCUITS[one.circuit].heads)
    every = [(layer, head) for layer in range(layers) for head in range(one.sizes.heads)]
    return [place for place in every if place not in planted]


def _uneven(right: pd.DataFrame, heads: int) -> float:
    """Return the largest difference between a member's share and an even share."""
    told = [test for tests in right["tests"] for test in json.loads(tests)]
    shares = [test["score"] for test in told if test["name"].startswith("share of")]
    return max((abs(share - 1 / heads) for share in shares), default=0.0)


def main() -> None:
    """Run the benchmark, print its JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of groups of heads.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--only", default="", help="Models whose name has this in it.")
    options = parser.parse_args()
    start = time.perf_counter()
    chosen = [one for one in backups(tuning=options.tune) if options.only in one.name]
    found = list(measure_all(measure, chosen, options.workers))
    decoys = sum(one["decoys"] for one in found)
    result = {
        "found": _share(found),
        "pairs": _share([one for one in found if one["heads"] == 2]),
        "triples": _share([one for one in found if one["heads"] == 3]),
        "decoys_grouped": sum(len(one["grouped"]) for one in found) / max(decoys, 1),
        "models": len(found),
        "decoys": decoys,
        "shares": max((one["uneven"] for one in found), default=0.0),
        "wrong": [
            f"{one['name']}: {one['told'] or 'no group'}; decoys {one['grouped']}"
            for one in found
            if one["grouped"] or not one["found"]
        ],
        "seconds": time.perf_counter() - start,
    }
    write_result(result, options.out)


def _share(found: Sequence[dict[str, Any]]) -> float:
    return sum(bool(one["found"]) for one in found) / max(len(found), 1)
