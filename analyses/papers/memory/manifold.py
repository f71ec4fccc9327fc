"""Inputs on a low-dimensional manifold: how wide must the embedding be?

Inputs x_t ∈ R^n are a fixed embedding of z_t ∈ R^k, Gaussian and independent:

    plane     x = A z, A orthonormal columns
    curved    x = B tanh(2 C z), a k-dimensional surface that spans all n dimensions
    full      x Gaussian in R^n (k = n)

and y_t = f(x_{t−1}), f a fixed random function of all n coordinates (16 ReLUs). Only the width
D of the residual stream is varied; the head has a learned bias a lag, so that finding the past is
easy whatever the width. On the plane a linear embedding of 2k numbers holds the present
and the past; on the curved surface a linear embedding can be one-to-one from 2k + 1 on, but an FFN
has to undo it. f has as many neurons on every manifold; that it is a simpler function of fewer
variables is part of what the claim is about, and cannot be told from it here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, medians, status_of, verdict
from analyses.papers.memory.models import spec_of, with_slower_terms
from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["ManifoldMemory", "narrow"]

_SHAPES = ("plane", "curved", "full")
_NEURONS = 16


@dataclass(frozen=True)
class ManifoldMemory:
    """A memory y_t = f(x_{t−1}) of inputs that lie on a low-dimensional manifold.

    Attributes:
        shape: ``plane``, ``curved`` or ``full``.
        dimension: The manifold's dimension k; for ``full`` it is ``channels``.
        channels: The number n of channels of the inputs.
        length: Positions of a row; targets count from position 1 on.
        map_seed: Seed of the maps A, B, C and of f.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    shape: str = "plane"
    dimension: int = 2
    channels: int = 16
    length: int = 16
    map_seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("ManifoldMemory")
        rule = f"must be one of {', '.join(_SHAPES)}"
        problems.need(self.shape in _SHAPES, "shape", rule, self.shape, "pick one")
        fits = 1 <= self.dimension <= self.channels
        rule = f"must be from 1 to the {self.channels} channels"
        problems.need(fits, "dimension", rule, self.dimension, "change one")
        whole = self.shape != "full" or self.dimension == self.channels
        problems.need(whole, "dimension", "must be all for full", self.dimension, "raise it")
        problems.need(self.length >= 2, "length", "must be at least 2", self.length, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """E.g. ``manifold-memory-plane-2``."""
        return f"manifold-memory-{self.shape}-{self.dimension}"

    @cached_property
    def _maps(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return B ``[channel, channel]``, which is orthogonal, C ``[channel, k]``, and the weights
        and signs of f."""
        generator = torch.Generator().manual_seed(self.map_seed)
        turn, _ = torch.linalg.qr(torch.randn(self.channels, self.channels, generator=generator))
        inner = torch.randn(self.channels, self.dimension, generator=generator)
        w = torch.randn(self.channels, _NEURONS, generator=generator) / self.channels**0.5
        b = torch.randn(_NEURONS, generator=generator) / 2
        signs = torch.randint(2, (_NEURONS,), generator=generator) * 2.0 - 1.0
        return turn, inner / self.dimension**0.5, torch.cat([w, b[None]]), signs

    def embed(self, z: Tensor) -> Tensor:
        """Map points z ``[…, k]`` to inputs x ``[…, channel]`` on the manifold, with mean square 1
        in each channel."""
        turn, inner, _, _ = self._maps
        if self.shape == "curved":
            curved: Tensor = torch.tanh(2 * z @ inner.T) @ turn.T / 0.8
            return curved
        flat: Tensor = z @ turn[:, : self.dimension].T * (self.channels / self.dimension) ** 0.5
        return flat

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, channel]``, targets ``[batch, pos, 1]``.

        Latents: ``z`` ``[batch, pos, k]`` and the answer ``f``, 0 at position 0.
        """
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(n, self.length, self.dimension, generator=generator)
        x = self.embed(z)
        _, _, weights, signs = self._maps
        f = torch.relu(x @ weights[:-1] + weights[-1]) @ signs
        f = torch.nn.functional.pad(f[:, :-1], (1, 0))
        mask = (torch.arange(self.length) >= 1).expand(n, -1).clone()
        return Batch(x, f[..., None], mask, {"z": z, "f": f}).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "manifold_memory", **asdict(self)}


def narrow(setting: Setting) -> Verdict:
    """Test that low-dimensional inputs need a smaller embedding (ledger: ``memory-manifold``)."""
    options, experiment = setting.options, with_slower_terms(setting)
    n, k = options["channels"], options["dimension"]
    tasks = {
        f"plane, k = {k}": ManifoldMemory("plane", k, n, options["length"]),
        f"curved, k = {k}": ManifoldMemory("curved", k, n, options["length"]),
        f"full, k = {n}": ManifoldMemory("full", n, n, options["length"]),
    }
    for name, task in tasks.items():
        for width in options["widths"]:
            spec = spec_of(task, options, d_model=width, d_head=width, lag_bias="table")
            experiment.add({"inputs": name, "width": width}, task, spec)
    table, _ = experiment.run(levels=[options["level"]])
    middle = medians(table, ["inputs", "width"])
    needed: dict[str, float] = {}
    for name in tasks:
        reached = [w for w in options["widths"] if middle[name, w] <= options["level"]]
        needed[name] = float(min(reached)) if reached else float("inf")
    plane, curved, full = needed.values()
    halves = {
        "plane": 2 * plane <= full < float("inf"),
        "curved": 2 * curved <= full < float("inf"),
    }
    told = {name: "no width tried" if w == float("inf") else f"{w:g}" for name, w in needed.items()}
    words = (
        f"Least width with a median error of at most {options['level']}: "
        + "; ".join(f"{name}: {w}" for name, w in told.items())
        + f". At width {options['widths'][0]} the errors are "
        + ", ".join(f"{middle[name, options['widths'][0]]:.2g}" for name in tasks)
        + "."
    )
    numbers = {
        "needed": {name: None if w == float("inf") else w for name, w in needed.items()},
        "errors": by_seed(table, ["inputs", "width"]),
    }
    figure = sweep(
        table,
        x="width",
        across="width D of the residual stream",
        by="inputs",
        label="mean square error, share of variance",
        levels={f"error {options['level']}": options["level"]},
    )
    return verdict(
        status_of(halves),
        words,
        "width needed: " + ", ".join(f"{name} {w}" for name, w in told.items()),
        numbers,
        name="errors",
        table=table,
        drawing=Drawing(figure, "Error against width, a line a manifold."),
    )
