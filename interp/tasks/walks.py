"""Random walks on a row's own circle of tokens: induction that position cannot replace.

    s_0 … s_{m−1}  distinct tokens, drawn for every row      succ(s_i) = s_{i+1 mod m}
    x_{t+1} = succ(x_t)  with probability 1 − jump,  otherwise a token of the row at random

The token that follows another can be known only from what followed it before in the same row. Jumps
come at random times, so no lag and no position tells where to attend; every token occurs several
times, so the position of its last copy does not help either. The scored steps are those to the
successor of a token that was always followed by it so far: there an induction head is right.

A head that only knows the row's tokens is right once in m. The task is for training: it says
nothing about what a model does on text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from interp.errors import Problems
from interp.tasks.base import Batch, sampler
from interp.tasks.counterfactual import Variable
from interp.tasks.induction import induction_variables


@dataclass(frozen=True)
class SuccessorWalk:
    """The task of predicting the next token of a random walk on a circle of tokens, with jumps.

    Attributes:
        vocabulary: Number of token ids; a row's ids are below it.
        length: Positions of a row, BOS included.
        symbols: Number of tokens in a row's circle.
        jump: Probability that a step goes to a random token of the row instead of the next one.
        bos: Id of the first token of a row, never drawn.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    vocabulary: int
    length: int
    symbols: int = 12
    jump: float = 0.2
    bos: int = 0

    def __post_init__(self) -> None:
        problems = Problems("successor_walk")
        need = problems.need
        rule = f"must be a token below the vocabulary of {self.vocabulary}"
        need(0 <= self.bos < self.vocabulary, "bos", rule, self.bos, "take one of them")
        rule = f"must be 2 to {self.vocabulary - 1}, the tokens without BOS"
        need(2 <= self.symbols < self.vocabulary, "symbols", rule, self.symbols, "change it")
        need(0 <= self.jump < 1, "jump", "must lie in [0, 1)", self.jump, "e.g. 0.2")
        rule = f"must be above {self.symbols + 2}, so that a token can come back"
        need(self.length > self.symbols + 2, "length", rule, self.length, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``successor-walk-12``."""
        return f"successor-walk-{self.symbols}"

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` token ids.

        Latents ``[batch, pos]``: ``previous`` (the token before, −1 at BOS) and ``successor`` (the
        token's next one on the circle, −1 at BOS).
        """
        rng = np.random.default_rng(seed)
        circle = rng.random((n, self.vocabulary - 1)).argsort(1)[:, : self.symbols]
        circle += circle >= self.bos
        place = np.empty((n, self.length), dtype=np.int64)
        place[:, 0] = rng.integers(self.symbols, size=n)
        jumps = rng.random((n, self.length)) < self.jump
        aims = rng.integers(self.symbols, size=(n, self.length))
        for t in range(1, self.length):
            place[:, t] = np.where(jumps[:, t], aims[:, t], (place[:, t - 1] + 1) % self.symbols)
        body = np.take_along_axis(circle, place, 1)
        rows = np.pad(body, ((0, 0), (1, 0)), constant_values=self.bos)
        after = np.take_along_axis(circle, (place + 1) % self.symbols, 1)
        inputs, targets = rows[:, :-1], rows[:, 1:]
        successor = np.pad(after[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        latents = {
            "previous": np.pad(inputs[:, :-1], ((0, 0), (1, 0)), constant_values=-1),
            "successor": successor,
        }
        scored = (targets == successor) & _always(inputs, targets)
        as_tensor = {name: torch.from_numpy(values) for name, values in latents.items()}
        ids = [torch.from_numpy(np.ascontiguousarray(a)) for a in (inputs, targets, scored)]
        return Batch(ids[0], ids[1], ids[2], as_tensor).to(device)

    def variables(self) -> Iterator[Variable]:
        """Return the variables that :func:`interp.tasks.induction.induction_variables`
        describes."""
        return induction_variables()

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "successor_walk", **asdict(self)}


def _always(
    inputs: np.ndarray[Any, np.dtype[np.int64]], targets: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where the current token occurred before and was always followed by the same target."""
    before = np.tril(inputs[:, :, None] == inputs[:, None, :], -1)
    kept = targets[:, None, :] == targets[:, :, None]
    found: np.ndarray[Any, np.dtype[np.bool_]] = before.any(-1) & (kept | ~before).all(-1)
    return found
