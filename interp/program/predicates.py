"""Predicates of positions that a program can import: built in, or made from a Python function.

    pred        j = i − 1            predN        j = i − N, N ≥ 1         (guards of a count)
    pos_even    i is even            pos_modM     M divides i              (formulas)
                                     pos_modM_R   i mod M = R

Positions count from 0, the first token after a model's BOS. Predicates can express more than a
transformer without positional encoding can compute (`depth` §3.1), so a program that imports one
loses that guarantee. A user's own function can be evaluated, but nothing else is known about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool

from interp.errors import Problems

BUILT_IN = "pred, predN (as in pred4), pos_even, pos_modM or pos_modM_R (as in pos_mod3_1)"
_PRED = re.compile(r"pred([1-9][0-9]*)?")
_POS_MOD = re.compile(r"pos_mod([1-9][0-9]*)(?:_(0|[1-9][0-9]*))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(frozen=True)
class Predicate:
    """A named relation between positions; two are equal if name and arity are.

    Attributes:
        name: The name under which a program imports it.
        arity: 1 for a formula of one position, 2 for a guard between two positions.
        holds: A function from integer arrays of positions (i, or i and j, which broadcast) to a
            Boolean array.

    Raises:
        ArgumentError: if the name is not valid, or the arity is neither 1 nor 2.
    """

    name: str
    arity: int
    holds: Callable[..., np.ndarray] = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        problems = Problems("Predicate")
        good = _NAME.fullmatch(self.name) is not None
        problems.need(good, "name", "must be letters, digits and _", self.name, "rename it")
        problems.need(self.arity in (1, 2), "arity", "must be 1 or 2", self.arity, "i, or i and j")
        problems.raise_if_any()

    def table(self, length: int) -> Bool[np.ndarray, "..."]:
        """Return where the predicate holds: ``[pos]`` for a formula, ``[pos i, pos j]`` for a
        guard."""
        i = np.arange(length)
        if self.arity == 1:
            return np.asarray(self.holds(i), dtype=bool)
        return np.asarray(self.holds(i[:, None], i[None, :]), dtype=bool)


def unary(name: str, function: Callable[[int], bool]) -> Predicate:
    """Make a predicate of one position, a formula, from a Python function.

    Args:
        name: The name under which programs import it: letters, digits and underscores, not starting
            with a digit.
        function: A function of a position, counted from 0, the first token after BOS.

    Raises:
        ArgumentError: if the name breaks this rule.
    """
    return Predicate(name, 1, np.vectorize(function, otypes=[bool]))


def binary(name: str, function: Callable[[int, int], bool]) -> Predicate:
    """Make a predicate of two positions, for use as the guard of a count.

    A guard restricts a count to the positions j for which ``function(i, j)`` is true.

    Args:
        name: The name under which programs import it: letters, digits and underscores, not
            starting with a digit.
        function: Called with single integers: i is the position at which the count is evaluated
            and j the position that may be counted. Both start at 0, the first token after BOS.

    Raises:
        ArgumentError: if the name breaks this rule.
    """
    return Predicate(name, 2, np.vectorize(function, otypes=[bool]))


def find_predicate(name: str) -> Predicate | None:
    """Return the built-in predicate of this name; None if there is none."""
    if found := _PRED.fullmatch(name):
        lag = int(found[1] or 1)
        return Predicate(name, 2, lambda i, j: j == i - lag)
    if name == "pos_even":
        return Predicate(name, 1, lambda i: i % 2 == 0)
    if found := _POS_MOD.fullmatch(name):
        modulus, rest = int(found[1]), int(found[2] or 0)
        if rest < modulus:
            return Predicate(name, 1, lambda i: i % modulus == rest)
    return None
