"""TransformerLens' own tools on our models, unchanged, against a direct computation.

``direct`` below computes the model from its weights, without the model's code or any hook, and
lets a test edit any activation on the way: what a tool reports is compared with what ``direct``
gives. The limits found are listed in ``interp.models.transformer``; each has its test here.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformer_lens import patching
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
    faithfulness,
)
from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution
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

BASE = {"d_in": 7, "d_out": 5, "n_ctx": 9, "d_model": 6, "n_layers": 2, "n_heads": 2, "d_head": 3,
        "ffn": (4,), "dtype": "float64"}  # fmt: skip

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "identity": {"identity_qk": True, "identity_ov": True, "identity_multiplier": 2.0,
                 "norm": "layernorm"},
    "layernorm": {"norm": "layernorm", "positions": "learned"},
    "layernorm without gain": {"norm": "layernorm", "norm_gain": False, "ffn": ()},
    "layernorm, final off": {"norm": "layernorm", "norm_final": False},
    "rmsnorm": {"norm": "rmsnorm", "tied_unembedding": True, "d_out": 7},
    "rmsnorm without gain, final off": {"norm": "rmsnorm", "norm_gain": False, "norm_final": False},
    "uneven": {"n_heads": (3, 1), "d_head": (2, 4), "ffn": ((5,), (3,)), "norm": "layernorm"},
    "a layer without FFN": {"ffn": ((), (6,)), "n_heads": (0, 2)},
    "input FFN": {"input_ffn": (5,), "positions": "learned"},
    "deeper FFN": {"ffn": (5, 4), "activation": ("relu", "gelu")},
    "attention only": {"ffn": (), "identity_ov": True},
    "DPF": {"score": "none", "lag_bias": "lin"},
    "no normaliser": {"score": "none", "lag_bias": "log", "normalizer": "none"},
    "bidirectional": {"causal": False},
}  # fmt: skip
Edit = Callable[[str, Tensor], Tensor]


def build(name: str) -> SequenceTransformer:
    """A variant with every parameter moved off its start; what a layer lacks stays zero."""
    model = SequenceTransformer(TransformerSpec(**{**BASE, **VARIANTS[name]}), seed=1)  # type: ignore[arg-type]
    spec, generator = model.spec, torch.Generator().manual_seed(2)

    def move(parameter: Tensor) -> None:
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator).double()

    for layer, block in enumerate(model.blocks):
        heads, width = spec.heads[layer], spec.head_widths[layer]
        for key in ("b_Q", "b_K", "b_V"):
            if hasattr(block.attn, key):
                move(getattr(block.attn, key)[:heads, :width])
        for parameter in (block.attn.b_O, *block.attn.terms.parameters()):
            move(parameter) if heads else None
        if spec.identity_ov:
            move(block.attn.b)
        if block.mlp is not None and spec.ffn_widths[layer]:
            move(block.mlp.b_in[: spec.ffn_widths[layer][-1]])
            move(block.mlp.b_out)
    for norm in (model.ln_final, *(b.ln1 for b in model.blocks)):
        for parameter in norm.parameters():
            move(parameter)
    move(model.unembed.b_U)
    return model


def tokens(seed: int, batch: int = 2, n: int = 5) -> Tensor:
    return torch.randint(BASE["d_in"], (batch, n), generator=torch.Generator().manual_seed(seed))  # type: ignore[call-overload]


def normed(norm: Any, spec: TransformerSpec, x: Tensor, active: bool = True) -> Tensor:
    if spec.norm == "none" or not active:
        return x
    if spec.norm == "layernorm":
        x = F.layer_norm(x, x.shape[-1:], eps=spec.norm_eps)
    else:
        x = x * (x.square().mean(-1, keepdim=True) + spec.norm_eps).rsqrt()
    x = x if norm.w is None else x * norm.w
    return x if norm.b is None else x + norm.b


def pointwise(ffn: Any, x: Tensor, edit: Edit, at: str = "") -> Tensor:
    acts = {"relu": F.relu, "gelu": F.gelu}
    for hidden in ffn.hidden:
        x = acts[hidden.kind](x @ hidden.W + hidden.b)
    return (
        edit(at + "mlp.hook_post", acts[ffn.kind](x @ ffn.W_in + ffn.b_in)) @ ffn.W_out + ffn.b_out
    )


def attend(model: SequenceTransformer, layer: int, resid: Tensor, edit: Edit) -> Tensor:
    """[batch, pos, head, d_model]: what each head writes."""
    spec, block, at = model.spec, model.blocks[layer], f"blocks.{layer}.attn."
    attn, heads, n = block.attn, block.attn.W_V.shape[0], resid.shape[1]
    copies = resid[:, :, None].expand(-1, -1, heads, -1)
    xq, xk, xv = (normed(block.ln1, spec, edit(f"{at}hook_{c}_input", copies)) for c in "qkv")
    lag = torch.arange(n)[:, None] - torch.arange(n)
    scores = torch.zeros(len(resid), heads, n, n, dtype=torch.float64)
    if spec.score == "dot":
        q = edit(at + "hook_q", torch.einsum("bphm,hmd->bphd", xq, attn.W_Q) + attn.b_Q)
        k = edit(at + "hook_k", torch.einsum("bphm,hmd->bphd", xk, attn.W_K) + attn.b_K)
        scores = scores + torch.einsum("bqhd,bkhd->bhqk", q, k) / sqrt(spec.head_widths[layer])
    if spec.identity_qk:
        a = spec.identity_multiplier * attn.terms["identity"].a
        scores = scores + torch.einsum("bqhm,bkhm,h->bhqk", xq, xk, a)
    if spec.lag_bias in ("lin", "log"):
        phi = lag.abs().double() if spec.lag_bias == "lin" else lag.abs().double().log1p()
        scores = scores - attn.terms["lag"].p.abs()[:, None, None] * phi
    if spec.causal:
        scores = scores.masked_fill(lag < 0, -torch.inf)
    softmax = spec.normalizer == "softmax"
    pattern = edit(at + "hook_pattern", scores.softmax(-1) if softmax else scores.exp())
    v = edit(at + "hook_v", torch.einsum("bphm,hmd->bphd", xv, attn.W_V) + attn.b_V)
    z = edit(at + "hook_z", torch.einsum("bhqk,bkhd->bqhd", pattern, v))
    result = torch.einsum("bqhd,hdm->bqhm", z, attn.W_O)
    if spec.identity_ov:
        b = spec.identity_multiplier * attn.b * (torch.arange(heads) < spec.heads[layer])
        result = result + torch.einsum("bhqk,bkhm,h->bqhm", pattern, xv, b)
    return edit(at + "hook_result", result)


def direct(
    model: SequenceTransformer, inputs: Tensor, edit: Edit = lambda name, x: x
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output and every activation (after ``edit``), from the weights alone."""
    spec, seen = model.spec, {}

    def at(name: str, x: Tensor) -> Tensor:
        seen[name] = edit(name, x)
        return seen[name]

    x = model.embed.W_E[inputs] if spec.input == "tokens" else inputs @ model.embed.W_E
    position = model.pos_embed.W_pos[: x.shape[1]] if model.pos_embed is not None else 0
    if model.input_ffn is not None:
        x = x + position
        x = at("hook_embed", x + pointwise(model.input_ffn, x, lambda name, y: y))
    else:
        x = at("hook_embed", x) + position
    for layer, block in enumerate(model.blocks):
        name = f"blocks.{layer}."
        x = at(name + "hook_resid_pre", x)
        out = at(name + "hook_attn_out", attend(model, layer, x, at).sum(2) + block.attn.b_O)
        x = at(name + "hook_resid_mid", x + out)
        if block.mlp is not None:
            y = normed(block.ln2, spec, at(name + "hook_mlp_in", x))
            x = x + at(name + "hook_mlp_out", pointwise(block.mlp, y, at, name))
        x = at(name + "hook_resid_post", x)
    return normed(model.ln_final, spec, x, spec.norm_final) @ model.W_U + model.b_U, seen


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=tolerance, atol=tolerance, check_device=False
    )


