"""A task: the first token of a row, at every position."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

import prooflens as pl


@dataclass(frozen=True)
class FirstCopy:
    """The first token of a row, everywhere.

    Attributes:
        symbols: How many tokens there are.
        length: Positions of a row.
    """

    symbols: int = 6
    length: int = 10

    @property
    def name(self) -> str:
        """A short name for stores and reports."""
        return f"first-copy-{self.symbols}-{self.length}"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> pl.Batch:
        """Draw rows; the same seed gives the same rows."""
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(self.symbols, (n, self.length), generator=generator)
        first = tokens[:, :1].expand_as(tokens).clone()
        scored = torch.ones_like(tokens).bool()
        return pl.Batch(tokens, first, scored, {"first": first}).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as a recipe or a store records it."""
        return {"kind": "first_copy", **asdict(self)}
