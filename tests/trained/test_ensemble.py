"""A stack against training one after another with PyTorch's own AdamW."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SPEC, TASK, tiny

from interp.errors import ArgumentError
from interp.models.baselines import LSTMSpec, MLPSpec, RNNSpec
from interp.models.kinds import build
from interp.models.spec import TransformerSpec
from interp.tasks.memory import FixedMemory
from trained.ensemble import Ensemble, TrainingRows, groups
from trained.fit import Fit, fits_of
from trained.metrics import loss_of
from trained.run import TrainingRun


def together(*runs: TrainingRun) -> list[Fit]:
    ensemble = Ensemble(runs)
    for _ in ensemble.run():
        pass
    return fits_of(ensemble)


def one_after_another(run: TrainingRun) -> tuple[Any, list[float]]:
    """The same training with ``torch.optim``, on the same rows."""
    training = run.training
    model, rows = build(run.spec, seed=training.seed).train(), TrainingRows(run.task, training)
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if ".terms." not in n],
         "weight_decay": training.weight_decay},
        {"params": [p for n, p in named.items() if ".terms." in n], "weight_decay": 0.0,
         "lr": training.learning_rate * training.terms_learning_rate},
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=training.betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: (
            min(1, (t + 1) / training.warmup) * (1 + math.cos(math.pi * t / training.steps)) / 2
        ),
    )
    losses = []
    for step in range(training.steps):
        number, place = divmod(step, rows.steps)
        batch = rows.block(number)[place * training.batch : (place + 1) * training.batch]
        loss = loss_of(model(batch.inputs), batch).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return model, losses


def assert_same(one: Any, two: Any, tolerance: float) -> None:
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        if not name.endswith("b_K"):  # without effect under a softmax: its gradient is rounding
            torch.testing.assert_close(
                a, b, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m
            )


DOUBLE = TransformerSpec(**SPEC, dtype="float64")


def test_one_model_is_trained_as_pytorch_would() -> None:
    options = {"terms_learning_rate": 7.0, "betas": (0.8, 0.95), "seed": 3, "data_seed": 2}
    run = tiny(spec=DOUBLE, warmup=5, clip=0.05, **options)
    model, losses = one_after_another(run)
    (fit,) = together(run)
    assert_same(fit.model, model, 1e-10)
    np.testing.assert_allclose(fit.history["loss"], losses, rtol=1e-6)
    assert list(fit.history["step"]) == list(range(1, 13))


def test_a_model_is_the_same_alone_and_in_a_stack() -> None:
    other = FixedMemory(lags=(1, 3), readout="majority", length=6)
    runs = [
        tiny("a", spec=DOUBLE),
        tiny("b", spec=DOUBLE, seed=1, learning_rate=1e-2, warmup=3, clip=0.01),
        tiny("c", spec=DOUBLE, data_seed=5, betas=(0.5, 0.9), decay="none"),
        tiny("d", spec=DOUBLE, task=other, rows=10, weight_decay=0.0),
    ]
    assert groups(runs) == [[0, 1, 2, 3]]
    for run, fit in zip(runs, together(*runs), strict=True):
        (alone,) = together(run)
        assert_same(fit.model, alone.model, 1e-10)
        assert fit.metrics == pytest.approx(alone.metrics)


def test_identity_scalars_may_differ_within_a_stack() -> None:
    spec = {**SPEC, "score": "dot", "dtype": "float64"}
    runs = [
        tiny("none", spec=TransformerSpec(**spec)),
        tiny("both", spec=TransformerSpec(**spec, identity_qk=True, identity_ov=True)),
        tiny("a", spec=TransformerSpec(**spec, identity_qk=True, identity_multiplier=10.0)),
    ]
    assert groups(runs) == [[0, 1, 2]]
    for run, fit in zip(runs, together(*runs), strict=True):
        alone = together(run)[0].model
        assert fit.model.spec == run.spec
        assert_same(fit.model, alone, 1e-10)
    assert fit.model.blocks[0].attn.terms["identity"].a.abs().max() > 0


@pytest.mark.parametrize(
    "spec",
    [
        MLPSpec(1, 1, 6, input="real", hidden=(4,), pairs="masked"),
        RNNSpec(1, 1, 6, input="real", d_hidden=3, n_layers=2),
        LSTMSpec(1, 1, 6, input="real", d_hidden=3),
    ],
    ids=lambda spec: spec.kind,
)
def test_baselines_train_in_stacks(spec: Any) -> None:
    runs = [tiny(str(seed), spec=replace(spec, dtype="float64"), seed=seed) for seed in range(2)]
    for run, fit in zip(runs, together(*runs), strict=True):
        assert_same(fit.model, together(run)[0].model, 1e-10)


def test_groups_are_by_shape() -> None:
    wide = TransformerSpec(**{**SPEC, "d_model": 6})
    longer = FixedMemory(lags=(1, 2), readout="majority", length=5)
    runs = [tiny("a"), tiny("b", spec=wide), tiny("c", steps=13), tiny("d", task=longer),
            tiny("e", seed=3), tiny("f", spec=RNNSpec(1, 1, 6, input="real"))]  # fmt: skip
    assert groups(runs) == [[0, 4], [1], [2], [3], [5]]


def test_members_stop_early_by_themselves() -> None:
    runs = [
        tiny("stops", steps=120, stop_at=1e9, spec=DOUBLE),
        tiny("goes", steps=120, spec=DOUBLE),
    ]
    stopped, whole = together(*runs)
    assert len(stopped.history) == 50
    assert len(whole.history) == 120
    assert_same(stopped.model, together(runs[0])[0].model, 1e-8)


def test_a_diverged_member_leaves_the_others_alone() -> None:
    runs = [tiny("bad", learning_rate=1e30, clip=1e30, warmup=0), tiny("good")]
    bad, good = together(*runs)
    assert bad.diverged
    assert len(bad.history) < 12
    assert all(torch.isfinite(p).all() for p in bad.model.parameters())
    assert not good.diverged
    assert_same(good.model, together(runs[1])[0].model, 1e-4)


def test_only_what_is_named_is_trained() -> None:
    run = tiny(parameters=("unembed.*", "*.terms.*"))
    (fit,) = together(run)
    before = build(run.spec, seed=0)
    for (name, a), b in zip(fit.model.named_parameters(), before.parameters(), strict=True):
        trained = name.startswith("unembed.") or ".terms." in name
        assert torch.equal(a, b) != trained, name
    with pytest.raises(ArgumentError, match=r"parameters: 'unembedding.*' fits none of embed\.W_E"):
        Ensemble([tiny(parameters=("unembedding*",))])


def test_snapshots_are_the_weights_along_the_way() -> None:
    (fit,) = together(tiny(snapshots=4))
    assert list(fit.snapshots) == [4, 8, 12]
    for name, parameter in fit.model.named_parameters():
        assert torch.equal(fit.snapshots[12][name], parameter)
    ensemble = Ensemble([tiny()])
    for _ in ensemble.run(until=4):
        pass
    for name, parameter in ensemble.models()[0].named_parameters():
        assert torch.equal(fit.snapshots[4][name], parameter)


def test_mixed_precision_trains_near_the_whole() -> None:
    (mixed,), (whole,) = together(tiny(autocast=True)), together(tiny())
    assert mixed.model.W_E.dtype == torch.float32
    assert not torch.equal(mixed.model.W_E, whole.model.W_E)
    assert_same(mixed.model, whole.model, 0.05)


def test_fixed_rows_are_seen_in_epochs() -> None:
    rows = TrainingRows(TASK, tiny(rows=10, batch=4).training)
    inputs = torch.cat([rows.block(0).inputs, rows.block(1).inputs])[..., 0]
    known = {tuple(row) for row in inputs.tolist()}
    for epoch in range(100):
        seen = [tuple(row) for row in inputs[10 * epoch : 10 * epoch + 10].tolist()]
        first = [tuple(row) for row in inputs[:10].tolist()]
        assert sorted(seen) == sorted(first)
    assert len(known) <= 10


def test_slopes_start_where_they_are_put_and_members_may_differ() -> None:
    spec = TransformerSpec(**{**SPEC, "score": "none", "lag_bias": "lin"})
    runs = [tiny(str(i), spec=spec, slopes=p, parameters=("unembed.*",))
            for i, p in enumerate([(), (0.5, 2.0), (3.0, 4.0)])]  # fmt: skip
    found = [fit.model.blocks[0].attn.terms["lag"].p.tolist() for fit in together(*runs)]
    assert found == [[1.0, 0.5], [0.5, 2.0], [3.0, 4.0]]
    for slopes, words in (((1.0,), "1 for layers with"), ((1.0, 2.0), "2 for layers with")):
        with pytest.raises(ArgumentError, match=words):
            together(tiny(spec=None if len(slopes) == 2 else spec, slopes=slopes))
    with pytest.raises(ArgumentError, match="slopes"):
        tiny(spec=spec, slopes=(1.0, 0.0))
