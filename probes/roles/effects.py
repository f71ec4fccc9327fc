"""What an intervention on one head does to the output, in shares of the output's own variance.

    change = Σ |out′ − out|² / Σ |out − mean out|²      over scored positions, row by row

*Ablation* replaces what a head writes by its mean over rows. *Knock-out* takes its attention away
from a class of keys and gives it to the other keys it may see, in their proportions (evenly if
there was nothing there): what changes then is due to *where* it attended.

No change for a head that others stand in for; a change is not yet a change for the worse. Where
targets are known, *losing* says whether it is: by how much the loss rises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import stdtr
from torch import Tensor

from interp.errors import ArgumentError
from interp.heads.effects import Component, mean_outputs, place_of, run_without
from interp.heads.nulls import bootstrap_interval
from interp.heads.reliance import row_losses
from interp.tasks.base import Batch
from probes.roles.decision import Test

__all__ = ["Change", "Outputs", "over_rows", "without_keys"]

_AT_ONCE, _HELD = 2**24, 2**26
"""Numbers of outputs in one pass, and numbers that are kept instead of computed again."""

_FEWEST = 8
"""Rows for a loss to be compared on."""

Keys = Bool[Tensor, "#row query key"]


@dataclass(frozen=True)
class Change:
    """Mean change of the output, its 95 % interval, and p against none at all."""

    score: float
    low: float
    high: float
    p: float

    def test(self, name: str, floor: float, family: str = "") -> Test:
        """The test that it is at least the floor, and not nothing."""
        return Test(name, self.score, floor, self.p, self.low, self.high, family)


class Outputs:
    """A model's outputs on some inputs, with and without parts of it, some rows at a time.

    Args:
        model: Which: ours, a bridge or a wrapped module.
        inputs: Its inputs.
        scored: ``[row, pos]``, where the output counts.

    Raises:
        ArgumentError: for outputs that are not finite.
    """

    @torch.no_grad()
    def __init__(self, model: Any, inputs: Tensor, scored: Bool[Tensor, "row pos"]) -> None:
        self.model, self.inputs, self.scored = model, inputs, scored
        width = model(inputs[:1]).shape[-1]
        self._rows = max(1, _AT_ONCE // (inputs.shape[1] * width))
        self._held: Tensor | None = None
        if inputs.shape[0] * inputs.shape[1] * width <= _HELD:
            self._held = torch.cat([self._output(rows) for rows in self._passes()])
        self.variance = self._spread()
        self._means: dict[str, Tensor] = {}

    def ablated(self, *parts: Component) -> Change:
        """The change when components are mean-ablated together."""
        means = self._mean(parts)
        return self._changed(lambda rows: run_without(self.model, rows, parts, means)[0])

    def kept(self, hook: str, *without: Component) -> Tensor:
        """An activation, with components mean-ablated."""
        means = self._mean(without)
        passes = (
            run_without(self.model, self.inputs[rows], without, means, keep=[hook])
            for rows in self._passes()
        )
        return torch.cat([kept[hook] for _, kept in passes])

    def knocked_out(self, layer: int, head: int, keys: Keys) -> Change:
        """The change when a head may not attend to ``keys``."""
        return self._changed(partial(self._without, layer, head), keys)

    def losing(self, layer: int, head: int, keys: Keys, batch: Batch) -> Change | None:
        """How much the loss rises when a head may not attend to ``keys``, at scored positions that
        have any: in nats, or as a share of the targets' variance. None where there are too few.

        Args:
            layer, head: Which.
            keys: Whose attention is taken away.
            batch: These inputs with their targets.
        """
        scored = batch.mask & keys.any(-1)
        if int(scored.any(1).sum()) < _FEWEST:
            return None
        chosen, rises = Batch(batch.inputs, batch.targets, scored), []
        for rows in self._passes():
            after = self._without(layer, head, self.inputs[rows], keys[rows])
            before = self._output(rows)
            rises.append(row_losses(after, chosen[rows]) - row_losses(before, chosen[rows]))
        real = batch.targets.is_floating_point()
        spread = float(batch.targets[batch.mask].double().var()) if real else 1.0
        return over_rows(torch.cat(rises)[scored.any(1)].numpy() / (spread or 1.0))

    def change(self, output: Float[Tensor, "row pos output"]) -> Change:
        """The change of another output of the same inputs."""
        return self._compared([self._apart(output[rows], rows) for rows in self._passes()])

    def _changed(self, run: Callable[..., Tensor], keys: Keys | None = None) -> Change:
        """The change of what a run gives for some inputs (and the keys of these rows)."""
        found = []
        for rows in self._passes():
            own = () if keys is None else (keys if len(keys) == 1 else keys[rows],)
            found.append(self._apart(run(self.inputs[rows], *own), rows))
        return self._compared(found)

    def _apart(self, output: Tensor, rows: slice) -> Float[Tensor, "row pos"]:
        return (output.double() - self._output(rows)).square().sum(-1)

    def _compared(self, squared: Sequence[Float[Tensor, "row pos"]]) -> Change:
        rows = (torch.cat(list(squared)) * self.scored).sum(1) / self.scored.sum(1).clamp_min(1)
        rows = rows[self.scored.any(1)] / (self.variance or 1.0)
        return over_rows(rows.cpu().numpy()) if self.variance > 0 else Change(0.0, 0.0, 0.0, 1.0)

    def _passes(self) -> Iterator[slice]:
        for start in range(0, len(self.inputs), self._rows):
            yield slice(start, start + self._rows)

    @torch.no_grad()
    def _output(self, rows: slice) -> Float[Tensor, "row pos output"]:
        if self._held is not None:
            return self._held[rows]
        output: Tensor = self.model(self.inputs[rows]).double()
        broken = (~output.isfinite().all(-1)).nonzero()
        if len(broken):
            row, position = broken[0].tolist()
            raise ArgumentError(
                "model must give finite outputs on these inputs, got NaN or infinity first in row "
                f"{rows.start + row} at position {position}: look at its weights"
            )
        return output

    def _spread(self) -> float:
        """Mean squared distance of the scored outputs from their mean."""
        count, total = max(int(self.scored.sum()), 1), torch.zeros((), dtype=torch.float64)
        mean = sum(self._output(r)[self.scored[r]].sum(0) for r in self._passes()) / count
        for rows in self._passes():
            total += (self._output(rows)[self.scored[rows]] - mean).square().sum()
        return float(total / count)

    def _mean(self, parts: tuple[Component, ...]) -> dict[str, Tensor]:
        for part in parts:
            place = place_of(self.model, part)
            if place not in self._means:
                found = [
                    mean_outputs(self.model, some, [part])[place] * len(some)
                    for some in (self.inputs[rows] for rows in self._passes())
                ]
                self._means[place] = torch.stack(found).sum(0) / len(self.inputs)
        return self._means

    @torch.no_grad()
    def _without(self, layer: int, head: int, inputs: Tensor, keys: Keys) -> Tensor:
        causal = getattr(getattr(self.model, "spec", None), "causal", True)
        moved = without_keys(head, keys, causal=causal)
        hook = (f"blocks.{layer}.attn.hook_pattern", moved)
        output: Tensor = self.model.run_with_hooks(inputs, fwd_hooks=[hook])
        return output


def over_rows(rows: Float[np.ndarray, "row"], *, seed: int = 0) -> Change:
    """A mean over rows with its bootstrap interval, and a one-sided t test that it is above 0."""
    mean, n = float(rows.mean()), len(rows)
    if abs(mean) < 1e-9 or n < 2:
        return Change(0.0, 0.0, 0.0, 1.0)
    error = float(rows.std(ddof=1)) / n**0.5
    p = float(stdtr(n - 1, -mean / error)) if error > 0 else float(mean < 0)
    low, high = bootstrap_interval(rows[:, None], seed=seed)
    return Change(mean, float(low[0]), float(high[0]), p)


def without_keys(head: int, keys: Keys, *, causal: bool = True) -> Callable[..., Tensor]:
    """A hook on a pattern that takes one head's attention away from ``keys``.

    Queries that see no other key keep their attention.
    """

    def hook(pattern: Tensor, hook: Any) -> Tensor:
        allowed = torch.ones(pattern.shape[-2:], dtype=torch.bool, device=pattern.device)
        allowed = allowed.tril() if causal else allowed
        rest = allowed & ~keys.to(pattern.device)
        mine = pattern[:, head]
        total = mine.sum(-1, keepdim=True)
        left = torch.where(rest, mine, 0.0)
        share = left.sum(-1, keepdim=True)
        even = rest.to(pattern.dtype) / rest.sum(-1, keepdim=True).clamp_min(1)
        few = share <= 1e-6 * total
        moved = torch.where(few, even * total, left * total / share.where(~few, 1.0))
        result = pattern.clone()
        result[:, head] = torch.where(rest.any(-1, keepdim=True), moved, mine)
        return result

    return hook
