"""TransformerLens' patching, attribution and interchange on our models, unchanged.

Each is compared with a computation from the weights alone (``plain_transformer``).
"""

import pandas as pd
import pytest
import torch
from plain_transformer import (
    BASE,
    activations,
    build,
    close,
    direct,
    metric,
    patched_metric,
    tokens,
)
from torch import Tensor
from transformer_lens import patching
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
    faithfulness,
)
from transformer_lens.tools.analysis.interchange import (
    SubspaceInterchange,
    collect_activations,
    fit_das,
    intervened_logits,
    random_basis,
    reinitialized,
)
from transformer_lens.tools.analysis.logit_lens import logit_lens

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

PATCHES = {
    "resid_pre": (patching.get_act_patch_resid_pre, "hook_resid_pre", "layer pos"),
    "resid_mid": (patching.get_act_patch_resid_mid, "hook_resid_mid", "layer pos"),
    "attn_out": (patching.get_act_patch_attn_out, "hook_attn_out", "layer pos"),
    "mlp_out": (patching.get_act_patch_mlp_out, "hook_mlp_out", "layer pos"),
    "z by position": (patching.get_act_patch_attn_head_out_by_pos, "attn.hook_z", "layer pos head"),
    "z": (patching.get_act_patch_attn_head_out_all_pos, "attn.hook_z", "layer head"),
    "q": (patching.get_act_patch_attn_head_q_all_pos, "attn.hook_q", "layer head"),
    "k by position": (patching.get_act_patch_attn_head_k_by_pos, "attn.hook_k", "layer pos head"),
    "v": (patching.get_act_patch_attn_head_v_all_pos, "attn.hook_v", "layer head"),
    "pattern": (
        patching.get_act_patch_attn_head_pattern_all_pos, "attn.hook_pattern", "layer headpattern",
    ),
    "pattern by query": (
        patching.get_act_patch_attn_head_pattern_by_pos, "attn.hook_pattern", "layer head query",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        *(("uneven", patch) for patch in PATCHES),
        *(("identity", patch) for patch in PATCHES if "by" not in patch),
        *((name, patch) for name in ("DPF", "attention only") for patch in ("mlp_out", "q", "z")),
        ("input FFN", "resid_pre"),
    ],
)
@torch.no_grad()
def test_activation_patching(name: str, patch: str) -> None:
    model = build(name)
    run, hook, axes = PATCHES[patch]
    clean, corrupt = tokens(0, n=3), tokens(1, n=3)
    _, clean_cache = model.run_with_cache(clean)
    if f"blocks.0.{hook}" not in model.hook_dict:
        with pytest.raises(KeyError):
            run(model, corrupt, clean_cache, metric)
        return
    found = run(model, corrupt, clean_cache, metric)
    _, seen = direct(model, clean)
    every = slice(None)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in found.shape)):
        layer, *rest = (int(i) for i in index)
        at = {
            "layer pos": (every, *rest[:1]),
            "layer pos head": (every, *rest),
            "layer head": (every, every, *rest),
            "layer headpattern": (every, *rest),
            "layer head query": (every, *rest),
        }[axes]
        expected = patched_metric(model, corrupt, seen, f"blocks.{layer}.{hook}", *at)
        close(found[(layer, *rest)], expected, 1e-5)  # TransformerLens stores float32


@torch.no_grad()
def test_patching_sweeps_and_single_entries() -> None:
    model = build("layernorm")
    clean, corrupt = tokens(0, n=3), tokens(1, n=3)
    _, cache = model.run_with_cache(clean)
    _, seen = direct(model, clean)
    blocks = patching.get_act_patch_block_every(model, corrupt, cache, metric)
    close(blocks[2], patching.get_act_patch_mlp_out(model, corrupt, cache, metric), 1e-6)
    heads = patching.get_act_patch_attn_head_all_pos_every(model, corrupt, cache, metric)
    close(heads[3], patching.get_act_patch_attn_head_v_all_pos(model, corrupt, cache, metric), 1e-6)
    by_position = patching.get_act_patch_attn_head_by_pos_every(model, corrupt, cache, metric)
    assert by_position.shape == (5, 2, 3, 2)
    one = patching.get_act_patch_attn_head_pattern_dest_src_pos(model, corrupt, cache, metric)
    every = slice(None)
    expected = patched_metric(model, corrupt, seen, "blocks.1.attn.hook_pattern", every, 1, 2, 0)
    close(one[1, 1, 2, 0], expected, 1e-5)


