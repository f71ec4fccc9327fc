"""Bounds of two attention layers against every row, one by one."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.bounds.affine import Arithmetic
from interp.bounds.two_layers import answered, least_ratio, not_two_layers, too_many
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
        found = answered(model, SYMBOLS, [(PATTERN, cells, answers)], Arithmetic())
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
        found = answered(model, SYMBOLS, [(PATTERN, cells, pairs[:, 0])], Arithmetic())
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
    found = answered(model, symbols, task.by_last_and_answer(), Arithmetic())
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
