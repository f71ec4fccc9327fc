"""Scores that fresh models are put through, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from torch.func import vmap

from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory
from probes.roles.activity import explained_variance, readable
from probes.roles.reinit_null import ReinitNull


def activation(rows: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    f = rng.normal(size=(rows, 4))
    noise = rng.normal(size=(rows, 4, 5)) * [3, 1, 2, 1, 1]
    return torch.from_numpy(f[..., None] * rng.normal(size=5) + noise), torch.from_numpy(f)


def test_explained_is_the_variance_that_a_regression_explains() -> None:
    written, f = activation()
    flat, line = written.reshape(-1, 5).numpy(), f.reshape(-1, 1).numpy()
    fitted = LinearRegression().fit(line, flat).predict(line)
    expected = r2_score(flat, fitted, multioutput="variance_weighted")
    assert float(explained_variance(written, f)) == pytest.approx(expected)


def test_readable_is_the_squared_correlation_of_held_out_predictions() -> None:
    value, f = activation()
    x = (value - value.mean((0, 1))) / value.std((0, 1), correction=0)
    y, folds = f - f.mean(), torch.arange(len(f)) % 5
    predicted = torch.zeros_like(y)
    for fold in range(5):
        seen, held = folds != fold, folds == fold
        ridge = Ridge(alpha=1e-6 * int(seen.sum()) * 4, fit_intercept=False)
        ridge.fit(x[seen].flatten(0, 1).numpy(), y[seen].flatten().numpy())
        predicted[held] = torch.from_numpy(ridge.predict(x[held].flatten(0, 1).numpy())).unflatten(
            0, y[held].shape
        )
    expected = np.corrcoef(predicted.flatten(), y.flatten())[0, 1] ** 2
    assert float(readable(value, f, folds)) == pytest.approx(expected, rel=1e-6)
    assert float(readable(value.flip(0), f, folds)) < 0.1
    many = torch.stack([value, value.flip(0)])
    together = vmap(lambda one: readable(one, f, folds))(many)
    assert together.tolist() == pytest.approx([float(readable(one, f, folds)) for one in many])


def test_odds_are_those_of_the_same_share_on_fresh_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.fresh_models._DRAWS", 120)
    task = FixedMemory((1, 2), "parity", length=12)
    built = construct_fixed_memory(task)
    batch, hook = task.sample(32, seed=1), "blocks.0.hook_mlp_out"
    f = batch.latents["f"][:, 4:].double()
    found = ReinitNull(built.model, batch.inputs, batch.mask)
    assert len(found.inputs) == 32

    def share(value: torch.Tensor) -> torch.Tensor:
        return explained_variance(value[:, 4:], f)

    p = [found.odds(hook, share).p]
    random = SequenceTransformer(built.model.spec, seed=5)
    p.append(ReinitNull(random, batch.inputs, batch.mask).odds(hook, share).p)
    assert p[0] < 1e-3 < 0.02 < p[1]
    drawn = []
    for number in range(120):
        model = SequenceTransformer(built.model.spec, seed=1000 + number)
        with torch.no_grad():
            _, cache = model.run_with_cache(batch.inputs, names_filter=[hook])
        drawn.append(float(share(cache[hook])))
    with torch.no_grad():
        _, cache = random.run_with_cache(batch.inputs, names_filter=[hook])
    own = float(share(cache[hook]))
    reached = sum(one >= own for one in drawn)
    if reached >= 10:
        assert p[1] == pytest.approx((1 + reached) / 121)
