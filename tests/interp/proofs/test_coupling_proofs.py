"""Truncated kernels: measured errors against certificates, bounds and closed forms."""

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.proofs.coupling import construct_pod, input_bound, mean_square_bound, sigma_tail
from interp.tasks.coupling import PodCoupling

SINES = PodCoupling(6, length=8)
TASKS = [
    SINES,
    PodCoupling(4, left="sine", right="cosine", length=8),
    PodCoupling(3, left="legendre", right="legendre", mask_self=True, length=8),
    PodCoupling(3, sigmas=(0.4, 0.2, 0.05), left="cosine", right="legendre", length=8),
]


def extreme_inputs(length: int) -> torch.Tensor:
    """Rows of knots, ends and clusters: where interpolation and softmax are at their worst."""
    rng = np.random.default_rng(0)
    grid = rng.integers(0, 33, (60, length)) / 32
    close = rng.random((60, 1)) + 1e-4 * rng.random((60, length))
    few = rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], (60, length))
    return torch.from_numpy(np.concatenate((grid, close.clip(0, 1), few))).float()


@pytest.mark.parametrize("features", [0, 8])
@pytest.mark.parametrize("m_h", [1, 2, 5])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.left}-{task.right}")
@torch.no_grad()
def test_error_stays_below_the_certificates(task: PodCoupling, m_h: int, features: int) -> None:
    task = PodCoupling(**{**vars(task), "features": features})
    construction = construct_pod(task, m_h, knots=256)
    x = torch.cat((task.sample(100, seed=1).latents["x"], extreme_inputs(task.length)))
    error = (construction.model(task.inputs(x))[..., 0] - task.average(x)).abs()
    assert float(error.max()) <= construction.certificate.error < 1
    slack = sum(construction.certificate.parts[n] for n in ("features", "rounding of the scores"))
    assert bool((error <= input_bound(task, m_h, x) + slack + 1e-7).all())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.left}-{task.right}")
@torch.no_grad()
def test_exact_from_the_rank_on_and_not_below(task: PodCoupling) -> None:
    rank = int(task.rank)
    task = PodCoupling(**{**vars(task), "features": rank + 1})
    batch = task.sample(50, seed=2)
    for m_h in (rank, rank + 1):
        construction = construct_pod(task, m_h)
        error = (construction.model(batch.inputs) - batch.targets).abs().max()
        assert float(error) <= construction.certificate.error < 2e-6
    short = construct_pod(task, rank - 1)
    error = (short.model(batch.inputs) - batch.targets).abs().max()
    assert 1e-3 < float(error) <= short.certificate.error


@torch.no_grad()
def test_knots_bring_the_certificate_down_as_their_square() -> None:
    parts = [construct_pod(SINES, 6, knots=n).certificate.parts["features"] for n in (128, 512)]
    assert parts[0] / parts[1] == pytest.approx(16, rel=0.05)
    fine = construct_pod(SINES, 6)
    assert fine.certificate.error < 2e-4
    batch = SINES.sample(100, seed=3)
    measured = float((fine.model(batch.inputs) - batch.targets).abs().max())
    assert measured <= fine.certificate.error < 100 * measured


@torch.no_grad()
def test_scores_have_the_rank_and_directions_hold_the_bases() -> None:
    task = PodCoupling(4, left="sine", right="cosine", length=12, features=4)
    construction = construct_pod(task, 3)
    batch = task.sample(20, seed=0)
    _, cache = construction.model.run_with_cache(batch.inputs)
    singular = torch.linalg.svdvals(cache["blocks.0.attn.hook_attn_scores"][:, 0])
    assert bool((singular[:, 3:] < 1e-12 * singular[:, :1]).all())
    assert set(construction.mechanism.directions) == {
        "x", "phi[1]", "phi[2]", "phi[3]", "psi[1]", "psi[2]", "psi[3]"
    }  # fmt: skip
    for latent, axis in construction.mechanism.directions.items():
        held = cache[construction.mechanism.written[latent]] @ axis
        assert torch.allclose(held.float(), batch.latents[latent], atol=1e-6)


def test_mean_square_stays_below_its_bound_and_the_tail_alone_does_not_bound_it() -> None:
    task = PodCoupling(6)
    x = task.sample(4000, seed=5).latents["x"]
    measured = float((task.average(x) - task.average(x, 4)).square().mean())
    assert sigma_tail(task, 4) == pytest.approx(1 / 25 + 1 / 36)
    diagonal = (1 / 5 + 1 / 6) ** 2 + (1 / 25 + 1 / 36) / 2  # E (Σ σ_k 2 sin²)²
    expected = (15 * sigma_tail(task, 4) + diagonal) / 4
    assert mean_square_bound(task, 4) == pytest.approx(expected, rel=1e-9)
    assert measured <= expected
    for m_h in (1, 2, 3, 5):
        measured = float((task.average(x) - task.average(x, m_h)).square().mean())
        assert measured <= mean_square_bound(task, m_h)


def test_infinite_rank_has_the_closed_form_tail_and_the_inputs_own_bound() -> None:
    task = PodCoupling("infinite", mask_self=True, alpha=0.55)
    far = sum(k**-1.1 for k in range(4, 200_000)) + 10 * 200_000**-0.1  # the rest as an integral
    assert sigma_tail(task, 3) == pytest.approx(far, rel=1e-4)
    assert mean_square_bound(task, 3) == pytest.approx(15 * sigma_tail(task, 3) / 4)
    x = task.sample(200, seed=0).latents["x"]
    error = (task.average(x) - task.average(x, 3)).abs()
    bound = input_bound(task, 3, x)
    assert bool((error <= bound + 1e-12).all())
    assert float(bound.mean()) < 0.95
    assert construct_pod(task, 3, knots=64).certificate.error == 1


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"knots must.*m_h must be at most"):
        construct_pod(PodCoupling(2, features=2), 3, knots=1)
    with pytest.raises(ArgumentError, match=r"n must be at least 7, for x and the bases.*6"):
        construct_pod(PodCoupling(3, left="sine", right="cosine"), 3, n=6)


@pytest.mark.parametrize("features", [0, 4])
@pytest.mark.parametrize("right", ["sine", "cosine"])
@torch.no_grad()
def test_empty_features_change_nothing(right: str, features: int) -> None:
    task = PodCoupling(4, left="sine", right=right, features=features)
    least, wide = (construct_pod(task, 3, n=n, knots=64) for n in (None, 32))
    batch = task.sample(20, seed=3)
    assert wide.model.spec.d_model == 32
    assert torch.allclose(wide.model(batch.inputs), least.model(batch.inputs), atol=1e-14)
    assert wide.certificate == least.certificate
    assert all(len(direction) == 32 for direction in wide.mechanism.directions.values())
