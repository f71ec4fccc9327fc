"""Runs of transformers' models against transformers itself, with torch's own hooks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from losses import position_losses
from torch import Tensor, nn
from torch.nn import functional

from interp.errors import HookError
from interp.hooks.transformer_lens_adapter import TransformerBridge
from interp.interventions.patching import Receiver, senders
from interp.models.pretrained import load_pretrained
from interp.run import (
    Array,
    Change,
    DropKeys,
    KeepKeys,
    Mean,
    Run,
    Site,
    Swap,
    Through,
    Zero,
    head_sites,
)  # fmt: skip
from interp.run.layers import HookedLayers, Layers
from interp.run.plain import plain_layers

N, HEADS, LENGTH = 6, 4, 14
SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "head_dim": 8, "initializer_range": 0.4,
}  # fmt: skip


def config_of(family: str) -> Any:
    import transformers as hugging

    if family == "gpt2":
        return hugging.GPT2Config(
            vocab_size=50, n_embd=32, n_layer=3, n_head=HEADS, n_positions=32, initializer_range=0.4
        )
    if family == "gpt_neox":
        return hugging.GPTNeoXConfig(
            **{k: v for k, v in SIZES.items() if k not in ("head_dim", "num_key_value_heads")},
            use_parallel_residual=True,
        )
    if family == "llama":
        return hugging.LlamaConfig(**SIZES)
    windows = ["sliding_attention", "full_attention", "sliding_attention"]
    if family == "gemma2":
        return hugging.Gemma2Config(
            **SIZES, sliding_window=5, layer_types=windows, query_pre_attn_scalar=8,
            final_logit_softcapping=3.0, attn_logit_softcapping=2.0,
        )  # fmt: skip
    return hugging.Gemma3TextConfig(
        **SIZES, sliding_window=5, layer_types=windows, query_pre_attn_scalar=8
    )


def parts_of(model: Any, layer: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """A layer's attention, its output projection and its FFN (or what is written of it)."""
    if hasattr(model, "transformer"):
        block = model.transformer.h[layer]
        return block.attn, block.attn.c_proj, block.mlp
    if hasattr(model, "gpt_neox"):
        block = model.gpt_neox.layers[layer]
        return block.attention, block.attention.dense, block.mlp
    block = model.model.layers[layer]
    ffn = getattr(block, "post_feedforward_layernorm", block.mlp)
    return block.self_attn, block.self_attn.o_proj, ffn


