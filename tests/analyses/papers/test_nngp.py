"""Kernels of infinite width against other derivations of the same numbers."""

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad
from scipy.stats import multivariate_normal

from analyses.papers.template.nngp import (
    NNGPKernel,
    block_spread,
    feature_kernel,
    kernel_predict,
    mlp_matrix,
    quadrature_kernel,
    tangent_kernel,
    template_matrix,
    template_prediction,
    theory_model,
    transformer_kernel,
)
from analyses.papers.template.nngp.activations import dual
from interp.errors import ArgumentError
from interp.tasks.template import TemplateTask
from interp.tasks.template.task import aabb_abab, aba_abb, same_different

READ_OUT = TemplateTask(("αα?", "αβ?"), (1.0, -1.0))


@pytest.mark.parametrize("name", ["relu", "erf", "gelu"])
def test_dual_activations_are_the_gaussian_integrals(name: str) -> None:
    from scipy.special import erf

    phi = {"relu": lambda x: max(x, 0.0), "erf": erf,
           "gelu": lambda x: x * (1 + erf(x / 2**0.5)) / 2}[name]  # fmt: skip
    p, q, c = 1.3, 0.6, -0.4
    density = multivariate_normal([0, 0], [[p, c], [c, q]]).pdf
    value, _ = dblquad(lambda v, u: phi(u) * phi(v) * density([u, v]), -8, 8, -7, 7,
                       epsabs=1e-5, epsrel=1e-5)  # fmt: skip
    found = dual(name, np.array(p), np.array(q), np.array(c))
    assert float(found) == pytest.approx(value, abs=2e-4)


@pytest.mark.parametrize("kernel", [NNGPKernel(), NNGPKernel(a=1.5, gamma=1.0, mask_diagonal=True)])
def test_sampling_and_quadrature_agree_within_the_error_bars(kernel: NNGPKernel) -> None:
    strings = np.array([[0, 0], [0, 1], [2, 3], [4, 4]])
    sampled = transformer_kernel(strings, kernel, samples=40_000, seed=1)
    exact = quadrature_kernel(strings, kernel, nodes=80)
    z = (sampled.value - exact) / sampled.error
    assert np.abs(z).max() < 4.5
    assert sampled.error.max() < 0.01
    three, mild = np.array([[0, 1, 0], [2, 3, 3]]), NNGPKernel(beta=1.0, a=kernel.a)
    sampled = transformer_kernel(three, mild, samples=20_000, seed=2)
    z = (sampled.value - quadrature_kernel(three, mild, nodes=16)) / sampled.error
    assert np.abs(z).max() < 5


def test_scores_have_the_covariance_of_the_theory() -> None:
    """m(X) directly as Gaussian vectors with the stated blocks, for one pair of strings."""
    rng = np.random.default_rng(0)
    kernel = NNGPKernel(beta=1.5, gamma=0.7, a=0.4)
    x, y = np.array([0, 1, 0]), np.array([2, 1, 1])

    def gram(s: np.ndarray, t: np.ndarray) -> np.ndarray:
        return (s[:, None] == t).astype(float) + 0.49 * np.eye(3)

    blocks = {(i, j): gram(s, t) for i, s in enumerate((x, y)) for j, t in enumerate((x, y))}
    covariance = np.block([[blocks[i, j][-1, -1] * blocks[i, j] for j in (0, 1)] for i in (0, 1)])
    m = rng.multivariate_normal(np.zeros(6), covariance, size=60_000)
    patterns = []
    for i, part in enumerate((m[:, :3], m[:, 3:])):
        weights = np.exp(1.5 * (part + 0.4 * blocks[i, i][-1]))
        patterns.append(weights / weights.sum(1, keepdims=True))
    attention = np.array(
        [[np.einsum("ns,st,nt->n", patterns[i], blocks[i, j], patterns[j]).mean() for j in (0, 1)]
         for i in (0, 1)]
    )  # fmt: skip
    expected = kernel.outputs(attention)
    found = transformer_kernel(np.stack((x, y)), kernel, samples=60_000, seed=3)
    assert np.abs(found.value - expected).max() < 6 * found.error.max()


def test_condition_numbers_move_as_the_scalar_a_says() -> None:
    """Down where the last token takes part in the equality, up with a read-out token."""
    plain, scalar = NNGPKernel(), NNGPKernel(a=3.0)
    for task, low in ((same_different(), True), (aba_abb(), True), (READ_OUT, False)):
        nodes = 24 if task.length == 2 else 8
        before = template_matrix(task, plain, nodes=nodes).condition
        after = template_matrix(task, scalar, nodes=nodes).condition
        assert (after < before / 3) == low
        assert low or after > before * 3
    exact = template_matrix(same_different(), plain, nodes=80)
    assert exact.condition == pytest.approx(1877, rel=0.002)
    assert (exact.error == 0).all()
    assert template_matrix(same_different(), scalar, nodes=40).condition == pytest.approx(
        123, rel=0.02
    )
    masked = template_matrix(READ_OUT, NNGPKernel(a=3.0, mask_diagonal=True), nodes=8).condition
    assert masked == pytest.approx(template_matrix(READ_OUT, plain, nodes=8).condition)


def test_conditions_come_with_errors_when_sampled() -> None:
    found = template_matrix(aabb_abab(), NNGPKernel(), samples=4000)
    assert found.condition_error > 0
    assert found.error.shape == (2, 2)
    assert found.eigenvalues[0] > 0


