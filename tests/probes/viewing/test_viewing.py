"""A page's numbers are those that the other doors give, and quantising costs what it says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import prooflens as pl
from interp.errors import ArgumentError
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component
from probes.viewing.model import quantisation_error, view_model
from probes.viewing.quantised import quantised
from probes.viewing.sequences import choose_rows, token_texts

SHARES = arrays(np.float64, (3, 4), elements=st.floats(0, 1))
ANY = arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32))


@given(SHARES)
def test_shares_are_off_by_half_a_code_at_most(values) -> None:
    found = quantised(values, shares=True)
    assert (found.low, found.step) == (0.0, 1 / 255)
    worst = float(np.abs(found.values() - values).max())
    assert worst == pytest.approx(found.error)
    assert worst <= 1 / 510 + 1e-12


@given(ANY)
def test_other_numbers_have_their_own_range(values) -> None:
    found = quantised(values)
    assert found.error <= found.step / 2 + 1e-9
    assert np.abs(found.values() - values).max() <= found.error + 1e-9
    assert found.low == pytest.approx(values.min())


def test_attention_without_a_normaliser_keeps_its_signs() -> None:
    found = quantised(np.array([-2.0, 0.5, 3.0]), shares=True)
    assert found.step == pytest.approx(5 / 255)
    np.testing.assert_allclose(found.values(), [-2, 0.5, 3], atol=found.error + 1e-12)


@pytest.fixture(scope="module")
def model():
    return pl.load("induction-attention")


@pytest.fixture(scope="module")
def viewed(model):
    chosen = choose_rows(model, rows=12, prompts=["3 4 5 3 4", "7,8,9,7"])
    return view_model(model, chosen)


def test_a_model_that_continues_its_inputs_is_tried_on_random_tokens(viewed) -> None:
    kinds = [rows.kind for rows in viewed.shown]
    assert kinds == ["task", "repeated", "shuffled", "prompt", "prompt"]
    assert viewed.shown[3].texts == (("0", "3", "4", "5", "3", "4"),)  # BOS in front


def test_patterns_are_the_models_within_the_stated_error(model, viewed) -> None:
    for rows, seen in zip(viewed.shown, viewed.seen, strict=True):
        _, cache = model.run_with_cache(rows.batch.inputs)
        for (layer, head), own in seen.heads.items():
            true = cache[f"blocks.{layer}.attn.hook_pattern"][:, head].detach().numpy()
            assert np.abs(own.pattern.values() - true).max() <= own.pattern.error + 1e-7
            assert own.pattern.error <= 1 / 510 + 1e-7
    assert 0 < quantisation_error(viewed) <= 1 / 510 + 1e-7


def test_norms_are_of_what_would_be_read_from_a_key(model, viewed) -> None:
    rows, seen = viewed.shown[0], viewed.seen[0]
    _, cache = model.run_with_cache(rows.batch.inputs)
    value = (cache["blocks.1.attn.hook_v"][2, 5, 0] @ model.W_O[1, 0]).detach()
    own = seen.heads[1, 0].written
    assert own.values()[2, 5] == pytest.approx(float(value.norm()), abs=own.error + 1e-5)


def test_effects_are_those_of_ablation(model, viewed) -> None:
    rows, effects = viewed.shown[1], viewed.effects[1]
    table = ablate(model, rows.batch, [Component("head", 1, 0)])
    assert effects.by_row[1, 0].mean() == pytest.approx(float(table["score"].iloc[0]), rel=1e-4)
    own, mask = effects.by_position[1, 0], rows.batch.mask.numpy()
    mean = (own.values() * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(mean, effects.by_row[1, 0], atol=own.error + 1e-6)
    assert viewed.effects[3].how == "zero"  # a row that is alone has no mean to give
    assert effects.how == "mean"


def test_row_scores_average_to_the_attention_table(model, viewed) -> None:
    rows = viewed.shown[1]
    table = pl.attention_table(model, rows.batch.inputs, batch=4)
    for keys in ("previous", "after_same", "first"):
        same = (table["target"] == keys) & (table["null"] == "positions")
        for line in table[same].itertuples():
            own = viewed.seen[1].heads[line.layer, line.head].masses[keys]
            assert np.nanmean(own) == pytest.approx(line.score, abs=1e-6)


def test_raised_tokens_are_those_of_the_weights(model, viewed) -> None:
    token = viewed.raised.tokens[0]
    with torch.no_grad():
        embedded = model.W_E[token] * model.blocks[1].ln1.w
        written = embedded @ model.W_V[1, 0] @ model.W_O[1, 0]
        logits = ((written - written.mean()) * model.ln_final.w) @ model.W_U
    logits = logits - logits.mean()
    best = logits.topk(5)
    up, down = viewed.raised.up[1, 0][0], viewed.raised.down[1, 0][0]
    assert [place for place, _ in up] == best.indices.tolist()
    np.testing.assert_allclose([size for _, size in up], best.values, rtol=1e-4)
    assert down[0][0] == int(logits.argmin())


def test_roles_are_those_of_find_roles(viewed) -> None:
    held = {(r.layer, r.head, r.role): r.status for r in viewed.roles.itertuples()}
    assert held[1, 0, "induction"] == "confirmed"
    assert held[0, 0, "previous-token"] == "confirmed"


def test_an_untrained_model_has_nothing_to_show() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_head": 8, "n_ctx": 24, "ffn": (16,)}
    spec = pl.TransformerSpec(d_in=20, d_out=20, input="tokens", positions="learned", **sizes)
    model = pl.SequenceTransformer(spec).eval()
    viewed = view_model(model, choose_rows(model, rows=8, length=24))
    assert viewed.roles.empty
    assert viewed.heads == ((0, 0), (0, 1), (1, 0), (1, 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 1}, "rows must be at least 4"),
        ({"length": 3}, "length must be at least 12"),
        ({"prompts": ["a b"]}, "prompts must be token ids"),
        ({"prompts": ["99 1"]}, "must be 2 to 48 tokens below"),
    ],
)
def test_rows_that_cannot_be_are_refused(model, options, words) -> None:
    with pytest.raises(ArgumentError, match=words):
        choose_rows(model, **options)


def test_real_inputs_are_shown_as_numbers() -> None:
    assert token_texts(torch.tensor([[[1.0], [-0.25]]])) == (("1", "-0.25"),)
    assert token_texts(torch.arange(4.0).reshape(1, 1, 4)) == (("0,1,2…",),)
