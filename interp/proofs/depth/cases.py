"""Compiled programs of depths 1 to 4 with tasks to run them on, as positives for role detectors.

Every uniform head of these models counts (role ``uniform``), and every FFN turns averages into the
next formulas. Targets are real bits, as the compiled models give them.

A head shows what it counts on rows where that varies. In strings promised to be of the language the
programs of Dyck-1 and aⁿbⁿcⁿ have nothing to count in layer 1 (places where the order is broken),
and all rows of aⁿbⁿcⁿ of one length are the same string; these two are asked for membership.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from interp.proofs.case import Case
from interp.proofs.depth.compiler import Precision, compile_program
from interp.proofs.mechanism import Construction
from interp.tasks.depth import Membership, PrefixPrediction

__all__ = ["CASES", "compiled_case"]


def compiled_case(
    language: str,
    bins: tuple[tuple[int, int], ...],
    precision: Precision = "ramp",
    *,
    membership: bool = False,
) -> Case:
    """A question about strings of a language, with its compiled program as the model.

    Args:
        language: The name of the language.
        bins: The ranges of lengths, (shortest, longest).
        precision: How the compiled program computes bits: ``ramp`` or ``sign``.
        membership: Ask at the end whether the string is in the language, not at every position of
            one that is.

    Returns:
        The case; the ``task`` of its construction is the question.
    """
    question = Membership if membership else PrefixPrediction
    task = question(language, bins, targets="bits")
    name = f"compiled-{language}-{task.longest}-{precision}"
    return Case(name, partial(_construct, name, task, precision), language)


def _construct(
    name: str, task: PrefixPrediction | Membership, precision: Precision
) -> Construction:
    made = compile_program(task.program, longest=task.longest, precision=precision)
    return replace(made, name=name, task=task)


CASES = (
    compiled_case("majority", ((20, 24),)),
    compiled_case("L_3", ((24, 24),)),
    compiled_case("L_3", ((60, 60),), "sign"),
    compiled_case("L_4", ((24, 24),)),
    compiled_case("L_4", ((48, 48),), "sign"),
    compiled_case("dyck-1", ((24, 24),), membership=True),
    compiled_case("J_abba", ((32, 32),)),
    compiled_case("anbncn", ((18, 18),), membership=True),
    compiled_case("L_5", ((32, 32),)),
    compiled_case("J_abab", ((40, 40),), "sign"),
    compiled_case("L_6", ((40, 40),)),
    compiled_case("L_6", ((64, 64),), "sign"),
)
"""Depth 1: majority and L_3; 2: L_4, Dyck-1 and aⁿbⁿcⁿ; 3: L_5 and J_abba; 4: L_6 and J_abab."""
