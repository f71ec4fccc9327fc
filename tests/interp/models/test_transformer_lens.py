"""TransformerLens' decompositions, lenses and detector on our models, unchanged.

Each is compared with a computation from the weights alone (``plain_transformer``). The limits
found are listed in ``interp.models.transformer``; each has its test here or in
``test_transformer_lens_patching``.
"""

from typing import Any, NamedTuple

import pytest
import torch
from plain_transformer import BASE, VARIANTS, apply_norm, build, close, direct, tokens
from torch import Tensor
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution
from transformer_lens.tools.analysis.logit_lens import logit_lens

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


class Case(NamedTuple):
    """A model, what the direct computation gives for it, and its cache."""

    model: SequenceTransformer
    output: Tensor
    seen: dict[str, Tensor]
    cache: Any


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest) -> Case:
    model = build(request.param)
    with torch.no_grad():
        return Case(model, *direct(model, tokens(0)), model.run_with_cache(tokens(0))[1])


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


@torch.no_grad()
def test_decompose_resid(case: Case) -> None:
    model, _, seen, cache = case
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
    close(final, apply_norm(bare, spec, last, spec.norm_final))


@torch.no_grad()
def test_accumulated_resid(case: Case) -> None:
    model, output, seen, cache = case
    stack, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    names = [f"blocks.{i}.hook_resid_{kind}" for i in (0, 1) for kind in ("pre", "mid")]
    expected = torch.stack([seen[key] for key in (*names, "blocks.1.hook_resid_post")])
    close(stack, expected)
    read = cache.accumulated_resid(incl_mid=True, apply_ln=True)
    close(read, apply_norm(model.ln_final, model.spec, expected, model.spec.norm_final))
    close(read[-1] @ model.W_U + model.b_U, output)


@torch.no_grad()
def test_stack_head_results(case: Case) -> None:
    model, _, seen, cache = case
    heads = model.cfg.n_heads
    stack, labels = cache.stack_head_results(return_labels=True, incl_remainder=True)
    assert labels == [f"L{i}H{h}" for i in (0, 1) for h in range(heads)] + ["remainder"]
    results = [seen[f"blocks.{i}.attn.hook_result"].movedim(2, 0) for i in (0, 1)]
    close(stack[:-1], torch.cat(results))
    close(stack.sum(0), seen["blocks.1.hook_resid_post"])


@torch.no_grad()
def test_full_decomposition_by_head_and_neuron(case: Case) -> None:
    model, _, seen, cache = case
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


@torch.no_grad()
def test_logit_attributions_add_up_to_the_logit(case: Case) -> None:
    """All that is missing is b_U and the final norm's bias, which no component writes."""
    model, output, _, cache = case
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


@torch.no_grad()
def test_logit_lens(case: Case) -> None:
    model, output, seen, _ = case
    found = logit_lens(model, tokens(0), positions=None, incl_mid=True)
    for label, values in zip(found.labels, found.values, strict=True):
        layer, kind = label.replace("final", "1").split("_")
        resid = seen[f"blocks.{layer}.hook_resid_{kind}"]
        read = apply_norm(model.ln_final, model.spec, resid, model.spec.norm_final)
        close(values, read @ model.W_U + model.b_U)
    close(found.values[-1], output)
    ranks = logit_lens(model, tokens(0), targets=2).rank_trajectory()
    close(ranks[-1], (output[:, -1] > output[:, -1, 2:3]).sum(-1))


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
