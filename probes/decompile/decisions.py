"""A model's decisions on rows, and how often a program decides the same.

    match = share of decisions that are the same
    gain  = 1 − (1 − match) / (1 − match of the best table on the current token alone)

On small tasks a table on the current token is right nine times in ten, and so is a program for
random weights: *match* alone proves nothing. Gain is 0 for that table and 1 for the model itself.
It is not defined where the table makes no mistake: then no attention is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.program.evaluation import NONE, Decisions
from interp.run import Edit, Run, Site
from interp.tasks.base import Batch
from probes.decompile.rows import TokenRows

_AT_ONCE = 64
"""Number of rows in one forward pass. It bounds memory."""


@dataclass(frozen=True)
class Fidelity:
    """How often two sources of decisions, such as a model and a program, agree.

    Attributes:
        match: Share of decisions that are the same; NaN where there are no scored positions.
        gain: The share of the current-token table's mistakes that is avoided; NaN where it makes
            none.
    """

    match: float
    gain: float

    @property
    def gain_or_match(self) -> float:
        """The gain; where the table makes no mistake, so that it is not defined, the match."""
        return self.gain if np.isfinite(self.gain) else self.match

    @property
    def strict_gain(self) -> float:
        """The gain; where the table makes no mistake, so that it is not defined, 1 for a perfect
        match and else 0."""
        return self.gain if np.isfinite(self.gain) else float(self.match >= 1.0)


def run_of(model: Any, rows: TokenRows) -> Run:
    """Return a model's run on rows, scored at the asked positions.

    Args:
        model: A causal model of token codes ``[row, pos]``, so that padding does not matter.
        rows: The rows.
    """
    inputs, asked = inputs_of(rows), torch.from_numpy(rows.asked)
    batch = Batch(inputs, torch.zeros(asked.shape, dtype=torch.long), asked)
    return Run(model, batch, tokens=_AT_ONCE * asked.shape[1])


def outputs_of(
    model: Any, rows: TokenRows, *edits: Edit, run: Run | None = None
) -> Float[np.ndarray, "decision output"]:
    """Return a model's outputs at the asked positions, under edits.

    Args:
        model, rows: As for :func:`run_of`.
        edits: The edits.
        run: The run on these rows, if there is one already.
    """
    if not rows.asked.any():
        return np.zeros((0, 1), np.float32)
    run = run_of(model, rows) if run is None else run
    return torch.cat([o.float().cpu() for _, o in run.with_(*edits).outputs()]).numpy()


def activations(model: Any, rows: TokenRows, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Return a model's activations at some sites on rows, ``[row, pos, …]``, on the CPU.

    Args:
        model: A model of token codes ``[row, pos]``.
        rows: The rows.
        sites: The sites; those that the model does not have are left out.
    """
    there = [site for site in sites if site.name in model.hook_dict]
    every = replace(rows, asked=np.ones_like(rows.asked))
    return {site: value.cpu() for site, value in run_of(model, every).at(there).items()}


def inputs_of(rows: TokenRows) -> Tensor:
    """Return the model's inputs for rows: token codes ``[row, pos]``, or what ``rows.encode`` makes
    of them.

    Padding is replaced by code 0 first.
    """
    tokens = torch.from_numpy(np.where(rows.tokens == NONE, 0, rows.tokens))
    return tokens if rows.encode is None else rows.encode(tokens)


def output_decisions(asked: Float[np.ndarray, "decision output"], rows: TokenRows) -> NDArray[Any]:
    """Return the decisions that a model's outputs stand for.

    A model with one output, which answers yes or no, decides for the second answer if the output is
    above the rows' threshold. Outputs beyond the vocabulary are ignored.

    Args:
        asked: The outputs at the asked positions.
        rows: The rows, which say what outputs stand for.

    Returns:
        Truths ``[decision, output]`` for the objective ``sets``, else token codes ``[decision]``.
    """
    asked = asked[:, : len(rows.vocabulary.texts)] if rows.answers is None else asked
    if rows.objective == "sets":
        return asked > 0
    one = asked.shape[-1] == 1
    chosen = (asked[:, 0] > rows.threshold).astype(np.int64) if one else asked.argmax(-1)
    return chosen if rows.answers is None else np.array(rows.answers)[chosen]


