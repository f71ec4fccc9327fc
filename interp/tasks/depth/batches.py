"""Turn strings of a language into batches: BOS in front, padding behind, program lines as latents.

    id 0 = BOS,   1 … = the letters that the program names, sorted,   last = any other, and padding

which is how a compiled program takes them. Padding stands on the right, so only causal models may
be given such rows: what follows a string then changes nothing inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import Problems
from interp.program.analysis import alphabet
from interp.program.evaluation import Evaluation, evaluate_codes
from interp.program.syntax import Program
from interp.tasks.depth.languages import Language

__all__ = [
    "Bins",
    "TargetForm",
    "check_bins",
    "check_target_form",
    "draw_lengths",
    "latents_of",
    "rows_of_bins",
    "run",
    "targets_of",
    "to_inputs",
]

TargetForm = Literal["classes", "bits"]
Bins = tuple[tuple[int, int], ...]
_Codes = Int[np.ndarray, "batch pos"]
_Lengths = Int[np.ndarray, " batch"]


def check_bins(bins: Bins, spoken: Language, problems: Problems) -> None:
    """Record bins that are not pairs of lengths, or in whose range the language has no string."""
    problems.need(len(bins) > 0, "bins", "must name a bin of lengths", bins, "e.g. ((3, 30),)")
    for pair in bins:
        good = len(pair) == 2 and 1 <= pair[0] <= pair[-1]
        rule = "must be pairs (shortest, longest) with 1 ≤ shortest ≤ longest"
        problems.need(good, "bins", rule, pair, "e.g. ((3, 30),)")
        if good:
            rule = f"must hold a length that {spoken.name} has strings of"
            problems.need(bool(_inhabited(spoken, pair)), "bins", rule, pair, "lengthen the bin")


def check_target_form(form: str, problems: Problems) -> None:
    """Record a form of targets that is not known."""
    known = get_args(TargetForm)
    rule = f"must be one of {', '.join(known)}"
    problems.need(form in known, "targets", rule, form, "pick one")


def rows_of_bins(n: int, bins: Bins) -> list[int]:
    """How many of n rows each bin gets: equal numbers, with any remainder given to the first
    bins."""
    return [n // len(bins) + (number < n % len(bins)) for number in range(len(bins))]


def draw_lengths(n: int, bins: Bins, spoken: Language, generator: np.random.Generator) -> _Lengths:
    """Draw n lengths, bin after bin, uniformly over those lengths of a bin that the language
    has."""
    drawn = [
        generator.choice(_inhabited(spoken, pair), rows)
        for pair, rows in zip(bins, rows_of_bins(n, bins), strict=True)
    ]
    return np.concatenate(drawn)


def run(program: Program, codes: _Codes, spoken: Language, lengths: _Lengths) -> Evaluation:
    """Evaluate the program on strings given as codes of the language's letters."""
    return evaluate_codes(program, codes, spoken.letters, lengths)


def to_inputs(
    program: Program, codes: _Codes, letters: Sequence[str], longest: int
) -> Int[Tensor, "batch one_more"]:
    """The model's token ids ``[batch, 1 + longest]``: BOS, the string, padding."""
    named = alphabet(program)
    other = len(named) + 1
    known = [named.index(letter) + 1 if letter in named else other for letter in letters]
    ids = np.full((len(codes), longest + 1), other, dtype=np.int64)
    ids[:, 0] = 0
    ids[:, 1 : codes.shape[1] + 1] = np.array([*known, other])[codes]
    return torch.from_numpy(ids)


def targets_of(answer: Tensor, form: TargetForm) -> Tensor:
    """The answers as targets: classes ``[batch, pos]`` or bits ``[batch, pos, 1]``."""
    return answer.long() if form == "classes" else answer[..., None]


def latents_of(found: Evaluation, longest: int) -> dict[str, Tensor]:
    """Each program line's values as a latent ``[batch, 1 + longest]`` in float32, 0 at BOS and past
    the string's end."""
    latents = {}
    for name, values in found.values.items():
        held = np.zeros((len(values), longest + 1), dtype=np.float32)
        held[:, 1 : values.shape[1] + 1] = values
        latents[name] = torch.from_numpy(held)
    return latents


def _inhabited(spoken: Language, pair: tuple[int, int]) -> list[int]:
    return [length for length in range(pair[0], pair[1] + 1) if spoken.size(length)]
