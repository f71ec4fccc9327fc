"""Patching tables against losses of runs with hooks that swap one activation by hand."""

import pytest
import torch
from torch import Tensor

from interp.errors import ArgumentError
from interp.interventions.ablation_effects import next_tokens, row_losses
from interp.interventions.components import Component
from interp.interventions.patching import patch, patch_paths
from interp.interventions.patching import Receiver
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SPEC = TransformerSpec(
    d_in=7, d_out=7, n_ctx=6, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(8,),
    positions="learned", dtype="float64",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> SequenceTransformer:
    return SequenceTransformer(SPEC, seed=3)


def rows(seed: int) -> Tensor:
    return torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(seed))


def by_name(table, column: str = "score") -> dict[tuple[str, int, int], float]:
    keys = table[["component", "layer", "head"]].itertuples(index=False, name=None)
    return dict(zip(keys, table[column], strict=True))


def test_patching_is_the_loss_with_the_value_of_the_paired_row(model) -> None:
    batch, corrupted = next_tokens(rows(0)), rows(1)
    found = by_name(patch(model, batch, corrupted))
    _, cache = model.run_with_cache(corrupted)
    clean = row_losses(model(batch.inputs), batch)
    for layer in range(2):
        for head in range(2):

            def swap(z, hook, head=head):
                z = z.clone()
                z[:, :, head] = cache[hook.name][:, :, head]
                return z

            hooks = [(f"blocks.{layer}.attn.hook_z", swap)]
            output = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
            expected = float((row_losses(output, batch) - clean).mean())
            assert found["head", layer, head] == pytest.approx(expected, abs=1e-9)


def test_a_path_to_the_logits_skips_what_comes_after(model) -> None:
    batch = next_tokens(rows(4))
    sender = Component("head", 0, 1)
    table = patch_paths(model, batch, Receiver("logits"), [sender], how="zero")
    _, cache = model.run_with_cache(batch.inputs)
    written = cache["blocks.0.attn.hook_z"][:, :, 1] @ model.W_O[0, 1]

    def take_away(stream, hook):
        return stream - written

    output = model.run_with_hooks(batch.inputs, fwd_hooks=[("blocks.1.hook_resid_post", take_away)])
    clean = row_losses(model(batch.inputs), batch)
    expected = float((row_losses(output, batch) - clean).mean())
    assert table["score"].tolist() == [pytest.approx(expected, abs=1e-9)]
    assert table["site"].tolist() == ["ln_final"]


@pytest.mark.parametrize(
    ("receiver", "site"),
    [
        (Receiver("k", layer=1, head=1), "blocks.1.attn.hook_k_input head 1"),
        (Receiver("ffn", layer=1), "blocks.1.hook_mlp_in"),
    ],
)
def test_every_row_of_a_path_names_its_receiver(model, receiver, site) -> None:
    sender = Component("head", 0, 0)
    assert patch_paths(model, next_tokens(rows(4)), receiver, [sender])["site"].tolist() == [site]


def test_swapping_needs_the_other_rows_and_nothing_else_takes_them(model) -> None:
    batch = next_tokens(rows(5))
    with pytest.raises(ArgumentError, match="corrupted goes with how='swap'"):
        patch_paths(model, batch, Receiver("logits"), how="swap")
    with pytest.raises(ArgumentError, match="corrupted goes with how='swap'"):
        patch_paths(model, batch, Receiver("logits"), how="mean", corrupted=rows(6))
    with pytest.raises(ArgumentError, match=r"corrupted must be shaped \(5, 6\)"):
        patch(model, batch, rows(6)[:, :4])
