"""Which positions and which tokens a model has learned: other rows say nothing about its heads.

    positions   beyond those learned, the loss by position rises in a step and stays high to the
                end of the row: a model that was trained on shorter rows does anything there
    tokens      ids that the model never read have embeddings like fresh random draws: smaller
                than all others by a gap, of similar size, at right angles; ids that it cannot
                repeat have a loss that is higher by a gap of 3 nats (if each occurs a few times)

Both are found from the model alone. A step is found by least squares over all positions, on the
rows' own scored positions; its p-value is by a permutation test in which each row's losses are put
in random order. If the loss rises slowly, or untrained position embeddings are too small to matter,
no step is found, and then no harm is done by measuring there. If embeddings began as large as
training made them, tokens that were never read are not recognised. Knowledge about the model's
training (its own rows) is the better guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.stats.p_values import from_draws

LEAST = 12
"""Least number of positions of a row. With fewer, two repeats and something to compare them with do
not fit."""

_RISE, _LEVEL, _DRAWS = 0.5, 0.01, 200
_GAP, _FEWEST, _MOST, _WIDTH = 1.25, 4, 256, 16
_NATS, _TIMES = 3.0, 3

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """The change point of a quantity along the positions of a row, and its p-value.

    Attributes:
        position: The first position after the change.
        before, after: Means over the counted positions before it, and from it on.
        p: p-value of a permutation test: the probability of a change at least as large if each
            row's values were in random order.
    """

    position: int
    before: float
    after: float
    p: float


def largest_step(
    values: Float[Tensor, "row pos"],
    counted: Bool[Tensor, "row pos"],
    *,
    least: int = 1,
    rising: bool = False,
) -> Step | None:
    """Find the position at which the values before and after differ most, by least squares.

    Args:
        values: A number for each position.
        counted: True for the numbers that count.
        least: The least number of positions before the step.
        rising: Whether to consider only steps upwards.

    Returns:
        The step; None if fewer than two positions on each side count.
    """
    numbers, marks = values.double().cpu().numpy(), counted.cpu().numpy()
    columns = np.flatnonzero(marks.any(0))
    places = np.arange(max(least, 1), marks.shape[1])
    inside = [p for p in places if (columns < p).sum() >= 2 and (columns >= p).sum() >= 2]
    if not inside:
        return None
    gains, before, after = _steps(numbers, marks, np.array(inside), rising)
    best = int(gains.argmax())
    rng, drawn = np.random.default_rng(0), []
    for _ in range(_DRAWS):
        mixed = numbers.copy()
        for row, mark in enumerate(marks):
            mixed[row, mark] = rng.permutation(numbers[row, mark])
        drawn.append(_steps(mixed, marks, np.array(inside), rising)[0].max())
    p = from_draws(float(gains[best]), np.array(drawn)).p
    return Step(int(inside[best]), float(before[best]), float(after[best]), p)


def positions_learned(losses: Float[Tensor, "row pos"], scored: Bool[Tensor, "row pos"]) -> int:
    """Return how many positions, counted from the first, a model has learned to handle.

    Rows are cut where the loss steps upwards most, if the step is significant and at least half a
    nat, and again until no such step is left.

    Args:
        losses: The loss at each position, in nats.
        scored: True for the losses that count.

    Returns:
        The number of positions that remain; the length of a row if there is no such step.
    """
    length = losses.shape[1]
    while length > LEAST:
        step = largest_step(losses[:, :length], scored[:, :length], least=LEAST, rising=True)
        if step is None or step.after - step.before < _RISE or step.p > _LEVEL:
            break
        length = step.position
    return length


@torch.no_grad()
def learned_tokens(model: Any) -> Tensor | None:
    """Return the ids that a model seems to have read in training, by the sizes of their embeddings.

    Args:
        model: A hooked model of tokens.

    Returns:
        The ids, sorted. None if they cannot be told from others, and for models narrower than 16,
        whose random embeddings differ as much in size as trained ones.
    """
    found = getattr(getattr(model, "embed", None), "W_E", None)
    if not isinstance(found, Tensor) or len(found) < 2 * _FEWEST or found.shape[1] < _WIDTH:
        return None
    embedding = found.detach().float().cpu()
    norms, order = embedding.norm(dim=1).sort()
    gaps = norms[_FEWEST : 1 - _FEWEST] / norms[_FEWEST - 1 : -_FEWEST].clamp_min(1e-30)
    below = int(gaps.argmax()) + _FEWEST
    if float(gaps.max()) < _GAP or not _as_drawn(embedding[order[:below]]):
        return None
    return order[below:].sort().values


def tokens_repeated(
    losses: Float[Tensor, "row pos"],
    targets: Int[Tensor, "row pos"],
    scored: Bool[Tensor, "row pos"],
) -> Tensor | None:
    """Return the ids that a model predicts when they repeat, on rows of repeated tokens.

    Args:
        losses: The loss at each position.
        targets: The right id at each position.
        scored: True at the positions where the repetition can be predicted.

    Returns:
        The ids, sorted. None if there is no gap of 3 nats in the ids' median losses, or if too many
        ids occur fewer than three times.
    """
    table = pd.DataFrame({"id": targets[scored].numpy(), "loss": losses[scored].numpy()})
    found = table.groupby("id")["loss"].agg(["median", "size"]).sort_values("median")
    gaps = np.diff(found["median"].to_numpy())[_FEWEST - 1 : -_FEWEST]
    if not len(gaps) or (found["size"] < _TIMES).mean() > 0.1 or gaps.max() < _NATS:
        return None
    kept = found.index[: int(gaps.argmax()) + _FEWEST]
    return torch.tensor(np.sort(kept.to_numpy()))


def _steps(
    values: Numbers, marks: NDArray[np.bool_], places: NDArray[np.int64], rising: bool
) -> tuple[Numbers, Numbers, Numbers]:
    """Return, for each position, how much of the values' variance a step there explains, and the
    means before and after it."""
    sums = np.cumsum(np.where(marks, values, 0.0).sum(0))
    counts = np.cumsum(marks.sum(0)).astype(np.float64)
    n, m = counts[places - 1], counts[-1] - counts[places - 1]
    before, after = sums[places - 1] / n, (sums[-1] - sums[places - 1]) / m
    gains = n * m / (n + m) * (after - before) ** 2
    return np.where((after > before) | (not rising), gains, 0.0), before, after


def _as_drawn(group: Tensor) -> bool:
    """Return whether embeddings look untrained: of similar size, and at right angles."""
    group = group[:: -(-len(group) // _MOST)]
    group, width = group - group.mean(0), group.shape[1]
    norms = group.norm(dim=1)
    even = float(norms.std() / norms.mean().clamp_min(1e-30)) <= 3 / (2 * width) ** 0.5
    cosines = group @ group.T / (norms[:, None] * norms).clamp_min(1e-30)
    apart = cosines[~torch.eye(len(group), dtype=torch.bool)].square().mean().sqrt()
    expected = (1 / width + 1 / (len(group) - 1) ** 2) ** 0.5
    return even and float(apart) <= 1.5 * expected
