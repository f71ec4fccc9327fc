"""Heads of language models as programs: measures against slow loops, kept tables against sums."""

from math import log
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from analyses.benchmarks.heads_as_programs import (
    PICTURE,
    kept_tables,
    main,
    overlap_and_kl,
    pieces,
    sample_rows,
    texts,
    trivial_patterns,
)
from prooflens.errors import ArgumentError


def test_overlap_and_kl_agree_with_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = (torch.rand(2, 5, 5, generator=generator).tril() + 1e-3).tril()
    said = (torch.rand(1, 5, 5, generator=generator).tril() + 1e-3).tril()
    seen, said = seen / seen.sum(-1, keepdim=True), said / said.sum(-1, keepdim=True)
    shared = kl = 0.0
    for row in range(2):
        for query in range(1, 5):
            p, q = seen[row, query].tolist(), said[0, query].tolist()
            both = [(a, b) for a, b in zip(p, q, strict=True) if a > 0]
            shared += sum(min(a, b) for a, b in both) / sum(max(a, b) for a, b in both) / 8
            kl += sum(a * log(a / b) for a, b in both) / 8
    assert overlap_and_kl(seen, said) == pytest.approx((shared, kl))
    assert overlap_and_kl(seen, seen) == pytest.approx((1.0, 0.0), abs=1e-6)


def test_trivial_patterns_are_attention() -> None:
    for pattern in trivial_patterns(6).values():
        assert torch.equal(pattern.sum(-1), torch.ones(1, 6))
        assert torch.equal(pattern, pattern.tril())
    assert trivial_patterns(6)["previous"][0, 4, 3] == 1


def test_texts_to_fit_on_and_to_judge_on_share_no_topic() -> None:
    spelling = SimpleNamespace(encode=lambda text, add_special_tokens: [*text.encode()])
    fit, judge = (texts(spelling, 6, 40, odd=odd, bos=0) for odd in (False, True))
    assert fit.shape == judge.shape == (6, 40)
    assert not {tuple(row) for row in fit.tolist()} & {tuple(row) for row in judge.tolist()}
    assert bool((fit[:, 0] == 0).all())


def test_a_text_is_cut_into_pieces_and_too_short_a_one_is_refused() -> None:
    spelling = SimpleNamespace(encode=lambda text, add_special_tokens: [*text.encode()])
    assert pieces(spelling, "abcdefg", 2, 4, bos=1).tolist() == [[1, *b"abc"], [1, *b"def"]]
    assert pieces(spelling, "abcdefg", 1, 7, bos=None).tolist() == [[*b"abcdefg"]]
    with pytest.raises(ArgumentError, match=r"rows must be at most 2: .* got 3"):
        pieces(spelling, "abcdefg", 3, 4, bos=1)
    with pytest.raises(ArgumentError, match=r"rows must be at most 0: "):
        texts(spelling, 3, 10**9, odd=False, bos=1)


def test_rows_that_a_model_makes_up_follow_its_predictions() -> None:
    """One that predicts the next id alone counts up; rows come again, and no state moves."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=12, hidden_size=16, intermediate_size=8, num_hidden_layers=0,
        num_attention_heads=2, tie_word_embeddings=False, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(12, 16))
        model.lm_head.weight.copy_(50 * torch.eye(12, 16).roll(1, 0))
    before = torch.random.get_rng_state()
    bridge = SimpleNamespace(original_model=model)
    rows = sample_rows(bridge, 3, 6, bos=2)
    assert rows.tolist() == [[2, 3, 4, 5, 6, 7]] * 3
    assert torch.equal(sample_rows(bridge, 3, 6, bos=2), rows)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_options_are_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(ArgumentError, match=r"rows must be .* length must be .* window must be"):
        main("no such model", rows=0, length=1, window=-1)
    with pytest.raises(ArgumentError, match=r"judge .*no-such-text"):
        main("no such model", judge=Path("no-such-text"))


def test_kept_tables_say_what_their_heads_say() -> None:
    tables = kept_tables()
    assert {one["model"] for one in tables} <= {"gemma3-270m", "smollm2-135m"}
    for found in tables:
        heads = found["heads"]
        assert len(heads) == {"gemma3-270m": 72, "smollm2-135m": 270}[found["model"]]
        assert sorted(head["place"] for head in heads) == [*range(len(heads))]
        mean = sum(head["overlap"] for head in heads) / len(heads)
        assert found["overlap"] == pytest.approx(mean, abs=1e-3)
        assert mean > found["trivial"]
        assert found["resting"] == sum(head["first"] > 0.5 for head in heads)
        start, quarter = found["curve"][0], found["curve"][2]
        assert quarter["share"] == 0.25
        rise = quarter["perplexity"] / start["perplexity"] - 1
        assert found["quarter"] == pytest.approx(rise, abs=1e-3)
        assert found["quarter_low"] <= found["quarter"] <= found["quarter_high"]
        of_it = [head for head in heads if head["place"] < quarter["heads"]]
        assert found["quarter_resting"] == sum(head["first"] > 0.5 for head in of_it)
    assert PICTURE.exists()
