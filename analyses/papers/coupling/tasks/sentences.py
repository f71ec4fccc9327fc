"""Translation from a source in a fixed, permuted order (`coupling` §4.3, real data).

A row is the source sentence, a separator and the translation; a causal model predicts the
translation word by word (teacher forcing). The source is read in its own order or in one fixed
random order of its positions, the same for every row; the translation is unchanged.

Two sources. ``generated``: a small language of adjectives and nouns with a fixed lexicon, whose
translation puts every adjective behind its noun. A pair of text files with a sentence a line: words
are split at spaces, the most frequent ones kept, and sentences that are too long left out. Word
accuracy under teacher forcing is not BLEU of a free translation, and a lexicon with one local
reordering is not a language: use this to ask what an order costs, not how well a model translates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from prooflens.errors import ArgumentError, Problems
from prooflens.tasks import Batch

__all__ = ["PermutedTranslation"]

PAD, UNKNOWN, END, SEPARATOR, FIRST = 0, 1, 2, 3, 4
_HELD_OUT = 10
"""One in this many sentence pairs of a text is kept for the split ``test``."""


@dataclass(frozen=True)
class PermutedTranslation:
    """Translate a sentence word by word; the source may be in a fixed random order.

    Tokens: 0 padding, 1 unknown, 2 end, 3 separator, then ``words`` of the source language, then
    ``words`` of the target language.

    Attributes:
        source, target: Text files with one sentence per line, or both empty for the generated
        language.
        permuted: Whether the source's positions come in a fixed random order.
        permutation_seed: Seed of that order.
        words: How many words each language has.
        length: Words of a generated source sentence; the most that a sentence of a text may have.
        lexicon_seed: Seed of the generated language's lexicon.
        split: ``train`` or ``test`` pairs of a text; generated pairs are always fresh.

    Raises:
        ArgumentError: naming every argument that breaks a rule, or files that do not match.
    """

    source: str = ""
    target: str = ""
    permuted: bool = False
    permutation_seed: int = 0
    words: int = 16
    length: int = 8
    lexicon_seed: int = 0
    split: str = "train"

    def __post_init__(self) -> None:
        problems = Problems("PermutedTranslation")
        need = problems.need
        both = bool(self.source) == bool(self.target)
        need(both, "target", "must be given with source", (self.source, self.target), "or neither")
        for name in ("source", "target"):
            value = getattr(self, name)
            need(not value or Path(value).is_file(), name, "must be a text file", value, "a path")
        need(self.words >= 2, "words", "must be at least 2", self.words, "two word classes")
        need(self.length >= 2, "length", "must be at least 2", self.length, "raise it")
        known = self.split in ("train", "test")
        need(known, "split", "must be train or test", self.split, "pick one")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``translation-generated-permuted``."""
        kind = "text" if self.source else "generated"
        return "-".join(["translation", kind, *["permuted"] * self.permuted])

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary, both languages and the four special tokens."""
        return FIRST + 2 * self.words

    @property
    def positions(self) -> int:
        """Positions of a row."""
        return 2 * self.length + 1

    def order(self) -> Int[Tensor, " word"]:
        """For each position of the row, the position of its word in the source sentence."""
        if not self.permuted:
            return torch.arange(self.length)
        generator = torch.Generator().manual_seed(self.permutation_seed)
        return torch.randperm(self.length, generator=generator)

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` pairs: inputs and targets ``[batch, pos]`` token ids, scored where a word of
        the translation or its end is predicted.

        Latents of the generated language: ``alignment`` [batch, pos], where in the row the source
        word of the predicted word stands (−1 where none is).
        """
        generator = torch.Generator().manual_seed(seed)
        latents: dict[str, Tensor] = {}
        if self.source:
            sources, targets = _text(self.source, self.target, self.words, self.length, self.split)
            rows = torch.randint(len(sources), (n,), generator=generator)
            source, target = sources[rows], targets[rows]
        else:
            source, target, latents = self._generate(n, generator)
        separator = torch.full((n, 1), SEPARATOR)
        row = torch.cat((source[:, self.order()], separator, target), dim=1)
        mask = (torch.arange(self.positions) >= self.length) & (row[:, 1:] != PAD)
        return Batch(row[:, :-1], row[:, 1:], mask, latents).to(device)

    def lexicon(self) -> Int[Tensor, " word"]:
        """The target word of every source word, both counted from 0."""
        generator = torch.Generator().manual_seed(self.lexicon_seed)
        return torch.randperm(self.words, generator=generator)

    def _generate(
        self, n: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Source, target with its end, latents. The first half of the words are nouns."""
        nouns = self.words // 2
        adjective = torch.rand(n, self.length, generator=generator) < 0.5
        adjective[:, -1] = False
        for t in reversed(range(self.length - 1)):
            adjective[:, t] &= ~adjective[:, t + 1]
        noun = torch.randint(nouns, (n, self.length), generator=generator)
        other = torch.randint(nouns, self.words, (n, self.length), generator=generator)
        word = torch.where(adjective, other, noun)
        follows = torch.cat((torch.zeros(n, 1, dtype=torch.bool), adjective[:, :-1]), dim=1)
        aligned = torch.arange(self.length) + adjective.long() - follows.long()
        translated = self.lexicon()[word].gather(1, aligned) + FIRST + self.words
        target = torch.cat((translated, torch.full((n, 1), END)), dim=1)
        place = torch.empty(self.length, dtype=torch.long)
        place[self.order()] = torch.arange(self.length)
        alignment = torch.full((n, self.positions), -1)
        alignment[:, self.length : 2 * self.length] = place[aligned]
        return word + FIRST, target, {"alignment": alignment}

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "permuted_translation", **asdict(self)}


@lru_cache(maxsize=4)
def _text(
    source: str, target: str, words: int, length: int, split: str
) -> tuple[Int[Tensor, "pair word"], Int[Tensor, "pair word_and_end"]]:
    """The pairs of one split as token ids, padded; words are counted over the training pairs."""
    sides = [Path(file).read_text(encoding="utf-8").splitlines() for file in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise ArgumentError(
            f"PermutedTranslation: target must have as many lines as source {len(sides[0])}, got "
            f"{len(sides[1])}: give parallel files"
        )
    pairs = [(a.split(), b.split()) for a, b in zip(*sides, strict=True)]
    pairs = [p for p in pairs if all(1 <= len(side) <= length for side in p)]
    train = [p for i, p in enumerate(pairs) if i % _HELD_OUT]
    test = [p for i, p in enumerate(pairs) if not i % _HELD_OUT]
    chosen = train if split == "train" else test
    if not train or not test:
        raise ArgumentError(
            f"PermutedTranslation: source must hold at least two pairs of at most {length} words, "
            f"got {len(pairs)}: raise length or give more text"
        )
    found = []
    for side, first in ((0, FIRST), (1, FIRST + words)):
        counts = Counter(word for pair in train for word in pair[side])
        kept = sorted(counts, key=lambda word: (-counts[word], word))[:words]
        ids = {word: first + i for i, word in enumerate(kept)}
        end = [END] * side
        coded = [[ids.get(word, UNKNOWN) for word in pair[side]] + end for pair in chosen]
        width = length + side
        found.append(torch.tensor([row + [PAD] * (width - len(row)) for row in coded]))
    return found[0], found[1]
