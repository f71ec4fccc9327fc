from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp.attribution.direct_logit_attribution import direct_logit_attribution
from interp.attribution.unembedding import unembedding
from interp.errors import ArgumentError, HookError
from interp.models.pretrained import load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run.gate import next_tokens
from interp.store import extract
from interp.tasks.base import Batch

GEN = torch.Generator().manual_seed(0)
SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=2, n_heads=(2, 1), d_head=4, ffn=(5,),
    positions="learned", identity_ov=True, dtype="float64",
)  # fmt: skip


def model_and_tokens() -> tuple[SequenceTransformer, torch.Tensor]:
    model = SequenceTransformer(SPEC, seed=2)
    for block in model.blocks:
        block.attn.b.data += 0.5
    return model, torch.randint(6, (16, 7), generator=GEN)


def some_tokens(rows: int) -> torch.Tensor:
    return torch.randint(6, (rows, 7), generator=torch.Generator().manual_seed(7))


def pick(table: pd.DataFrame, component: str, layer: int, head: int = -1) -> pd.Series:
    found = table[
        (table["component"] == component) & (table["layer"] == layer) & (table["head"] == head)
    ]
    assert len(found) == 1
    return found.iloc[0]


def scrambled(**options: object) -> SequenceTransformer:
    """Gains, biases and all else away from where they start."""
    model = SequenceTransformer(replace(SPEC, identity_ov=False, n_heads=2, **options), seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for value in model.parameters():
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            value += 0.5 * noise
    return model


def bridge(folder: Path, kind: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 6, "n_positions": 12}
        model = GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=1, **sizes))
        norm = model.transformer.ln_f
    else:
        model = LlamaForCausalLM(LlamaConfig(
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
            intermediate_size=20, vocab_size=6, max_position_embeddings=12, bos_token_id=1,
        ))  # fmt: skip
        norm = model.model.norm
    for value in norm.parameters():
        torch.nn.init.uniform_(value, 0.5, 3)
    model.save_pretrained(folder)
    return load_pretrained(folder).model


def right_logits(model: Any, batch: Batch) -> torch.Tensor:
    """What the model itself says of the right token, less the mean over tokens: [row]."""
    logits = model(batch.inputs).detach().double()
    centred = logits - logits.mean(-1, keepdim=True)
    return right_of(centred, batch.targets, batch.mask)


