"""Walks in which some tokens are followed by what follows them in every row, and some by a token of
the row's own.

    G(x)       the token after x on one circle, the same in all rows
    succ(x)    G(x), but among a share of the tokens, drawn for every row, these are dealt anew
    x_{t+1}  = succ(x_t)  with probability 1 − jump,  otherwise any token

Scored are steps to a successor that has followed its token before in the row. An n-gram knows G and
how often it holds: that is all the tokens before say of a row not read so far. Who looks where the
token was followed before knows the rest. Which of the two a model does shows where succ(x) ≠ G(x),
the latent ``own``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from prooflens.attention import token_key_sets
from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["OwnSuccessors", "ngram_loss"]

_ORDERS = 4
_SMOOTH = 0.1


@dataclass(frozen=True)
class OwnSuccessors:
    """Predict the next token of a walk whose rows keep most of a common successor map.

    Attributes:
        tokens: How many tokens there are besides BOS, which is 0.
        length: Positions of a row, BOS included.
        own: The share of tokens among which a row deals their successors anew.
        jump: Probability that a step goes to a random token.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    tokens: int
    length: int
    own: float
    jump: float

    def __post_init__(self) -> None:
        problems = Problems("own_successors")
        for name, least in (("tokens", 4), ("length", 8)):
            value, rule = getattr(self, name), f"must be at least {least}"
            problems.need(value >= least, name, rule, value, "raise it")
        for name in ("own", "jump"):
            value, rule = getattr(self, name), "must lie in [0, 1)"
            problems.need(0 <= value < 1, name, rule, value, "e.g. 0.2")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports."""
        return f"own-successors-{self.tokens}"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` token ids.

        Latents ``[batch, pos]``: ``own``, whether the row's successor of the token is another than
        G; ``found`` ``[batch, query, key]``, the keys that hold a successor of the query's token.
        """
        rng, every = np.random.default_rng(seed), np.arange(self.tokens)
        common = (every + 1) % self.tokens
        own, drawn = rng.random((2, n, self.tokens))
        places = np.where(own < self.own, 0.0, 2.0)  # own tokens come first, in order or shuffled
        shuffled, kept = (places + drawn).argsort(1), (places + every / self.tokens).argsort(1)
        shuffled = np.where(np.take_along_axis(places, kept, 1) > 0, kept, shuffled)
        follow = np.empty((n, self.tokens), dtype=np.int64)
        np.put_along_axis(follow, shuffled, common[kept], 1)
        walk = rng.integers(self.tokens, size=(n, self.length))  # where a jump would go
        stays = rng.random((n, self.length)) >= self.jump
        for t in range(1, self.length):
            after = follow[np.arange(n), walk[:, t - 1]]
            walk[:, t] = np.where(stays[:, t], after, walk[:, t])
        rows = torch.from_numpy(np.pad(walk + 1, ((0, 0), (1, 0))))
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        successor = torch.from_numpy(np.take_along_axis(follow, walk[:, :-1], 1) + 1)
        successor = torch.cat((torch.zeros_like(successor[:, :1]), successor), 1)
        found = token_key_sets(inputs)["after_same"] & (inputs[:, None] == successor[:, :, None])
        shared = torch.cat((torch.zeros(1).long(), torch.from_numpy(common) + 1))[inputs]
        latents = {"own": successor != shared, "found": found}
        mask = (targets == successor) & found.any(-1)
        return Batch(inputs, targets, mask, latents).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "own_successors", **asdict(self)}


def ngram_loss(task: OwnSuccessors, rows: int, judged: Batch, *, seed: int) -> dict[int, float]:
    """Return n → the loss of the n-gram on ``judged``, in nats per scored position, for n = 1 to 4.

    Each is counted on the scored positions of ``rows`` fresh rows, with 0.1 added to every count.
    """
    counted, size, found = task.sample(rows, seed=seed), task.tokens + 1, {}
    for order in range(1, _ORDERS + 1):
        counts = np.full((size**order,), _SMOOTH)
        np.add.at(counts, _grams(counted, order, size), 1.0)
        share = counts.reshape(-1, size)
        share = share / share.sum(1, keepdims=True)
        found[order] = float(-np.log(share.reshape(-1)[_grams(judged, order, size)]).mean())
    return found


def _grams(batch: Batch, order: int, size: int) -> np.ndarray:
    """Return the number of the n-gram that ends in each scored target."""
    inputs, code = batch.inputs.numpy(), np.zeros(batch.inputs.shape, dtype=np.int64)
    for back in range(order - 2, -1, -1):
        code = code * size + np.pad(inputs, ((0, 0), (back, 0)))[:, : inputs.shape[1]]
    code = code * size + batch.targets.numpy()
    return np.asarray(code[batch.mask.numpy()])
