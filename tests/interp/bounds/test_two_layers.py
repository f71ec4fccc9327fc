"""Bounds of two attention layers against every row, one by one."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.bounds.affine import Arithmetic
from interp.bounds.two_layers import count_right, least_ratio, not_two_layers, too_many
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.catalogue import construct
from interp.tasks.relation import TokenRelation
from interp.tasks.template import TemplateTask

SYMBOLS = np.arange(5)
PATTERN = [0, 1, 2, 3, 1]  # αβγδβ
SPEC: dict[str, Any] = {"d_in": 5, "d_out": 5, "n_ctx": 5, "d_model": 8, "n_layers": 2}
SPEC |= {"d_head": 4, "score": "dot", "positions": "learned"}


@given(st.integers(0, 10**6), st.sampled_from((0.1, 1.0, 5.0)))
def test_the_least_ratio_is_that_of_all_choices(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    options = rng.integers(1, 5, size=rng.integers(1, 5)).tolist()
    looks = [np.exp(size * rng.normal(size=(2, n))) for n in options]
    values = [size * rng.normal(size=(2, n)) for n in options]
    least = np.full(2, np.inf)
    for choice in product(*map(range, options)):
        w, v = (
            np.stack([part[:, at] for part, at in zip(all_, choice, strict=True)])
            for all_ in (looks, values)
        )
        least = np.minimum(least, (w * v).sum(0) / w.sum(0))
    found = least_ratio(looks, values, 0.0, Arithmetic())
    assert (found <= least + 1e-9 * size).all()
    np.testing.assert_allclose(found, least, atol=1e-6 * size)


def shaken(seed: int, size: float, heads: Any) -> Any:
    model = SequenceTransformer(TransformerSpec(**SPEC, n_heads=heads), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return model.double()


def margins(model: Any, rows: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """By running the model."""
    with torch.no_grad():
        logits = model(torch.tensor(rows))[:, -1].numpy()
    own = logits[np.arange(len(rows)), answers]
    logits[np.arange(len(rows)), answers] = -np.inf
    return np.asarray(own - logits.max(-1))


@pytest.mark.parametrize("heads", [1, 2, (2, 1)])
@pytest.mark.parametrize("size", [0.02, 0.3, 1.0])
def test_no_more_rows_are_right_than_the_model_answers_rightly(heads: Any, size: float) -> None:
    each = np.array(list(permutations(SYMBOLS, 4)))[:, PATTERN]
    cells = np.full((25, 4), -1)
    cells[:, 1], answers = np.repeat(SYMBOLS, 5), np.tile(SYMBOLS, 5)
    for seed in range(2):
        model = shaken(seed, size, heads)
        found = count_right(model, SYMBOLS, [(PATTERN, cells, answers)], Arithmetic())
        truth = np.concatenate([margins(model, each, np.full(120, a)) for a in SYMBOLS])
        assert found.rows == len(truth) == 600
        assert 0 < sum(found.right) <= (truth > 0).sum()
        # Cells are split until every row is known, so only margins near zero may be missed.
        assert size == 1.0 or (truth > 0.05).sum() <= sum(found.right)


def test_a_cell_is_no_better_than_its_worst_row() -> None:
    """Of open cells alone: some are proved, and none that has a wrong row."""
    rows = np.array(list(permutations(SYMBOLS, 4)))[:, PATTERN]
    pairs = np.array(list(permutations(SYMBOLS, 2)))
    cells = np.full((len(pairs), 4), -1)
    cells[:, 1:3] = pairs
    proved = right = 0
    for seed in range(6):
        model = shaken(seed, 0.05, 1 + seed % 2)
        with torch.no_grad():  # the direct path copies the last token, which the rest may spoil
            model.W_U[:] = 9 * torch.linalg.pinv(model.W_E) + model.W_U
            for block in model.blocks:
                block.attn.W_O *= 0.3
        found = count_right(model, SYMBOLS, [(PATTERN, cells, pairs[:, 0])], Arithmetic())
        truth = margins(model, rows, rows[:, 1])
        least = [truth[(rows[:, 1:3] == pair).all(1)].min() for pair in pairs]
        assert found.right[0] <= 6 * sum(low > 0 for low in least)
        proved, right = proved + found.right[0], right + 6 * sum(low > 0 for low in least)
    assert proved > 0.5 * right


def test_the_construction_of_induction_is_proved_without_a_split() -> None:
    model = construct(TokenRelation("induction", "copy")).model
    texts = ("^αβγδα", "^αβγδβ", "^αβγδγ")
    task = TemplateTask(texts, ("β", "γ", "δ"), (0, 12), (12, 24))
    assert task.length <= model.spec.n_ctx
    symbols = np.array(task.symbols)
    found = count_right(model, symbols, task.by_last_and_answer(), Arithmetic())
    assert found.cells == (3 * 12 * 11,)
    assert sum(found.right) == found.rows == 3 * 12 * 11 * 10 * 9
    assert found.elsewhere.max() < 0.01


def test_what_is_not_covered_is_named() -> None:
    spec = TransformerSpec(**SPEC | {"n_layers": 1, "ffn": (4,), "norm": "layernorm"})
    words = not_two_layers(SequenceTransformer(spec))
    assert words == "two attention layers need two layers, no FFN, no norm"
    many = SequenceTransformer(TransformerSpec(**SPEC | {"d_in": 300, "d_out": 300}))
    assert not not_two_layers(many)
    assert too_many(many, 300)
    assert not too_many(many, 30)


def blank_model(**options: Any) -> Any:
    spec = TransformerSpec(**SPEC | {"n_ctx": 3, "n_heads": 1, "dtype": "float64"} | options)
    model = SequenceTransformer(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, : spec.d_in] = torch.eye(spec.d_in)
    return model


def test_what_cancels_inside_of_products_of_weights_is_not_lost() -> None:
    """2^60 + 1 − 2^60 is 0 in floating point."""
    cells = np.array([[a, 0, -1] for a in range(1, 5)])
    for bias in ("b_V", "b_O"):
        model, large = blank_model(), 2.0**60
        with torch.no_grad():
            attn, parts = model.blocks[1].attn, torch.tensor([large, 1.0, -large])
            if bias == "b_V":
                attn.b_V[0, 0] = 1.0
                attn.W_O[0, 0, 5:8] = parts
            else:
                attn.b_O[5:8] = parts
            model.unembed.W_U[5:8, 0] = -1.0
            model.unembed.b_U[0] = 0.5  # less than what is taken away
        listed = ([1, 2, 0], cells, np.zeros(4, dtype=int))
        assert sum(count_right(model, SYMBOLS, [listed], Arithmetic()).right) == 0


def test_a_query_that_cancels_against_a_key_is_not_taken_for_a_score() -> None:
    for angle in (0.3, 0.8, 1.2):
        model = blank_model(d_head=2, d_in=3, d_out=3, positions="none", d_model=5)
        with torch.no_grad():
            model.embed.W_E[0, 3] = 1.0
            first, second = (block.attn for block in model.blocks)
            first.W_V[0, 0, 0], first.W_O[0, 0, 3] = 1.0, 1e-30
            c, s = np.cos(angle) * 1e9, np.sin(angle) * 1e9
            second.b_Q[0] = torch.tensor([c, s])
            second.W_K[0, 3] = torch.tensor([-s, c])  # at right angles: all scores are equal
            second.W_V[0, 0, 0], second.W_O[0, 0, 4] = 1.0, 1.0
            model.unembed.W_U[4, 0], model.unembed.b_U[0] = 1.0, -0.5  # right if above a half
        listed = ([0, 1, 2], np.array([[0, 1, 2]]), np.array([0]))
        assert sum(count_right(model, np.arange(3), [listed], Arithmetic()).right) == 0


def test_weights_near_the_smallest_numbers_stand_for_nothing() -> None:
    looks = [np.exp(np.array([[0.0, -800.0]])), np.exp(np.array([[-744.5]]))]
    values = [np.array([[0.0, 5.0]]), np.array([[-0.4]])]
    assert least_ratio(looks, values, 0.0, Arithmetic())[0] <= -0.4


def test_weights_that_are_no_numbers_are_refused_in_words() -> None:
    model = blank_model()
    with torch.no_grad():
        model.blocks[1].attn.W_K[0, 0, 0] = torch.nan
    assert "finite numbers" in not_two_layers(model)