def test_mlp_matrix_is_singular_without_distinct_regular_tokens() -> None:
    same = mlp_matrix(aba_abb())
    assert np.linalg.matrix_rank(same) == 1
    assert np.linalg.matrix_rank(mlp_matrix(TemplateTask(("xαα", "xαβ"), (1.0, 0.0)))) == 1
    assert np.linalg.matrix_rank(mlp_matrix(TemplateTask(("xαα", "yαβ"), (1.0, 0.0)))) == 2


def test_kernel_matrix_is_nearly_block_constant_with_diverse_symbols() -> None:
    shares = []
    for symbols in (8, 200):
        task = same_different(train=(0, symbols), test=(symbols, 2 * symbols))
        batch = task.sample(40, seed=0)
        kernel = transformer_kernel(batch.inputs.numpy(), NNGPKernel(), samples=2000).value
        means, share = block_spread(kernel, batch.latents["template"][:, 0].numpy())
        shares.append(share)
        assert means.shape == (2, 2)
    assert shares[1] < 0.8 * shares[0]
    blocks = np.array([[2.0, 1.0], [1.0, 3.0]])
    template = np.array([0, 0, 1, 1, 0])
    means, share = block_spread(blocks[template][:, template], template)
    assert (means == blocks).all()
    assert share == 0


def test_kernel_regression_gives_the_templates_prediction() -> None:
    """Strings of disjoint symbols: the blown-up matrix, solved directly."""
    matrix = np.array([[1.0, 0.6], [0.6, 0.9]])
    template = np.arange(40) % 2
    labels = np.array([1.0, -1.0])
    full = matrix[template][:, template]
    found = kernel_predict(full, labels[template], matrix[:, template], ridge=0.05)
    ridge = 0.05 * float(np.diag(full).mean())
    expected = template_prediction(matrix, labels, rows=40, ridge=ridge)
    assert found == pytest.approx(expected, rel=1e-6)
    sure = template_prediction(matrix, labels, rows=10**9, ridge=ridge)
    assert sure == pytest.approx(labels, abs=1e-6)


def test_finite_models_tend_to_the_limit() -> None:
    kernel = NNGPKernel(beta=1.0, gamma=0.5, a=0.7)
    strings = np.array([[0, 0], [0, 1], [2, 2], [3, 4]])
    limit = quadrature_kernel(strings, kernel)
    errors = []
    for width in (16, 128):
        found = [feature_kernel(theory_model(kernel, vocabulary=5, length=2, width=width,
                                             heads=width // 4, seed=s), torch.from_numpy(strings))
                 for s in range(4)]  # fmt: skip
        errors.append(float(np.mean([np.abs(k - limit).mean() for k in found])))
    assert errors[1] < 0.5 * errors[0]


def test_tangent_kernel_is_the_product_of_gradients() -> None:
    model = theory_model(NNGPKernel(), vocabulary=6, length=3, width=8, heads=2)
    strings = torch.tensor([[0, 1, 0], [2, 3, 3]])
    gradients = []
    for row in strings:
        model.zero_grad()
        torch.autograd.backward(model(row[None])[0, -1, 0])
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()
                                    if p.grad is not None]))  # fmt: skip
    expected = torch.stack(gradients) @ torch.stack(gradients).T
    found = tangent_kernel(model, strings, strings)
    assert found == pytest.approx(expected.double().numpy(), rel=1e-4)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"beta must be positive.*activation must be one of"):
        NNGPKernel(beta=0.0, activation="sine")
    with pytest.raises(ArgumentError, match="must have 2 to 3 positions"):
        quadrature_kernel(np.zeros((1, 4), dtype=np.int64), NNGPKernel())
    with pytest.raises(ArgumentError, match="samples must be at least the 20 batches"):
        transformer_kernel(np.array([[0, 1]]), NNGPKernel(), samples=3)


def test_strings_bring_a_ridge_of_their_own() -> None:
    """A surplus on the diagonal, one for each template, is a ridge: solved directly."""
    matrix, own = np.array([[1.0, 0.6], [0.6, 0.9]]), np.array([0.3, 0.5])
    template = np.arange(40) % 3 % 2
    labels, counts = np.array([1.0, -1.0]), np.bincount(template)
    full = matrix[template][:, template] + np.diag(own[template])
    found = matrix[:, template] @ np.linalg.solve(full + 0.05 * np.eye(40), labels[template])
    expected = template_prediction(matrix, labels, rows=counts, ridge=0.05 + own)
    assert found == pytest.approx(expected, rel=1e-9)
    without = template_prediction(matrix, labels, rows=40, ridge=0.05)
    assert np.abs(found - without).min() > 0.01


def test_surplus_is_what_a_string_has_with_itself_alone() -> None:
    task = aba_abb()
    found = template_matrix(task, NNGPKernel(a=1.0), nodes=12)
    strings = np.array([[0, 1, 0], [2, 3, 3], [4, 5, 4], [6, 7, 7]])
    full = quadrature_kernel(strings, NNGPKernel(a=1.0), nodes=12)
    assert found.surplus == pytest.approx(np.diag(full)[:2] - np.diag(full[:2, 2:]), abs=1e-12)
    assert (found.surplus > 0).all()
