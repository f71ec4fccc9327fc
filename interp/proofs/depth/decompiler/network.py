"""A transformer whose heads average or attend a fixed number of tokens back, as matrices.

    x_mid  = x + mean over the prefix of x A + Σ_N x[i − N] A_N + c
    x_post = x_mid + FFN(x_mid)

Whether a head is of one of these kinds is measured on its attention patterns. Norms, activations
other than ReLU and pairwise signs, and models without a residual stream do not have this form; the
error says which of these it is. Everything is float64, whatever the model's own dtype.

*Where a feed-forward network bends.* At a position in state σ after n tokens, n_q of them of class
q, the network's input is the average of *class points* x_q = base_σ + o_q (BOS is a class with one
token). As long as no ReLU changes side, everything inside is affine in the input, so a neuron's
pre-activation is the same average of its values at the class points: its coefficients α_q, which
are read exactly from the weights, in whatever basis.

*When a neuron is on, as a comparison of counts with whole numbers.* A neuron that reads averages
over the prefix has the pre-activation Σ_q n_q α_q + α_0, up to the factor 1 / (i + 1): n_q of the i
tokens so far are of class q, and α_0 belongs to BOS. It is on exactly if

    Σ_q k_q n_q ≥ θ,      k_q and θ whole,

when α = λ (k + ε) and, for n with Σ n_q at most the longest length, Σ ε_q n_q + α_0 / λ never
crosses a whole number. That is checked, not assumed: the comparison is proved equivalent up to this
length. The smallest λ⁻¹ that passes is taken. Weights that are no multiples of one scale, as in
trained models, have no such comparison unless the length is small; then the result is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.site import Site
from interp.models.ffn import FFN, activate
from interp.models.transformer import SequenceTransformer

_EVEN = 1e-6
"""Largest entrywise difference with which an attention pattern counts as even, or as attention to a
fixed lag."""
_RANK = 1e-9
"""A direction counts as read by nothing that follows if its singular value is at most this share of
the largest. Smaller ones are float64 rounding."""

Vectors = Float[np.ndarray, "row width"]


class NotCountingError(Exception):
    """The model is not of the kind that can be converted to counts; the message says why."""


@dataclass(frozen=True)
class Hidden:
    """One hidden layer of an FFN, which computes activation(x weight + bias).

    Attributes:
        weight: The weight matrix, from the width before to this layer's.
        bias: The bias.
        kind: The activation: ``relu``, or ``pair_sign``, which maps each pair (z, −z) to
            (sign z, −sign z).
    """

    weight: Float[np.ndarray, "before width"]
    bias: Float[np.ndarray, " width"]
    kind: str

    def activate(self, before: Float[np.ndarray, "... width"]) -> Float[np.ndarray, "... width"]:
        """Apply the activation: ReLU, or the sign of each pair."""
        if self.kind == "relu":
            return np.maximum(before, 0.0)
        return activate("pair_sign", torch.from_numpy(before)).numpy()


@dataclass(frozen=True)
class Layer:
    """One block as matrices.

    Attributes:
        average: A, from the mean over the prefix to what the heads write.
        lags: N → A_N.
        constant: The constant c that the attention adds.
        hidden: The FFN's hidden layers; empty in a block without FFN.
        keep: The projection on the subspace that later layers and the output read.
        out: The projected output matrix of the last hidden layer; the stream after is x_mid keep +
            post out + out_bias.
        out_bias: The projected output bias.
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
    """All blocks as matrices, the embeddings and the readout.

    Attributes:
        entered: The stream that enters the first block, ``[token, pos, d_model]``, projected on
            what is read; ``pos`` is 1 if positions do not matter.
        layers: The blocks, and last the readout: a sign, 1 where the answer is yes.
        longest: The largest number of tokens after BOS.
        scale: The largest entry of what enters the first block, to which differences are compared.
    """

    entered: Float[np.ndarray, "token pos d"]
    layers: tuple[Layer, ...]
    longest: int
    scale: float


