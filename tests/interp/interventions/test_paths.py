from dataclasses import replace

import pytest
import torch
from path_outputs import path_patched

from interp.errors import ArgumentError
from interp.interventions.components import Component, components, every_component
from interp.interventions.patching import Receiver, attributions, senders
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import LogitDifference, next_tokens
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=4, d_model=8, n_layers=3, n_heads=2, d_head=4, ffn=(5,),
    norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
GEN = torch.Generator().manual_seed(0)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(6, (4, 4), generator=GEN), torch.randint(6, (4, 4), generator=GEN)


@pytest.fixture(autouse=True)
def fresh_generator() -> None:
    GEN.manual_seed(0)


@torch.no_grad()
def slowly(
    model: SequenceTransformer,
    clean: torch.Tensor,
    corrupt: torch.Tensor,
    sender: Component,
    receiver: Receiver,
) -> torch.Tensor:
    """Two runs of hooks: all other writers frozen at their clean values to see what the receiver
    reads, then a clean run in which it reads that."""
    identity = getattr(getattr(model, "spec", None), "identity_ov", False)
    kinds = {"head": "attn.hook_result" if identity else "attn.hook_z", "ffn": "hook_mlp_out"}
    every = [f"blocks.{p.layer}.{kinds[p.kind]}" for p in components(model)]
    every += [f"blocks.{layer}.hook_resid_pre" for layer in range(model.cfg.n_layers)]
    _, own = model.run_with_cache(clean, names_filter=every)
    _, other = model.run_with_cache(corrupt, names_filter=every)
    reads = {
        "q": "attn.hook_q", "k": "attn.hook_k", "v": "attn.hook_v", "ffn": "mlp.hook_pre",
    }  # fmt: skip
    if identity:  # what a head reads of values it also hands on as it is
        reads["v"] = "attn.hook_v_input"
    hooks = []
    for part in components(model):
        name = f"blocks.{part.layer}.{kinds[part.kind]}"
        sends = part == sender or (sender.kind == "layer" and part.layer == sender.layer)

        def freeze(value, hook, part=part, name=name, sends=sends):
            source = other[name] if sends else own[name]
            if part.kind == "ffn":
                return source
            value = value.clone()
            value[:, :, part.head] = source[:, :, part.head]
            return value

        hooks.append((name, freeze))
    if sender.kind == "position":
        name = f"blocks.{sender.layer}.hook_resid_pre"

        def enter(value, hook, name=name):
            value = value.clone()
            value[:, sender.position] = other[name][:, sender.position]
            return value

        hooks.append((name, enter))
    if receiver.input == "logits":
        return model.run_with_hooks(clean, fwd_hooks=hooks)
    if identity:
        model.set_use_split_qkv_input(True)
    name, seen = f"blocks.{receiver.layer}.{reads[receiver.input]}", []
    model.run_with_hooks(clean, fwd_hooks=[*hooks, (name, lambda v, hook: seen.append(v.clone()))])

    def patch(value, hook):
        if receiver.input == "ffn":
            return seen[0]
        value = value.clone()
        value[:, :, receiver.head] = seen[0][:, :, receiver.head]
        return value

    output = model.run_with_hooks(clean, fwd_hooks=[(name, patch)])
    if identity:
        model.set_use_split_qkv_input(False)
    return output


RECEIVERS = [
    Receiver("q", 2, 1), Receiver("k", 1, 0), Receiver("v", 2, 0), Receiver("ffn", 1),
    Receiver("logits"),
]  # fmt: skip


def model_of(**changes) -> SequenceTransformer:
    model = SequenceTransformer(replace(SPEC, **changes), seed=2)
    if model.spec.identity_ov:
        for block in model.blocks:
            block.attn.b.data += 0.7
    return model


KINDS = {
    "norm": {}, "identity": {"identity_ov": True}, "no residual": {"residual": False},
    "attention only": {"residual": False, "ffn": ()},
}  # fmt: skip
EACH = [
    pytest.param(receiver, changes, id=f"{receiver.input} {name}")
    for name, changes in KINDS.items() for receiver in RECEIVERS
    if receiver.input != "ffn" or name != "attention only"
]  # fmt: skip


@pytest.mark.parametrize(("receiver", "changes"), EACH)
def test_batched_paths_equal_frozen_runs(receiver: Receiver, changes: dict) -> None:
    model, (clean, corrupt) = model_of(**changes), pair()
    parts = senders(model, receiver, length=4)
    options = {"how": "swap", "reference": corrupt}
    found = list(path_patched(model, clean, receiver, parts, tokens=35, **options))
    assert [part for part, _ in found] == list(parts)
    for part, output in found:
        expected = slowly(model, clean, corrupt, part, receiver)
        torch.testing.assert_close(output, expected, msg=part.name)
    assert not model.cfg.use_split_qkv_input