FAMILIES = ("gpt2", "llama", "gemma3", "gemma2", "gpt_neox")
TOKENS = torch.randint(50, (N, LENGTH), generator=torch.Generator().manual_seed(0))
PREVIOUS = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) == 1
EQUAL = ((TOKENS[:, :, None] == TOKENS[:, None]) & ~torch.eye(LENGTH, dtype=torch.bool)).tril()


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """A model as transformers loads it, and its bridge."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp(request.param)
    made = AutoModelForCausalLM.from_config(config_of(request.param))
    made.save_pretrained(folder)
    hugging = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return hugging, load_pretrained(folder).model


@contextmanager
def temporary_hook(module: nn.Module, *, before: Any = None, after: Any = None) -> Iterator[None]:
    handle: Any
    if before is not None:
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def nats(logits: Tensor) -> Tensor:
    """Of the next token, ``[row, pos]``, 0 at the last position."""
    each = position_losses(logits[:, :-1].double(), TOKENS[:, 1:])
    return functional.pad(each, (0, 1))


@torch.no_grad()
def losses(model: Any) -> Tensor:
    return nats(model(TOKENS).logits)


def z_changed(model: Any, layer: int, head: int, new: Callable[[Tensor], Tensor]) -> Tensor:
    """The rise of the loss when what one head gives the output projection is replaced."""
    clean = losses(model)

    def before(module: Any, args: Any, keywords: Any) -> Any:
        z = args[0].clone()
        width = z.shape[-1] // HEADS
        mine = slice(head * width, (head + 1) * width)
        z[..., mine] = new(z[..., mine])
        return (z, *args[1:]), keywords

    with temporary_hook(parts_of(model, layer)[1], before=before):
        return losses(model) - clean


def keys_masked(model: Any, layer: int, head: int, dropped: Tensor) -> Tensor:
    """The rise of the loss when the scores of some keys are set to −∞ in one head."""
    clean = losses(model)
    extra = torch.zeros(N, HEADS, LENGTH, LENGTH)
    extra[:, head] = torch.where(dropped, torch.finfo(torch.float32).min, 0.0)

    def before(module: Any, args: Any, keywords: Any) -> Any:
        return args, keywords | {"attention_mask": keywords["attention_mask"] + extra}

    with temporary_hook(parts_of(model, layer)[0], before=before):
        return losses(model) - clean


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert expected.abs().max() > 1e-3


def test_heads_are_replaced(pair: Any) -> None:
    model, bridge = pair
    run = Run(bridge, TOKENS)
    sites = [Site(0, "z", 1), Site(1, "z", 3), Site(2, "z", 0), Site(2, "z", 2)]
    for site, rise in zip(sites, run.rises([Mean(site) for site in sites]), strict=True):
        head: Any = site.head
        by_hand = z_changed(model, site.layer, head, lambda z: z.mean(0, keepdim=True).expand_as(z))
        assert_same(rise, by_hand)
        assert_same(run.rise(Zero(site)), z_changed(model, site.layer, head, torch.zeros_like))
        order = (*range(1, N), 0)
        rolled = z_changed(model, site.layer, head, lambda z: z.roll(-1, 0))
        assert_same(run.rise(Swap(site, order)), rolled)


def test_attention_is_taken_from_keys(pair: Any) -> None:
    model, bridge = pair
    run = Run(bridge, TOKENS)
    previous, equal = Array(PREVIOUS[None], "the previous token"), Array(EQUAL, "equal tokens")
    for layer, head in ((0, 1), (1, 2), (2, 3)):
        site = Site(layer, "pattern", head)
        for keys, dropped in ((previous, PREVIOUS[None]), (equal, EQUAL)):
            expected = keys_masked(model, layer, head, dropped)
            assert_same(run.rise(DropKeys(site, keys)), expected)
    others = ~PREVIOUS & PREVIOUS.any(-1, keepdim=True)
    alone = keys_masked(model, 1, 2, others[None])
    assert_same(run.rise(KeepKeys(Site(1, "pattern", 2), previous)), alone)


def test_an_ffn_is_replaced(pair: Any) -> None:
    model, bridge = pair
    clean = losses(model)
    with temporary_hook(
        parts_of(model, 1)[2], after=lambda m, a, out: out.mean(0, True).expand_as(out)
    ):
        expected = losses(model) - clean
    assert_same(Run(bridge, TOKENS).rise(Mean(Site(1, "mlp_out"))), expected)


def test_every_way_of_running_gives_the_same(pair: Any) -> None:
    _, bridge = pair
    keys = Array(EQUAL, "equal tokens")
    edits: list[Any] = [Mean(site) for site in head_sites(bridge)]
    edits += [DropKeys(Site(layer, "pattern", 1), keys) for layer in range(3)]
    edits += [(edits[0], edits[-1]), Swap(Site(1, "resid_pre"), (1, 2, 3, 4, 5, 0), at=3)]
    runs = [Run(bridge, TOKENS) for _ in range(3)]
    runs[1]._layered = [one for one in runs[1]._layered if isinstance(one, HookedLayers)]
    runs[2]._layered = []
    for metric in (None, Change()):
        options: Any = {} if metric is None else {"metric": metric}
        found = [torch.stack([*run.rises(edits, **options)]) for run in runs]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-3, atol=5e-5)
    slopes = [run.slopes(edits[:-2]) for run in runs]
    for other in slopes[1:]:
        torch.testing.assert_close(other, slopes[0], rtol=1e-3, atol=5e-5)
    sites = [Site(1, "pattern"), Site(2, "z", 1), Site(1, "attn_out"), Site(2, "resid_post")]
    read = [run.at(sites) for run in runs]
    for site in sites:
        for one in read[1:]:
            torch.testing.assert_close(one[site], read[0][site], rtol=1e-4, atol=1e-5)


def test_copies_of_one_row_keep_their_masks(pair: Any) -> None:
    edits = [Zero(site) for site in head_sites(pair[1])]
    one = Run(pair[1], TOKENS[:1], tokens=7).rises(edits)
    three = Run(pair[1], TOKENS[:1].expand(3, -1)).rises(edits)
    for alone, copies in zip(one, three, strict=True):
        torch.testing.assert_close(alone, copies[:1], rtol=1e-3, atol=5e-5)


def test_plain_layers_are_used_and_have_no_weights_of_their_own(pair: Any) -> None:
    _, bridge = pair
    plain: Any = Run(bridge, TOKENS)._layered[0]
    assert type(plain).__name__ == "_PlainLayers"
    own = {tensor.data_ptr() for tensor in plain._twin.parameters()}
    assert own <= {tensor.data_ptr() for tensor in bridge.parameters()}
    assert not any(tensor.requires_grad for tensor in plain._twin.parameters())


def test_inputs_of_heads_are_changed_through_the_bridge(pair: Any) -> None:
    _, bridge = pair
    edit = Through(Site(2, "resid_post"), Mean(Site(1, "z", 0)))
    run = Run(bridge, TOKENS)
    change = run.write_difference(edit.sender, torch.arange(N))
    last: Any = run.at([Site(2, "resid_post")])[Site(2, "resid_post")]
    with torch.no_grad():
        logits = bridge.unembed(bridge.ln_final(last + change)).double()
        before = nats(bridge(TOKENS))
    if getattr(bridge.original_model.config, "final_logit_softcapping", None):
        logits = 3 * torch.tanh(logits / 3)
    torch.testing.assert_close(run.rise(edit), nats(logits) - before, rtol=1e-3, atol=1e-4)


def test_an_ffn_receives_paths_from_the_heads_of_its_layer_that_it_reads(pair: Any) -> None:
    """In parallel blocks it reads none: what it reads stays when they write something else."""
    _, bridge = pair
    read, z = "blocks.1.mlp.hook_in", "blocks.1.attn.hook_z"
    _, clean = bridge.run_with_cache(TOKENS, names_filter=[read])
    with bridge.hooks(fwd_hooks=[(z, lambda value, hook: value + 1)]):
        _, changed = bridge.run_with_cache(TOKENS, names_filter=[read])
    reads = not torch.equal(clean[read], changed[read])
    assert reads == (not bridge.cfg.parallel_attn_mlp)
    heads = [part for part in senders(bridge, Receiver("ffn", layer=1)) if part.kind == "head"]
    assert {part.layer for part in heads} == ({0, 1} if reads else {0})
    path = Through(Site(1, "mlp_in"), Zero(Site(1, "z", 0)))
    if reads:
        assert Run(bridge, TOKENS).rise(path).abs().max() > 0
    else:
        with pytest.raises(HookError, match="mlp_in does not read the heads of its own layer"):
            Run(bridge, TOKENS).rise(path)


def test_a_stream_that_the_bridge_does_not_pass_on_is_refused(pair: Any) -> None:
    with pytest.raises(HookError, match=r"hook_resid_mid may only be read.*change attn_out"):
        Run(pair[1], TOKENS).rise(Zero(Site(1, "resid_mid")))


def test_weights_that_change_are_seen(pair: Any) -> None:
    _, bridge = pair
    site = Site(1, "z", 3)
    before = Run(bridge, TOKENS).rise(Mean(site))
    weights = [p for name, p in bridge.named_parameters() if "original" in name and p.ndim == 2]
    weight = weights[len(weights) // 2]
    with torch.no_grad():
        weight.mul_(1.7)
    after = Run(bridge, TOKENS).rise(Mean(site))
    assert not torch.allclose(before, after)
    with torch.no_grad():
        weight.div_(1.7)
    assert_same(Run(bridge, TOKENS).rise(Mean(site)), before)


def test_hooks_that_a_user_has_set_are_not_passed_by(pair: Any) -> None:
    bridge = pair[1]
    assert isinstance(bridge, TransformerBridge)
    with (
        torch.no_grad(),
        bridge.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", lambda v, hook: 2 * v)]),
    ):
        changed = Run(bridge, TOKENS).value()
        expected = nats(bridge(TOKENS))
    torch.testing.assert_close(changed, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(changed, Run(bridge, TOKENS).value())


def test_layers_that_do_otherwise_are_not_used(pair: Any) -> None:
    bridge, few = pair[1], TOKENS[:2]
    with torch.no_grad():
        output = bridge(few)
        assert plain_layers(bridge, few, output * 1.01) is None
        found: Layers = HookedLayers(bridge)
        assert not found.agrees(few, output * 1.01)
