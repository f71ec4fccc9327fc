from dataclasses import replace

import pytest
import torch

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import Array, Mean, Replace, Run, Site, by_length, head_sites, next_tokens
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=5, d_out=5, n_ctx=7, d_model=8, n_layers=1, n_heads=2, d_head=4, positions="learned"
)
MODEL = SequenceTransformer(SPEC)
TOKENS = torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(0))


def test_ids_are_a_batch_of_next_tokens() -> None:
    run = Run(MODEL, TOKENS)
    assert torch.equal(run.batch.targets[:, :-1], TOKENS[:, 1:])
    assert run.batch.mask[:, :-1].all()
    assert not run.batch.mask[:, -1].any()
    same = Run(MODEL, TOKENS.tolist()).value()
    assert torch.equal(same, run.value())
    told = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    assert torch.equal(Run(MODEL, told).value(), run.value())


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (TOKENS + 3, r"inputs must be ids from 0 to 4, got \(3, 7\)"),
        (TOKENS - 1, r"inputs must be ids from 0 to 4, got \(-1, 3\)"),
        (TOKENS.repeat(1, 2), "inputs must have at most 7 positions, as the model, got 12"),
        (
            TOKENS.float(),
            r"rows must be a Batch, or token ids .* of torch.float32: ids are integers",
        ),
        (TOKENS[:0], "inputs must be .* with a row at least"),
        (TOKENS[0], r"rows must be a Batch, or token ids .* got Tensor of shape \(6,\)"),
        (["a text"], r"rows must be a Batch, or token ids .* got \['a text'\]"),
        ({"input_ids": TOKENS, "pixels": 1}, r"batch must be input_ids .* got \['pixels'\]"),
        (Batch(TOKENS, TOKENS[:, 1:], TOKENS > -1), "targets must begin with"),
        (Batch(TOKENS, TOKENS, TOKENS > 9), "mask must be boolean, and score a position"),
        (Batch(TOKENS, TOKENS + 9, TOKENS > -1), "targets must be from 0 to 4"),
    ],
)
def test_rows_that_the_model_cannot_take_end_at_the_gate(batch: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Run(MODEL, batch)


def test_all_problems_are_named_at_once() -> None:
    rows = Batch(TOKENS.repeat(1, 2) + 5, TOKENS, TOKENS > -1)
    with pytest.raises(ArgumentError) as caught:
        Run(MODEL, rows)
    assert [name for name, _ in caught.value.problems] == ["inputs", "inputs", "targets", "mask"]


def test_pads_are_refused_and_can_be_stripped() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    with pytest.raises(ArgumentError, match="attention_mask must be all ones, got '4 zeros'"):
        Run(MODEL, TOKENS, attention_mask=mask)
    found = {tuple(rows.tolist()): tokens for rows, tokens in by_length(TOKENS, mask)}
    assert torch.equal(found[0,], TOKENS[:1])
    assert torch.equal(found[1, 2], torch.stack((TOKENS[1, 2:], TOKENS[2, :4])))
    for rows, tokens in by_length(TOKENS, mask):
        assert Run(MODEL, tokens).value().shape == (len(rows), tokens.shape[1])
    with pytest.raises(ArgumentError, match="one stretch of ones"):
        list(by_length(TOKENS, torch.tensor([[1, 0, 1, 1, 1, 1]] * 3)))


def test_numbers_that_are_not_finite_are_named() -> None:
    run = Run(MODEL, TOKENS)
    bad = Array(torch.full((1, 1, 4), float("nan")), "spoilt values")
    with pytest.raises(ArgumentError, match="the model with L0H1: spoilt values gives numbers"):
        run.rise(Replace(Site(0, "z", 1), bad))
    spoilt = SequenceTransformer(SPEC)
    spoilt.blocks[0].attn.W_O.data[0, 0, 0] = torch.inf
    with pytest.raises(ArgumentError, match=r"first at blocks\.0"):
        Run(spoilt, TOKENS).value()


def test_real_inputs_must_be_finite() -> None:
    model = SequenceTransformer(replace(SPEC, input="real", positions="none"))
    rows = torch.randn(2, 4, 5)
    rows[0, 1, 2] = torch.nan
    with pytest.raises(ArgumentError, match="inputs must be finite"):
        Run(model, Batch(rows, rows, torch.ones(2, 4, dtype=torch.bool)))


def test_a_training_model_is_run_in_evaluation_mode_and_left_as_it_was() -> None:
    model = SequenceTransformer(SPEC)
    model.train()
    run = Run(model, TOKENS)
    rise = run.rise(Mean(head_sites(model)[0]))
    assert model.training
    assert torch.equal(rise, Run(model.eval(), TOKENS).rise(Mean(head_sites(model)[0])))


def test_next_tokens_are_scored_from_a_position_on() -> None:
    assert next_tokens(TOKENS, start=4).mask.sum() == 3
