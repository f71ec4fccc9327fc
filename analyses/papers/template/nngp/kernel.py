"""The kernel of an infinitely wide one-layer transformer at initialisation (`template` §2.2).

Token matrices X, Y hold k one-hot rows, and positions add γ²: G_XY = XYᵀ + γ²I. Scores m(X) of the
last token's query are Gaussian, Cov(m(X), m(Y)) = (G_XY)_kk G_XY, and

    p(X)         = softmax(β (m(X) + a (G_XX)_k·))        a: the identity scalar of QK
    K_attn(X, Y) = E[ p(X)ᵀ G_XY p(Y) ]
    K(X, Y)      = E[ φ(u)φ(v) ],  (u, v) ~ N(0, K_attn on {X, Y})

There is no skip connection, and the output is read at the last position. ``mask_diagonal`` takes
the self-match out of a's term. The expectation over scores is by Monte Carlo with random numbers
shared by all strings, and error bars by the jackknife over batches; for two or three positions
also by Gauss–Hermite quadrature. The limit says what a very wide model with a trained readout does,
not what training its features can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from analyses.papers.template.nngp.activations import ACTIVATIONS, dual
from prooflens.errors import Problems

__all__ = ["Estimate", "NNGPKernel", "batch_kernels", "quadrature_kernel", "transformer_kernel"]

_CHUNK = 2_000_000
_MOST = 3

Strings = Int64[np.ndarray, "string pos"]
Square = Float64[np.ndarray, "string string"]


@dataclass(frozen=True)
class NNGPKernel:
    """The options of the infinitely wide model.

    Attributes:
        beta: The inverse temperature β of the attention.
        gamma: Size of the position codes against the tokens' embeddings.
        a: The identity scalar of the QK circuit.
        mask_diagonal: Whether the match of a position with itself is left out of the identity term.
        activation: ``relu``, ``erf`` or ``gelu``.

    Raises:
        ArgumentError: naming every option that is out of range.
    """

    beta: float = 2.0
    gamma: float = 0.5
    a: float = 0.0
    mask_diagonal: bool = False
    activation: str = "relu"

    def __post_init__(self) -> None:
        problems = Problems("NNGPKernel")
        problems.need(self.beta > 0, "beta", "must be positive", self.beta, "raise it")
        problems.need(self.gamma >= 0, "gamma", "must not be negative", self.gamma, "0 is none")
        rule = f"must be one of {', '.join(ACTIVATIONS)}"
        known = self.activation in ACTIVATIONS
        problems.need(known, "activation", rule, self.activation, "pick one")
        problems.raise_if_any()

    def outputs(self, attention: Square) -> Square:
        """The kernel K of the model's outputs, given K_attn between all pairs of strings."""
        own = np.diag(attention)
        return dual(self.activation, own[:, None], own[None], attention)


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate and its standard error."""

    value: Square
    error: Square


def transformer_kernel(
    strings: Strings, kernel: NNGPKernel, *, samples: int = 20_000, batches: int = 20, seed: int = 0
) -> Estimate:
    """The kernel K between all pairs of strings, estimated by Monte Carlo with jackknife errors."""
    left_out = batch_kernels(strings, kernel, samples=samples, batches=batches, seed=seed)
    return Estimate(left_out.mean(0), jackknife(left_out))


def batch_kernels(
    strings: Strings, kernel: NNGPKernel, *, samples: int = 20_000, batches: int = 20, seed: int = 0
) -> Float64[np.ndarray, "batch string string"]:
    """For each Monte Carlo batch, K from all the other batches, as a jackknife needs.

    Raises:
        ArgumentError: for fewer than two batches, or fewer samples than batches.
    """
    problems = Problems("batch_kernels")
    problems.need(batches >= 2, "batches", "must be at least 2", batches, "an error needs two")
    rule = f"must be at least the {batches} batches"
    problems.need(samples >= batches, "samples", rule, samples, "raise it")
    problems.raise_if_any()
    rng = np.random.default_rng(seed)
    means = [_attention(strings, kernel, samples // batches, rng) for _ in range(batches)]
    attention = np.stack(means)
    left_out = (attention.sum(0) - attention) / (batches - 1)
    return np.stack([kernel.outputs(one) for one in left_out])


def jackknife(left_out: Float64[np.ndarray, " batch *rest"]) -> Float64[np.ndarray, "*rest"]:
    """The standard error of a statistic, from its values with one batch left out each."""
    n = len(left_out)
    return np.asarray(np.sqrt((n - 1) * left_out.var(axis=0)))


def _attention(
    strings: Strings, kernel: NNGPKernel, samples: int, rng: np.random.Generator
) -> Square:
    """K_attn, estimated as an average over random bilinear forms on one-hot tokens and
    positions."""
    ids = np.unique(strings, return_inverse=True)[1].reshape(strings.shape)
    k, tokens = strings.shape[1], int(ids.max()) + 1
    bias = _identity(ids, kernel)
    total = np.zeros((len(ids), len(ids)))
    width, done = tokens + k, 0
    while done < samples:
        n = min(samples - done, max(1, _CHUNK // (width * max(width, len(ids)))))
        form = rng.standard_normal((n, width, width))
        pattern = _softmax(kernel.beta * (_scores(form, ids, tokens, kernel.gamma) + bias))
        seen = np.zeros((n, len(ids), width))
        rows = np.arange(len(ids))
        for t in range(k):
            seen[:, rows, ids[:, t]] += pattern[:, :, t]
            seen[:, :, tokens + t] = kernel.gamma * pattern[:, :, t]
        flat = seen.transpose(1, 0, 2).reshape(len(ids), -1)
        total += flat @ flat.T
        done += n
    return total / samples


def _scores(
    form: Float64[np.ndarray, "draw width width"], ids: Strings, tokens: int, gamma: float
) -> Float64[np.ndarray, "draw string pos"]:
    """The scores x_tᵀ W x_last, where x is the one-hot token plus γ times the one-hot position."""
    k = ids.shape[1]
    here, last = tokens + np.arange(k), tokens + k - 1
    end = ids[:, -1:]
    return np.asarray(
        form[:, ids, end]
        + gamma * (form[:, ids, last] + form[:, here, end])
        + gamma**2 * form[:, here, last][:, None]
    )


def _identity(ids: Strings, kernel: NNGPKernel) -> Float64[np.ndarray, "string pos"]:
    """The identity term of the scores: a times the last row of G_XX."""
    row = (ids == ids[:, -1:]).astype(np.float64)
    row[:, -1] = 0.0 if kernel.mask_diagonal else 1 + kernel.gamma**2
    return np.asarray(kernel.a * row)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def quadrature_kernel(strings: Strings, kernel: NNGPKernel, *, nodes: int = 24) -> Square:
    """The kernel K by Gauss–Hermite quadrature over the 2(k − 1) score differences of a pair.

    A pair's value depends on which tokens are equal alone: pairs with the same equalities are
    computed once.

    Args:
        strings: Token ids, of two or three positions.
        kernel: The options of the infinitely wide model.
        nodes: A dimension; three positions need nodes⁴ points a pair.

    Raises:
        ArgumentError: for strings of more positions.
    """
    problems, k = Problems("quadrature_kernel"), strings.shape[1]
    rule = f"must have 2 to {_MOST} positions"
    problems.need(2 <= k <= _MOST, "strings", rule, k, "use transformer_kernel")
    problems.raise_if_any()
    ids = np.unique(strings, return_inverse=True)[1].reshape(strings.shape)
    bias = _identity(ids, kernel)
    points, weights = _grid(2 * (k - 1), nodes)
    code = _equalities(ids)
    _, firsts, where = np.unique(code, return_index=True, return_inverse=True)
    values = np.empty(len(firsts))
    for n, (i, j) in enumerate(zip(*np.divmod(firsts, len(ids)), strict=True)):
        pairs = ((i, i), (i, j), (j, j))
        own, cross, other = (
            (ids[a][:, None] == ids[b]) + kernel.gamma**2 * np.eye(k) for a, b in pairs
        )
        values[n] = _pair((own, cross, other), (bias[i], bias[j]), kernel.beta, points, weights)
    return kernel.outputs(values[where].reshape(code.shape))


def _equalities(ids: Strings) -> Int64[np.ndarray, "string string"]:
    """A number for every pair of strings that tells which of its tokens are equal."""
    k = ids.shape[1]
    places = 2 ** np.arange(k * k)
    own = (ids[:, :, None] == ids[:, None]).reshape(len(ids), -1) @ places
    code: Int64[np.ndarray, "string string"] = own[:, None] * 4 ** (k * k) + own * 2 ** (k * k)
    for s in range(k):
        for t in range(k):
            code += (ids[:, s, None] == ids[None, :, t]) * places[s * k + t]
    return code


def _grid(dimensions: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.stack(np.meshgrid(*[x] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    grid = np.stack(np.meshgrid(*[w / w.sum()] * dimensions, indexing="ij"), -1)
    return points, grid.reshape(-1, dimensions).prod(-1)


def _pair(
    gram: tuple[np.ndarray, np.ndarray, np.ndarray],
    bias: tuple[np.ndarray, np.ndarray],
    beta: float,
    points: np.ndarray,
    weights: np.ndarray,
) -> float:
    """The expectation E[p(X)ᵀ G_XY p(Y)]; a softmax depends only on differences to the last
    score."""
    own, cross, other = gram
    k = len(own)
    to_last = np.eye(k)[:-1] - np.eye(k)[-1]
    blocks = [
        [to_last @ (g[-1, -1] * g) @ to_last.T for g in row]
        for row in ((own, cross), (cross.T, other))
    ]
    values, vectors = np.linalg.eigh(np.block(blocks))
    drawn = points @ (vectors * np.sqrt(values.clip(0))).T
    zero = np.zeros((len(points), 1))
    patterns = [
        _softmax(beta * (np.hstack((part, zero)) + b))
        for part, b in zip(np.split(drawn, 2, axis=1), bias, strict=True)
    ]
    return float(np.einsum("n,ns,st,nt->", weights, patterns[0], cross, patterns[1]))
