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

import torch

from interp.errors import Problems
from interp.tasks.base import Batch
from interp.tasks.memory.fixed import shifted
from interp.tasks.memory.readouts import INPUTS, REAL, Readout, inputs_like

__all__ = ["RealMemory"]


@dataclass(frozen=True)
class RealMemory:
    """A Lipschitz function of the current input and of inputs at fixed lags (`memory` Task I).

    Attributes:
        lags: T_1, …, T_M, distinct and at least 1.
        readout: f, one of ``single``, ``mean``, ``maximum``, ``waves``, ``network``.
        inputs: ``gaussian`` (standard normal) or ``signs`` (±1).
        length: Positions of a row; targets count from position max(lags) on.
        readout_seed: Of ``network``.
        frequency: Of ``waves``.

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
        need(len(self.lags) > 0, "lags", "must name at least one memory", self.lags, "e.g. (3,)")
        positive = all(lag >= 1 for lag in self.lags)
        need(positive, "lags", "must be at least 1", self.lags, "x_t is in")
        distinct = len(set(self.lags)) == len(self.lags)
        need(distinct, "lags", "must be distinct", self.lags, "drop duplicates")
        longest = max(self.lags, default=0)
        rule = f"must exceed the largest lag {longest}"
        need(self.length > longest, "length", rule, self.length, "lengthen rows or shorten lags")
        rule = f"must be one of {', '.join(INPUTS)}"
        need(self.inputs in INPUTS, "inputs", rule, self.inputs, "pick one")
        self.f.check(problems, REAL, "lags")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """E.g. ``real-memory-single-3``."""
        return "-".join(["real-memory", self.readout, *map(str, self.lags)])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The latents that f reads: ``x[t]`` and one ``x[t-T]`` a lag."""
        return ("x[t]", *(f"x[t-{lag}]" for lag in self.lags))

    @property
    def f(self) -> Readout:
        """The readout, with its Lipschitz bound."""
        return Readout(
            self.readout, len(self.lags), seed=self.readout_seed, frequency=self.frequency
        )

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 1]``, targets ``[batch, pos, 1]``.

        Latents before the start, and the answer where an argument is, are 0.
        """
        x = inputs_like(self.inputs, n, self.length, torch.Generator().manual_seed(seed))
        arguments = [x, *(shifted(x, lag) for lag in self.lags)]
        mask = torch.arange(self.length) >= max(self.lags)
        f = self.f(arguments) * mask
        latents = dict(zip(self.arguments, arguments, strict=True)) | {"f": f}
        batch = Batch(x[..., None], f[..., None], mask.expand(n, -1).clone(), latents)
        return batch.to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "real_memory", **asdict(self)}
