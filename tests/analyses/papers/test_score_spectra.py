import math

import numpy as np
import pytest
import torch

from analyses.papers.coupling.score_spectra import (
    convergence,
    decay_constant,
    fit_decay,
    head_spectra,
    metric_spectrum,
    score_spectra,
)
from interp.errors import ArgumentError, HookError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.coupling import construct_pod
from interp.tasks.coupling import PodCoupling
from interp.weights.metrics import effective_rank


def test_score_spectra_equal_numpys_of_centred_matrices() -> None:
    scores = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    found = score_spectra(scores)
    for row in range(3):
        for head in range(2):
            matrix = scores[row, head].double().numpy()
            matrix = matrix - matrix.mean(1, keepdims=True)
            expected = np.linalg.svd(matrix, compute_uv=False) / math.sqrt(20)
            assert np.allclose(found[row, head], expected)
    shifted = scores + torch.randn(3, 2, 5, 1)
    assert np.allclose(score_spectra(shifted), found, atol=1e-6)
    with pytest.raises(ArgumentError, match="scores must be finite"):
        score_spectra(scores.masked_fill(scores > 1, -torch.inf))


def test_metric_spectrum_is_that_of_all_pairs() -> None:
    """The direct way: the matrix of scores between all inputs, over its size."""
    q, k = np.random.default_rng(1).standard_normal((2, 60, 3)) + 0.5
    pairs = q @ k.T / math.sqrt(3)
    pairs = pairs - pairs.mean(1, keepdims=True)
    expected = np.linalg.svd(pairs, compute_uv=False)[:3] / 60
    found = metric_spectrum(torch.tensor(q.T @ q / 60), torch.tensor(np.cov(k.T, bias=True)))
    assert np.allclose(found, expected)


@pytest.mark.parametrize("positions", ["none", "rope"])
def test_spectra_of_a_models_heads_batch_by_batch(positions: str) -> None:
    spec = TransformerSpec(
        input="real", d_in=2, d_out=1, n_ctx=6, d_model=8, n_layers=2, n_heads=2, d_head=4,
        causal=positions == "rope", positions=positions,
    )  # fmt: skip
    model = SequenceTransformer(spec, seed=3)
    inputs = torch.randn(7, 6, 2, generator=torch.Generator().manual_seed(2))
    found = head_spectra(model, inputs.split(3))
    _, cache = model.run_with_cache(inputs)
    for layer in range(2):
        assert found.per_input[layer].shape == (7, 2, 6)
        kind = "hook_rot_" if positions == "rope" else "hook_"
        q, k = (cache[f"blocks.{layer}.attn.{kind}{side}"].double() for side in "qk")
        for head in range(2):
            scores = (q[:, :, head] @ k[:, :, head].mT / 2).numpy()
            if positions == "none":
                hooked = cache[f"blocks.{layer}.attn.hook_attn_scores"][:, head].numpy()
                assert np.allclose(scores, hooked, atol=1e-5)
            centred = scores - scores.mean(-1, keepdims=True)
            expected = np.linalg.svd(centred, compute_uv=False) / 6
            assert np.allclose(found.per_input[layer][:, head], expected, atol=1e-8)
            every = (q[:, :, head].reshape(-1, 4) @ k[:, :, head].reshape(-1, 4).T / 2).numpy()
            every = every - every.mean(-1, keepdims=True)
            expected = np.linalg.svd(every, compute_uv=False)[:4] / 42
            assert np.allclose(found.metric[layer][head], expected, atol=1e-8)
    only = head_spectra(model, [inputs], layers=[1])
    assert list(only.metric) == [1]
    with pytest.raises(ArgumentError, match="batches must be of one length"):
        head_spectra(model, [inputs, inputs[:, :4]])


def test_a_model_without_keys_is_refused() -> None:
    spec = TransformerSpec(
        d_in=3, d_out=3, n_ctx=4, d_model=4, n_layers=1, score="none", lag_bias="lin"
    )
    with pytest.raises(HookError, match="no hook_q and hook_k"):
        head_spectra(SequenceTransformer(spec), [torch.zeros(1, 4, dtype=torch.long)])


def test_the_construction_has_the_tasks_singular_values() -> None:
    task = PodCoupling(4, features=4, length=16)
    model = construct_pod(task, 6 - 2).model
    batches = [task.sample(500, seed=seed).inputs for seed in range(4)]
    found = head_spectra(model, batches)
    sigma = task.sigma(4).numpy()
    assert np.allclose(found.metric[0][0], sigma, rtol=0.05)
    assert float(effective_rank(found.metric[0])[0]) == pytest.approx(
        float(effective_rank(sigma)), rel=0.02
    )
    assert found.per_input[0][..., 4:].max() < 1e-12


def test_decay_is_recovered_with_an_interval_that_covers() -> None:
    k = np.arange(1, 13)
    exact = fit_decay(3 * k**-0.8)
    assert exact.alpha == pytest.approx(0.8)
    assert exact.high - exact.low < 1e-9
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        rows = k**-0.8 * np.exp(0.1 * rng.standard_normal((5, 12)))
        fit = fit_decay(rows, first=2, last=10)
        covered += fit.low <= 0.8 <= fit.high
    assert 180 <= covered <= 199
    one = fit_decay(k**-0.8 * np.exp(0.1 * rng.standard_normal(12)))
    assert one.low < 0.8 < one.high
    assert decay_constant(3 * k**-0.8, 0.8) == pytest.approx(3)
    assert decay_constant(np.array([1.0, 0.5]), 2.0) == 2
    with pytest.raises(ArgumentError, match=r"last must leave three values.*must be positive"):
        fit_decay(np.array([1.0, 0.0, 0.5]), last=2)


def test_convergence_measures_distance_to_the_widest_and_to_a_reference() -> None:
    spectra = {1: np.array([1.0]), 2: np.array([1.0, 0.5]), 4: np.array([1.0, 0.5, 0.25, 0.0])}
    table = convergence(spectra)
    size = math.sqrt(1 + 0.25 + 0.0625)
    assert table["distance"].tolist() == pytest.approx([math.sqrt(0.3125) / size, 0.25 / size, 0])
    assert math.isnan(table["step"][0])
    assert table["step"][1] == pytest.approx(0.5)
    assert convergence(spectra, np.array([2.0]))["distance"][0] == pytest.approx(0.5)