def patched(model: SequenceTransformer, corrupt: Tensor, clean: dict[str, Tensor], name: str,
            *at: object) -> Tensor:  # fmt: skip
    """The metric when the entries ``at`` of one activation take their clean values."""

    def edit(here: str, x: Tensor) -> Tensor:
        if here != name:
            return x
        x = x.clone()
        x[at] = clean[name][at]
        return x

    return metric(direct(model, corrupt, edit)[0])


def metric(output: Tensor) -> Tensor:
    return (output[:, -1, 1] - output[:, -1, 2]).mean()


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_the_direct_computation_agrees_with_the_model(name: str) -> None:
    model = build(name)
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    output, seen = direct(model, tokens(0))
    got, cache = model.run_with_cache(tokens(0))
    close(got, output)
    for hook in set(seen) & set(cache.keys()):
        close(cache[hook], seen[hook])
    assert {h for h in seen if h not in cache} == set()


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_decompose_resid(name: str) -> None:
    model = build(name)
    _, seen = direct(model, tokens(0))
    _, cache = model.run_with_cache(tokens(0))
    whole = {"embed": seen["hook_embed"]}
    if "hook_pos_embed" in cache:
        whole["pos_embed"] = seen["blocks.0.hook_resid_pre"] - seen["hook_embed"]
    for layer in range(2):
        whole[f"{layer}_attn_out"] = seen[f"blocks.{layer}.hook_attn_out"]
        if not model.cfg.attn_only:
            whole[f"{layer}_mlp_out"] = seen[f"blocks.{layer}.hook_mlp_out"]
    stack, labels = cache.decompose_resid(return_labels=True)
    assert labels == list(whole)
    close(stack, torch.stack(list(whole.values())))
    close(stack.sum(0), seen["blocks.1.hook_resid_post"])
    into_mlp = cache.decompose_resid(layer=1, mlp_input=True)
    close(into_mlp.sum(0), seen["blocks.1.hook_resid_mid"])
    final = cache.decompose_resid(apply_ln=True).sum(0)
    spec, last = model.spec, seen["blocks.1.hook_resid_post"]
    bare = type("NoGain", (), {"w": None, "b": None})
    close(final, normed(bare, spec, last, spec.norm_final))


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_accumulated_resid(name: str) -> None:
    model = build(name)
    output, seen = direct(model, tokens(0))
    _, cache = model.run_with_cache(tokens(0))
    stack, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    names = [f"blocks.{i}.hook_resid_{kind}" for i in (0, 1) for kind in ("pre", "mid")]
    expected = torch.stack([seen[key] for key in (*names, "blocks.1.hook_resid_post")])
    close(stack, expected)
    read = cache.accumulated_resid(incl_mid=True, apply_ln=True)
    close(read, normed(model.ln_final, model.spec, expected, model.spec.norm_final))
    close(read[-1] @ model.W_U + model.b_U, output)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_stack_head_results(name: str) -> None:
    model = build(name)
    _, seen = direct(model, tokens(0))
    _, cache = model.run_with_cache(tokens(0))
    heads = model.cfg.n_heads
    stack, labels = cache.stack_head_results(return_labels=True, incl_remainder=True)
    assert labels == [f"L{i}H{h}" for i in (0, 1) for h in range(heads)] + ["remainder"]
    results = [seen[f"blocks.{i}.attn.hook_result"].movedim(2, 0) for i in (0, 1)]
    close(stack[:-1], torch.cat(results))
    close(stack.sum(0), seen["blocks.1.hook_resid_post"])


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_full_decomposition_by_head_and_neuron(name: str) -> None:
    model = build(name)
    _, seen = direct(model, tokens(0))
    _, cache = model.run_with_cache(tokens(0))
    stack, labels = cache.get_full_resid_decomposition(return_labels=True)
    close(stack.sum(0), seen["blocks.1.hook_resid_post"])
    into_mlp = cache.get_full_resid_decomposition(layer=1, mlp_input=True)
    close(into_mlp.sum(0), seen["blocks.1.hook_resid_mid"])
    if model.cfg.attn_only:
        return
    for layer in range(2):
        post, W_out = seen[f"blocks.{layer}.mlp.hook_post"], model.blocks[layer].mlp.W_out
        for neuron in range(model.cfg.d_mlp):
            row = labels.index(f"L{layer}N{neuron}")
            close(stack[row], post[..., neuron, None] * W_out[neuron])
    direction = model.W_U[:, 0]
    projected = cache.stack_neuron_results(2, project_output_onto=direction, apply_ln=True)
    close(projected, cache.stack_neuron_results(2, apply_ln=True) @ direction)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_logit_attributions_add_up_to_the_logit(name: str) -> None:
    """All that is missing is b_U and the final norm's bias, which no component writes."""
    model = build(name)
    output, _ = direct(model, tokens(0))
    _, cache = model.run_with_cache(tokens(0))
    answer = torch.tensor([3, 0])
    constant = model.b_U[answer]
    if model.ln_final.b is not None:
        constant = constant + (model.ln_final.b @ model.W_U)[answer]
    expected = output[torch.arange(2), :, answer] - constant[:, None]
    for stack in (cache.decompose_resid(), cache.stack_head_results(incl_remainder=True)):
        close(cache.logit_attrs(stack, answer).sum(0), expected)
    for unit in ("component", "head"):
        found = direct_logit_attribution(model, tokens(0), answer, unit=unit)
        close(found.attribution.sum(0), expected[:, -1])
    by_layer = direct_logit_attribution(
        model, tokens(0), answer, torch.tensor([1, 1]), unit="layer"
    )
    wrong = output[:, :, 1] - model.b_U[1]
    if model.ln_final.b is not None:
        wrong = wrong - model.ln_final.b @ model.W_U[:, 1]
    close(by_layer.attribution[-1], (expected - wrong)[:, -1])


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_logit_lens(name: str) -> None:
    model = build(name)
    output, seen = direct(model, tokens(0))
    found = logit_lens(model, tokens(0), positions=None, incl_mid=True)
    for label, values in zip(found.labels, found.values, strict=True):
        layer, kind = label.replace("final", "1").split("_")
        resid = seen[f"blocks.{layer}.hook_resid_{kind}"]
        read = normed(model.ln_final, model.spec, resid, model.spec.norm_final)
        close(values, read @ model.W_U + model.b_U)
    close(found.values[-1], output)
    ranks = logit_lens(model, tokens(0), targets=2).rank_trajectory()
    close(ranks[-1], (output[:, -1] > output[:, -1, 2:3]).sum(-1))


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
        expected = patched(model, corrupt, seen, f"blocks.{layer}.{hook}", *at)
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
    expected = patched(model, corrupt, seen, "blocks.1.attn.hook_pattern", every, 1, 2, 0)
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
        close(value, patched(model, corrupt, seen, hook, slice(None), pos), 1e-5)
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


