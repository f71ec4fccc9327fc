import pytest
import torch

from interp.errors import HookError
from interp.interventions.clean_run import CleanRun, component_means
from interp.interventions.components import Component, components
from interp.interventions.replacement import ablated
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=8, d_model=8, n_layers=2, n_heads=(2, 1), d_head=4, ffn=((5,), ()),
    identity_ov=True, dtype="float64",
)  # fmt: skip


def model_and_tokens() -> tuple[SequenceTransformer, torch.Tensor]:
    model = SequenceTransformer(SPEC, seed=2)
    for block in model.blocks:
        block.attn.b.data += 0.7
    return model, torch.randint(6, (9, 8), generator=torch.Generator().manual_seed(0))


def test_components_are_those_that_the_spec_has() -> None:
    model, _ = model_and_tokens()
    assert [part.name for part in components(model)] == ["L0H0", "L0H1", "L0 FFN", "L1H0"]


@torch.no_grad()
def test_ablated_run_equals_a_direct_computation() -> None:
    model, tokens = model_and_tokens()
    parts = components(model)
    means = component_means(model, tokens, parts)
    _, cache = model.run_with_cache(tokens)
    resid, attn = cache["blocks.0.hook_resid_pre"], cache["blocks.0.attn.hook_result"]
    kept = torch.stack((attn[:, :, 0].mean(0).expand(9, -1, -1), attn[:, :, 1]), dim=2)
    mid = resid + kept.sum(2) + model.blocks[0].attn.b_O
    post = mid + model.blocks[0].mlp(mid)
    expected = model.unembed(model.blocks[1](post))
    site = "blocks.0.hook_resid_mid"
    output, seen = CleanRun.of(model, tokens).without([Component("head", 0, 0)], means, keep=[site])
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(seen[site], mid)


@torch.no_grad()
def test_ablating_the_ffn_leaves_its_mean() -> None:
    model, tokens = model_and_tokens()
    means = component_means(model, tokens, components(model))
    _, cache = model.run_with_cache(tokens)
    post = cache["blocks.0.hook_resid_mid"] + cache["blocks.0.hook_mlp_out"].mean(0)
    output, _ = CleanRun.of(model, tokens).without([Component("ffn", 0)], means)
    torch.testing.assert_close(output, model.unembed(model.blocks[1](post)))


@torch.no_grad()
def test_a_group_is_ablated_at_once() -> None:
    model, tokens = model_and_tokens()
    means = component_means(model, tokens, components(model))
    group = [Component("head", 0, 0), Component("head", 0, 1)]
    _, cache = model.run_with_cache(tokens)
    resid = cache["blocks.0.hook_resid_pre"] + cache["blocks.0.hook_attn_out"].mean(0)
    expected = model.unembed(model.blocks[1](resid + model.blocks[0].mlp(resid)))
    torch.testing.assert_close(CleanRun.of(model, tokens).without(group, means)[0], expected)


def test_positions_are_ablated_and_layers_refused() -> None:
    model, inputs = model_and_tokens()
    part = Component("position", 1, position=3)
    output, _ = CleanRun.of(model, inputs).without([part], component_means(model, inputs, [part]))
    ((_, expected),) = ablated(model, inputs, [part])
    torch.testing.assert_close(output, expected)
    with pytest.raises(HookError, match="L1 has no hook of its own: name its heads and its FFN"):
        component_means(model, inputs, [Component("layer", 1)])
