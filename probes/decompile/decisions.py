"""What a model decides on rows, and how nearly a program decides the same.

    match = share of decisions that are the same
    gain  = 1 − (1 − match) / (1 − match of the best table on the current token alone)

On small tasks a table on the current token is right nine times in ten, and so is a program for
random weights: *match* alone proves nothing. Gain is 0 for that table and 1 for the model itself;
it is not defined where the table makes no mistake: then no attention is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.hooks.capture import evaluating, model_device
from interp.rasp.evaluation import NONE, Decisions
from probes.decompile.rows import Rows

__all__ = [
    "Fidelity",
    "TokenTable",
    "activations",
    "agreement",
    "decide",
    "decided",
    "disagreements",
    "inputs_of",
    "outputs_of",
]

_AT_ONCE = 64
Hook = tuple[str, Callable[..., Any]]


@dataclass(frozen=True)
class Fidelity:
    """How nearly two deciders agree.

    Attributes:
        match: Share of decisions that are the same; NaN where nothing is asked.
        gain: How much better than the current-token table; NaN where that makes no mistake.
    """

    match: float
    gain: float

    @property
    def or_match(self) -> float:
        """Gain, or where the table makes no mistake on these rows, match."""
        return self.gain if np.isfinite(self.gain) else self.match


def outputs_of(
    model: Any, rows: Rows, hooks: Callable[[slice], Sequence[Hook]] | None = None
) -> Float[np.ndarray, "row pos output"]:
    """A model's outputs on rows; some rows at a time.

    Args:
        model: Takes token codes ``[row, pos]``; causal, so that what pads a row does not matter.
        rows: Of tokens.
        hooks: Rows → hooks that change the run for them.
    """
    tokens = inputs_of(rows).to(model_device(model))
    found = []
    with torch.no_grad(), evaluating(model):
        for start in range(0, len(rows), _AT_ONCE):
            which = slice(start, start + _AT_ONCE)
            own = list(hooks(which)) if hooks is not None else []
            output = (
                model.run_with_hooks(tokens[which], fwd_hooks=own) if own else model(tokens[which])
            )
            found.append(output.float().cpu().numpy())
    return np.concatenate(found) if found else np.zeros((0, rows.tokens.shape[1], 1), np.float32)


def activations(model: Any, rows: Rows, names: Sequence[str]) -> dict[str, Tensor]:
    """What a model holds at some hooks on rows: hook → values ``[row, pos, …]``, on the CPU.

    Args:
        model: Takes token codes ``[row, pos]``.
        rows: Of tokens.
        names: Hooks; those that the model has not are left out.
    """
    tokens = inputs_of(rows).to(model_device(model))
    with torch.no_grad(), evaluating(model):
        _, cache = model.run_with_cache(tokens, names_filter=list(names))
    return {name: cache[name].cpu() for name in names if name in cache}


def inputs_of(rows: Rows) -> Tensor:
    """What a model is given for rows; code 0 stands for what pads a row."""
    tokens = torch.from_numpy(np.where(rows.tokens == NONE, 0, rows.tokens))
    return tokens if rows.encode is None else rows.encode(tokens)


def decided(outputs: Float[np.ndarray, "row pos output"], rows: Rows) -> NDArray[Any]:
    """The decisions at the asked positions: ``[decision, output]`` truths, or ``[decision]`` codes.

    A model of one output that answers yes or no (two answers) chooses the second where it is above
    the rows' threshold. Outputs beyond the vocabulary are not looked at.
    """
    asked = outputs[rows.asked]
    asked = asked[:, : len(rows.vocabulary.texts)] if rows.answers is None else asked
    if rows.objective == "sets":
        return asked > 0
    one = asked.shape[-1] == 1
    chosen = (asked[:, 0] > rows.threshold).astype(np.int64) if one else asked.argmax(-1)
    return chosen if rows.answers is None else np.array(rows.answers)[chosen]


def decide(found: Decisions, rows: Rows) -> NDArray[Any]:
    """A program's decisions at the asked positions, as :func:`decided`."""
    values = found.allowed if found.allowed is not None else found.chosen
    return np.asarray(values)[rows.asked]


def agreement(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Share of decisions that are the same; NaN where there are none."""
    return float((one == other).mean()) if one.size else float("nan")


class TokenTable:
    """The best table on the current token alone, fitted to a model's decisions.

    Args:
        rows: Fitted rows.
        decisions: The model's, at the asked positions.
    """

    def __init__(self, rows: Rows, decisions: NDArray[Any]) -> None:
        tokens = rows.tokens[rows.asked]
        self.common = self._most(decisions)
        self.rows = {int(t): self._most(decisions[tokens == t]) for t in np.unique(tokens)}

    def __call__(self, rows: Rows) -> NDArray[Any]:
        """What the table decides at the asked positions."""
        tokens = rows.tokens[rows.asked].tolist()
        found = [self.rows.get(t, self.common) for t in tokens]
        return np.array(found).reshape(len(found), *np.shape(self.common))

    def fidelity(self, rows: Rows, decisions: NDArray[Any], found: NDArray[Any]) -> Fidelity:
        """Match and gain of what was found against a model's decisions."""
        match, table = agreement(found, decisions), agreement(self(rows), decisions)
        wrong = 1 - table
        return Fidelity(match, 1 - (1 - match) / wrong if wrong > 0 else float("nan"))

    @staticmethod
    def _most(decisions: NDArray[Any]) -> Any:
        if decisions.ndim == 2:
            return decisions.mean(0) > 0.5
        values, times = np.unique(decisions, return_counts=True)
        return values[times.argmax()]


def disagreements(
    rows: Rows, decisions: NDArray[Any], found: NDArray[Any], most: int = 10
) -> list[tuple[int, int]]:
    """(row, position) of the first decisions that differ."""
    places = np.argwhere(rows.asked)
    wrong: NDArray[Any] = np.asarray(decisions != found)
    wrong = np.asarray(wrong.any(-1)) if wrong.ndim == 2 else wrong
    return [(int(r), int(p)) for r, p in places[wrong][:most]]