@torch.no_grad()
def read_network(model: SequenceTransformer, ids: Int[Tensor, "row pos"]) -> Network:
    """Convert a model to matrices.

    Args:
        model: Any model; it is not changed.
        ids: Strings of the longest length, BOS in front, on which patterns are measured.

    Raises:
        NotCountingError: with the reason, if the model does not have this form.
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
    entered = _entry_stream(model, ids.shape[1] - 1)
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
    """Return each layer's heads: 0 for an average of the prefix, N for attention N tokens back (or
    to BOS)."""
    found: list[list[int]] = []
    n = ids.shape[1]
    even = np.tril(np.ones((n, n)))
    even /= even.sum(axis=1, keepdims=True)
    names = [Site(layer, "pattern").name for layer in range(model.spec.n_layers)]
    _, cache = model.run_with_cache(ids, names_filter=names, return_cache_object=False)
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
    hidden, out, out_bias = _ffn_arrays(block.mlp, width)
    return Layer(written.pop(0), written, constant, hidden, keep, out @ keep, out_bias @ keep)


def _readout(weights: np.ndarray, bias: float) -> Layer:
    """Return the answer as a layer that does not attend: the sign of w x + b."""
    width = len(weights)
    pair = np.stack([weights, -weights], axis=1)
    hidden = Hidden(pair, np.array([bias, -bias]), "pair_sign")
    nothing = np.zeros((width, width))
    first = np.array([[1.0], [0.0]])
    return Layer(nothing, {}, np.zeros(width), (hidden,), np.zeros((width, 1)), first, np.zeros(1))


def _ffn_arrays(ffn: FFN | None, width: int) -> tuple[tuple[Hidden, ...], np.ndarray, np.ndarray]:
    if ffn is None or not ffn.b_in.numel():
        return (), np.zeros((0, width)), np.zeros(width)
    inner: list[Any] = list(ffn.hidden)
    hidden = [Hidden(_array(h.W), _array(h.b), h.kind) for h in inner]
    hidden.append(Hidden(_array(ffn.W_in), _array(ffn.b_in), ffn.kind))
    return tuple(hidden), _array(ffn.W_out), _array(ffn.b_out)


def _entry_stream(model: SequenceTransformer, longest: int) -> np.ndarray:
    """Return each token's stream into the first block, at each position if the model has
    positions."""
    tokens = model.spec.d_in
    if model.pos_embed is None:
        ids = torch.arange(tokens, device=model.W_E.device)[:, None]
    else:
        ids = torch.arange(tokens, device=model.W_E.device)[:, None].expand(tokens, longest + 1)
    return _array(model(ids, stop_at_layer=0))


def _span(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Return the orthogonal projection on the span of the columns of all matrices."""
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


_LARGEST = 400
_ROUNDING = 1e-9


@dataclass(frozen=True)
class IntegerComparison:
    """The comparison Σ_q weights[q] n_q ≥ threshold.

    Attributes:
        weights: One per class; the first that is not 0 is positive, and they share no divisor.
        threshold: θ.
        residual: Largest |ε_q|: how far the neuron's coefficients are from multiples of one scale.
    """

    weights: tuple[int, ...]
    threshold: int
    residual: float


def integer_comparison(
    alpha: Float[np.ndarray, " classes"], bos: float, longest: int
) -> IntegerComparison | None:
    """Return the comparison that is equivalent to Σ_q n_q α_q + α_0 > 0, or to its negation.

    Args:
        alpha: The coefficients α_q.
        bos: The coefficient α_0 of BOS.
        longest: The largest number of tokens that are counted.

    Returns:
        None if the sum's sign is always the same, or no comparison could be proved.
    """
    size = float(np.abs(alpha).max(initial=0.0))
    noise = _ROUNDING * max(size, abs(bos))
    if size <= noise:
        return None
    low, high = bos + longest * min(0.0, alpha.min()), bos + longest * max(0.0, alpha.max())
    if low > noise or high <= noise:
        return None
    for multiple in range(1, _LARGEST + 1):
        scale = size / multiple
        weights = np.rint(alpha / scale)
        if np.abs(alpha / scale - weights).max() * longest > 2.0:
            continue
        scale = _fit(alpha, weights) or scale
        off = alpha / scale - weights
        least, most = longest * min(0.0, off.min()), longest * max(0.0, off.max())
        threshold = int(np.floor(-bos / scale - least + _ROUNDING)) + 1
        if threshold - 1 <= -bos / scale - most + _ROUNDING:
            return _canonical(weights.astype(np.int64), threshold, float(np.abs(off).max()))
    return None


