"""One named construction that can be built; lists of constructions are made of these.

The lists (:mod:`interp.proofs.catalogue` for memories, and ``CASES`` of the depth, template and
induction proofs) are samples of what can be built, for whoever wants to try a tool on many models
whose mechanism is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from interp.proofs.mechanism import Construction

__all__ = ["Case"]


@dataclass(frozen=True)
class Case:
    """A named construction, built when asked for.

    Attributes:
        name: What it is, its sizes and options; no two entries of a list share it.
        construct: A function that builds it, in a second or less.
        family: What it has in common with others: a family of tasks, a language.
    """

    name: str
    construct: Callable[[], Construction]
    family: str = ""
