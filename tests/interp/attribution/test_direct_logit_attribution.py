from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.benchmarks.gguf_writer import decoder
from interp.attribution.direct_logit_attribution import Direction, direct_logit_attribution
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


def test_shares_along_a_direction_are_covariances_and_sum_to_one() -> None:
    model, tokens = model_and_tokens()
    w = torch.randn(8, generator=GEN, dtype=torch.float64)
    table = direct_logit_attribution(model, tokens, {"w": Direction(w, 1, between=True)})
    _, cache = model.run_with_cache(tokens)
    y = (cache["blocks.1.hook_resid_mid"] @ w).detach().numpy()
    head = (cache["blocks.1.attn.hook_result"][:, :, 0] @ w).detach().numpy()
    expected = np.cov(head.ravel(), y.ravel(), ddof=0)[0, 1] / y.var()
    assert pick(table, "head", 1, 0)["score"] == pytest.approx(expected)
    assert table["score"].sum() == pytest.approx(1)
    assert set(table["component"]) >= {"head", "ffn", "embed", "pos_embed"}
    assert (table["component"] == "head").sum() == 3
    assert len(table[(table["component"] == "ffn")]) == 1  # the second layer's comes after


def noisy_model(**options: object) -> SequenceTransformer:
    """Gains, biases and all else away from where they start."""
    model = SequenceTransformer(replace(SPEC, identity_ov=False, n_heads=2, **options), seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for value in model.parameters():
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            value += 0.5 * noise
    return model


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
    model, batch = noisy_model(**options), next_tokens(some_tokens(20))
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


@pytest.mark.parametrize(("kind", "groups"), [("gpt2", 4), ("llama", 2)])
def test_direct_logits_of_a_bridge_add_up_too(kind: str, groups: int, tmp_path: Path) -> None:
    decoder(kind, num_key_value_heads=groups).save_pretrained(tmp_path)
    model, batch = load_pretrained(tmp_path).model, next_tokens(some_tokens(20))
    table = direct_logit_attribution(model, batch)
    expected = float(right_logits(model, batch).mean())
    assert table["score"].sum() == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 1e-4
    assert pick(table, "offset", -1)["score"] != 0 or kind == "llama"


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "none"])
def test_output_shares_are_covariances_with_the_output(norm: str) -> None:
    model = noisy_model(norm=norm, input="real", d_out=2)
    x = torch.randn((30, 7, 6), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    table = direct_logit_attribution(
        model, Batch(x, x[..., :2], torch.ones(30, 7, dtype=torch.bool))
    )
    output, cache = model.run_with_cache(x)
    gain = 1 if norm == "none" else model.ln_final.w
    written = cache["blocks.1.hook_mlp_out"]
    if norm == "layernorm":
        written = written - written.mean(-1, keepdim=True)
    parts = (written / cache["ln_final.hook_scale"] * gain) @ model.W_U
    for channel in range(2):
        found = table[table["target"] == f"output[{channel}]"]
        assert found["score"].sum() == pytest.approx(1)
        y = output[..., channel].detach().numpy().ravel()
        part = parts[..., channel].detach().numpy().ravel()
        expected = np.cov(part, y, ddof=0)[0, 1] / y.var()
        assert pick(found, "ffn", 1)["score"] == pytest.approx(expected)


def test_the_null_of_logits_is_that_of_blocks_of_rows() -> None:
    """Of 37 rows the blocks are 18 and 19: every row with every other one of its own."""
    model, batch = noisy_model(norm="layernorm"), next_tokens(some_tokens(37))
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


def real_batch(rows: int = 37, positions: int = 7) -> tuple[SequenceTransformer, Batch]:
    """Rows of which some positions are scored, not the same in all; the last row not at all."""
    model = noisy_model(norm="rmsnorm", input="real", d_out=1)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn((rows, positions, 6), generator=generator, dtype=torch.float64) + 3
    mask = torch.rand(rows, positions, generator=generator) < 0.7
    mask[:, -1], mask[-1] = True, False
    return model, Batch(x, x[..., :1], mask)


@pytest.mark.parametrize("tokens", [True, False])
def test_the_table_does_not_depend_on_the_batches(tokens: bool) -> None:
    model, batch = real_batch()
    if tokens:
        model, batch = noisy_model(norm="layernorm"), next_tokens(some_tokens(37))
    whole = direct_logit_attribution(model, batch, batch=64)
    for size in (1, 2, 16):
        found = direct_logit_attribution(model, batch, batch=size)
        pd.testing.assert_frame_equal(found, whole, rtol=1e-9, atol=1e-12)


def test_shares_their_null_and_their_interval_are_those_of_all_rows_at_once() -> None:
    """Against all rows in one array: the covariance, permuted rows, resampled rows."""
    model, batch = real_batch()
    line = pick(direct_logit_attribution(model, batch, batch=3), "ffn", 0)
    output, cache = model.run_with_cache(batch.inputs)
    read = model.ln_final.w[:, None] * model.W_U
    part = (cache["blocks.0.hook_mlp_out"] / cache["ln_final.hook_scale"]) @ read
    mask = batch.mask[:-1].numpy()
    c, y = (v[:-1, :, 0].detach().numpy() for v in (part, output))

    def share(rows: np.ndarray) -> float:
        inside = mask[rows]
        cs, ys = c[rows][inside], y[rows][inside]
        return float(np.cov(cs, ys, ddof=0)[0, 1] / ys.var())

    every = np.arange(len(c))
    assert line["score"] == pytest.approx(share(every))
    centred = [(v - v[mask].mean()) * mask for v in (c, y)]
    paired = centred[0] @ centred[1].T / (centred[1] ** 2).sum()
    rng = np.random.default_rng(0)
    draws = np.array([paired[every, rng.permutation(every)].sum() for _ in range(20000)])
    assert line["null_mean"] == pytest.approx(draws.mean(), abs=5 * draws.std() / 141)
    assert line["null_std"] == pytest.approx(draws.std(), rel=0.02)
    resampled = [share(rng.choice(every, len(every))) for _ in range(4000)]
    low, high = np.quantile(resampled, [0.025, 0.975]) - line["null_mean"]
    assert (line["low"], line["high"]) == (
        pytest.approx(low, abs=0.1 * (high - low)), pytest.approx(high, abs=0.1 * (high - low)),
    )  # fmt: skip


def test_what_depends_on_the_position_alone_has_no_effect() -> None:
    """One scored position: the effect is the share itself; a part that is the same in all rows
    has none."""
    model, batch = real_batch()
    last = torch.zeros_like(batch.mask)
    last[:, -1] = True
    for size in (2, 3, 37):
        table = direct_logit_attribution(model, replace(batch, mask=last), batch=size)
        assert table["effect"].tolist() == pytest.approx(table["score"].tolist(), abs=1e-9)
        assert table["effect"].sum() == pytest.approx(1)
    model = noisy_model(norm="none", input="real", d_out=1)
    table = direct_logit_attribution(model, batch)
    same = pick(table, "pos_embed", -1)
    assert abs(same["score"]) > 1e-3
    everywhere = torch.ones_like(batch.mask)
    same = pick(direct_logit_attribution(model, replace(batch, mask=everywhere)), "pos_embed", -1)
    assert (same["effect"], same["p"]) == (pytest.approx(0, abs=1e-12), 1)
    assert pick(table, "bias", -1)[["score", "p"]].tolist() == [0, 1]


def test_a_channel_that_does_not_vary_has_no_shares() -> None:
    model, batch = real_batch()
    with torch.no_grad():
        model.W_U.zero_()
    table = direct_logit_attribution(model, batch)
    assert table[["score", "p", "q", "effect", "low", "high"]].isna().all(axis=None)


def test_a_component_that_carries_the_answer_is_far_from_chance() -> None:
    spec = TransformerSpec(
        d_in=2, d_out=1, input="real", n_ctx=6, d_model=4, n_layers=1, n_heads=2, d_head=2,
    )  # fmt: skip
    x = torch.randn((64, 6, 2), generator=GEN)
    batch = Batch(x, x[..., :1], torch.ones(64, 6, dtype=torch.bool))
    table = direct_logit_attribution(SequenceTransformer(spec, seed=0), batch)
    strong = pick(table, "embed", -1)
    assert strong["low"] < strong["effect"] < strong["high"]
    assert strong["p"] < 1e-6


def test_a_store_gives_what_its_model_gives(tmp_path: Path) -> None:
    model, tokens = model_and_tokens()
    hooks = ["hook_embed", "hook_pos_embed", "*hook_result", "*hook_mlp_out", "*resid_post"]
    store = extract(model, tokens, hooks, tmp_path / "store", batch=8)
    directions = {"w": Direction(torch.ones(8, dtype=torch.float64), 2)}
    live = direct_logit_attribution(model, tokens, directions, batch=8)
    pd.testing.assert_frame_equal(live, direct_logit_attribution(model, store, directions, batch=8))


STREAM = ["hook_embed", "hook_pos_embed", "*hook_z", "*hook_mlp_out", "ln_final.hook_scale"]


def test_what_a_store_lacks_is_named(tmp_path: Path) -> None:
    model, batch = noisy_model(norm="layernorm"), next_tokens(some_tokens(8))
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
    """Lengths differ: tables do not depend on batches, and shares are those of all positions."""
    model = noisy_model(norm="layernorm")
    rows = [torch.randint(6, (4 + i % 3,), generator=GEN) for i in range(20)]
    store = extract(model, rows, [*STREAM, "*resid_post"], tmp_path / "store")
    w = torch.ones(8, dtype=torch.float64).cumsum(0)
    for asked in (None, {"w": Direction(w, 2)}):
        one, other = (direct_logit_attribution(model, store, asked, batch=n) for n in (2, 16))
        pd.testing.assert_frame_equal(one, other, rtol=1e-9, atol=1e-12)
    caches = [model.run_with_cache(row[None])[1] for row in rows]
    y, c = (
        torch.cat([(cache[f"blocks.1.hook_{name}"] @ w)[0] for cache in caches]).detach().numpy()
        for name in ("resid_post", "mlp_out")
    )
    expected = np.cov(c, y, ddof=0)[0, 1] / y.var()
    assert pick(one, "ffn", 1)["score"] == pytest.approx(expected)


def test_numbers_that_are_not_finite_are_refused() -> None:
    model, batch = noisy_model(norm="layernorm"), next_tokens(some_tokens(8))
    with torch.no_grad():
        model.blocks[1].attn.W_O[0, 0, 0] = float("nan")
    with pytest.raises(ArgumentError, match="must be finite, got 'NaN or infinity in L1H0, 1_mlp"):
        direct_logit_attribution(model, batch)


def test_refusals() -> None:
    model, tokens = model_and_tokens()
    attribute = direct_logit_attribution
    w = torch.ones(8, dtype=torch.float64)
    rule = "source must have at least 2 rows in which something is scored, got "
    unscored = Batch(tokens, tokens, torch.zeros_like(tokens, dtype=torch.bool))
    shifted = Batch(tokens, tokens + 1, torch.ones_like(tokens, dtype=torch.bool))
    for use, text in (
        (lambda: attribute(model, tokens, {"w": Direction(torch.ones(3), 1)}),
         r"direction w must be \[8\], got \(3,\)"),
        (lambda: attribute(model, tokens, {"w": Direction(w / 0, 1)}), "must be finite"),
        (lambda: attribute(model, tokens, {"w": Direction(w, 3)}), "0 to 2, got 3"),
        (lambda: attribute(model, tokens, {"w": Direction(w, 2, True)}), "0 to 1, got"),
        (lambda: attribute(model, tokens, batch=0), "batch must be at least 1, got 0"),
        (lambda: attribute(model, tokens[:1]), rule + "1"),
        (lambda: attribute(model, tokens[:0]), rule + "0"),
        (lambda: attribute(model, unscored), rule + "0"),
        (lambda: attribute(model, shifted), "must be tokens from 0 to 5"),
        (lambda: attribute(noisy_model(residual=False), tokens), "got 'residual=False'"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=text):
            use()
