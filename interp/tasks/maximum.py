"""Max-of-K: predict the largest of K tokens at the last position.

    x_1 … x_K  uniform in 0 … vocabulary − 1,    y = max_i x_i

This is the small task on which proofs about trained models are compared (arXiv 2406.11779): every
row can be enumerated, attention alone is enough, and the better the model is understood, the
cheaper a proof can be. The latents are running values: the largest token so far and how often it
occurred.

Accuracy on random rows says little about near ties, because few random rows have two largest tokens
that differ by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch

from interp.errors import Problems
from interp.tasks.base import Batch, sampler


@dataclass(frozen=True)
class Maximum:
    """The task of predicting the largest of ``length`` tokens at the last position.

    Attributes:
        vocabulary: The number of tokens: 0 … vocabulary − 1, compared as numbers.
        length: The number K of tokens in a row.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    vocabulary: int = 64
    length: int = 4

    def __post_init__(self) -> None:
        problems = Problems("Maximum")
        rule = "must be at least 2"
        problems.need(self.vocabulary >= 2, "vocabulary", rule, self.vocabulary, "e.g. 64")
        problems.need(self.length >= 2, "length", rule, self.length, "e.g. 4")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``max-of-4``."""
        return f"max-of-{self.length}"

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` ids, scored at the last position."""
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randint(self.vocabulary, (n, self.length), generator=generator)
        largest = inputs.cummax(dim=1).values
        past = torch.ones(self.length, self.length, dtype=torch.bool).tril()
        copies = ((inputs[:, None] == largest[..., None]) & past).sum(-1)
        mask = torch.zeros(n, self.length, dtype=torch.bool)
        mask[:, -1] = True
        latents = {"maximum": largest, "copies": copies.float()}
        return Batch(inputs, largest * mask, mask, latents).to(device)

    def every_row(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield every row with its largest token."""
        for row in product(range(self.vocabulary), repeat=self.length):
            yield row, max(row)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "maximum", **asdict(self)}