@torch.no_grad()
def test_real_inputs_are_patched_with_explicit_indices() -> None:
    """Without them TransformerLens takes the last axis, the channels, for the positions."""
    spec = TransformerSpec(**{**BASE, "input": "real", "d_in": 3})  # type: ignore[arg-type]
    model = SequenceTransformer(spec, seed=1)
    draw = torch.Generator().manual_seed(3)
    clean, corrupt = torch.randn(2, 2, 5, 3, generator=draw, dtype=torch.float64)
    _, cache = model.run_with_cache(clean)
    cells = pd.DataFrame([(layer, pos) for layer in (0, 1) for pos in range(5)])
    found = patching.get_act_patch_resid_pre(
        model, corrupt, cache, metric, index_axis_names=None, index_df=cells
    )
    _, seen = direct(model, clean)
    for value, (layer, pos) in zip(found, cells.itertuples(index=False), strict=True):
        hook = f"blocks.{layer}.hook_resid_pre"
        close(value, patched_metric(model, corrupt, seen, hook, slice(None), pos), 1e-5)
    assert patching.get_act_patch_resid_pre(model, corrupt, cache, metric).shape == (2, 3)
    close(logit_lens(model, clean).values[-1], direct(model, clean)[0][:, -1])


@pytest.mark.parametrize("name", ["plain", "layernorm", "uneven", "identity", "DPF"])
@pytest.mark.parametrize("component", ["q", "k", "v"])
@torch.no_grad()
def test_direct_path_patching(name: str, component: str) -> None:
    """A head's write, as ``hook_z W_O``, added to one later head's own copy of the stream."""
    model = build(name)
    clean, corrupt = tokens(0, n=4), tokens(1, n=4)
    (_, a), (_, b) = (model.run_with_cache(x) for x in (clean, corrupt))
    found = patching.get_act_patch_direct_path(
        model, corrupt, a, b, metric, 0, 1, component, verbose=False
    )
    assert not model.cfg.use_split_qkv_input
    (_, seen), (_, was) = direct(model, clean), direct(model, corrupt)
    z = "blocks.0.attn.hook_z"
    delta = (seen[z] - was[z])[:, :, 1] @ model.blocks[0].attn.W_O[1]
    for head in range(model.spec.heads[1]):

        def edit(here: str, x: Tensor, head: int = head) -> Tensor:
            if here != f"blocks.1.attn.hook_{component}_input":
                return x
            x = x.clone()
            x[:, :, head] += delta
            return x

        close(found[1, head], metric(direct(model, corrupt, edit)[0]), 1e-5)
    if name == "identity":
        result = "blocks.0.attn.hook_result"
        whole = (seen[result] - was[result])[:, :, 1]
        assert (whole - delta).abs().max() > 0.1  # the limit: what b writes is not in z


def gradients(model: SequenceTransformer, inputs: Tensor, hooks: set[str]) -> dict[str, Tensor]:
    """d metric / d activation, by adding zeros there and differentiating ``direct``."""
    zeros: dict[str, Tensor] = {}

    def edit(name: str, x: Tensor) -> Tensor:
        if name not in hooks:
            return x
        zeros[name] = torch.zeros_like(x, requires_grad=True)
        return x + zeros[name]

    output, _ = direct(model, inputs, edit)
    found = torch.autograd.grad(metric(output), list(zeros.values()), allow_unused=True)
    return {name: torch.zeros_like(z) if g is None else g
            for (name, z), g in zip(zeros.items(), found, strict=True)}  # fmt: skip


