"""Fixed sparse memory (`memory` §1.2, Task I) of real numbers.

    y_t = f(x_t, x_{t−T_1}, …, x_{t−T_M}),   f Lipschitz

With ``single`` and one lag this is y_t = x_{t−T}, the target on which the number of heads is
measured. Gaussian inputs close the shortcut of ±1 inputs, where one geometric head is a binary code
of the history that an FFN decodes. A small error says that the memories are reached, not how: one
head per memory is one way of several.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from interp.errors import Problems
from interp.tasks.memory.lagged import LaggedMemory, check_lags
from interp.tasks.memory.readouts import INPUTS, REAL, Readout

__all__ = ["RealMemory"]


@dataclass(frozen=True)
class RealMemory(LaggedMemory):
    """A Lipschitz function of the current input and of inputs at fixed lags (`memory` Task I).

    Attributes:
        lags: The lags T_1, …, T_M, distinct and at least 1.
        readout: The function f: ``single``, ``mean``, ``maximum``, ``waves`` or ``network``.
        inputs: ``gaussian`` (standard normal) or ``signs`` (±1).
        length: Positions of a row; targets count from position max(lags) on.
        readout_seed: Seed of the readout ``network``.
        frequency: Frequency of the readout ``waves``.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    lags: tuple[int, ...]
    readout: str = "single"
    inputs: str = "gaussian"
    length: int = 32
    readout_seed: int = 0
    frequency: float = 1.0

    def __post_init__(self) -> None:
        problems = Problems("RealMemory")
        need = problems.need
        check_lags(problems, self.lags, self.length)
        rule = f"must be one of {', '.join(INPUTS)}"
        need(self.inputs in INPUTS, "inputs", rule, self.inputs, "pick one")
        self.f.check(problems, REAL, "lags")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``real-memory-single-3``."""
        return "-".join(["real-memory", self.readout, *map(str, self.lags)])

    @property
    def f(self) -> Readout:
        """The function f that is applied to the current input and the memories."""
        return Readout(
            self.readout, len(self.lags), seed=self.readout_seed, frequency=self.frequency
        )

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "real_memory", **asdict(self)}
