"""Which coordinate of a compiled program's residual stream holds what, and from which hook on.

Coordinate 0 is is_BOS, 1 is avg_BOS. Then comes one coordinate for each line, and those that lines
need: bits of the token, bits of the position, and for every count the bit that is counted and its
average (or guarded bit).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from interp.crasp.analysis import depths
from interp.crasp.syntax import (
    Count,
    Expression,
    Formula,
    FormulaName,
    Holds,
    Program,
    TermName,
    children,
)

__all__ = ["AVERAGE_BOS", "IS_BOS", "Plan", "guard_lag"]

IS_BOS, AVERAGE_BOS = 0, 1
_PRED = re.compile(r"pred([1-9][0-9]*)?")


def guard_lag(guard: str) -> int | None:
    """N of ``predN``; None for any other guard."""
    found = _PRED.fullmatch(guard)
    return int(found[1] or 1) if found else None


@dataclass
class Plan:
    """The coordinates of the residual stream for each name, count and position predicate.

    Attributes:
        program: The program, without lines that its last line does not need.
        vocabulary: What each token id stands for.
        names: Line → coordinate.
        tokens: Formulas of the token alone that are read by circuits or counted → coordinate.
        positions: Predicates of the position → coordinate.
        counted: Formula that is counted → coordinate of its bit, 0 at BOS.
        counts: Count → coordinate of its average, or of a guarded count itself.
    """

    program: Program
    vocabulary: tuple[str | None, ...]
    names: dict[str, int] = field(default_factory=dict)
    tokens: dict[Formula, int] = field(default_factory=dict)
    positions: dict[Formula, int] = field(default_factory=dict)
    counted: dict[Formula, int] = field(default_factory=dict)
    counts: dict[Count, int] = field(default_factory=dict)
    width: int = 2

    def __post_init__(self) -> None:
        self.levels = depths(self.program)
        self.depth = self.levels[self.program.lines[-1].name]
        self._lines: dict[str, int] = {}
        for line in self.program.lines:
            self._lines[line.name] = self.level(line.expression)
            self.names[line.name] = self._next()
            self._place(line.expression)

    def level(self, expression: Expression) -> int:
        """How deep counts nest in an expression; −1 if it needs neither a count nor a position."""
        if isinstance(expression, FormulaName | TermName):
            return self._lines[expression.name]
        if isinstance(expression, Holds):
            return 0
        inside = max((self.level(part) for part in children(expression)), default=-1)
        return max(inside, 0) + 1 if isinstance(expression, Count) else inside

    def heads(self, layer: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """Each head's lag (0: the whole prefix) and its pairs (coordinate read, coordinate
        written)."""
        reads: dict[int, list[tuple[int, int]]] = {}
        if layer == 0:
            reads[0] = [(IS_BOS, AVERAGE_BOS)]
        for count, coordinate in self.counts.items():
            if max(self.level(count.of), 0) == layer:
                lag = guard_lag(count.guard) if count.guard else 0
                reads.setdefault(lag or 0, []).append((self.counted[count.of], coordinate))
        return sorted(reads.items())

    def places(self, layer: int) -> dict[Expression, int]:
        """The coordinates that a circuit of this layer can read; layer −1 is the FFN before the
        first block."""
        held: dict[Expression, int] = dict((*self.tokens.items(), *self.positions.items()))
        for count, coordinate in self.counts.items():
            if max(self.level(count.of), 0) <= layer:
                held[count] = coordinate
        for line in self.program.lines:
            if isinstance(line.expression, Formula) and self.level(line.expression) <= layer:
                held[FormulaName(line.name)] = self.names[line.name]
        return held

    def made_by(self, layer: int) -> tuple[list[str], list[Formula]]:
        """The lines and the counted formulas that this layer's FFN computes."""
        lines = [x.name for x in self.program.lines if self.level(x.expression) == layer + 1]
        return lines, [formula for formula in self.counted if self.level(formula) == layer + 1]

    def _place(self, expression: Expression) -> None:
        if isinstance(expression, Count):
            if expression.of not in self.counted:
                self.counted[expression.of] = self._next()
            if expression not in self.counts:
                self.counts[expression] = self._next()
        if isinstance(expression, Holds):
            if expression not in self.positions:
                self.positions[expression] = self._next()
        elif not isinstance(expression, Formula) or self.level(expression) >= 0:
            for part in children(expression):
                self._place(part)
        elif not isinstance(expression, FormulaName) and expression not in self.tokens:
            self.tokens[expression] = self._next()

    def _next(self) -> int:
        self.width += 1
        return self.width - 1
