"""What a language model does when a passage is repeated, on text that it was not trained on.

    plain          mean loss in nats a token over whole rows of held-out text
    first, second  mean loss of the same tokens the first and the second time, where passages of 50
                   held-out tokens stand twice in a row
    shuffled       the same for passages of tokens drawn by their frequency, the second time
    induction      the largest share of attention, over heads, that goes from the second time to
                   the token after the earlier equal one
    previous       the largest share that goes to the token before, on held-out text

A gap between first and second says that repeats are used, not by what; the share of attention says
where a head looks, not what that does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from analyses.language.model import GPT2
from analyses.language.rows import rows_of
from analyses.language.tokens import BEGIN

__all__ = ["Measured", "measure"]

_PASSAGE = 50
_ROWS = 64


@dataclass(frozen=True)
class Measured:
    """The numbers of :mod:`analyses.language.measure`; heads are named ``layer.head``."""

    plain: float
    first: float
    second: float
    shuffled: float
    induction: float
    induction_head: str
    previous: float
    previous_head: str

    def to_dict(self) -> dict[str, float | str]:
        """The numbers rounded to four digits after the point."""
        data = asdict(self)
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in data.items()}


@torch.no_grad()
def measure(model: GPT2, held_out: Tensor, *, seed: int = 0) -> Measured:
    """Measure a model on a held-out text of token ids ``[token]``."""
    context, drawn_by = model.sizes.context, [seed, 1]
    inputs, targets = rows_of(held_out, 32, context, repeated=0.0, shuffled=0.0, seed=drawn_by)
    plain = float(functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))
    draw = np.random.default_rng([seed, 2])
    starts = draw.integers(0, len(held_out) - _PASSAGE, _ROWS)
    passages = torch.stack([held_out[s : s + _PASSAGE] for s in starts.tolist()]).long()
    drawn = held_out[torch.from_numpy(draw.integers(0, len(held_out), (_ROWS, _PASSAGE)))].long()
    first, second = _twice(model, passages)
    _, shuffled = _twice(model, drawn)
    after = torch.arange(_PASSAGE + 1, 2 * _PASSAGE)
    patterns = model.patterns(_rows(passages))
    induction = patterns[..., after, after - _PASSAGE + 1].mean((1, 3))
    windows = model.patterns(inputs[:, :128])
    places = torch.arange(1, 128)
    previous = windows[..., places, places - 1].mean((1, 3))
    best, head = _best(induction)
    most, other = _best(previous)
    return Measured(plain, first, second, shuffled, best, head, most, other)


def _rows(passages: Tensor) -> Tensor:
    begin = torch.full((len(passages), 1), BEGIN)
    return torch.cat([begin, passages, passages], 1)


def _twice(model: GPT2, passages: Tensor) -> tuple[float, float]:
    """Return the mean loss of each passage's tokens except its first, when it is read the first and
    the second time, in nats."""
    rows = _rows(passages)
    losses = functional.cross_entropy(model(rows)[:, :-1].mT, rows[:, 1:], reduction="none")
    return float(losses[:, 1:_PASSAGE].mean()), float(losses[:, _PASSAGE + 1 :].mean())


def _best(shares: Tensor) -> tuple[float, str]:
    """Return the largest entry of ``[layer, head]`` and the name of its head."""
    place = int(shares.argmax())
    heads = shares.shape[1]
    return float(shares.flatten()[place]), f"{place // heads}.{place % heads}"