def right_of(logits: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    right = logits.gather(-1, targets[..., None])[..., 0]
    return (right * mask).sum(-1) / mask.sum(-1)


@pytest.mark.parametrize(
    "options",
    [{"norm": "layernorm"}, {"norm": "rmsnorm"}, {"norm": "none"},
     {"norm": "layernorm", "norm_final": False}, {"norm": "layernorm", "norm_gain": False}],
    ids=["layernorm", "rmsnorm", "none", "no-final-norm", "no-gain"],
)  # fmt: skip
def test_direct_logits_add_up_to_the_centred_logit(options: dict[str, Any]) -> None:
    model, batch = scrambled(**options), next_tokens(some_tokens(20))
    table = direct_logit_attribution(model, batch)
    assert table["score"].sum() == pytest.approx(float(right_logits(model, batch).mean()))
    assert (table["metric"] == "direct_logit").all()
    assert table["component"].iloc[-1] == "offset"
    _, cache = model.run_with_cache(batch.inputs)
    norm = model.ln_final
    gain = torch.ones(8).double() if norm.w is None else norm.w.detach()
    written = cache["blocks.1.attn.hook_z"][:, :, 0] @ model.W_O[1, 0]
    if norm.kind == "layernorm":
        written = written - written.mean(-1, keepdim=True)
    logits = (written / cache["ln_final.hook_scale"] * gain) @ model.W_U
    centred = logits - logits.mean(-1, keepdim=True)
    expected = right_of(centred, batch.targets, batch.mask).mean()
    assert pick(table, "head", 1, 0)["score"] == pytest.approx(expected.item())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_direct_logits_of_a_bridge_add_up_too(kind: str, tmp_path: Path) -> None:
    model, batch = bridge(tmp_path, kind), next_tokens(some_tokens(20))
    table = direct_logit_attribution(model, batch)
    expected = float(right_logits(model, batch).mean())
    assert table["score"].sum() == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 1e-4
    assert pick(table, "offset", -1)["score"] != 0 or kind == "llama"


def test_the_null_of_logits_is_that_of_blocks_of_rows() -> None:
    """Of 37 rows the blocks are 18 and 19: every row with every other one of its own."""
    model, batch = scrambled(norm="layernorm"), next_tokens(some_tokens(37))
    line = pick(direct_logit_attribution(model, batch, batch=5), "head", 1, 1)
    _, cache = model.run_with_cache(batch.inputs)
    written = cache["blocks.1.attn.hook_z"][:, :, 1] @ model.W_O[1, 1]
    logits = written / cache["ln_final.hook_scale"] @ unembedding(model)
    paired = torch.stack(
        [right_of(logits, batch.targets[s].expand(37, -1), batch.mask[s]) for s in range(37)], 1
    ).detach().numpy()  # fmt: skip
    rng, total, draws = np.random.default_rng(0), 0.0, np.zeros(20000)
    for block in (np.arange(18), np.arange(18, 37)):
        inside, n = paired[np.ix_(block, block)], len(block)
        total += (inside.sum() - np.trace(inside)) / (n - 1) / 37
        every = np.arange(n)
        drawn = [inside[every, rng.permutation(n)].sum() for _ in draws]
        draws += np.array(drawn) / 37 * n / (n - 1)
    assert line["score"] == pytest.approx(np.trace(paired) / 37)
    assert line["null_mean"] == pytest.approx(total)
    assert line["null_std"] == pytest.approx(draws.std(), rel=0.02)


def test_the_table_does_not_depend_on_the_batches() -> None:
    model, batch = scrambled(norm="layernorm"), next_tokens(some_tokens(37))
    whole = direct_logit_attribution(model, batch, batch=64)
    for size in (1, 2, 16):
        found = direct_logit_attribution(model, batch, batch=size)
        pd.testing.assert_frame_equal(found, whole, rtol=1e-9, atol=1e-12)


def test_a_store_gives_what_its_model_gives(tmp_path: Path) -> None:
    model, tokens = model_and_tokens()
    hooks = ["hook_embed", "hook_pos_embed", "*hook_result", "*hook_mlp_out", "*resid_post"]
    store = extract(model, tokens, hooks, tmp_path / "store", batch=8)
    live = direct_logit_attribution(model, tokens, batch=8)
    pd.testing.assert_frame_equal(live, direct_logit_attribution(model, store, batch=8))


STREAM = ["hook_embed", "hook_pos_embed", "*hook_z", "*hook_mlp_out", "ln_final.hook_scale"]


def test_what_a_store_lacks_is_named(tmp_path: Path) -> None:
    model, batch = scrambled(norm="layernorm"), next_tokens(some_tokens(8))
    store = extract(model, batch, ["*hook_pattern"], tmp_path / "patterns")
    with pytest.raises(HookError, match=r"lacks hook_embed, hook_pos_embed, blocks\.0\.attn\.hook_z"
                       r" or blocks\.0\.attn\.hook_result, .*hook_mlp_out, ln_final\.hook_scale: "
                       "extract them too"):  # fmt: skip
        direct_logit_attribution(model, store)
    copies, _ = model_and_tokens()
    store = extract(copies, batch, STREAM, tmp_path / "z")
    with pytest.raises(HookError, match=r"lacks blocks\.0\.attn\.hook_result, blocks\.1\.attn"):
        direct_logit_attribution(copies, store)
    some = extract(model, batch, STREAM, tmp_path / "some", positions=slice(2, None))
    with pytest.raises(ArgumentError, match="store must hold all positions, got '2:'"):
        direct_logit_attribution(model, some)
    some = extract(model, batch, STREAM, tmp_path / "heads", heads=[1])
    with pytest.raises(ArgumentError, match=r"store must hold all heads, .*got \[1\]"):
        direct_logit_attribution(model, some)


def test_rows_of_several_lengths_are_one_table(tmp_path: Path) -> None:
    """Lengths differ: the table does not depend on batches, and is the mean over all rows."""
    model = scrambled(norm="layernorm")
    rows = [torch.randint(6, (4 + i % 3,), generator=GEN) for i in range(20)]
    store = extract(model, rows, [*STREAM, "*resid_post"], tmp_path / "store")
    one, other = (direct_logit_attribution(model, store, batch=n) for n in (2, 16))
    pd.testing.assert_frame_equal(one, other, rtol=1e-9, atol=1e-12)
    whole = [Batch(r[None], r[None], torch.ones(1, len(r), dtype=torch.bool)) for r in rows]
    expected = torch.stack([right_logits(model, row)[0] for row in whole]).mean()
    assert one["score"].sum() == pytest.approx(float(expected))


def test_numbers_that_are_not_finite_are_refused() -> None:
    model, batch = scrambled(norm="layernorm"), next_tokens(some_tokens(8))
    with torch.no_grad():
        model.blocks[1].attn.W_O[0, 0, 0] = float("nan")
    with pytest.raises(ArgumentError, match="must be finite, got 'NaN or infinity in L1H0, 1_mlp"):
        direct_logit_attribution(model, batch)


def test_refusals() -> None:
    model, tokens = model_and_tokens()
    attribute = direct_logit_attribution
    every = torch.ones_like(tokens, dtype=torch.bool)
    numbers = Batch(tokens, tokens[..., None].double(), every)
    rule = "source must have at least 2 rows in which something is scored, got "
    unscored = Batch(tokens, tokens, torch.zeros_like(tokens, dtype=torch.bool))
    shifted = Batch(tokens, tokens + 1, every)
    for use, text in (
        (lambda: attribute(model, numbers), "targets must be tokens, got 'real numbers'"),
        (lambda: attribute(model, tokens, batch=0), "batch must be at least 1, got 0"),
        (lambda: attribute(model, tokens[:1]), rule + "1"),
        (lambda: attribute(model, tokens[:0]), rule + "0"),
        (lambda: attribute(model, unscored), rule + "0"),
        (lambda: attribute(model, shifted), "must be tokens from 0 to 5"),
        (lambda: attribute(scrambled(residual=False), tokens), "got 'residual=False'"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=text):
            use()
