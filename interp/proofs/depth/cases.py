"""Compiled programs with tasks to run them on: positives for role detectors, of depths 1 to 4.

Every uniform head of these models counts (role ``counter``), and every FFN turns averages into the
next formulas. Targets are real bits, as the compiled models give them.

A head shows what it counts on rows where that varies. In strings promised to be of the language the
programs of Dyck-1 and aⁿbⁿcⁿ have nothing to count in layer 1 (places where the order is broken),
and all rows of aⁿbⁿcⁿ of one length are the same string; these two are asked for membership.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from interp.proofs.depth.compiler import Precision, compile_program
from interp.proofs.mechanism import Construction
from interp.tasks.depth import Membership, PrefixPrediction

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A question about a language, and how its program is compiled.

    Attributes:
        language: Its name.
        bins: Of lengths.
        precision: Of the compiled program.
        membership: Ask at the end whether the string is in the language, not at every position of
            one that is.
    """

    language: str
    bins: tuple[tuple[int, int], ...]
    precision: Precision = "ramp"
    membership: bool = False

    @property
    def name(self) -> str:
        """Language, longest length and precision."""
        return f"compiled-{self.language}-{self.task.longest}-{self.precision}"

    @property
    def task(self) -> PrefixPrediction | Membership:
        """What the model is run on."""
        question = Membership if self.membership else PrefixPrediction
        return question(self.language, self.bins, answers="bits")

    def construct(self) -> Construction:
        """The model, its mechanism and its certificate; its ``task`` is this case's."""
        task = self.task
        made = compile_program(task.program, longest=task.longest, precision=self.precision)
        return replace(made, name=self.name, task=task)


CASES = (
    Case("majority", ((20, 24),)),
    Case("L_3", ((24, 24),)),
    Case("L_3", ((60, 60),), "sign"),
    Case("L_4", ((24, 24),)),
    Case("L_4", ((48, 48),), "sign"),
    Case("dyck-1", ((24, 24),), membership=True),
    Case("J_abba", ((32, 32),)),
    Case("anbncn", ((18, 18),), membership=True),
    Case("L_5", ((32, 32),)),
    Case("J_abab", ((40, 40),), "sign"),
    Case("L_6", ((40, 40),)),
    Case("L_6", ((64, 64),), "sign"),
)
"""Depth 1: majority and L_3; 2: L_4, Dyck-1 and aⁿbⁿcⁿ; 3: L_5 and J_abba; 4: L_6 and J_abab."""
