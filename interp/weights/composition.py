"""Measure from weights how strongly a head reads what an earlier head writes.

The earlier head writes y W_V W_O; the later one reads it as its query, its key or its value:

    q_composition  ‖M_OV¹ M_QK²‖ / (‖M_OV¹‖ ‖M_QK²‖)
    k_composition  ‖M_OV¹ (M_QK²)ᵀ‖ / (…)
    v_composition  ‖M_OV¹ M_OV²‖ / (‖M_OV¹‖ ‖M_OV²‖)

All norms are computed from factors: with Gram roots R_V of W_V and R_K of W_K, ‖M_OV¹ M_QK²‖ is
that of (R_V W_O¹)(W_Q² R_Kᵀ), d_head × d_head per pair, and one matrix product for all pairs of two
layers.

**Null.** The write basis of the earlier head is turned against the read basis of the later by a
uniformly random rotation; norms and spectra are kept. For A = M¹ᵀM¹ and B = M²M²ᵀ the squared score
is ⟨A, U B Uᵀ⟩/(tr A tr B) with mean 1/n and, symmetric traceless matrices being an irreducible
representation of dimension (n−1)(n+2)/2, variance 2 (ΣA² − 1/n)(ΣB² − 1/n)/((n−1)(n+2)), ΣA² =
Σσ⁴/(Σσ²)² of each circuit. Both are exact; the tail is that of a gamma distribution with these
moments, and no p is given below 1e-10.

**What a positive result does not establish.** That the later head uses the earlier head's output on
any input: large directions that all heads share (means, norms, positions) compose with everything.
Source of the scores: the weights-only composition of the transformer-circuits literature; `memory`
§1.3 nests rounds by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp.stats.head_table import ANY_TARGET, complete_table, head_table
from interp.stats.p_values import gamma_tail
from interp.weights.head_weights.circuit import Circuit
from interp.weights.head_weights.families import head_weights
from interp.weights.head_weights.layers import LayerHeadWeights
from interp.weights.metric_names import COMPOSITIONS

PAIRED_UP_TO = 512
"""Number of heads up to which composition scores of all pairs are tabulated by default. For larger
models the user has to ask for them: a thousand heads have 1.5 million scores."""


@dataclass(frozen=True)
class _Stack:
    """The heads of a layer, each with one factor of a circuit and the Gram root of the other.

    Attributes:
        layer: The layer.
        reduced: The circuits' reduced factors [head, d_head, d_model], each of norm 1.
        purity: Σσ⁴/(Σσ²)² of each head's circuit.
    """

    layer: int
    reduced: Tensor
    purity: Tensor


def composition_table(
    model: Any,
    kinds: Sequence[str] = COMPOSITIONS,
    *,
    fold_norm: bool = False,
    watch: Callable[[Iterable[LayerHeadWeights]], Iterable[LayerHeadWeights]] = iter,
) -> pd.DataFrame:
    """Compute the composition scores of every pair of heads in different layers, with their nulls.

    Args:
        model: as for :func:`interp.weights.weight_table.weight_table`; one factor of W_V W_O of
            every layer is kept in memory while later layers are read.
        kinds: which kinds of :data:`COMPOSITIONS` to compute.
        fold_norm: whether to fold the scale of the norm before attention into the circuits.
        watch: a wrapper of the iteration over layers, such as a progress bar.

    Returns:
        A head table: layer and head are those of the reading (later) head, target is the writing
        (earlier) head, "L0H5", effect is score − null_mean, q is over all pairs of a kind. A model
        of one layer has no rows.
    """
    factors = head_weights(model)
    writers: list[_Stack] = []
    blocks: list[pd.DataFrame] = []
    for layer in watch(factors):
        if writers:
            for kind in kinds:
                reader = _reader(layer, kind, fold_norm)
                if reader is not None:
                    blocks += [_block(writer, reader, kind) for writer in writers]
        if (writer := _side(layer, "OV", "right", fold_norm)) is not None:
            writers.append(writer)
    if not blocks:
        return head_table([])
    return complete_table(pd.concat(blocks, ignore_index=True), family=ANY_TARGET)


def _reader(layer: LayerHeadWeights, kind: str, fold_norm: bool) -> _Stack | None:
    circuit = "OV" if kind == "v_composition" else "QK"
    return _side(layer, circuit, "right" if kind == "k_composition" else "left", fold_norm)


def _side(layer: LayerHeadWeights, name: str, side: str, fold_norm: bool) -> _Stack | None:
    """Return one side of a circuit of a layer; None if the layer has no such circuit, or no
    heads."""
    if name not in layer.circuits:
        return None
    circuit = layer.circuit(name, fold_norm=fold_norm)
    return _stack(circuit, layer.index, side) if circuit.n_heads else None


def _stack(circuit: Circuit, layer: int, side: str) -> _Stack:
    """Reduce each head's circuit to one factor and the Gram root of the other."""
    reduced, purity = [], []
    for left, right in circuit.pairs():
        kept, other = (left, right) if side == "left" else (right, left)
        values, vectors = torch.linalg.eigh((other.mT @ other).double())
        root = vectors * values.clamp_min(0).sqrt()
        gram = root.mT @ (kept.mT @ kept).double() @ root
        energy = gram.trace().clamp_min(torch.finfo(torch.float64).tiny)
        purity.append((gram**2).sum() / energy**2)
        reduced.append(((root / energy.sqrt()).to(kept.dtype)).mT @ kept.mT)
    return _Stack(layer, torch.stack(reduced), torch.stack(purity))


def _block(writer: _Stack, reader: _Stack, kind: str) -> pd.DataFrame:
    n = writer.reduced.shape[-1]
    h1, r1 = writer.reduced.shape[:2]
    h2, r2 = reader.reduced.shape[:2]
    product = writer.reduced.reshape(h1 * r1, n) @ reader.reduced.reshape(h2 * r2, n).mT
    squares = product.square_().reshape(h1, r1, h2, r2).sum((1, 3)).double().T.numpy()
    spread = 2 * (reader.purity[:, None] - 1 / n) * (writer.purity[None] - 1 / n)
    variance = spread.clamp_min(0).numpy() / max((n - 1) * (n + 2), 1)
    # The square is gamma-like about 1/n: tail from its own moments, the root by the delta method.
    mean = 1 / n
    p = gamma_tail(squares, mean, np.sqrt(variance))
    root_std = np.sqrt(variance) / (2 * np.sqrt(mean))
    heads2, heads1 = np.divmod(np.arange(h1 * h2), h1)
    return pd.DataFrame(
        {
            "component": "head",
            "layer": reader.layer,
            "head": heads2,
            "circuit": "OV" if kind == "v_composition" else "QK",
            "metric": kind,
            "target": [f"L{writer.layer}H{h}" for h in heads1],
            "null": "rotations",
            "score": np.sqrt(squares).ravel(),
            "null_mean": np.sqrt(np.maximum(mean - root_std**2, 0)).ravel(),
            "null_std": root_std.ravel(),
            "p": p.ravel(),
        }
    )
