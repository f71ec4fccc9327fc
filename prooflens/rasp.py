"""RASP-like programs: what a small trained transformer computes, written so that a person can read
it.

    program = parse(Path("program.txt").read_text())
    decisions = run(program, rows, vocabulary)

A program names values that every position has (tokens, numbers, truths), looks back over earlier
positions to count or to pick one of them, and ends by saying which tokens may follow. A count of
C-RASP (:mod:`interp.crasp`) is one case of what it can say.
"""

from interp.rasp import (
    Decisions,
    Program,
    evaluate,
    expression_text,
    parse,
    program_text,
    read_program,
    run,
)
from interp.rasp.evaluation import NONE, Vocabulary

__all__ = [
    "NONE",
    "Decisions",
    "Program",
    "Vocabulary",
    "evaluate",
    "expression_text",
    "parse",
    "program_text",
    "read_program",
    "run",
]