def activations(model: SequenceTransformer, inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return direct(model, inputs)[1]


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


@pytest.mark.parametrize("name", ["layernorm", "uneven", "no normaliser", "DPF"])
@torch.no_grad()
def test_head_detector(name: str) -> None:
    model = build(name)
    row = torch.tensor([[1, 4, 2, 1, 4, 2]])
    _, seen = direct(model, row)
    n, query = 6, torch.arange(6)[:, None]
    key = torch.arange(n)[None]
    same = (row == row.T) & (key < query)
    wanted = {
        "previous_token_head": key == query - 1,
        "duplicate_token_head": same,
        "induction_head": torch.cat((torch.zeros(n, 1, dtype=torch.bool), same[:, :-1]), 1),
    }
    for role, mask in wanted.items():
        found = detect_head(model, row, role)
        closest = detect_head(model, row[0], role, error_measure="abs")
        for layer in range(2):
            for head in range(model.cfg.n_heads):
                pattern = seen[f"blocks.{layer}.attn.hook_pattern"][0, head]
                close(found[layer, head], (pattern * mask).sum() / pattern.sum())
                gap = (pattern - mask.double()).abs().sum() / n
                close(closest[layer, head], 1 - gap, 1e-3)  # TransformerLens rounds to 3 digits
    some = detect_head(model, row, "induction_head", heads=[(1, 0)])
    assert (some == -1).sum() == some.numel() - 1


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


@torch.no_grad()
def test_head_results_lose_b_when_only_z_was_cached() -> None:
    """The limit: TransformerLens then recomputes z W_O. A full cache holds ``hook_result``."""
    model = build("identity")
    _, full = model.run_with_cache(tokens(0))
    _, partial = model.run_with_cache(tokens(0), names_filter=lambda n: not n.endswith("result"))
    assert (full.stack_head_results() - partial.stack_head_results()).abs().max() > 0.1


@torch.no_grad()
def test_models_without_layers_decompose_into_their_embedding() -> None:
    model = SequenceTransformer(TransformerSpec(**{**BASE, "n_layers": 0, "ffn": ()}))  # type: ignore[arg-type]
    _, cache = model.run_with_cache(tokens(0))
    stack, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed"]
    close(stack[0], model.W_E[tokens(0)])
    with pytest.raises(KeyError):
        cache.accumulated_resid()


@torch.no_grad()
def test_streams_that_are_replaced_do_not_decompose() -> None:
    model = SequenceTransformer(TransformerSpec(**{**BASE, "residual": False}), seed=1)  # type: ignore[arg-type]
    _, cache = model.run_with_cache(tokens(0))
    gap = cache.decompose_resid().sum(0) - cache["resid_post", 1]
    assert gap.abs().max() > 0.1
