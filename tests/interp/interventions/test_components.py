import torch

from interp.interventions.components import Component, components
from interp.interventions.replacement import replacement
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import Run, Site
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=8, d_model=8, n_layers=2, n_heads=(2, 1), d_head=4, ffn=((5,), ()),
    identity_ov=True, dtype="float64",
)  # fmt: skip


def model_and_tokens() -> tuple[SequenceTransformer, torch.Tensor]:
    model = SequenceTransformer(SPEC, seed=2)
    for block in model.blocks:
        block.attn.b.data += 0.7
    return model, torch.randint(6, (9, 8), generator=torch.Generator().manual_seed(0))


def without(model: SequenceTransformer, tokens: torch.Tensor, *parts: Component) -> torch.Tensor:
    """The output with components at their means, ``[row, pos, output]``."""
    everywhere = torch.ones(tokens.shape, dtype=torch.bool)
    run = Run(model, Batch(tokens, torch.zeros_like(tokens), everywhere))
    edits = [edit for part in parts for edit in replacement(model, part, "mean")]
    found = torch.cat([output for _, output in run.with_(*edits).outputs()])
    return found.unflatten(0, tokens.shape)


def test_components_are_those_that_the_spec_has() -> None:
    model, _ = model_and_tokens()
    assert [part.name for part in components(model)] == ["L0H0", "L0H1", "L0 FFN", "L1H0"]


@torch.no_grad()
def test_ablated_run_equals_a_direct_computation() -> None:
    model, tokens = model_and_tokens()
    _, cache = model.run_with_cache(tokens)
    resid, attn = cache["blocks.0.hook_resid_pre"], cache["blocks.0.attn.hook_result"]
    kept = torch.stack((attn[:, :, 0].mean(0).expand(9, -1, -1), attn[:, :, 1]), dim=2)
    mid = resid + kept.sum(2) + model.blocks[0].attn.b_O
    post = mid + model.blocks[0].mlp(mid)
    expected = model.unembed(model.blocks[1](post))
    site = "blocks.0.hook_resid_mid"
    part = Component("head", 0, 0)
    torch.testing.assert_close(without(model, tokens, part), expected)
    seen = Run(model, tokens).with_(*replacement(model, part, "mean")).at([site])
    torch.testing.assert_close(seen[Site.parse(site)], mid)


@torch.no_grad()
def test_ablating_the_ffn_leaves_its_mean() -> None:
    model, tokens = model_and_tokens()
    _, cache = model.run_with_cache(tokens)
    post = cache["blocks.0.hook_resid_mid"] + cache["blocks.0.hook_mlp_out"].mean(0)
    output = without(model, tokens, Component("ffn", 0))
    torch.testing.assert_close(output, model.unembed(model.blocks[1](post)))


@torch.no_grad()
def test_a_group_is_ablated_at_once() -> None:
    model, tokens = model_and_tokens()
    group = [Component("head", 0, 0), Component("head", 0, 1)]
    _, cache = model.run_with_cache(tokens)
    resid = cache["blocks.0.hook_resid_pre"] + cache["blocks.0.hook_attn_out"].mean(0)
    expected = model.unembed(model.blocks[1](resid + model.blocks[0].mlp(resid)))
    torch.testing.assert_close(without(model, tokens, *group), expected)
