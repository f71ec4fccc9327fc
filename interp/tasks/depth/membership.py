"""Membership: is the whole string in the language?

Half of each bin's rows are in it, uniform among its strings of their length. The others are half
uniform among all strings that are not, half near misses: a uniform member with one symbol changed,
drawn again until it is none, and after fifty tries uniform among the others. Both halves have the
same lengths, so the length tells nothing. A uniform outsider of a sparse language is easy to tell:
look at the near misses' accuracy before believing a high score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int

from interp.program.syntax import Program
from interp.tasks.base import Batch
from interp.tasks.depth.batches import (
    draw_lengths,
    latents_of,
    rows_of_bins,
    run,
    targets_of,
    to_inputs,
)
from interp.tasks.depth.languages import Language, language
from interp.tasks.depth.strings import StringTask

__all__ = ["Membership"]

_TRIES = 50


@dataclass(frozen=True)
class Membership(StringTask):
    """Is the whole string in the language? Asked at its last position (`depth` §3.2).

    Attributes:
        language: The language's name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: (shortest, longest) lengths in symbols; a batch has equally many rows of each bin,
            and equally many in each bin that are in the language and that are not.
        targets: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits``
            ``[batch, pos, 1]``, which is what a compiled program gives.

    Raises:
        ArgumentError: for an unknown language, or bins without a string of it.
    """

    kind: ClassVar[str] = "membership"

    @property
    def program(self) -> Program:
        """The C-RASP program that answers at the last position; its lines are the latents."""
        return language(self.language).membership

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows.

        Inputs ``[batch, 1 + longest]`` are token ids (:mod:`interp.tasks.depth.batches`), targets
        0 or 1, scored at a string's last position only. Latents are the program's lines.
        """
        generator = np.random.default_rng(seed)
        spoken = language(self.language)
        lengths = draw_lengths(n, self.bins, spoken, generator)
        kinds = np.concatenate([_kinds(rows) for rows in rows_of_bins(n, self.bins)])
        order = generator.permutation(n)
        lengths, kinds = lengths[order], kinds[order]
        codes = np.full((n, int(lengths.max(initial=0))), -1, dtype=np.int64)
        for kind, draw in ((0, _members), (1, _others), (2, _near_misses)):
            rows = np.flatnonzero(kinds == kind)
            drawn = draw(spoken, lengths[rows], generator)
            codes[rows, : drawn.shape[1]] = drawn
        found = run(self.program, codes, spoken, lengths)
        inputs = to_inputs(self.program, codes, spoken.letters, self.longest)
        last = torch.arange(self.longest + 1) == torch.from_numpy(lengths)[:, None]
        latents = latents_of(found, self.longest)
        return Batch(inputs, targets_of(latents[found.answer], self.targets), last, latents).to(
            device
        )


def _kinds(rows: int) -> np.ndarray:
    """The kind of each row, in a cycle: 0 member (half of all), 1 other string, 2 near miss."""
    return np.array([(0, 1, 0, 2)[row % 4] for row in range(rows)], dtype=np.int64)


_Lengths = Int[np.ndarray, " batch"]
_Codes = Int[np.ndarray, "batch pos"]


def _members(spoken: Language, lengths: _Lengths, generator: np.random.Generator) -> _Codes:
    return spoken.draw(lengths, generator)


def _others(spoken: Language, lengths: _Lengths, generator: np.random.Generator) -> _Codes:
    return spoken.draw(lengths, generator, member=False)


def _near_misses(spoken: Language, lengths: _Lengths, generator: np.random.Generator) -> _Codes:
    codes = _others(spoken, lengths, generator)
    open_rows = np.arange(len(lengths))
    for _ in range(_TRIES):
        if not len(open_rows):
            break
        asked = lengths[open_rows]
        tried = spoken.draw(asked, generator)
        place = generator.integers(0, asked)
        here = np.arange(len(asked)), place
        shift = generator.integers(1, len(spoken.letters), len(asked))
        tried[here] = (tried[here] + shift) % len(spoken.letters)
        outside = ~run(spoken.membership, tried, spoken, asked).accepted
        codes[open_rows[outside], : tried.shape[1]] = tried[outside]
        open_rows = open_rows[~outside]
    return codes
