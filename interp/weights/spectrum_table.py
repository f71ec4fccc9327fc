"""Head tables of score spectra: effective rank and share of the first value, each with a null.

**The null** turns the keys' inner basis by a uniformly random rotation O: σ(R_q O R_kᵀ) instead of
σ(R_q R_kᵀ). Queries and keys keep their own spectra and lose their relation to each other, so a
score beyond it says that the directions in which queries vary are (or avoid) those in which keys
do. Each head has a null of its own, for its own spectra: a thousand rotations. p is
two-sided, and never below 1/(10 · draws); the table tells ``draws``.

It is a null for the relation alone: a head whose keys lie in a plane has a low rank under it too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Null, from_draws
from interp.weights.metrics import effective_rank
from interp.weights.spectrum import HeadSpectra, VectorMoments, moment_root

__all__ = ["spectrum_table"]

_AT_ONCE = 200

Metric = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _first_share(singular: NDArray[np.float64]) -> NDArray[np.float64]:
    energy = (singular**2).sum(-1)
    return np.asarray(singular[..., 0] ** 2 / np.where(energy > 0, energy, 1.0))


_METRICS: dict[str, Metric] = {"effective_rank": effective_rank, "spectral_share": _first_share}


def spectrum_table(spectra: HeadSpectra, *, draws: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Effective rank and spectral share (σ_1²/Σσ²) of every head's scores in the input metric.

    Args:
        spectra: The spectra, from :func:`interp.weights.spectrum.head_spectra`.
        draws: Random rotations a head; fewer than 1000 are for trying things out.
        seed: Seed of the random rotations.

    Returns:
        A head table; circuit ``QK``, site = the scores' hook.

    Raises:
        ArgumentError: for fewer than two draws.
    """
    problems = Problems("spectrum_table")
    problems.need(draws >= 2, "draws", "must be at least 2", draws, "a spread needs two")
    problems.raise_if_any()
    rng, rows = np.random.default_rng(seed), []
    for layer, pairs in spectra.vectors.items():
        for head, (query, key) in enumerate(pairs):
            own, turned = spectra.metric[layer][head], _turned(query, key, spectra, draws, rng)
            for name, metric in _METRICS.items():
                score = float(metric(own))
                null = _null(score, metric(turned))
                rows.append(
                    score_row(
                        name,
                        score,
                        null,
                        component="head",
                        layer=layer,
                        head=head,
                        circuit="QK",
                        site=f"blocks.{layer}.attn.hook_attn_scores",
                    )
                )
    return head_table(rows)


def _turned(
    query: VectorMoments,
    key: VectorMoments,
    spectra: HeadSpectra,
    draws: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Spectra ``[draw, value]`` in which the keys' inner basis is randomly rotated."""
    width = len(query.mean)
    left = moment_root(query.second)
    right = moment_root(key.covariance if spectra.centred else key.second)
    found = []
    for start in range(0, draws, _AT_ONCE):
        turned = left @ _rotations(width, min(_AT_ONCE, draws - start), rng) @ right
        found.append(torch.linalg.svdvals(turned).numpy())
    return np.concatenate(found) * width**-0.5


def _rotations(width: int, count: int, rng: np.random.Generator) -> Tensor:
    """Draw uniformly random orthogonal matrices [count, width, width] (QR of Gaussian matrices)."""
    drawn = torch.from_numpy(rng.standard_normal((count, width, width)))
    q, upper = torch.linalg.qr(drawn)
    return q * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]


def _null(score: float, drawn: NDArray[np.float64]) -> Null:
    mean, std = float(drawn.mean()), float(drawn.std())
    same = std <= 1e-12 * max(abs(mean), 1.0)
    if same:
        return Null(mean, std, 1.0, "rotations", len(drawn))
    return from_draws(score, drawn, name="rotations", two_sided=True)
