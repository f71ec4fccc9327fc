"""A transformer whose heads average or look a fixed number of tokens back, as matrices.

    x_mid  = x + mean over the prefix of x A + Σ_N x[i − N] A_N + c
    x_post = x_mid + FFN(x_mid)

Whether a head is of either kind is measured on its attention patterns. Norms, activations other
than ReLU and pairwise signs, and models without residual stream are outside of this form; the
reason is told. Everything is float64, whatever the model's own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.models.ffn import FFN, activate
from interp.models.transformer import SequenceTransformer

_EVEN = 1e-6
"""Largest difference between a pattern and the one it is taken for."""
_RANK = 1e-9
"""Directions whose singular value is below this share of the largest are read by nobody."""

Vectors = Float[np.ndarray, "row width"]


class NotCountingError(Exception):
    """The model is not of the kind that this can turn into counts; the message tells why."""


@dataclass(frozen=True)
class Hidden:
    """One hidden layer of an FFN."""

    weight: Float[np.ndarray, "before width"]
    bias: Float[np.ndarray, " width"]
    kind: str

    def activate(self, before: Float[np.ndarray, "... width"]) -> Float[np.ndarray, "... width"]:
        """ReLU, or the sign of each pair."""
        if self.kind == "relu":
            return np.maximum(before, 0.0)
        return activate("pair_sign", torch.from_numpy(before)).numpy()


@dataclass(frozen=True)
class Layer:
    """One block.

    Attributes:
        average: A, from the mean over the prefix to what is written.
        lags: N → A_N.
        constant: c.
        hidden: The FFN's hidden layers, none in a block without FFN.
        keep: Projection on what the layers after this one and the output read.
        out: From the last hidden layer, so projected; the stream after is x_mid keep + post out +
            out_bias.
        out_bias: See there.
    """

    average: Float[np.ndarray, "d d"]
    lags: dict[int, Float[np.ndarray, "d d"]]
    constant: Float[np.ndarray, " d"]
    hidden: tuple[Hidden, ...]
    keep: Float[np.ndarray, "d kept"]
    out: Float[np.ndarray, "width kept"]
    out_bias: Float[np.ndarray, " kept"]


@dataclass(frozen=True)
class Network:
    """All blocks, and what goes in and comes out.

    Attributes:
        entered: ``[token, pos, d_model]``: what enters the first block, projected on what is read;
            ``pos`` is 1 where positions do not matter.
        layers: The blocks, and last the readout: a sign, 1 where the answer is yes.
        longest: Most tokens after BOS.
        scale: Largest entry of what enters the first block: the size that differences are judged
            by.
    """

    entered: Float[np.ndarray, "token pos d"]
    layers: tuple[Layer, ...]
    longest: int
    scale: float


@torch.no_grad()
def read_network(model: SequenceTransformer, ids: Int[Tensor, "row pos"]) -> Network:
    """The model as matrices.

    Args:
        model: Any; it is not changed.
        ids: Strings of the longest length, BOS in front, on which patterns are measured.

    Raises:
        NotCountingError: with the reason why the model has no such form.
    """
    _check_spec(model)
    spec = model.spec
    kinds = _kinds_of_heads(model, ids)
    weights, bias = _array(model.unembed.W_U), _array(model.unembed.b_U)
    if spec.d_out == 1:
        readout, threshold = weights[:, 0], float(bias[0]) - 0.5
    else:
        readout, threshold = weights[:, 1] - weights[:, 0], float(bias[1] - bias[0])
    later, layers = [readout[:, None]], [_readout(readout, threshold)]
    for number in reversed(range(spec.n_layers)):
        layer = _layer(model.blocks[number], kinds[number], spec.d_model, _span(later))
        read = [layer.average, *layer.lags.values(), *(h.weight for h in layer.hidden[:1])]
        later, layers = [*later, *read], [layer, *layers]
    entered = _entered(model, ids.shape[1] - 1)
    scale = float(np.abs(entered).max()) or 1.0
    return Network(entered @ _span(later), tuple(layers), ids.shape[1] - 1, scale)


def _check_spec(model: SequenceTransformer) -> None:
    spec = model.spec
    activations = {spec.activation_of(i) for w in spec.ffn_widths for i in range(len(w))}
    rules = (
        (spec.input == "tokens", "its inputs are not tokens"),
        (spec.norm == "none", f"a {spec.norm} makes what it reads no sum of counts"),
        (activations <= {"relu", "pair_sign"}, "its FFNs are smooth: they hold no comparisons"),
        (spec.residual, "it has no residual stream"),
        (spec.causal and not spec.mask_self, "its heads do not see exactly the prefix"),
        (spec.normalizer == "softmax", "its attention is not an average"),
        (not spec.identity_ov, "its heads also copy the stream as it is"),
        (spec.positions in ("none", "learned"), f"its positions are {spec.positions}"),
        (spec.d_out <= 2, "its output is not one yes or no"),
    )
    broken = [reason for good, reason in rules if not good]
    if broken:
        raise NotCountingError("; ".join(broken))


def _kinds_of_heads(model: SequenceTransformer, ids: Tensor) -> list[list[int]]:
    """Each layer's heads: 0 averages the prefix, N looks N tokens back (at BOS before that)."""
    found: list[list[int]] = []
    n = ids.shape[1]
    even = np.tril(np.ones((n, n)))
    even /= even.sum(axis=1, keepdims=True)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.spec.n_layers)]
    cache = model.run_with_cache(ids, names_filter=names)[1] if names else {}
    for layer, name in enumerate(names):
        pattern = _array(cache[name])
        kinds = []
        for head in range(model.spec.heads[layer]):
            off = float(np.abs(pattern[:, head] - even).max())
            lag = n - 1 - int(pattern[0, head, -1].argmax())
            if off > _EVEN and lag:
                shifted = np.zeros((n, n))
                shifted[np.arange(n), np.maximum(np.arange(n) - lag, 0)] = 1.0
                off_lag = float(np.abs(pattern[:, head] - shifted).max())
                kinds.append(lag if off_lag <= _EVEN else -1)
            else:
                kinds.append(0 if off <= _EVEN else -1)
            if kinds[-1] < 0:
                raise NotCountingError(
                    f"head {layer}.{head} neither averages the prefix nor looks a fixed number of "
                    f"tokens back: its attention is off an average by up to {off:.2g}"
                )
        found.append(kinds)
    return found


