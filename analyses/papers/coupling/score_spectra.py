"""The rank of a head's attention scores: their singular spectra over inputs and in the input
metric.

Scores ρ̂(x, y) = ⟨q(x), k(y)⟩ s (s = 1/√d_head) have rank at most d_head, and a spectrum in two
senses:

    per input          σ_k of the score matrix of one sequence, divided by √(queries · keys); the
                       mean and the spread over inputs are what `coupling` §4.3 reports
    in the metric      σ_k of the operator ρ̂ on L²(inputs): of R_q R_kᵀ s, with E qqᵀ = R_qᵀ R_q and
                       cov k = R_kᵀ R_k, which is W_Q W_Kᵀ in the metric of the inputs, biases and
                       gains included. As sequences get longer the first tends to the second.

**Invariance.** A softmax does not see what is constant along a row of scores, so each row's mean
is taken away: per input from the matrix, in the metric through cov k in place of E kkᵀ. Without
that, spectra differ between models that compute the same function.

Effective rank is exp of the entropy of σ/Σσ (:func:`interp.weights.metrics.effective_rank`); the
decay α is the slope of −log σ_k against log k; C_1 = max_k σ_k k^α is the smallest c with
σ_k ≤ c k^{−α}.

**When not to use it.** Only what comes from q and k is seen: lag biases, identity terms and masks
are not. In a causal model queries are scored against later keys too, which attention never does.
**What a positive result does not establish**: a low rank of the scores is not a low rank of the
attention after the softmax, and a power law fitted to a dozen values is a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from prooflens.errors import ArgumentError, HookError, Problems

__all__ = [
    "Decay",
    "HeadSpectra",
    "convergence",
    "decay_constant",
    "fit_decay",
    "head_spectra",
    "metric_spectrum",
    "moment_root",
    "score_spectra",
]

Spectrum = Float64[np.ndarray, "_"]


@dataclass(frozen=True)
class HeadSpectra:
    """The spectra of every head of some layers.

    Attributes:
        per_input: Layer → singular values of each row, ``[row, head, value]``, largest first.
        metric: Layer → singular values in the input metric, ``[head, value]``, largest first.
    """

    per_input: Mapping[int, Float64[np.ndarray, "row head value"]]
    metric: Mapping[int, Float64[np.ndarray, "head width"]]


@dataclass(frozen=True)
class Decay:
    """The fit of a power law σ_k ≈ C k^{−alpha} over k = first … last.

    Attributes:
        alpha: The exponent.
        low, high: Its 95 % interval.
        first, last: The range of k.
    """

    alpha: float
    low: float
    high: float
    first: int
    last: int


def score_spectra(
    scores: Float[Tensor, "row head query key"],
) -> Float64[np.ndarray, "row head value"]:
    """The singular values of every input's score matrix over √(queries · keys), largest first.

    Each row's mean over keys, which a softmax does not see, is taken away.

    Args:
        scores: The scores before the softmax, not masked.

    Raises:
        ArgumentError: for scores that are not finite.
    """
    if not bool(torch.isfinite(scores).all()):
        raise ArgumentError(
            "score_spectra: scores must be finite, got masked ones (−inf): multiply queries and "
            "keys instead, or use head_spectra"
        )
    scores = scores.double()
    scores = scores - scores.mean(dim=-1, keepdim=True)
    size = (scores.shape[-1] * scores.shape[-2]) ** 0.5
    found: np.ndarray = (torch.linalg.svdvals(scores) / size).cpu().numpy()
    return found


def metric_spectrum(
    queries: Float64[Tensor, "width width"], keys: Float64[Tensor, "width width"]
) -> Spectrum:
    """Singular values of ⟨q, k⟩ / √width as an operator between the inputs' functions, falling.

    Args:
        queries: The second moment E qqᵀ.
        keys: The covariance of the keys.
    """
    left, right = moment_root(queries), moment_root(keys)
    found: np.ndarray = (torch.linalg.svdvals(left @ right) * len(left) ** -0.5).cpu().numpy()
    return found


def head_spectra(
    model: Any, batches: Iterable[Tensor], *, layers: Sequence[int] | None = None
) -> HeadSpectra:
    """The spectra of a hooked model's heads, added up batch by batch.

    Args:
        model: Anything with TransformerLens' hooks: ours, a wrapped one, or a pretrained bridge.
            Rotary models are read after rotation, and heads that share keys share them here.
        batches: Inputs ``[row, pos]`` or ``[row, pos, channel]``, all of one length.
        layers: The layers to measure; all by default.

    Raises:
        ArgumentError: for batches of different lengths, or no batch.
        HookError: for a model without queries and keys.
    """
    chosen = list(range(model.cfg.n_layers) if layers is None else layers)
    hooks = {layer: _hooks(model, layer) for layer in chosen}
    names = [name for pair in hooks.values() for name in pair]
    found: dict[int, list[NDArray[np.float64]]] = {layer: [] for layer in chosen}
    sums: dict[int, list[Any]] = {layer: [0, 0] for layer in chosen}
    for inputs in batches:
        with torch.no_grad():
            _, cache = model.run_with_cache(inputs, names_filter=names)
        for layer, (query, key) in hooks.items():
            q, k = cache[query].double(), cache[key].double()
            k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
            scores = torch.einsum("rqhd,rkhd->rhqk", q, k) / q.shape[-1] ** 0.5
            found[layer].append(score_spectra(scores))
            for side, vectors in enumerate((q, k)):
                by_head = vectors.movedim(2, 0).flatten(1, 2)
                sums[layer][side] = sums[layer][side] + _sums(by_head)
    problems = Problems("head_spectra")
    lengths = sorted({part.shape[-1] for parts in found.values() for part in parts})
    problems.need(len(lengths) == 1, "batches", "must be of one length", lengths, "sort them")
    problems.raise_if_any()
    per_input = {layer: np.concatenate(parts) for layer, parts in found.items()}
    metric = {
        layer: np.stack(
            [
                metric_spectrum(_moments(query)[0], _moments(key)[1])
                for query, key in zip(*sides, strict=True)
            ]
        )
        for layer, sides in sums.items()
    }
    return HeadSpectra(per_input, metric)


def fit_decay(
    singular: Float64[np.ndarray, "*rows value"], *, first: int = 1, last: int | None = None
) -> Decay:
    """The exponent of σ_k ≈ C k^{−α}, by least squares of log σ_k on log k.

    Args:
        singular: One spectrum, or several (inputs, seeds): then α is the mean of their exponents
            and the interval is Student's over them; of one it is that of the regression.
        first, last: Range of k, from 1; ``last`` is by default the last value.

    Raises:
        ArgumentError: for fewer than three values in the range, or one that is not positive.
    """
    last = singular.shape[-1] if last is None else last
    used = np.atleast_2d(singular)[:, first - 1 : last]
    problems, width = Problems("fit_decay"), used.shape[-1]
    inside = first >= 1 and last <= singular.shape[-1] and width >= 3
    problems.need(inside, "last", "must leave three values or more", (first, last), "widen it")
    positive = bool((used > 0).all())
    problems.need(positive, "singular", "must be positive in the range", "a zero", "lower last")
    problems.raise_if_any()
    x = np.log(np.arange(first, last + 1))
    x = x - x.mean()
    y = np.log(used)
    slopes = y @ x / (x @ x)
    alpha = -float(slopes.mean())
    if len(slopes) > 1:
        spread = float(slopes.std(ddof=1)) / len(slopes) ** 0.5
        half = float(stdtrit(len(slopes) - 1, 0.975)) * spread
    else:
        rest = y[0] - y[0].mean() - slopes[0] * x
        variance = float(rest @ rest) / (width - 2) / float(x @ x)
        half = float(stdtrit(width - 2, 0.975)) * variance**0.5
    return Decay(alpha, alpha - half, alpha + half, first, last)


def decay_constant(singular: Spectrum, alpha: float) -> float:
    """The constant C_1^(α): the smallest c with σ_k ≤ c k^{−α} for every k that was measured."""
    return float((singular * np.arange(1, len(singular) + 1) ** alpha).max(initial=0.0))


def convergence(spectra: Mapping[int, Spectrum], reference: Spectrum | None = None) -> pd.DataFrame:
    """How the spectra converge as the head's width grows.

    Args:
        spectra: The head width m_h → spectrum.
        reference: What they should tend to; by default that of the largest m_h.

    Returns:
        Columns ``m_h``, ``distance`` = ‖σ(m_h) − reference‖ / ‖reference‖ (missing values count as
        zero) and ``step``, the same to the next smaller m_h (NaN for the first, and where the
        spectrum that it is measured by is zero).
    """
    widths = sorted(spectra)
    target = spectra[widths[-1]] if reference is None else reference
    rows, before = [], None
    for m_h in widths:
        step = float("nan") if before is None else _distance(spectra[m_h], before)
        rows.append({"m_h": m_h, "distance": _distance(spectra[m_h], target), "step": step})
        before = spectra[m_h]
    return pd.DataFrame(rows)


def _distance(found: Spectrum, target: Spectrum) -> float:
    size = max(len(found), len(target))
    a, b = (np.pad(v, (0, size - len(v))) for v in (found, target))
    length = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / length if length > 0 else float("nan")


def _sums(vectors: Float[Tensor, "*head n width"]) -> Tensor:
    """Return Σ [x, 1] [x, 1]ᵀ over vectors x. The matrix holds their number, their sum and the sum
    of their outer products."""
    wide = vectors.double()
    wide = torch.cat((wide, torch.ones_like(wide[..., :1])), dim=-1)
    return wide.mT @ wide


def _moments(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The second moment and the covariance ``[width, width]`` from the sums of :func:`_sums`."""
    mean, second = sums[-1, :-1] / sums[-1, -1], sums[:-1, :-1] / sums[-1, -1]
    return second, second - torch.outer(mean, mean)


def moment_root(moment: Tensor) -> Tensor:
    """The symmetric root R of a second-moment matrix, RᵀR = moment; it may be singular."""
    values, vectors = torch.linalg.eigh(moment)
    found: Tensor = vectors * values.clamp_min(0).sqrt() @ vectors.mT
    return found


def _hooks(model: Any, layer: int) -> tuple[str, str]:
    """The hooks of a layer's queries and keys, after rotation in a model with rotary positions."""
    for kind in ("hook_rot_{}", "hook_{}"):
        names = tuple(f"blocks.{layer}.attn.{kind.format(side)}" for side in "qk")
        if all(name in model.hook_dict for name in names):
            return names[0], names[1]
    raise HookError(f"blocks.{layer}.attn has no hook_q and hook_k: its scores read no keys")
