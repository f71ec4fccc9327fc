"""What a head does with what it attends to, on batches of tokens: copying, and fixed positions.

**Copying.** What head h writes at i, read through the final norm at its actual scale and the
unembedding, gives logits ℓ_h(i, ·) (direct effect; no later layer). With ℓ̄ their mean over the
vocabulary,

    copying_h = mean over rows and queries of Σ_j p_h(i, j) · (ℓ_h(i, x_j) − ℓ̄_h(i))

in logits: by how much the tokens it looks at become likelier, attention counted; negative is
anti-copying. Null: the row's attention and writes are paired with another row's tokens, with the
exact moments of Hoeffding's combinatorial statistic over permutations of rows.

**Position.** For two rows with different tokens,

    positional_h = mean over queries of Σ_j p(i, j) p′(i, j) / (‖p(i)‖ ‖p′(i)‖)

is 1 where attention does not depend on what the row holds. Null: one row's weights permuted over
the causal prefix, exact mean and variance. Even attention has score 1 and effect 0: it has a
position in neither sense.

Neither says that anything relies on it: ablate the head for that. A direct effect leaves out all
that later layers make of it, and attention sinks look positional by design.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.special import ndtr
from torch import Tensor

from interp.heads.nulls import Null
from interp.heads.reading import Rows
from interp.heads.table import head_table, score_row

__all__ = ["SCALE", "copying_table", "positional_table", "readout"]

SCALE = "ln_final.hook_scale"
"""The hook that copying needs besides ``hook_pattern`` and ``hook_z`` of every layer."""

_Sums = dict[int, list[Tensor]]


@torch.no_grad()
def readout(model: Any) -> Float[Tensor, "d_model vocab"]:
    """From the final residual stream, divided by the norm's scale, to centred logits.

    The norm's gain (and LayerNorm's centring) are folded in and the mean over the vocabulary is
    taken out: logits − their mean = (resid / scale) @ readout + what does not depend on resid.
    """
    norm, unembedding = model.ln_final, model.W_U.detach().double()
    gain = getattr(norm, "w", None)
    if gain is None:
        gain = getattr(norm, "weight", None)
        if gain is not None and getattr(norm, "uses_weight_offset", False):
            gain = 1 + gain
    if gain is not None:
        unembedding = gain.detach().double()[:, None] * unembedding
    kind = str(model.cfg.normalization_type or "")
    if kind.startswith("LN"):
        unembedding = unembedding - unembedding.mean(0, keepdim=True)
    return (unembedding - unembedding.mean(1, keepdim=True)).float()


def copying_table(model: Any, batches: Iterable[Rows]) -> pd.DataFrame:
    """How much every head raises the tokens it attends to, in logits (see the module).

    Args:
        model: Whose ``W_O``, final norm and unembedding are used.
        batches: Patterns, ``hook_z`` and :data:`SCALE`, from
            :func:`interp.heads.reading.read_batches`; at least two rows each.

    Returns:
        A head table: metric ``copying``, circuit ``tokens`` (the null); p is two-sided.
    """
    unembedding, output = readout(model).cpu(), model.W_O.detach().float().cpu()
    sums: _Sums = {}
    for rows in batches:
        if len(rows) > 1:
            embedded = unembedding.T[rows.inputs]  # [row, key, d_model]
            for layer in _layers(rows):
                paired = _paired_logits(rows, layer, output[layer], embedded)
                _add(sums, layer, *_permuted(paired), len(rows))
    return head_table(_rows(sums, "copying", "tokens", two_sided=True))


def positional_table(batches: Iterable[Rows]) -> pd.DataFrame:
    """How alike every head's attention is on different rows (see the module).

    Args:
        batches: Patterns; rows are compared in pairs, an odd one out is left.

    Returns:
        A head table: metric ``positional``, circuit ``positions`` (the null).
    """
    sums: _Sums = {}
    for rows in batches:
        pairs = len(rows) // 2
        for layer in _layers(rows) if pairs else ():
            share = _share(rows.activations[f"blocks.{layer}.attn.hook_pattern"])[: 2 * pairs]
            score, mean, variance = _alike(share[0::2], share[1::2])
            _add(sums, layer, score.sum(0), mean.sum(0), variance.sum(0), pairs)
    return head_table(_rows(sums, "positional", "positions", two_sided=False))


def _paired_logits(
    rows: Rows, layer: int, output: Tensor, embedded: Tensor
) -> Float[Tensor, "row content head"]:
    """The attention and writes of one row with the tokens of another."""
    share = _share(rows.activations[f"blocks.{layer}.attn.hook_pattern"]).float()
    z = rows.activations[f"blocks.{layer}.attn.hook_z"].float()
    scaled = z / rows.activations[SCALE].float()[..., None]
    gathered = torch.einsum("rhqk,rqhd->rkhd", share, scaled) / share.shape[2]
    heads = gathered.shape[2]
    by_key = torch.einsum("skm,hdm->skhd", embedded, output[:heads])
    return torch.einsum("rkhd,skhd->rsh", gathered, by_key).double()


def _permuted(paired: Float[Tensor, "row content head"]) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_r paired[r, r], and its mean and variance over random pairings of rows."""
    n = len(paired)
    score = torch.diagonal(paired, dim1=0, dim2=1).sum(-1)
    centred = paired - paired.mean(1, keepdim=True) - paired.mean(0, keepdim=True)
    centred = centred + paired.mean((0, 1))
    return score, paired.sum((0, 1)) / n, centred.square().sum((0, 1)) / (n - 1)


