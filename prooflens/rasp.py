"""RASP-like programs: what a small trained transformer computes, written so that a person can read
it.

    program = parse(Path("program.txt").read_text())
    decisions = run(program, rows, vocabulary)

A program names values that every position has (tokens, numbers, truths), looks back over earlier
positions to count or to pick one of them, and ends by saying which tokens may follow. A count of
C-RASP (:mod:`prooflens.crasp`) is one part of the same language.
"""

from interp.program.decision_parser import parse, read_program
from interp.program.evaluation import NONE, Decisions, Vocabulary, line_values, run
from interp.program.printer import expression_text, program_text
from interp.program.syntax import Program

__all__ = [
    "NONE",
    "Decisions",
    "Program",
    "Vocabulary",
    "expression_text",
    "line_values",
    "parse",
    "program_text",
    "read_program",
    "run",
]
