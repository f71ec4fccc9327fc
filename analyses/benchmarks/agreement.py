"""Agreement with the proof on constructions and on random models: is it 1 and 0 where it should be?

    python -m analyses benchmark agreement [--out FILE] [--workers N] [--every N] [--only WORD]

Of each construction of :mod:`analyses.benchmarks.cases` three numbers of
:func:`probes.agreement.overall`: of the construction itself on rows of its own, hidden (rotated
basis, permuted heads and neurons), and of a model with random weights, each against other random
models and one draw of the plain construction. JSON keys: ``least`` (smallest of plain and hidden),
``covered`` (share of random models whose 95 % interval covers 0), ``cases``, ``table``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from analyses.benchmarks.cases import Subject, subjects
from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer
from prooflens.errors import ArgumentError
from prooflens.probes import overall, statements_of

__all__ = ["main", "measure"]

DRAWS, RANDOM = 2, 2


def measure(subject: Subject) -> dict[str, Any]:
    """Measure one construction; numbers are NaN if its mechanism makes no statement."""
    torch.set_num_threads(1)
    proof = subject.case.construct()
    batches = [
        proof.task.sample(subject.rows, seed=subject.seed + 50 + i) for i in range(DRAWS + 1)
    ]
    hidden, _ = replace(subject, hidden=True).build()
    spec = proof.model.spec
    fresh = [SequenceTransformer(spec, seed=subject.seed + 70 + i) for i in range(RANDOM + DRAWS)]

    def statement_scores(model: SequenceTransformer, draw: int) -> Any:
        return statements_of(model, proof.mechanism, proof.task, batches[draw % len(batches)])

    own = statement_scores(proof.model, DRAWS)
    random = [statement_scores(model, i) for i, model in enumerate(fresh)]
    null, others = random[:RANDOM], random[RANDOM:]
    row: dict[str, Any] = {"name": subject.name, "statements": len(own), "raw": own["score"].mean()}
    try:
        for kind, draws in (
            ("plain", [statement_scores(proof.model, i) for i in range(DRAWS)]),
            ("hidden", [statement_scores(hidden.model, i) for i in range(DRAWS)]),
            ("random", others),
        ):
            one = overall(draws, null, own)
            row |= {kind: one.score, f"{kind}_low": one.low, f"{kind}_high": one.high}
    except ArgumentError as refusal:  # no statement of it was found in the construction itself
        row["refused"] = str(refusal)
    return row


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Agreement where it is known.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="Every so many-th construction.")
    parser.add_argument("--only", default="", help="Cases whose name has this in it.")
    options = parser.parse_args()
    chosen = [c for c in subjects() if not c.hidden and options.only in c.name][:: options.every]
    table = list(measure_all(measure, chosen, options.workers))
    known = [row for row in table if "random" in row]
    result = {
        "least": min((min(row["plain"], row["hidden"]) for row in known), default=0.0),
        "covered": sum(r["random_low"] <= 0 <= r["random_high"] for r in known)
        / max(len(known), 1),
        "cases": len(table),
        "refused": [row["name"] for row in table if "refused" in row],
        "table": table,
    }
    write_result(result, options.out)
