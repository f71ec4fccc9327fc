"""The tables of the viewer: their numbers are those that the other doors give, and quantising costs
what it says."""

import base64

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import prooflens as pl
from interp.errors import ArgumentError
from interp.interventions.components import Component
from probes.inspection.shown import quantise
from probes.inspection.texts import token_texts

SHARES = arrays(np.float64, (3, 4), elements=st.floats(0, 1))
ANY = arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32))


@given(SHARES)
def test_shares_are_off_by_half_a_code_at_most(values) -> None:
    codes, low, step, error = quantise(values, shares=True)
    assert (low, step) == (0.0, 1 / 255)
    worst = float(np.abs(low + step * codes - values).max())
    assert worst == pytest.approx(error)
    assert worst <= 1 / 510 + 1e-12


@given(ANY)
def test_other_numbers_have_their_own_range(values) -> None:
    codes, low, step, error = quantise(values)
    assert error <= step / 2 + 1e-9
    assert np.abs(low + step * codes - values).max() <= error + 1e-9
    assert low == pytest.approx(values.min())


def test_attention_without_a_normaliser_keeps_its_signs() -> None:
    codes, low, step, error = quantise(np.array([-2.0, 0.5, 3.0]), shares=True)
    assert step == pytest.approx(5 / 255)
    np.testing.assert_allclose(low + step * codes, [-2, 0.5, 3], atol=error + 1e-12)


@pytest.fixture(scope="module")
def model():
    return pl.load("induction-attention")


@pytest.fixture(scope="module")
def found(model):
    return pl.inspect(model, count=12, prompts=["3 4 5 3 4", "7,8,9,7"])


def rows_of(found, group: int) -> torch.Tensor:
    table = found.measured["shown-rows"]
    own = table[table["group"] == group].sort_values(["row", "position"])
    width = int(own["position"].max()) + 1
    return torch.tensor(own["token"].astype(int).to_numpy().reshape(-1, width))


def line(found, group: int, layer: int, head: int, part: str) -> pd.Series:
    table = found.measured["shown-heads"]
    places = [("group", group), ("layer", layer), ("head", head), ("part", part)]
    for name, value in places:
        table = table[table[name] == value]
    return table.iloc[0]


def values_of(own: pd.Series) -> np.ndarray:
    codes = np.frombuffer(base64.b64decode(own["codes"]), dtype=np.uint8)
    return own["low"] + own["step"] * codes.astype(float)


def test_rows_of_the_task_random_rows_and_prompts_are_shown(found) -> None:
    kinds = [group["kind"] for group in found.measured.about["groups"]]
    assert kinds == ["rows", "repeated", "shuffled", "prompt", "prompt"]
    assert rows_of(found, 3).tolist() == [[0, 3, 4, 5, 3, 4]]  # BOS in front


def test_patterns_are_the_models_within_the_stated_error(model, found) -> None:
    for group in range(4):
        inputs = rows_of(found, group)
        _, cache = model.run_with_cache(inputs)
        lower = np.tril_indices(inputs.shape[1])
        for layer in (0, 1):
            own = line(found, group, layer, 0, "pattern")
            true = cache[f"blocks.{layer}.attn.hook_pattern"][:, 0].detach().numpy()
            off = np.abs(values_of(own).reshape(len(inputs), -1) - true[:, *lower]).max()
            assert off <= own["error"] + 1e-7
            assert own["error"] <= 1 / 510 + 1e-7


def test_norms_are_of_what_would_be_read_from_a_key(model, found) -> None:
    inputs = rows_of(found, 1)
    _, cache = model.run_with_cache(inputs)
    value = (cache["blocks.1.attn.hook_v"][2, 5, 0] @ model.W_O[1, 0]).detach()
    own = line(found, 1, 1, 0, "written")
    seen = values_of(own).reshape(inputs.shape)[2, 5]
    assert seen == pytest.approx(float(value.norm()), abs=own["error"] + 1e-5)


