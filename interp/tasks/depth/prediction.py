"""Prefix-prediction (`depth` §3.3): is what was read so far in the language already?

Strings are promised to be in the language. For L_k the answer is 0 before the last block and 1 from
its start on, which takes k − 2 nested counts instead of the k of membership. Rows are drawn length
first: uniform over the lengths of the bin that the language has strings of, then uniform among its
strings of that length. In-distribution accuracy is a weak witness: at short lengths shallower
models fit too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from interp.crasp.syntax import Program
from interp.tasks.base import Batch
from interp.tasks.depth.batches import (
    draw_lengths,
    latents_of,
    run,
    targets_of,
    to_inputs,
)
from interp.tasks.depth.languages import language
from interp.tasks.depth.strings import StringTask

__all__ = ["PrefixPrediction"]


@dataclass(frozen=True)
class PrefixPrediction(StringTask):
    """At every position of a string of the language: is the prefix in it (`depth` §3.3)?

    Attributes:
        language: Its name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: (shortest, longest) lengths in symbols; a batch has equally many rows of each bin.
        answers: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits``
            ``[batch, pos, 1]``, which is what a compiled program gives.

    Raises:
        ArgumentError: for an unknown language, or bins without a string of it.
    """

    kind: ClassVar[str] = "prefix_prediction"

    @property
    def program(self) -> Program:
        """Answers at every position; its lines are the latents."""
        return language(self.language).prediction

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows.

        Inputs ``[batch, 1 + longest]`` are token ids (:mod:`interp.tasks.depth.batches`), targets
        0 or 1, scored inside the string and not at BOS. Latents are the program's lines.
        """
        generator = np.random.default_rng(seed)
        spoken = language(self.language)
        lengths = generator.permutation(draw_lengths(n, self.bins, spoken, generator))
        codes = spoken.draw(lengths, generator)
        found = run(self.program, codes, spoken, lengths)
        latents = latents_of(found, self.longest)
        batch = Batch(
            to_inputs(self.program, codes, spoken.letters, self.longest),
            targets_of(latents[found.answer], self.answers),
            _inside(lengths, self.longest),
            latents,
        )
        return batch.to(device)


def _inside(lengths: np.ndarray, longest: int) -> torch.Tensor:
    """True at a string's own positions."""
    place = np.arange(longest + 1)
    return torch.from_numpy((place >= 1) & (place <= lengths[:, None]))
