"""Fixed sparse memory (`memory` §1.2, Task I) with a Boolean readout.

    y_t = f(x_t, x_{t−T_1}, …, x_{t−T_M}),   x uniform on {−1, +1}, f Boolean.

The latents of a batch are the contents ``x[t]``, ``x[t-T]`` and the answer ``f``. A ±1 input has a
shortcut: one head with geometric weights is a binary code of the history which an FFN can decode,
so a model that solves the task need not give each memory its own head. Measure, do not assume.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from interp.errors import Problems
from interp.tasks.memory.lagged import LaggedMemory, check_lags
from interp.tasks.memory.readouts import Readout

__all__ = ["FixedMemory"]

_Name = Literal["parity", "majority", "multiplexer", "table"]
_MOST_LAGS = 12


@dataclass(frozen=True)
class FixedMemory(LaggedMemory):
    """A Boolean function of the current input and of inputs at fixed lags (`memory` Task I).

    Attributes:
        lags: The lags T_1, …, T_M, distinct and at least 1.
        readout: The function f: ``parity`` (the product of the ±1 arguments), ``majority`` (of an
            odd number), ``multiplexer`` (x_t = +1 chooses the first of two memories, −1 the
            second), or ``table`` (a random truth table drawn from ``table_seed``).
        length: Positions of a row; targets count from position max(lags) on.
        table_seed: Seed of the random truth table.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    lags: tuple[int, ...]
    readout: _Name = "parity"
    length: int = 32
    table_seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("FixedMemory")
        need = problems.need
        check_lags(problems, self.lags, self.length)
        rule = f"must be one of {', '.join(get_args(_Name))}"
        need(self.readout in get_args(_Name), "readout", rule, self.readout, "pick one")
        odd = self.readout != "majority" or len(self.lags) % 2 == 0
        need(odd, "lags", "must be even in number for a majority with x_t", self.lags, "add a lag")
        two = self.readout != "multiplexer" or len(self.lags) == 2
        need(two, "lags", "must be two for a multiplexer", self.lags, "x_t chooses between them")
        few = len(self.lags) <= _MOST_LAGS
        need(few, "lags", f"must be at most {_MOST_LAGS}", self.lags, "f is held as a truth table")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``fixed-memory-parity-1-3``."""
        return "-".join(["fixed-memory", self.readout, *map(str, self.lags)])

    @property
    def f(self) -> Readout:
        """The function f that is applied to the current input and the memories."""
        return Readout(self.readout, len(self.lags), seed=self.table_seed)

    def truth_table(self) -> dict[tuple[int, ...], int]:
        """The value of f at every corner of {−1, +1}^{M+1}, arguments in the order of
        :attr:`arguments`."""
        return self.f.truth_table()

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "fixed_memory", **asdict(self)}