def _fit(alpha: np.ndarray, weights: np.ndarray) -> float | None:
    """Return the least-squares λ of α ≈ λ k + δ; None if k is the same for all classes."""
    centred = weights - weights.mean()
    spread = float(centred @ centred)
    return float(centred @ alpha) / spread if spread else None


def _canonical(weights: np.ndarray, threshold: int, residual: float) -> IntegerComparison:
    """Return the comparison or its negation, in lowest terms and with a positive first weight."""
    if weights[np.flatnonzero(weights)[0]] < 0:
        weights, threshold = -weights, 1 - threshold
    divisor = int(np.gcd.reduce(weights))
    lowest = tuple(int(w) // divisor for w in weights)
    return IntegerComparison(lowest, -((-threshold) // divisor), residual)


_GRID, _NOISE = 1e8, 1e-10


@dataclass(frozen=True)
class Inputs:
    """The inputs that a layer's network can have.

    Attributes:
        base: The vector base_σ of each state.
        points: The vector o_q of each class; the last is BOS.
    """

    base: Float[np.ndarray, "state d"]
    points: Float[np.ndarray, "classes d"]

    def average(self, counts: Int[np.ndarray, "row classes"]) -> Float[np.ndarray, "row d"]:
        """Return the mean of o_q over BOS and ``counts`` tokens of each class, which is the heads'
        output."""
        seen = counts @ self.points[:-1] + self.points[-1]
        return np.asarray(seen / (counts.sum(axis=1, keepdims=True) + 1.0))


@dataclass(frozen=True)
class Bend:
    """A comparison at which a neuron switches.

    Attributes:
        comparison: The comparison of counts of classes.
        hidden: Number of the hidden layer, from 0.
        neuron: Number of the neuron in that layer.
    """

    comparison: IntegerComparison
    hidden: int
    neuron: int


def outputs(
    layer: Layer, base: Float[np.ndarray, "#row d"], average: Float[np.ndarray, "row d"]
) -> Float[np.ndarray, "row kept"]:
    """Return what later layers read from the residual stream after a layer, without the averages.

    The feed-forward network's input is ``base + average``; its output is added to ``base``, which
    is mapped by ``layer.keep``, without ``average``.
    """
    post = base + average
    for hidden in layer.hidden:
        post = hidden.activate(post @ hidden.weight + hidden.bias)
    written = post @ layer.out if layer.hidden else np.zeros((len(average), 1))
    return np.asarray(base @ layer.keep + written + layer.out_bias)


def bends(
    layer: Layer,
    inputs: Inputs,
    state: int,
    counts: Int[np.ndarray, " classes"],
    longest: int,
    seen: set[bytes],
) -> Iterator[Bend]:
    """Yield the comparisons at which neurons switch, in the linear region of one input.

    Args:
        layer: The layer whose network is read.
        inputs: Bases and class points.
        state: The state σ.
        counts: The numbers n_q of the input, which determine the side of each earlier ReLU.
        longest: The largest number of tokens that are counted.
        seen: Coefficients that were examined before; they are skipped, and new ones are added.
    """
    here = inputs.base[[state]] + inputs.average(counts[None])
    points = inputs.base[state] + inputs.points
    for number, hidden in enumerate(layer.hidden):
        before = points @ hidden.weight + hidden.bias
        sizes = np.abs(before).max(axis=0)
        grid = np.rint(before / np.where(sizes > 0, sizes, 1.0) * _GRID).astype(np.int64).T
        for neuron in np.flatnonzero(sizes > sizes.max(initial=0.0) * _NOISE):
            key, alpha = grid[neuron].tobytes(), before[:, neuron]
            if key in seen:
                continue
            seen.add(key)
            found = integer_comparison(alpha[:-1], float(alpha[-1]), longest)
            if found is not None:
                yield Bend(found, number, int(neuron))
        reached = here @ hidden.weight + hidden.bias
        post = hidden.activate(reached)
        if hidden.kind == "relu":
            points = before * (reached > 0)
        else:
            points = np.repeat(post, len(points), axis=0)
        here = post
