import numpy as np
import pytest

from probes.controls import decode_nonlinearly
from probes.linear import decode, direction

RNG = np.random.default_rng(0)


def test_score_is_the_share_of_variance_that_the_noise_leaves() -> None:
    x = RNG.normal(size=(200, 10, 3))
    latent = x[..., 0] + RNG.normal(size=(200, 10))
    assert decode(x, latent).score == pytest.approx(0.5, abs=0.03)


def test_rows_do_not_leak_between_folds() -> None:
    """Features that only name the row: a probe that saw other positions of it would know all."""
    x = np.repeat(np.eye(40)[:, None], 6, axis=1)
    latent = np.repeat(RNG.normal(size=(40, 1)), 6, axis=1)
    assert decode(x, latent).score < 0.2


def test_direction_is_the_one_the_latent_was_made_of() -> None:
    mixing = RNG.normal(size=(4, 4))
    latents = RNG.normal(size=(100, 5, 4))
    w = direction(latents @ mixing, latents[..., 2])
    np.testing.assert_allclose(mixing @ w, [0, 0, 1, 0], atol=1e-3)


def test_product_is_there_for_a_network_and_not_for_a_line() -> None:
    x = RNG.choice([-1.0, 1.0], (150, 8, 3))
    latent = x.prod(-1)
    assert decode(x, latent).score < 0.05
    assert decode_nonlinearly(x, latent).score > 0.95


def test_network_does_not_find_what_is_not_there() -> None:
    x, latent = RNG.normal(size=(80, 6, 3)), RNG.normal(size=(80, 6))
    assert decode_nonlinearly(x, latent).score < 0.1