@pytest.mark.parametrize(("receiver", "changes"), EACH)
def test_what_is_no_sender_changes_nothing_that_the_receiver_reads(
    receiver: Receiver, changes: dict
) -> None:
    """With a residual stream, all that is written or enters before the receiver is a sender."""
    model, (clean, corrupt) = model_of(**changes), pair()
    others = set(every_component(model, 4)) - set(senders(model, receiver, length=4))
    at = receiver.layer if receiver.layer >= 0 else 3
    same_layer = {"position"} | ({"head"} if receiver.input == "ffn" else set())
    before = [p for p in others if p.layer < at or (p.layer == at and p.kind in same_layer)]
    assert bool(before) == ("residual" in changes)
    for part in before:
        torch.testing.assert_close(slowly(model, clean, corrupt, part, receiver), model(clean))


def test_paths_of_a_bridge_equal_frozen_runs(tmp_path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from interp.hooks.transformer_lens_adapter import TransformerBridge

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=6, n_positions=8, n_embd=12, n_layer=2, n_head=3)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    bridge = TransformerBridge.boot_transformers(str(tmp_path), device="cpu").eval()
    clean, corrupt = pair()
    for receiver in (Receiver("k", 1, 2), Receiver("ffn", 0), Receiver("logits")):
        parts = senders(bridge, receiver, length=4)
        for tokens in (8, 1024):
            found = dict(path_patched(
                bridge, clean, receiver, parts, how="swap", reference=corrupt, tokens=tokens
            ))  # fmt: skip
            assert len(found) == len(parts)
            for part, output in found.items():
                expected = slowly(bridge, clean, corrupt, part, receiver)
                torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)


def test_attribution_is_that_of_transformer_lens() -> None:
    """Theirs is summed over positions here; it goes from the second inputs to the first."""
    from transformer_lens.tools.analysis.attribution_patching import attribution_patch

    model, (clean, corrupt) = model_of(), pair()
    batch = Batch(clean, torch.full_like(clean, 2), torch.arange(4).eq(3).expand(4, 4))
    table = attributions(model.eval(), batch, corrupt, metric=LogitDifference(4))
    found = table.set_index(["component", "layer", "head"])["score"]
    kinds = {"attn_head_out": "head", "mlp_out": "ffn"}
    expected: dict[tuple[str, int, int], float] = dict.fromkeys(found.index, 0.0)

    def metric(output: torch.Tensor) -> torch.Tensor:
        return output[0, -1, 2] - output[0, -1, 4]

    for node, score in attribution_patch(model, corrupt, clean, metric).node_scores.items():
        if node.kind in kinds:
            expected[kinds[node.kind], node.layer, -1 if node.head is None else node.head] += score
    assert (-found).to_dict() == pytest.approx(expected)
    assert found.abs().is_monotonic_decreasing


@pytest.mark.parametrize(
    ("receiver", "parts", "text"),
    [
        (Receiver("q", 1, 0), [Component("head", 1, 0)],
         r"must come before the receiver, got \['L1H0'\]"),
        (Receiver("ffn", 1), [Component("layer", 1), Component("position", 2, position=0)],
         r"must come before the receiver, got \['L1', 'L2 position 0'\]"),
        (Receiver("k", 1, 2), None, "head must be one of the 2 k heads of layer 1, got 2"),
        (Receiver("ffn", 3), None, "layer must be below 3, got 3"),
    ],
    ids=["same layer", "later", "no head", "no layer"],
)  # fmt: skip
def test_refusals(receiver: Receiver, parts: list[Component] | None, text: str) -> None:
    model, (clean, _) = model_of(), pair()
    with pytest.raises(ArgumentError, match=text):
        path_patched(model, clean, receiver, parts)


def test_what_cannot_be_asked_is_refused() -> None:
    clean, corrupt = pair()
    with pytest.raises(ArgumentError, match=r"receiver and be read by it directly, got \['L0 FFN'"):
        part = [Component("ffn", 0)]
        path_patched(model_of(residual=False), clean, Receiver("q", 2, 0), part)
    with pytest.raises(ArgumentError, match="input must be one of q, k, v, ffn, logits, got 'x'"):
        Receiver("x", 1)
    with pytest.raises(ArgumentError, match="head goes with q, k and v, got -1"):
        Receiver("q", 1)
    with pytest.raises(ArgumentError, match="must be the 4 paired rows to swap in, got 2"):
        attributions(model_of(), next_tokens(clean), corrupt[:2])
