"""RASP-like programs: what a small trained transformer computes, written so that a person can read
it.

    program = parse(Path("program.txt").read_text())
    decisions = run(program, rows, vocabulary)

A program names values that every position has (tokens, numbers, truths), looks back over earlier
positions to count or to pick one of them, and ends by saying which tokens may follow. Counting as
in C-RASP (:mod:`prooflens.crasp`) is one part of the same language.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
