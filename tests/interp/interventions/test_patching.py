"""Patching tables against losses of runs with hooks that swap one activation by hand."""

from functools import partial

import pytest
import torch
from pandas.testing import assert_frame_equal
from torch import Tensor

from interp.errors import ArgumentError
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component
from interp.interventions.patching import Receiver, attributions, patch, patch_paths
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import LogitDifference, Loss
from interp.run.gate import next_tokens
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=7, d_out=7, n_ctx=6, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(8,),
    positions="learned", dtype="float64",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> SequenceTransformer:
    return SequenceTransformer(SPEC, seed=3)


def rows(seed: int) -> Tensor:
    return torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("receiver", "site"),
    [
        (Receiver("k", layer=1, head=1), "blocks.1.attn.hook_k_input head 1"),
        (Receiver("ffn", layer=1), "blocks.1.hook_mlp_in"),
        (Receiver("logits"), "ln_final"),
    ],
)
def test_every_row_of_a_path_names_its_receiver(model, receiver, site) -> None:
    sender = Component("head", 0, 0)
    assert patch_paths(model, next_tokens(rows(4)), receiver, [sender])["site"].tolist() == [site]


def test_swapping_needs_the_other_rows_and_nothing_else_takes_them(model) -> None:
    batch = next_tokens(rows(5))
    for use in (partial(patch_paths, receiver=Receiver("logits")), ablate):
        with pytest.raises(ArgumentError, match=r"corrupted goes with how='swap', .*, got None"):
            use(model, batch, how="swap")
        with pytest.raises(ArgumentError, match=r"corrupted goes with .*inputs with how='mean'"):
            use(model, batch, how="mean", corrupted=rows(6))
    with pytest.raises(ArgumentError, match=r"corrupted must be shaped \(5, 6\)"):
        patch(model, batch, rows(6)[:, :4])


def probability(output: Tensor, targets: Tensor) -> Tensor:
    """How far the target's probability is from 1."""
    return 1 - output.softmax(-1).gather(-1, targets[:, None])[:, 0]


METRICS = {
    "loss_increase": (Loss(), 1, lambda out, y: -out.log_softmax(-1)[range(len(y)), y]),
    "logit_difference_decrease": (
        LogitDifference(3), -1, lambda out, y: out[range(len(y)), y] - out[:, 3],
    ),
    "probability_increase": (probability, 1, probability),
}  # fmt: skip


def last(seed: int) -> Batch:
    """Rows of which the last position is scored, against a target of its own."""
    inputs = rows(seed)
    return Batch(inputs, inputs.flip(0), torch.arange(6).eq(5).expand(5, 6))


@pytest.mark.parametrize("name", METRICS)
def test_any_metric_is_that_of_hooks_by_hand(model, name: str) -> None:
    """Ablation, patching (by chunks of rows), a path and the estimate, each for one head."""
    metric, worse, by_hand = METRICS[name]
    batch, corrupted = last(0), rows(1)
    _, own = model.run_with_cache(batch.inputs)
    _, other = model.run_with_cache(corrupted)
    z, targets = "blocks.0.attn.hook_z", batch.targets[:, -1]
    clean = by_hand(model(batch.inputs)[:, -1], targets)

    def rise(instead: Tensor) -> float:
        def put(value: Tensor, hook: object) -> Tensor:
            value = value.clone()
            value[:, :, 1] = instead[..., 1, :]
            return value

        output = model.run_with_hooks(batch.inputs, fwd_hooks=[(z, put)])[:, -1]
        return worse * float((by_hand(output, targets) - clean).detach().mean())

    part, options = [Component("head", 0, 1)], {"metric": metric}
    found = ablate(model, batch, part, **options)
    assert found["score"].item() == pytest.approx(rise(own[z].mean(0)), abs=1e-9)
    assert found["metric"].item() == name
    found = patch(model, batch, corrupted, part, rows=2, **options)
    assert found["score"].item() == pytest.approx(rise(other[z]), abs=1e-9)

    sent = (other[z] - own[z])[:, :, 1] @ model.W_O[0, 1]
    output = model.unembed(model.ln_final(own["blocks.1.hook_resid_post"] + sent))[:, -1]
    expected = worse * float((by_hand(output, targets) - clean).detach().mean())
    options |= {"how": "swap", "corrupted": corrupted}
    found = patch_paths(model, batch, Receiver("logits"), part, **options)
    assert found["score"].item() == pytest.approx(expected, abs=1e-9)
    assert found["metric"].item() == name

    step = 1e-5
    small = rise(own[z] + step * (other[z] - own[z])) / step
    found = attributions(model, batch, corrupted, part, metric=metric)
    assert found["score"].item() == pytest.approx(small, rel=1e-3, abs=1e-9)


def test_patching_a_run_with_its_own_values_changes_nothing(model) -> None:
    batch = next_tokens(rows(0))
    for metric, _, _ in METRICS.values():
        assert patch(model, batch, batch.inputs, metric=metric)["score"].tolist() == [0.0] * 8


def test_a_function_that_gives_no_number_a_place_is_refused(model) -> None:
    def mean(output: Tensor, targets: Tensor) -> Tensor:
        return output.mean()

    with pytest.raises(ArgumentError, match="a number for each of 5 places, got \\(\\) of mean"):
        patch(model, last(0), rows(1), metric=mean)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_ray_the_numbers_are_those_of_this_machine(model, ray) -> None:
    batch, corrupted = next_tokens(rows(0)), rows(1)
    for metric in (Loss(), LogitDifference(3)):
        here = patch(model, batch, corrupted, metric=metric, rows=3)
        far = patch(model, batch, corrupted, metric=metric, rows=3, backend="ray")
        assert_frame_equal(here, far, rtol=1e-9)