def test_effects_are_those_of_ablation(model, found) -> None:
    """All measured rows are shown here, so that the means that stand in are the same."""
    inputs, table = rows_of(found, 1), found.measured["shown-rows"]
    own = table[table["group"] == 1].sort_values(["row", "position"])
    mask = own["scored"].to_numpy().reshape(inputs.shape).copy()
    targets = torch.cat([inputs[:, 1:], inputs[:, :1]], 1)
    mask[:, -1] = False  # the last target lies outside the row
    batch = pl.Batch(inputs, targets, torch.from_numpy(mask))
    direct = pl.ablate(model, batch, [Component("head", 1, 0)])["score"].item()
    effect = line(found, 1, 1, 0, "effect")
    lost = values_of(effect).reshape(inputs.shape)
    seen = ((lost * mask).sum(1) / mask.sum(1)).mean()
    assert seen == pytest.approx(direct, abs=effect["error"] + 1e-4)
    scores = found.measured["shown-scores"]
    scores = scores[(scores["group"] == 1) & (scores["keys"] == "effect")]
    rises = scores[(scores["layer"] == 1) & (scores["head"] == 0)].sort_values("row")["score"]
    heads = found.heads[(found.heads["metric"] == "loss_increase") & (found.heads["layer"] == 1)]
    whole = heads[(heads["trial"] == "repeated") & (heads["head"] == 0)]["score"].item()
    assert rises.mean() == pytest.approx(whole, rel=1e-4)


def test_row_scores_average_to_the_attention_table(model, found) -> None:
    table = pl.attention.attention_table(model, rows_of(found, 1), batch=4)
    scores = found.measured["shown-scores"]
    scores = scores[scores["group"] == 1]
    for keys in ("previous", "after_same", "first"):
        same = (table["target"] == keys) & (table["null"] == "positions")
        for one in table[same].itertuples():
            own = scores[(scores["layer"] == one.layer) & (scores["head"] == one.head)]
            mean = np.nanmean(own.loc[own["keys"] == keys, "score"])
            assert mean == pytest.approx(one.score, abs=1e-6)


def test_raised_tokens_are_those_of_the_weights(model, found) -> None:
    table = found.measured["raised"]
    token = int(table["token"].iloc[0])
    with torch.no_grad():
        embedded = model.W_E[token] * model.blocks[1].ln1.w
        written = embedded @ model.W_V[1, 0] @ model.W_O[1, 0]
        logits = ((written - written.mean()) * model.ln_final.w) @ model.W_U
    logits = logits - logits.mean()
    best = logits.topk(5)
    own = table[(table["layer"] == 1) & (table["head"] == 0) & (table["token"] == str(token))]
    up = own[own["way"] == "up"].sort_values("rank")
    assert up["raised"].astype(int).tolist() == best.indices.tolist()
    np.testing.assert_allclose(up["logit"], best.values, rtol=1e-4)
    down = own[own["way"] == "down"].sort_values("rank")
    assert int(down["raised"].iloc[0]) == int(logits.argmin())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 1}, "rows must be at least 4"),
        ({"length": 3}, "length must be at least 12"),
        ({"prompts": ["a b"]}, "prompt must be token ids"),
        ({"prompts": ["99 1"]}, "must be 2 to 48 tokens below"),
        ({"profile": "speech"}, "profile must be one of task, language"),
        ({"rows": "none.jsonl"}, "data"),
    ],
)
def test_what_cannot_be_is_refused(model, options, words) -> None:
    with pytest.raises(ArgumentError, match=words):
        pl.inspect(model, **options)


def test_real_inputs_are_shown_as_numbers() -> None:
    assert token_texts(torch.tensor([[[1.0], [-0.25]]])) == (("1", "-0.25"),)
    assert token_texts(torch.arange(4.0).reshape(1, 1, 4)) == (("0,1,2…",),)
