"""Compile programs, hide them in a random basis, and read them back from the weights.

    python -m analyses benchmark decompile_roundtrip [--out FILE] [--programs N] [--predicates]

Random programs of depth 1 to 3 (:mod:`analyses.benchmarks.random_programs`) are compiled, by turns
with ramps and with signs, turned into a random basis and given to
:func:`prooflens.decompiling.decompile_counting`. A round trip is right if the program that
comes back makes the model's decision at every position of *every* string of eight tokens (so of all
shorter ones too) and of 200 random strings of up to 100. JSON keys: ``right`` (share), ``depth``
(share whose depth is the program's), ``none`` (models for which no program came back), ``refused``
(drawn programs that were shallower than written, of all drawn), ``lines`` (mean, before and after),
``seconds`` (median), ``table``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.random_programs import LETTERS, random_program
from analyses.benchmarks.result import write_result
from prooflens.crasp import depth, evaluate_codes, program_text
from prooflens.decompiling import decisions, decompile_counting
from prooflens.errors import ArgumentError
from prooflens.proofs import Precision, compile_program, random_basis, vocabulary_of

__all__ = ["main", "measure"]

LONGEST, SHORT, ROWS = 100, 8, 200


@dataclass(frozen=True)
class Trip:
    """One program's round trip: its seed, how it is compiled, and what it may use."""

    seed: int
    precision: Precision
    predicates: bool


def measure(trip: Trip) -> dict[str, Any]:
    """Make one round trip and record how it went."""
    torch.set_num_threads(1)
    program, refused = random_program(trip.seed, predicates=trip.predicates)
    row: dict[str, Any] = {"seed": trip.seed, "precision": trip.precision, "refused": refused}
    row |= {"depth": depth(program), "lines": len(program.lines), "program": program_text(program)}
    try:
        made = compile_program(program, longest=LONGEST, precision=trip.precision)
    except ArgumentError as refusal:
        return row | {"not_compiled": str(refusal)}
    model = random_basis(made, seed=trip.seed).model
    words = vocabulary_of(program)[1:]
    start = time.perf_counter()
    found = decompile_counting(model, words, seed=trip.seed)
    row |= {"seconds": time.perf_counter() - start, "agreement": found.agreement}
    if found.program is None:
        return row | {"reason": found.reason, "wrong": None}
    wrong = 0
    for codes in _strings(trip.seed):
        names = [letter if letter in words else None for letter in LETTERS]
        ids = np.array([words.index(name) + 1 for name in names])[codes]
        ids = np.concatenate([np.zeros((len(ids), 1), dtype=np.int64), ids], axis=1)
        answer = evaluate_codes(found.program, codes, LETTERS).values["answer"]
        wrong += int((answer != decisions(model, ids)).sum())
    text = program_text(found.program)
    return row | {
        "wrong": wrong,
        "found_depth": depth(found.program),
        "found_lines": len(found.program.lines),
        "found": text,
    }


def _strings(seed: int) -> tuple[np.ndarray, ...]:
    """Return all strings of eight tokens, and random ones, each with token frequencies of its
    own."""
    generator = np.random.default_rng([seed, 1])
    short = np.array(list(product(range(len(LETTERS)), repeat=SHORT)))
    shares = generator.dirichlet(np.ones(len(LETTERS)), ROWS)
    long = np.array([generator.choice(len(LETTERS), LONGEST, p=share) for share in shares])
    return short, long


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="From programs to weights and back.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="Seed of the first program.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--predicates", action="store_true", help="Guards and positions too.")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.programs)
    kinds: tuple[Precision, ...] = ("ramp", "sign")
    trips = [Trip(seed, kinds[seed // 3 % 2], options.predicates) for seed in seeds]
    table = list(measure_all(measure, trips, options.workers))
    known = [row for row in table if "not_compiled" not in row]
    back = [row for row in known if row["wrong"] is not None]
    drawn = len(table) + sum(row["refused"] for row in table)
    result = {
        "programs": len(known),
        "right": sum(row["wrong"] == 0 for row in back) / len(known),
        "depth": sum(row["found_depth"] == row["depth"] for row in back) / len(known),
        "none": sum(row["wrong"] is None for row in known),
        "not_compiled": len(table) - len(known),
        "refused": (drawn - len(table)) / drawn,
        "lines": [
            float(np.mean([row["lines"] for row in known])),
            float(np.mean([row["found_lines"] for row in back])),
        ],
        "seconds": float(np.median([row["seconds"] for row in known])),
        "table": table,
    }
    write_result(result, options.out)
