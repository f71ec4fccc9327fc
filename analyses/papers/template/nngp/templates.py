"""The matrix N of a kernel between templates, and what it says about learning (`template` §2.2).

    N_ij = K(sub(z_i, s), sub(z_j, s′)),  s and s′ disjoint, symmetrised

N nonsingular means that a kernel method with this kernel tells the templates apart on unseen
symbols; its condition number drives how many samples that takes. With many symbols the kernel
matrix of n strings is N blown up into blocks, and on the diagonal δ = K(x, x) − N_ii more: a string
is more like itself than like another one of its template. Kernel ridge regression meets δ as a
ridge and gives every unseen string nearly N (N + (λ + δ)/n_i)⁻¹ y with n_i strings of template i:
the templates' label means, shrunk along N's small eigenvalues.

An MLP on one-hot input sees shared regular tokens at equal positions and nothing else, so its N is
singular as soon as two templates have the same ones at the same places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from analyses.papers.template.nngp.activations import dual
from analyses.papers.template.nngp.kernel import (
    NNGPKernel,
    batch_kernels,
    jackknife,
    quadrature_kernel,
)
from prooflens.tasks import TemplateTask, wildcards

__all__ = ["TemplateMatrix", "block_spread", "mlp_matrix", "template_matrix", "template_prediction"]

Matrix = Float64[np.ndarray, "template template"]
_QUADRATURE = 3


@dataclass(frozen=True)
class TemplateMatrix:
    """The matrix N with standard errors, which are 0 for quadrature.

    Attributes:
        value: The matrix N.
        error: The standard error of each entry.
        condition: |largest eigenvalue| / |smallest|; infinite if singular to rounding.
        condition_error: The standard error of the condition number.
        eigenvalues: The eigenvalues of N, smallest first.
        surplus: For each template, δ = K(x, x) − N_ii of one of its strings x.
    """

    value: Matrix
    error: Matrix
    condition: float
    condition_error: float
    eigenvalues: Float64[np.ndarray, " template"]
    surplus: Float64[np.ndarray, " template"]


def template_matrix(
    task: TemplateTask,
    kernel: NNGPKernel,
    *,
    samples: int = 20_000,
    nodes: int = 24,
) -> TemplateMatrix:
    """The matrix N of the transformer kernel between a task's templates.

    Args:
        task: The task whose templates are compared.
        kernel: The options of the infinitely wide model.
        samples: The number of samples of the Monte Carlo estimate, for four positions or more.
        nodes: The number of nodes of the quadrature, for two or three positions.
    """
    strings, r = _two_copies(task), len(task.templates)
    if 2 <= task.length <= _QUADRATURE:
        full = quadrature_kernel(strings, kernel, nodes=nodes)[None]
    else:
        full = batch_kernels(strings, kernel, samples=samples)
    left_out = (full[:, :r, r:] + full[:, r:, :r]) / 2
    value = left_out.mean(0)
    conditions = np.array([_condition(one) for one in left_out])
    return TemplateMatrix(
        value=value,
        error=jackknife(left_out),
        condition=_condition(value),
        condition_error=float(jackknife(conditions)),
        eigenvalues=np.linalg.eigvalsh(value),
        surplus=np.diag(full.mean(0)).reshape(2, r).mean(0) - np.diag(value),
    )


def mlp_matrix(task: TemplateTask) -> Matrix:
    """The matrix N of an infinitely wide ReLU MLP with one hidden layer, on one-hot tokens.

    Inputs have k ones; two strings with disjoint substitutions share the regular tokens that
    stand at the same place in both, so the inner product counts those.
    """
    letters = np.array([list(z) for z in task.templates])
    regular = np.isin(letters, list(task.regular))
    shared = (letters[:, None] == letters[None]) & regular[:, None] & regular[None]
    size = np.full((1, 1), float(task.length))
    return dual("relu", size, size, shared.sum(-1).astype(np.float64))


def block_spread(
    kernel: Float64[np.ndarray, "string string"], template: Int64[np.ndarray, " string"]
) -> tuple[Float64[np.ndarray, "template template"], float]:
    """How nearly a kernel matrix is constant on the blocks of its templates.

    Args:
        kernel: The kernel between strings.
        template: Index of each string's template.

    Returns:
        Block means (the diagonal of the matrix left out), and the share of the variance of its
        off-diagonal entries that lies within blocks: 0 is block-constant.
    """
    off = ~np.eye(len(kernel), dtype=bool)
    rows, columns = np.nonzero(off)
    r = int(template.max()) + 1
    block = template[rows] * r + template[columns]
    values = kernel[rows, columns]
    counts = np.bincount(block, minlength=r * r)
    means = np.bincount(block, values, minlength=r * r) / np.maximum(counts, 1)
    within = float(((values - means[block]) ** 2).mean())
    spread = float(values.var())
    return means.reshape(r, r), within / spread if spread > 0 else 0.0


def template_prediction(
    matrix: Matrix,
    labels: Float64[np.ndarray, " template"],
    *,
    rows: int | Int64[np.ndarray, " template"],
    ridge: float | Float64[np.ndarray, " template"],
) -> Float64[np.ndarray, " template"]:
    """The prediction of kernel ridge regression for unseen strings, with many training symbols.

    N (N + diag((λ + δ)/n_i))⁻¹ y for n_i rows of template i.

    Args:
        matrix: The matrix N.
        labels: The templates' labels y.
        rows: The number of training strings, spread evenly, or that of each template.
        ridge: λ, or λ + δ for each template: δ, the ``surplus`` of :class:`TemplateMatrix`, is a
            ridge that the kernel brings along.
    """
    r = len(labels)
    counts = np.asarray(rows) if np.ndim(rows) else np.asarray(rows) / r
    own = np.broadcast_to(np.asarray(ridge, dtype=np.float64) / counts, r)
    return np.asarray(matrix @ np.linalg.solve(matrix + np.diag(own), labels))


def _condition(matrix: Matrix) -> float:
    sizes = np.abs(np.linalg.eigvalsh(matrix))
    return float(sizes.max() / sizes.min()) if sizes.min() > 0 else float("inf")


def _two_copies(task: TemplateTask) -> Int64[np.ndarray, "string pos"]:
    """Every template under one substitution, then under a second one that shares no symbol with
    it."""
    rows = []
    fresh = len(task.regular)
    for _ in range(2):
        for template in task.templates:
            names = {v: i for i, v in enumerate(task.regular)}
            for w in wildcards(template):
                names[w], fresh = fresh, fresh + 1
            rows.append([names[c] for c in template])
    return np.array(rows)
