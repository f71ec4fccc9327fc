import pytest
import torch

from interp.errors import ArgumentError
from interp.heads.effects import Component, components
from interp.heads.paths import Receiver, attributions, path_patched, senders
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=3, n_heads=2, d_head=4, ffn=(5,),
    norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
GEN = torch.Generator().manual_seed(0)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(6, (4, 7), generator=GEN), torch.randint(6, (4, 7), generator=GEN)


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
    _, own = model.run_with_cache(clean)
    _, other = model.run_with_cache(corrupt)
    kinds = {"head": "attn.hook_z", "ffn": "hook_mlp_out"}
    reads = {
        "q": "attn.hook_q", "k": "attn.hook_k", "v": "attn.hook_v", "ffn": "mlp.hook_pre",
    }  # fmt: skip
    hooks = []
    for part in components(model):
        name = f"blocks.{part.layer}.{kinds[part.kind]}"

        def freeze(value, hook, part=part, name=name):
            source = other[name] if part == sender else own[name]
            if part.kind == "ffn":
                return source
            value = value.clone()
            value[:, :, part.head] = source[:, :, part.head]
            return value

        hooks.append((name, freeze))
    if receiver.input == "logits":
        return model.run_with_hooks(clean, fwd_hooks=hooks)
    name, seen = f"blocks.{receiver.layer}.{reads[receiver.input]}", []
    model.run_with_hooks(clean, fwd_hooks=[*hooks, (name, lambda v, hook: seen.append(v.clone()))])

    def patch(value, hook):
        if receiver.input == "ffn":
            return seen[0]
        value = value.clone()
        value[:, :, receiver.head] = seen[0][:, :, receiver.head]
        return value

    return model.run_with_hooks(clean, fwd_hooks=[(name, patch)])


@pytest.mark.parametrize(
    "receiver",
    [
        Receiver("q", 2, 1), Receiver("k", 1, 0), Receiver("v", 2, 0), Receiver("ffn", 1),
        Receiver("logits"),
    ],
    ids=lambda r: r.input,
)  # fmt: skip
def test_batched_paths_equal_frozen_runs(receiver: Receiver) -> None:
    model, (clean, corrupt) = SequenceTransformer(SPEC, seed=2), pair()
    found = path_patched(model, clean, receiver, how="swap", reference=corrupt, tokens=60)
    assert [part for part, _ in found] == list(senders(model, receiver))
    for part, output in found:
        torch.testing.assert_close(output, slowly(model, clean, corrupt, part, receiver))
    assert not model.cfg.use_split_qkv_input


def test_paths_of_a_bridge_equal_frozen_runs(tmp_path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from interp.lens import TransformerBridge

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=6, n_positions=8, n_embd=12, n_layer=2, n_head=3)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    bridge = TransformerBridge.boot_transformers(str(tmp_path), device="cpu").eval()
    clean, corrupt = pair()
    for receiver in (Receiver("k", 1, 2), Receiver("ffn", 0), Receiver("logits")):
        found = path_patched(bridge, clean, receiver, how="swap", reference=corrupt)
        for part, output in found:
            expected = slowly(bridge, clean, corrupt, part, receiver)
            torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)


def test_attribution_is_exact_for_the_last_writers_and_a_linear_metric() -> None:
    """Without a final norm the last layer's writes reach the output linearly."""
    from dataclasses import replace

    model = SequenceTransformer(replace(SPEC, norm="none"), seed=2)
    clean, corrupt = pair()
    table = attributions(model, clean, corrupt, lambda out: out[0, -1, 2])
    from interp.heads.ablate import ablated

    with torch.no_grad():
        base = model(corrupt)[:, -1, 2].mean()
    last = Component("ffn", 2)
    ((_, patched),) = ablated(model, corrupt, [last], how="swap", reference=clean)
    row = table[(table["component"] == "ffn") & (table["layer"] == 2)].iloc[0]
    assert row["score"] == pytest.approx(float(patched[:, -1, 2].mean() - base))
    assert len(table) == len(components(model))
    assert table["score"].abs().is_monotonic_decreasing


def test_refusals() -> None:
    model, (clean, _) = SequenceTransformer(SPEC), pair()
    with pytest.raises(ArgumentError, match="must come before the receiver, got"):
        path_patched(model, clean, Receiver("q", 1, 0), [Component("head", 1, 0)])
    with pytest.raises(ArgumentError, match="input must be one of q, k, v, ffn, logits, got 'x'"):
        Receiver("x", 1)
    with pytest.raises(ArgumentError, match=r"head goes with q, k and v, got -1"):
        Receiver("q", 1)


def test_a_head_that_is_not_there_is_refused() -> None:
    model, (clean, _) = SequenceTransformer(SPEC, seed=2), pair()
    with pytest.raises(ArgumentError, match="head must be one of the 2 k heads of layer 1, got 2"):
        path_patched(model, clean, Receiver("k", 1, 2))
