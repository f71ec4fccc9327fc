"""What memory tasks at fixed lags share: their latents, their rows and their scored positions.

    y_t = f(x_t, x_{t−T_1}, …, x_{t−T_M})

A task of this kind gives ``lags``, ``length``, ``inputs`` (how x is drawn) and its readout ``f``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, Memory
from interp.tasks.counterfactual import Variable
from interp.tasks.memory.readouts import Readout, inputs_like

__all__ = ["LaggedMemory", "check_lags", "shifted"]


class LaggedMemory:
    """A function of the current input and of inputs at fixed lags (`memory` Task I)."""

    if TYPE_CHECKING:
        lags: tuple[int, ...]
        length: int

        @property
        def f(self) -> Readout:
            """The function f that is applied to the current input and the memories."""

    @property
    def inputs(self) -> str:
        """How the inputs are drawn: ``signs`` (±1), unless a task says otherwise."""
        return "signs"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the latents that f reads: ``x[t]`` and one ``x[t-T]`` per lag."""
        return ("x[t]", *(f"x[t-{lag}]" for lag in self.lags))

    @property
    def start(self) -> int:
        """The first scored position."""
        return max(self.lags)

    def memories(self) -> tuple[Memory, ...]:
        """One memory per lag."""
        return tuple(
            Memory(name, lag) for name, lag in zip(self.arguments[1:], self.lags, strict=True)
        )

    def answers(self) -> dict[str, tuple[str, ...]]:
        """The latent that is computed: ``f``, from :attr:`arguments`."""
        return {"f": self.arguments}

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 1]``, targets ``[batch, pos, 1]``.

        Latents that would lie before the row's start are 0, and so is an answer that needs one.
        """
        x = inputs_like(self.inputs, n, self.length, torch.Generator().manual_seed(seed))
        arguments = [x, *(shifted(x, lag) for lag in self.lags)]
        mask = torch.arange(self.length) >= self.start
        f = self.f(arguments) * mask
        latents = dict(zip(self.arguments, arguments, strict=True)) | {"f": f}
        batch = Batch(x[..., None], f[..., None], mask.expand(n, -1).clone(), latents)
        return batch.to(device)

    def variables(self) -> Iterator[Variable]:
        """Every memory, all of them together where there are several, and the answer ``f``."""
        memories = self.arguments[1:]
        yield from (Variable(name, partial(self._answer_if, (name,))) for name in memories)
        if len(memories) > 1:
            yield Variable("memories", partial(self._answer_if, memories))
        yield Variable("f", lambda base, source: source.targets)

    def _answer_if(self, names: tuple[str, ...], base: Batch, source: Batch) -> Tensor:
        held = {name: (source if name in names else base).latents[name] for name in self.arguments}
        return (self.f(list(held.values())) * base.mask)[..., None]


def check_lags(problems: Problems, lags: tuple[int, ...], length: int) -> None:
    """Record every rule that lags break: at least one, each at least 1, distinct, and shorter than
    the rows."""
    need = problems.need
    need(len(lags) > 0, "lags", "must name at least one memory", lags, "e.g. (1, 3)")
    need(all(lag >= 1 for lag in lags), "lags", "must be at least 1", lags, "0 is x_t itself")
    need(len(set(lags)) == len(lags), "lags", "must be distinct", lags, "drop duplicates")
    longest = max(lags, default=0)
    rule = f"must exceed the largest lag {longest}"
    need(length > longest, "length", rule, length, "lengthen rows or shorten lags")


def shifted(x: Float[Tensor, "batch pos"], lag: int) -> Float[Tensor, "batch pos"]:
    """The input ``lag`` positions earlier, x_{t−lag}, and zero before the row's start."""
    return torch.nn.functional.pad(x, (lag, 0))[:, : x.shape[1]]
