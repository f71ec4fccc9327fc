"""The few numbers of a low-rank circuit from which all weight metrics are computed.

With M = L Rᵀ + cI, L and R of shape [n, r], r ≪ n, nothing of size n × n is needed:

    diagonal of M     Σ_k L_ik R_ik + c                            n·r
    ‖M‖²              Σ (LᵀL)∘(RᵀR)                                n·r²
    Σσ⁴               tr (LᵀL RᵀR)²                                r³
    tr M²             tr (RᵀL)²                                    n·r²
    σ(M)              square roots of the eigenvalues of G^½ RᵀR G^½, G = LᵀL
    λ(M)              those of RᵀL, the other n − r are 0

and adding cI shifts each in closed form; its singular values come from the span of L and R, where
the circuit is a 2r × 2r matrix, and are |c| outside it. Products over n run in the factors' dtype,
what follows (r × r) in double: on GPT-2's float32 weights the two differ by 1e-6 or less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.threads import workers
from interp.weights.head_weights.circuit import Circuit

_AT_ONCE = 8


@dataclass(frozen=True)
class LowRankCircuit:
    """The numbers of one head's circuit M [n, n] that metrics need.

    Attributes:
        width: the width n of the circuit.
        columns: the number r of columns of its factors.
        trace: the trace tr M.
        energy: ‖M‖², the squared Frobenius norm.
        fourth: the sum Σσ⁴ over singular values.
        diagonal_energy: the sum Σ M_ii².
        square_trace: the trace tr M², or None when the spectrum was not asked for.
        factor_norm: the product ‖L‖·‖R‖ of the factors' norms.
        identity: the multiple c of I that is added.
        bias: (‖R b‖², and its mean and variance for a random direction of b), or None.
        singular: singular values, largest first, or None when not asked for.
        eigen: the eigenvalues, or None when not asked for.
    """

    width: int
    columns: int
    trace: float
    energy: float
    fourth: float
    diagonal_energy: float
    factor_norm: float
    square_trace: float | None = None
    identity: float = 0.0
    bias: tuple[float, float, float] | None = None
    singular: NDArray[np.float64] | None = None
    eigen: NDArray[np.complex128] | None = None

    @property
    def rank(self) -> int:
        """The largest rank that the factors allow."""
        return min(self.columns, self.width)


def low_rank_circuit(
    left: Tensor,
    right: Tensor,
    identity: float = 0.0,
    *,
    bias: Tensor | None = None,
    spectrum: bool = False,
) -> LowRankCircuit:
    """Compute the numbers of the circuit left · rightᵀ + identity · I that metrics need.

    Args:
        left, right: the factors, [n, r].
        identity: the multiple c of I.
        bias: a query bias b [r] in the head's own basis.
        spectrum: whether to compute singular values, eigenvalues and tr M², too.

    Raises:
        ArgumentError: if squares of the factors overflow their number format.
    """
    n, r = left.shape
    left, right = _alike(left, right)
    gram_left, gram_right = left.mT @ left, right.mT @ right
    _check(left, right, gram_left, gram_right)
    product = gram_left.double() @ gram_right.double()
    diagonal = (left * right).sum(-1).double()
    trace, c = float(diagonal.sum()), identity
    shift = 2 * c * trace + c * c * n
    fourth = float((product * product.mT).sum())
    singular = eigen = square_trace = None
    if spectrum or c:
        singular = _singular(gram_left.double(), gram_right.double(), min(r, n))
    if c:
        singular = _shifted_spectrum(left.double(), right.double(), c)
        fourth = float((singular**4).sum())
    if spectrum:
        cross = (right.mT @ left).double()
        square_trace = float((cross * cross.mT).sum()) + shift
        eigen = _eigenvalues(cross, n, c)
    return LowRankCircuit(
        width=n,
        columns=r,
        trace=trace + c * n,
        energy=float(product.trace()) + shift,
        fourth=fourth,
        diagonal_energy=float(diagonal @ diagonal) + shift,
        factor_norm=float(gram_left.trace() * gram_right.trace()) ** 0.5,
        square_trace=square_trace,
        identity=c,
        bias=None if bias is None else _bias(gram_right.double(), bias.double()),
        singular=singular,
        eigen=eigen,
    )


def low_rank_circuits(circuit: Circuit, *, spectrum: bool = False) -> Iterator[LowRankCircuit]:
    """Yield :func:`low_rank_circuit` of every head, computing as many at once as PyTorch has
    threads.

    The matrices of a head are small, so threads that share one head would wait for each other.
    """

    def of(head: int) -> LowRankCircuit:
        left, right = circuit.pair(head)
        bias = circuit.inner_bias(head)
        return low_rank_circuit(
            left, right, circuit.identity_scalar(head), bias=bias, spectrum=spectrum
        )

    with workers(min(torch.get_num_threads(), _AT_ONCE)) as pool:
        yield from pool.map(of, range(circuit.n_heads))


def _alike(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return both factors in the same memory order: by column, as in most checkpoints, or else by
    row.

    Entrywise products of two different orders are several times slower.
    """
    if left.mT.is_contiguous() and right.mT.is_contiguous():
        return left, right
    return left.contiguous(), right.contiguous()


def _check(left: Tensor, right: Tensor, *grams: Tensor) -> None:
    """Refuse infinite numbers, which would make LAPACK's eigenvalue routines end the process."""
    problems = Problems("low_rank_circuit")
    for name, side, gram in zip(("left", "right"), (left, right), grams, strict=True):
        if not gram.isfinite().all():
            rule, largest = f"must have squares that {side.dtype} can hold", float(side.abs().max())
            received = f"a largest number of {largest:.2g}"
            problems.need(False, name, rule, received, "scale the weights down")
    problems.raise_if_any()


def _singular(gram_left: Tensor, gram_right: Tensor, rank: int) -> NDArray[np.float64]:
    values, vectors = torch.linalg.eigh(gram_left)
    root = vectors * values.clamp_min(0).sqrt()
    squares = torch.linalg.eigvalsh(root.mT @ gram_right @ root).flip(-1)[:rank]
    return squares.clamp_min(0).sqrt().numpy()


def _shifted_spectrum(left: Tensor, right: Tensor, c: float) -> NDArray[np.float64]:
    span = torch.linalg.qr(torch.cat((left, right), dim=1)).Q
    core = (span.mT @ left) @ (span.mT @ right).mT + c * torch.eye(span.shape[1])
    inside = torch.linalg.svdvals(core).numpy()
    outside = np.full(len(left) - len(inside), abs(c))
    return np.sort(np.concatenate((inside, outside)))[::-1].copy()


def _eigenvalues(cross: Tensor, n: int, c: float) -> NDArray[np.complex128]:
    found = torch.linalg.eigvals(cross).numpy()
    found = found[np.argsort(-np.abs(found))][:n]
    return found if not c else np.concatenate((found + c, np.full(n - len(found), c)))


def _bias(gram: Tensor, bias: Tensor) -> tuple[float, float, float]:
    """Return ‖R b‖² = bᵀ G b, and its mean and variance over random directions of b in r
    dimensions."""
    r, length = len(bias), float(bias @ bias)
    trace, square = float(gram.trace()), float((gram**2).sum())
    variance = 2 * (square - trace**2 / r) / (r * (r + 2))
    return float(bias @ gram @ bias), length * trace / r, length**2 * max(variance, 0.0)