def decide(found: Decisions, rows: TokenRows) -> NDArray[Any]:
    """Return a program's decisions at the asked positions, in the form of :func:`output_decisions`.

    Args:
        found: The program's results on the rows.
        rows: The rows.
    """
    values = found.allowed if found.allowed is not None else found.chosen
    return np.asarray(values)[rows.asked]


def agreement(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the share of decisions that are the same; NaN if there are none."""
    return float((one == other).mean()) if one.size else float("nan")


class TokenTable:
    """The best table on the current token alone, fitted to a model's decisions.

    Args:
        rows: The rows for fitting.
        decisions: The model's decisions at the asked positions.
    """

    def __init__(self, rows: TokenRows, decisions: NDArray[Any]) -> None:
        tokens = rows.tokens[rows.asked]
        self.common = self._most(decisions)
        self.rows = {int(t): self._most(decisions[tokens == t]) for t in np.unique(tokens)}

    def __call__(self, rows: TokenRows) -> NDArray[Any]:
        """Return the table's decisions at the asked positions of some rows."""
        tokens = rows.tokens[rows.asked].tolist()
        found = [self.rows.get(t, self.common) for t in tokens]
        return np.array(found).reshape(len(found), *np.shape(self.common))

    def fidelity(self, rows: TokenRows, decisions: NDArray[Any], found: NDArray[Any]) -> Fidelity:
        """Return match and gain of some decisions against a model's.

        Args:
            rows: The rows.
            decisions: The model's decisions at the asked positions.
            found: The decisions that are judged.
        """
        match, table = agreement(found, decisions), agreement(self(rows), decisions)
        wrong = 1 - table
        return Fidelity(match, 1 - (1 - match) / wrong if wrong > 0 else float("nan"))

    @staticmethod
    def _most(decisions: NDArray[Any]) -> Any:
        if decisions.ndim == 2:
            return decisions.mean(0) > 0.5
        values, times = np.unique(decisions, return_counts=True)
        return values[times.argmax()]


class DecisionTrial:
    """A model on some rows: its decisions, and the share of them that is kept under edits.

    Args:
        model: A hooked model of tokens.
        rows: A few dozen rows; the clean activations on them are kept.
        table: The table on the current token, fitted to the model's decisions. An edit that leaves
            no better decisions than this table has removed everything.
    """

    def __init__(self, model: Any, rows: TokenRows, table: TokenTable) -> None:
        self.model, self.rows, self.table = model, rows, table

    @cached_property
    def run(self) -> Run | None:
        """The model's run on the rows, which all edits start from; None without scored
        positions."""
        return run_of(self.model, self.rows) if self.rows.asked.any() else None

    @cached_property
    def truth(self) -> NDArray[Any]:
        """The decisions of the unedited model."""
        return self.decisions_with()

    def decisions_with(self, *edits: Edit) -> NDArray[Any]:
        """Return the model's decisions at the asked positions under some edits.

        They have the form that :func:`output_decisions` gives; without edits, they are
        :attr:`truth`.
        """
        return output_decisions(outputs_of(self.model, self.rows, *edits, run=self.run), self.rows)

    def gain(self, found: NDArray[Any]) -> float:
        """Return the gain of some decisions against the model's; the match where the table makes no
        mistake."""
        return self.table.fidelity(self.rows, self.truth, found).gain_or_match


def disagreements(
    rows: TokenRows, decisions: NDArray[Any], found: NDArray[Any], most: int = 10
) -> list[tuple[int, int]]:
    """Return (row, position) of the first decisions that differ.

    Args:
        rows: The rows.
        decisions, found: Two lists of decisions at the asked positions.
        most: The largest number of pairs that is returned.
    """
    places = np.argwhere(rows.asked)
    wrong: NDArray[Any] = np.asarray(decisions != found)
    wrong = np.asarray(wrong.any(-1)) if wrong.ndim == 2 else wrong
    return [(int(r), int(p)) for r, p in places[wrong][:most]]
