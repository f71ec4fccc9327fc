import numpy as np
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from interp.errors import ArgumentError
from interp.stats.nulls import correlation_squared
from probes.controls import control_latent, decode_nonlinearly
from probes.linear import Ridge, decode, direction, folds_of, kind_of, logistic

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


def test_a_low_score_on_one_fold_ends_the_search() -> None:
    x, noise = RNG.normal(size=(60, 6, 3)), RNG.normal(size=(60, 6))
    ended, whole = decode_nonlinearly(x, noise, least=0.5), decode_nonlinearly(x, noise)
    held = folds_of(np.arange(60)) == 0
    np.testing.assert_array_equal(ended.predicted[held], whole.predicted[held])
    assert np.isnan(ended.predicted[~held]).all()
    assert ended.score == pytest.approx(correlation_squared(whole.predicted[held], noise[held]))
    latent = x[..., 0]
    found = decode_nonlinearly(x, latent, least=0.5)
    np.testing.assert_array_equal(found.predicted, decode_nonlinearly(x, latent).predicted)


def test_names_are_classes_and_quantities_are_not_however_many_rows_there_are() -> None:
    tokens = RNG.integers(0, 31, (200, 8))
    for rows in (5, 20, 200):
        assert kind_of(tokens[:rows]) == "categorical"
        assert kind_of(tokens[:rows].astype(float)) == "real"
    assert kind_of(tokens > 3) == "categorical"
    assert kind_of(np.where(tokens > 3, 1.0, -1.0)) == "categorical"
    assert kind_of(np.ones((20, 8))) == "real"


def test_tokens_are_read_by_name() -> None:
    tokens = RNG.integers(0, 31, (200, 8))
    code = RNG.normal(size=(31, 16))
    found = decode(code[tokens], tokens.astype(float), probe=logistic())
    assert found.score > 0.99
    assert found.dropped == 0
    assert decode(code[tokens], tokens.astype(float)).score < 0.9


@pytest.mark.parametrize("holders", [[0, 5, 10], [0, 1, 2, 3], [0, 5, 10, 15, 20, 25]])
def test_a_class_that_a_training_fold_may_lack_is_left_out_and_counted(holders: list[int]) -> None:
    latent = RNG.integers(0, 2, (60, 4)).astype(float)
    features = latent[..., None] + 0.01 * RNG.normal(size=(60, 4, 2))
    latent[holders, 0] = 7
    found = decode(features, latent, probe=logistic())
    assert found.classes is not None
    assert found.classes.tolist() == [0, 1]
    assert (found.dropped, found.score) == (1, 1.0)
    assert np.isfinite(found.predicted).all()
    rare = np.zeros((60, 4))
    rare[holders] = 1
    none = decode(features, rare, probe=logistic())
    assert (none.score, none.dropped) == (0.0, 1)


def test_a_class_in_five_rows_of_several_folds_is_learned() -> None:
    latent = np.zeros((60, 4))
    latent[[0, 1, 2, 3, 4]] = 1
    found = decode(latent[..., None] + 0.01 * RNG.normal(size=(60, 4, 2)), latent, probe=logistic())
    assert (found.score, found.dropped) == (1.0, 0)


def test_rows_of_one_group_do_not_leak() -> None:
    x, latent = RNG.normal(size=(30, 4, 200)), RNG.integers(0, 2, (30, 4)).astype(float)
    x, latent, groups = np.tile(x, (4, 1, 1)), np.tile(latent, (4, 1)), np.tile(np.arange(30), 4)
    shuffled = RNG.permutation(120)
    x, latent, groups = x[shuffled], latent[shuffled], groups[shuffled]
    assert decode(x, latent, probe=logistic()).score > 0.9
    assert abs(decode(x, latent, probe=logistic(), groups=groups).score) < 0.4


def test_what_cannot_be_decoded_is_refused() -> None:
    x, latent = RNG.normal(size=(20, 3, 2)), RNG.normal(size=(20, 3))
    with pytest.raises(ArgumentError, match=r"rows must hold distinct ones for 5 folds, got 4:"):
        decode(x[:4], latent[:4])
    with pytest.raises(ArgumentError, match="5 folds, got 3:"):
        decode(x, latent, groups=np.arange(20) % 3)
    latent[3, 1] = np.nan
    with pytest.raises(ArgumentError, match="latent must be finite, got '1 that are not'"):
        decode(x, latent)


def test_a_control_at_one_position_labels_tokens() -> None:
    tokens, latent = RNG.integers(0, 40, (100, 1)), RNG.integers(0, 2, (100, 1)).astype(float)
    labels = control_latent(tokens, latent, positions=np.full((100, 1), 5), seed=1)
    assert all(len(np.unique(labels[tokens == token])) == 1 for token in np.unique(tokens))
    assert 0.2 < labels.mean() < 0.8
    assert decode(np.eye(40)[tokens], labels, probe=logistic()).score > 0.4


@pytest.mark.parametrize(("samples", "features"), [(60, 4), (25, 40), (40, 40), (9, 1)])
@pytest.mark.parametrize("noise", [0.0, 0.3, 30.0])
def test_ridge_is_scikit_learns(samples: int, features: int, noise: float) -> None:
    """Penalty and predictions, with features of very different size, equal and constant ones."""
    rng = np.random.default_rng(samples + features)
    x = rng.normal(size=(samples + 5, features)) * 10.0 ** rng.integers(-3, 4, features) + 5
    if features > 2:
        x[:, 1], x[:, 2] = 7.0, x[:, 0]
    y = x[:, 0] / x[:, 0].std() - 3 + noise * rng.normal(size=len(x))
    theirs = make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-4, 4, 9)))
    theirs.fit(x[:samples], y[:samples])
    ours = Ridge().fit(x[:samples], y[:samples])
    assert ours.penalty == pytest.approx(theirs[-1].alpha_)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), rtol=1e-7, atol=1e-7)
