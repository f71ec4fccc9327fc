"""The protocol that every task follows, and the batches that tasks return.

A task is a frozen description that can sample itself. Every batch carries its *latents*, the
quantities the task was built from (memory locations and contents, kernels, template indices):
probes and role detectors are judged against them. That a probe finds a latent shows that the
information is present, not that the model uses it.

A task may also say what a model of it must do. ``task.memories()`` names the contents that are
fetched from earlier positions and their locations; ``task.answers()`` names the latents that are
computed, each with the latents that it is computed from. Roles of memories and readouts are looked
for only in tasks with these methods: :func:`memories_of` and :func:`answers_of` call them, and
return nothing for a task without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems, is_count
from interp.machine import check_device


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and latents of some rows.

    Attributes:
        inputs: ``[batch, pos, channel]`` real values, or ``[batch, pos]`` token ids.
        targets: ``[batch, pos, output]`` real values, or ``[batch, pos]`` token ids.
        mask: ``[batch, pos]`` boolean, true where the target is defined and scored.
        latents: name → ``[batch, pos]`` or ``[batch, pos, …]`` tensors. Integers and booleans are
            categories without an order (tokens, labels, positions), floating types are quantities
            (contents, lags, counts). Probes predict categories as classes.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    latents: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows (sequences)."""
        return int(self.inputs.shape[0])

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """Return some rows, by a slice or by their numbers, as a smaller batch."""
        return Batch(
            self.inputs[rows],
            self.targets[rows],
            self.mask[rows],
            {name: latent[rows] for name, latent in self.latents.items()},
        )

    def to(self, device: str | torch.device) -> Batch:
        """Return the same batch on ``device``."""
        return Batch(
            self.inputs.to(device),
            self.targets.to(device),
            self.mask.to(device),
            {name: latent.to(device) for name, latent in self.latents.items()},
        )


@runtime_checkable
class Task(Protocol):
    """A frozen description of a task that can sample itself."""

    @property
    def name(self) -> str:
        """A short stable name, used in stores, recipes and reports."""

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows; the same seed gives the same rows on every machine."""

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data with its ``kind``, as a store or recipe records it."""


def sampler(sample: Callable[..., Batch]) -> Callable[..., Batch]:
    """Wrap the ``sample`` method of a task to check the number of rows, the seed and the device.

    The wrapped method raises :exc:`~interp.errors.ArgumentError` if one of them is not valid.
    """

    @wraps(sample)
    def checked_sample(task: Any, n: int, *, seed: int, device: str = "cpu") -> Batch:
        problems = Problems("sample")
        problems.need(is_count(n), "n", "must be a number of rows", n, "give a whole number")
        problems.need(is_count(seed), "seed", "must be at least 0", seed, "give a whole number")
        check_device(device, problems)
        problems.raise_if_any()
        return sample(task, int(n), seed=int(seed), device=device)

    return checked_sample


@dataclass(frozen=True)
class Memory:
    """A content that, as a task says, is fetched from earlier positions.

    Attributes:
        name: The latent that holds the content.
        location: The location of the content: a fixed lag, the name of the latent that holds the
            lag, or a kernel ρ ``[lag]``; with a kernel the content is the average Σ_s ρ(s) x_{t−s}.
        round: The step of a nested lookup in which it is fetched, counted from 1; None if lookups
            are not nested.
    """

    name: str
    location: int | str | NDArray[np.floating]
    round: int | None = None


def memories_of(task: Any) -> tuple[Memory, ...]:
    """Return the contents that a task says are fetched: its ``memories()``, or none without that
    method."""
    told = getattr(task, "memories", None)
    return () if told is None else tuple(told())


def answers_of(task: Any) -> dict[str, tuple[str, ...]]:
    """Return the latents that a task says are computed: its ``answers()``, or none without that
    method.

    Returns:
        Latent → the latents that it is computed from; these are empty if the task does not name
        them.
    """
    told = getattr(task, "answers", None)
    return {} if told is None else dict(told())