def _alike(
    one: Float[Tensor, "pair head query key"], two: Float[Tensor, "pair head query key"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine of two rows' attention, its mean and variance under permuted prefixes; the first
    query, which has no choice, is left out."""
    one, two = one[:, :, 1:], two[:, :, 1:]
    n = torch.arange(2, one.shape[-1] + 1, dtype=one.dtype)
    squares = one.square().sum(-1), two.square().sum(-1)
    size = (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(one.dtype).tiny)
    score = ((one * two).sum(-1) / size).mean(-1)
    spread = [(s - 1 / n).clamp_min(0) for s in squares]
    variance = (spread[0] * spread[1] / (n - 1) / size**2).sum(-1) / len(n) ** 2
    return score, (1 / n / size).mean(-1), variance


def _share(pattern: Tensor) -> Tensor:
    pattern = pattern.double()
    total = pattern.sum(-1, keepdim=True)
    return pattern / total.clamp_min(torch.finfo(pattern.dtype).tiny)


def _layers(rows: Rows) -> list[int]:
    hooks = (h.split(".") for h in rows.activations if h.endswith("attn.hook_pattern"))
    return [int(parts[1]) for parts in hooks]


def _add(
    sums: _Sums, layer: int, score: Tensor, mean: Tensor, variance: Tensor, count: int
) -> None:
    new = [score, mean, variance, torch.tensor(float(count))]
    sums[layer] = [a + b for a, b in zip(sums[layer], new, strict=True)] if layer in sums else new


def _rows(sums: _Sums, metric: str, circuit: str, *, two_sided: bool) -> Iterator[dict[str, Any]]:
    for layer, (scores, means, variances, count) in sums.items():
        n = float(count)
        for head, (score, mean, variance) in enumerate(
            zip(scores.tolist(), means.tolist(), variances.tolist(), strict=True)
        ):
            std = math.sqrt(max(variance, 0.0))
            z = (score - mean) / std if std > 0 else 0.0
            p = float(2 * ndtr(-abs(z)) if two_sided else ndtr(-z)) if std > 0 else 1.0
            null = Null(mean / n, std / n, float(np.clip(p, 0, 1)))
            yield score_row(
                metric, score / n, null, component="head", layer=layer, head=head, circuit=circuit
            )
