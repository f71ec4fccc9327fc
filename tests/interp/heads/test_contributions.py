from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError
from interp.heads.contributions import Direction, direct_contributions
from interp.heads.reliance import next_tokens
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
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


def pick(table: pd.DataFrame, component: str, layer: int, head: int = -1) -> pd.Series:
    found = table[
        (table["component"] == component) & (table["layer"] == layer) & (table["head"] == head)
    ]
    assert len(found) == 1
    return found.iloc[0]


def test_shares_along_a_direction_are_covariances_and_sum_to_one() -> None:
    model, tokens = model_and_tokens()
    w = torch.randn(8, generator=GEN, dtype=torch.float64)
    table = direct_contributions(model, tokens, {"w": Direction(w, 1, between=True)})
    _, cache = model.run_with_cache(tokens)
    y = (cache["blocks.1.hook_resid_mid"] @ w).detach().numpy()
    head = (cache["blocks.1.attn.hook_result"][:, :, 0] @ w).detach().numpy()
    expected = np.cov(head.ravel(), y.ravel(), ddof=0)[0, 1] / y.var()
    assert pick(table, "head", 1, 0)["score"] == pytest.approx(expected)
    assert table["score"].sum() == pytest.approx(1)
    assert set(table["component"]) >= {"head", "ffn", "embed", "pos_embed"}
    assert (table["component"] == "head").sum() == 3
    assert len(table[(table["component"] == "ffn")]) == 1  # the second layer's comes after


def test_direct_logits_add_up_to_the_centred_logit() -> None:
    from dataclasses import replace

    model = SequenceTransformer(replace(SPEC, norm="layernorm", identity_ov=False), seed=3)
    batch = next_tokens(torch.randint(6, (16, 7), generator=GEN))
    table = direct_contributions(model, batch)
    logits = (model(batch.inputs) - model.unembed.b_U).detach()
    centred = logits - logits.mean(-1, keepdim=True)
    right = centred.gather(-1, batch.targets[..., None])[..., 0]
    per_row = (right * batch.mask).sum(1) / batch.mask.sum(1)
    assert table["score"].sum() == pytest.approx(float(per_row.mean()), abs=1e-6)
    assert (table["metric"] == "direct_logit").all()


def test_a_head_that_writes_the_answer_is_found_and_chance_is_not() -> None:
    """The answer is one channel of the input that only one head copies; labels of another model's
    rows would give nothing."""
    spec = TransformerSpec(
        d_in=2, d_out=1, input="real", n_ctx=6, d_model=4, n_layers=1, n_heads=2, d_head=2,
    )  # fmt: skip
    model = SequenceTransformer(spec, seed=0)
    x = torch.randn((64, 6, 2), generator=GEN)
    batch = Batch(x, x[..., :1], torch.ones(64, 6, dtype=torch.bool))
    table = direct_contributions(model, batch)
    assert table["score"].sum() == pytest.approx(1, abs=1e-5)
    strong = table[table["component"] == "embed"].iloc[0]
    assert strong["low"] < strong["effect"] < strong["high"]
    assert strong["p"] < 1e-6


def test_a_store_gives_what_its_model_gives(tmp_path: Path) -> None:
    model, tokens = model_and_tokens()
    hooks = ["hook_embed", "hook_pos_embed", "*hook_result", "*hook_mlp_out", "*resid_post"]
    store = extract(model, tokens, hooks, tmp_path / "store", batch=8)
    directions = {"w": Direction(torch.ones(8, dtype=torch.float64), 2)}
    live = direct_contributions(model, tokens, directions, batch=8)
    pd.testing.assert_frame_equal(live, direct_contributions(model, store, directions, batch=8))


def test_refusals() -> None:
    model, tokens = model_and_tokens()
    with pytest.raises(ArgumentError, match=r"direction w must be \[8\], got \(3,\)"):
        direct_contributions(model, tokens, {"w": Direction(torch.ones(3), 1)})
    with pytest.raises(ArgumentError, match="batch must be at least 2, got 1"):
        direct_contributions(model, tokens, batch=1)
