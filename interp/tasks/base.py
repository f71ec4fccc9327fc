"""The protocol that every task follows, and the batches that tasks give.

A task is a frozen description that can sample itself. Every batch carries its *latents*, the
quantities the task was built from (memory locations and contents, kernels, template indices):
probes and role detectors are judged against them. A latent that a probe finds shows that the
information is there, not that the model uses it.

A task may also say what a model of it must do. ``task.memories()`` names the contents that are
fetched from earlier positions and where each is; ``task.answers()`` names the latents that are
computed, each with the latents it is computed from. Roles of memories and readouts are looked for
only where a task says so: :func:`memories_of` and :func:`answers_of` read both, and find nothing in
a task that has no such method.
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
    """Inputs, targets and everything known about them.

    Attributes:
        inputs: ``[batch, pos, channel]`` real values, or ``[batch, pos]`` token ids.
        targets: ``[batch, pos, output]`` real values, or ``[batch, pos]`` token ids.
        mask: ``[batch, pos]`` boolean, true where the target is defined and scored.
        latents: name → ``[batch, pos]`` or ``[batch, pos, …]`` tensors. Their type says what they
            are: whole numbers and booleans name things that have no order (tokens, labels, which
            position), floating types are quantities (contents, lags, counts). Probes read names as
            classes.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    latents: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of rows (sequences)."""
        return int(self.inputs.shape[0])

    def __getitem__(self, rows: slice) -> Batch:
        """The rows of a slice as a smaller batch."""
        return Batch(
            self.inputs[rows],
            self.targets[rows],
            self.mask[rows],
            {name: latent[rows] for name, latent in self.latents.items()},
        )

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on ``device``."""
        return Batch(
            self.inputs.to(device),
            self.targets.to(device),
            self.mask.to(device),
            {name: latent.to(device) for name, latent in self.latents.items()},
        )


@runtime_checkable
class Task(Protocol):
    """A frozen description of what is to be learned."""

    @property
    def name(self) -> str:
        """A short stable name, used in stores, recipes and reports."""

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows; the same seed gives the same rows on every machine."""

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data: what a store or recipe records, with its ``kind``."""


def sampler(sample: Callable[..., Batch]) -> Callable[..., Batch]:
    """The ``sample`` of a task, which refuses numbers of rows, seeds and devices that are none;
    :exc:`~interp.errors.ArgumentError`."""

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
    """A content that a task says is fetched from earlier positions.

    Attributes:
        name: The latent that holds the content.
        location: Where the content lies, given as a fixed lag, as the name of the latent that holds
            the lag, or as a kernel ρ ``[lag]``; with a kernel the content is the average Σ_s ρ(s)
            x_{t−s}.
        round: The step of a nested lookup in which it is fetched, counted from 1; None where
            lookups are not nested.
    """

    name: str
    location: int | str | NDArray[np.floating]
    round: int | None = None


def memories_of(task: Any) -> tuple[Memory, ...]:
    """The contents that a task says are fetched: its ``memories()``, or none without that
    method."""
    told = getattr(task, "memories", None)
    return () if told is None else tuple(told())


def answers_of(task: Any) -> dict[str, tuple[str, ...]]:
    """The latents that a task says are computed: its ``answers()``, or none without that method.

    Returns:
        Latent → the latents it is computed from; empty where the task does not say from which.
    """
    told = getattr(task, "answers", None)
    return {} if told is None else dict(told())
