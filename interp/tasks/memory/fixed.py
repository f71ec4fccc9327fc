"""Fixed sparse memory (`memory` §1.2, Task I) with a Boolean readout.

    y_t = f(x_t, x_{t−T_1}, …, x_{t−T_M}),   x uniform on {−1, +1}, f Boolean.

The latents of a batch are the contents ``x[t]``, ``x[t-T]`` and the answer ``f``. A ±1 input has a
shortcut: one head with geometric weights is a binary code of the history which an FFN can decode,
so a model that solves the task need not give each memory its own head. Measure, do not assume.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch
from interp.tasks.memory.readouts import Readout, inputs_like

__all__ = ["FixedMemory", "shifted"]

_Name = Literal["parity", "majority", "multiplexer", "table"]
_MOST_LAGS = 12


@dataclass(frozen=True)
class FixedMemory:
    """A Boolean function of the current input and of inputs at fixed lags (`memory` Task I).

    Attributes:
        lags: T_1, …, T_M, distinct and at least 1.
        readout: f: ``parity`` (the product of the ±1 arguments), ``majority`` (of an odd number),
            ``multiplexer`` (x_t = +1 chooses the first of two memories, −1 the second), or
            ``table`` (a random truth table drawn from ``table_seed``).
        length: Positions of a row; targets count from position max(lags) on.
        table_seed: Of the truth table.

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
        need(len(self.lags) > 0, "lags", "must name at least one memory", self.lags, "e.g. (1, 3)")
        need(
            all(lag >= 1 for lag in self.lags), "lags", "must be at least 1", self.lags, "x_t is in"
        )
        distinct = len(set(self.lags)) == len(self.lags)
        need(distinct, "lags", "must be distinct", self.lags, "drop duplicates")
        longest = max(self.lags, default=0)
        rule = f"must exceed the largest lag {longest}"
        need(self.length > longest, "length", rule, self.length, "lengthen rows or shorten lags")
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
        """E.g. ``fixed-memory-parity-1-3``."""
        return "-".join(["fixed-memory", self.readout, *map(str, self.lags)])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The latents that f reads: ``x[t]`` and one ``x[t-T]`` a lag."""
        return ("x[t]", *(f"x[t-{lag}]" for lag in self.lags))

    def truth_table(self) -> dict[tuple[int, ...], int]:
        """f on every corner of {−1, +1}^{M+1}, arguments in the order of :attr:`arguments`."""
        return self._f.truth_table()

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 1]``, targets ``[batch, pos, 1]``."""
        generator = torch.Generator().manual_seed(seed)
        x = inputs_like("signs", n, self.length, generator)
        arguments = [x, *(shifted(x, lag) for lag in self.lags)]
        mask = torch.arange(self.length) >= max(self.lags)
        f = self._f(arguments) * mask
        latents = dict(zip(self.arguments, arguments, strict=True)) | {"f": f}
        batch = Batch(x[..., None], f[..., None], mask.expand(n, -1).clone(), latents)
        return batch.to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "fixed_memory", **asdict(self)}

    @property
    def _f(self) -> Readout:
        return Readout(self.readout, len(self.lags), seed=self.table_seed)


def shifted(x: Float[Tensor, "batch pos"], lag: int) -> Float[Tensor, "batch pos"]:
    """x_{t−lag}, zero before the start."""
    return torch.nn.functional.pad(x, (lag, 0))[:, : x.shape[1]]
