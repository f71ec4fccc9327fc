import math

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.tasks.coupling import BASES, PodCoupling, infinite_sine_coupling


def direct_basis(name: str, k: int, x: float) -> float:
    if name == "legendre":
        return math.sqrt(2 * k + 1) * float(np.polynomial.Legendre.basis(k)(2 * x - 1))
    wave = math.sin if name == "sine" else math.cos
    return math.sqrt(2) * wave(2 * math.pi * k * x)


def direct_row(task: PodCoupling, x: list[float], t: int) -> tuple[list[float], float]:
    sigmas = task.sigmas or [k**-task.alpha for k in range(1, int(task.rank) + 1)]
    scores = [
        sum(
            s * direct_basis(task.left, k, x[t]) * direct_basis(task.right, k, other)
            for k, s in enumerate(sigmas, 1)
        )
        for other in x
    ]
    weights = [math.exp(v) * (not (task.mask_self and i == t)) for i, v in enumerate(scores)]
    return scores, sum(w * v for w, v in zip(weights, x, strict=True)) / sum(weights)


@pytest.mark.parametrize(
    "task",
    [
        PodCoupling(3, length=5),
        PodCoupling(2, left="sine", right="cosine", mask_self=True, length=5),
        PodCoupling(2, sigmas=(3.0, 0.5), left="legendre", right="legendre", length=4),
        PodCoupling(4, alpha=0.55, left="cosine", right="legendre", length=4),
    ],
    ids=lambda task: f"{task.left}-{task.right}",
)
def test_targets_equal_a_direct_loop(task: PodCoupling) -> None:
    batch = task.sample(3, seed=4)
    for row in range(3):
        x = batch.latents["x"][row].tolist()
        for t in range(task.length):
            scores, y = direct_row(task, x, t)
            assert float(batch.targets[row, t, 0]) == pytest.approx(y, abs=1e-5)
            found = batch.latents["coupling"][row, t].tolist()
            for s in range(task.length):
                if not (task.mask_self and s == t):
                    assert found[s] == pytest.approx(scores[s], abs=1e-4)


@pytest.mark.parametrize("name", BASES)
def test_bases_are_orthonormal_with_mean_zero_and_keep_their_bounds(name: str) -> None:
    basis = BASES[name]
    nodes, weights = basis.quadrature(14)
    values = basis.values(torch.from_numpy(nodes), 7).numpy()
    assert np.allclose(values.T * weights @ values, np.eye(7), atol=1e-12)
    assert np.allclose(weights @ values, 0, atol=1e-12)
    x = torch.linspace(0, 1, 4001, dtype=torch.float64)
    fine = basis.values(x, 7)
    second = (fine[2:] - 2 * fine[1:-1] + fine[:-2]) * 4000**2
    for k in range(1, 8):
        largest = float(fine[:, k - 1].abs().max())
        assert basis.largest(k) * 0.99 <= largest <= basis.largest(k) + 1e-9
        bent = float(second[:, k - 1].abs().max())
        assert bent <= basis.curvature(k) * 1.001 + 1e-4
        assert bent >= basis.curvature(k) * 0.9 - 1e-4


@pytest.mark.parametrize("alpha", [0.55, 0.8, 1.0, 1.5])
def test_infinite_rank_is_the_limit_of_finite_ranks(alpha: float) -> None:
    u = torch.tensor([0.1, 0.37, 0.5, 0.93], dtype=torch.float64)
    v = torch.tensor([0.21, 0.8, 0.11, 0.05], dtype=torch.float64)
    closed = infinite_sine_coupling(u, v, alpha)
    k = torch.arange(1, 40_001, dtype=torch.float64)[:, None]
    terms = 2 * k**-alpha * torch.sin(2 * math.pi * k * u) * torch.sin(2 * math.pi * k * v)
    cesaro = terms.cumsum(0)[20_000:].mean(0)  # the partial sums oscillate about their limit
    assert torch.allclose(closed, cesaro, atol=2e-4)


def test_a_coupling_cut_at_its_rank_is_itself_and_features_are_the_bases() -> None:
    task = PodCoupling(3, left="sine", right="cosine", features=3)
    batch = task.sample(4, seed=0)
    x = batch.latents["x"]
    assert torch.equal(task.coupling(x, x, 3), task.coupling(x, x))
    named = torch.stack([batch.latents[f"psi[{k}]"] for k in (1, 2, 3)], dim=-1)
    assert torch.equal(named, batch.inputs[..., 4:7])
    phi, psi = batch.inputs[..., 1:4].double(), batch.inputs[..., 4:7].double()
    rebuilt = (phi * task.sigma(3)) @ psi.mT
    assert batch.inputs.shape[-1] == task.d_in == 7
    assert torch.allclose(rebuilt.float(), batch.latents["coupling"], atol=1e-5)


def test_infinite_rank_sampled_is_finite_and_attends_to_others() -> None:
    task = PodCoupling("infinite", mask_self=True)
    batch = task.sample(50, seed=1)
    assert all(torch.isfinite(v).all() for v in (batch.targets, *batch.latents.values()))
    assert float(batch.latents["attention"].diagonal(dim1=1, dim2=2).abs().max()) == 0


def test_impossible_tasks_are_refused_with_every_reason() -> None:
    with pytest.raises(ArgumentError, match=r"ρ\(u, u\) is infinite"):
        PodCoupling("infinite")
    with pytest.raises(ArgumentError, match=r"alpha must exceed 1/2.*left must be one of"):
        PodCoupling(2, alpha=0.5, left="hat")
    with pytest.raises(ArgumentError, match=r"sigmas must be positive and fall.*number of sigmas"):
        PodCoupling(2, sigmas=(1.0, 2.0, 3.0))