def part(node: Node, tensor: Tensor) -> Tensor:
    row = tensor[0, node.position]
    return row if node.head is None else row[node.head]


@pytest.mark.parametrize("name", ["layernorm", "identity", "uneven", "DPF", "input FFN"])
def test_node_attribution(name: str) -> None:
    model = build(name)
    clean, corrupt = tokens(0, batch=1), tokens(1, batch=1)
    found = attribution_patch(model, clean, corrupt, metric)
    assert len(found.node_scores) == 5 * (1 + 2 * model.cfg.n_heads + 2)
    a, b = activations(model, clean), activations(model, corrupt)
    slopes = gradients(model, corrupt, {node.hook_name for node in found.node_scores})
    for node, score in found.node_scores.items():
        delta = part(node, a[node.hook_name] - b[node.hook_name])
        assert score == pytest.approx(float(delta @ part(node, slopes[node.hook_name])), abs=1e-9)


@pytest.mark.parametrize("name", ["layernorm", "identity", "uneven", "DPF", "no normaliser"])
def test_edge_attribution(name: str) -> None:
    model = build(name)
    clean, corrupt = tokens(0, batch=1, n=3), tokens(1, batch=1, n=3)
    edge = EdgeAttributionConfig(granularity="edge")
    found = attribution_patch(model, clean, corrupt, metric, edge)
    assert found.edge_scores
    a, b = activations(model, clean), activations(model, corrupt)
    slopes = gradients(model, corrupt, {reader.hook_name for _, reader in found.edge_scores})
    for (writer, reader), score in found.edge_scores.items():
        writes = writer.hook_name.replace("hook_z", "hook_result")
        expected = part(writer, a[writes] - b[writes]) @ part(reader, slopes[reader.hook_name])
        assert score == pytest.approx(float(expected), abs=1e-9)
    everything = list(found.edge_scores)
    kept = faithfulness(model, clean, corrupt, metric, everything)
    assert kept.recovered == pytest.approx(1.0)
    assert faithfulness(model, clean, corrupt, metric, []).recovered == pytest.approx(0.0)
    assert not model.cfg.use_split_qkv_input
    assert not model.cfg.use_attn_result


def test_attribution_wants_tokens_and_an_ffn() -> None:
    model = build("attention only")
    with pytest.raises(ValueError, match="hook_mlp_out"):
        attribution_patch(model, tokens(0), tokens(1), metric)
    with pytest.raises(ValueError, match="2D"):
        attribution_patch(model, torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), metric)


def test_interchange_interventions() -> None:
    model = build("layernorm")
    base, source, hook = tokens(0), tokens(1), "blocks.1.hook_resid_pre"
    basis = random_basis(6, 2, seed=0).double()
    last = torch.tensor([4, 4])

    def read(inputs: Tensor) -> Tensor:
        return model(inputs)[:, -1]

    a, b = activations(model, base), activations(model, source)
    values = collect_activations(model, hook, source, read, positions=last)
    close(values, b[hook][:, -1].detach())
    found = intervened_logits(
        model, hook, SubspaceInterchange(basis), base, values, read, positions=last
    )

    def edit(name: str, x: Tensor) -> Tensor:
        if name != hook:
            return x
        x = x.clone()
        x[:, -1] = a[hook][:, -1] + (b[hook] - a[hook])[:, -1] @ basis @ basis.T
        return x

    close(found, direct(model, base, edit)[0][:, -1].detach())
    learned = fit_das(model, hook, tokens(2, 16), tokens(3, 16), tokens(3, 16)[:, -1] % 5, read,
                      rank=2, base_positions=torch.full((16,), 4), epochs=8, lr=0.05,
                      source_positions=torch.full((16,), 4))  # fmt: skip
    assert learned.losses[-1] < learned.losses[0]
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="cannot reset"):
        reinitialized(model, seed=1)
