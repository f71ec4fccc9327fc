"""The inputs a theorem is about.

A domain gives its inputs one by one (where they can be counted), as one box, and at random; what
splits it further is a strategy's. Positions are judged one at a time: the output at position t of a
causal model is the output at the last position of the first t + 1 inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from probes.certify.cover import Cells

__all__ = ["CHUNK", "Domain"]

CHUNK = 1024
"""Cells done side by side."""


class Domain(ABC):
    """Every input of a task, with the right answers.

    Attributes:
        kind: ``error`` or ``accuracy``.
        trivial: What the best constant answer reaches.
    """

    kind: str
    trivial: float

    @property
    @abstractmethod
    def size(self) -> int | None:
        """How many inputs, or None where they cannot be counted (real numbers)."""

    @property
    def cells(self) -> int | None:
        """How many cells :meth:`points` makes."""
        return self.size

    @property
    @abstractmethod
    def shape(self) -> tuple[str, int, int, int]:
        """What a model must take: kind of input, ``d_in``, ``d_out``, positions."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The domain as JSON data: what the checker builds it from again."""

    @property
    @abstractmethod
    def statement(self) -> str:
        """In words: which inputs."""

    @abstractmethod
    def points(self) -> Iterator[Cells]:
        """Every input as a cell of its own; empty where they cannot be counted."""

    @abstractmethod
    def boxes(self) -> Iterator[Cells]:
        """The domain as one cell a judged position."""

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Random inputs as cells, weighted as the domain is: to look, never to prove."""