def _layer(block: Any, kinds: Sequence[int], width: int, keep: np.ndarray) -> Layer:
    attn = block.attn
    constant = _array(attn.b_O).copy()
    written = {kind: np.zeros((width, width)) for kind in {0, *kinds}}
    for head, kind in enumerate(kinds):
        out = _array(attn.W_O[head])
        written[kind] += _array(attn.W_V[head]) @ out
        constant += _array(attn.b_V[head]) @ out
    hidden, out, out_bias = _hidden(block.mlp, width)
    return Layer(written.pop(0), written, constant, hidden, keep, out @ keep, out_bias @ keep)


def _readout(weights: np.ndarray, bias: float) -> Layer:
    """The answer as a layer that does not attend: the sign of w x + b."""
    width = len(weights)
    pair = np.stack([weights, -weights], axis=1)
    hidden = Hidden(pair, np.array([bias, -bias]), "pair_sign")
    nothing = np.zeros((width, width))
    first = np.array([[1.0], [0.0]])
    return Layer(nothing, {}, np.zeros(width), (hidden,), np.zeros((width, 1)), first, np.zeros(1))


def _hidden(ffn: FFN | None, width: int) -> tuple[tuple[Hidden, ...], np.ndarray, np.ndarray]:
    if ffn is None or not ffn.b_in.numel():
        return (), np.zeros((0, width)), np.zeros(width)
    inner: list[Any] = list(ffn.hidden)
    hidden = [Hidden(_array(h.W), _array(h.b), h.kind) for h in inner]
    hidden.append(Hidden(_array(ffn.W_in), _array(ffn.b_in), ffn.kind))
    return tuple(hidden), _array(ffn.W_out), _array(ffn.b_out)


def _entered(model: SequenceTransformer, longest: int) -> np.ndarray:
    """What each token brings into the first block, at each position after BOS where they matter."""
    tokens = model.spec.d_in
    if model.pos_embed is None:
        ids = torch.arange(tokens, device=model.W_E.device)[:, None]
    else:
        ids = torch.arange(tokens, device=model.W_E.device)[:, None].expand(tokens, longest + 1)
    return _array(model(ids, stop_at_layer=0))


def _span(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """The orthogonal projection on the columns of all of them."""
    stacked = []
    for matrix in matrices:
        size = np.abs(matrix).max(initial=0.0)
        if size:
            stacked.append(matrix / size)
    if not stacked:
        return np.zeros((len(matrices[0]),) * 2)
    left, sizes, _ = np.linalg.svd(np.concatenate(stacked, axis=1), full_matrices=False)
    basis = left[:, sizes > _RANK * sizes[0]]
    return np.asarray(basis @ basis.T)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
