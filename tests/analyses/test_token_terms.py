"""Programs over tokens: kinds against spellings, terms against loops, planted heads found again."""

import pytest
import torch
from torch import Tensor

from analyses.benchmarks.heads_as_programs import overlap_and_kl
from analyses.benchmarks.token_terms import (
    KINDS,
    Terms,
    TokenTerms,
    attention,
    fit_strengths,
    kind_of,
    program_words,
)

WORDS = ["<bos>", "\n", ".", ",", "7", " cat", " dog", " The", "ing", "(", " sees", " an"]


@pytest.mark.parametrize(("word", "kind"), [
    (" cat", "word"), ("ing", "piece"), (" The", "Capital word"), ("The", "Capital piece"),
    (".\n", "line break"), ("   ", "space"), ("42", "digit"), (" (", "open"), ("__", "sign"),
])  # fmt: skip
def test_kinds_of_tokens(word: str, kind: str) -> None:
    assert kind_of(word) == kind
    assert kind in KINDS


def _vocabulary(rows: int, length: int, seed: int) -> tuple[TokenTerms, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, len(WORDS), (rows, length), generator=generator)
    tokens[:, 0] = 0
    embedding = torch.randn(len(WORDS), 40, generator=torch.Generator().manual_seed(1))
    return TokenTerms(tokens, WORDS.__getitem__, embedding), tokens


def test_terms_agree_with_loops() -> None:
    vocabulary, tokens = _vocabulary(3, 12, seed=0)
    terms = vocabulary.terms(tokens)
    column = {name: terms.values[..., i] for i, name in enumerate(terms.names)}
    for r, row in enumerate(tokens.tolist()):
        for q in range(12):
            for k in range(q + 1):
                seen = row[:q]
                newline = max((i for i in range(q) if row[i] == 1), default=-1)
                said = {
                    "lag 2": float(q - k == 2),
                    "the first": float(k == 0),
                    "word": float(kind_of(WORDS[row[k]]) == "word"),
                    "equal": float(k < q and row[k] == row[q]),
                    "followed an equal": float(k > 0 and row[k - 1] == row[q]),
                    "the latest line break": float(k == newline),
                    "in its line": float(1 not in row[k:q]),
                    "the first, if the query is seen before": float(k == 0 and row[q] in seen),
                }
                for name, value in said.items():
                    assert float(column[name][r, q, k]) == value, (name, r, q, k)


@pytest.fixture(scope="module")
def planted() -> tuple[TokenTerms, Terms, Tensor, Terms, Tensor]:
    """Two heads, made by loops: one looks at the latest line break, one at the token before, unless
    the query is a full stop, which rests."""
    vocabulary, fit = _vocabulary(12, 24, seed=2)
    judge = _vocabulary(12, 24, seed=3)[1]
    return vocabulary, vocabulary.terms(fit), _heads(fit), vocabulary.terms(judge), _heads(judge)


def _heads(tokens: Tensor) -> Tensor:
    rows, length = tokens.shape
    found = torch.zeros(2, rows, length, length)
    for r, row in enumerate(tokens.tolist()):
        for q in range(length):
            newline = max((i for i in range(q) if row[i] == 1), default=0)
            before = 0 if row[q] == 2 else max(q - 1, 0)
            for head, key in enumerate((newline, before)):
                found[head, r, q, key] += 0.8
                found[head, r, q, : q + 1] += 0.2 / (q + 1)
    return found


def test_planted_heads_are_found_again_on_other_texts(
    planted: tuple[TokenTerms, Terms, Tensor, Terms, Tensor],
) -> None:
    vocabulary, fit, patterns, judge, others = planted
    strengths = fit_strengths(fit, patterns)
    for head, words in enumerate(("the latest line break", "lag 1")):
        said = attention(judge, strengths[:, head])
        assert torch.allclose(said.sum(-1), torch.ones(12, 24), atol=1e-5)
        assert overlap_and_kl(others[head], said)[0] > 0.8
        assert overlap_and_kl(others[1 - head], said)[0] < 0.5
        assert f"[{words}]" in program_words(fit, strengths[:, head], vocabulary)


def test_a_term_of_each_heads_own_has_a_strength_of_its_own(
    planted: tuple[TokenTerms, Terms, Tensor, Terms, Tensor],
) -> None:
    _, fit, heads, _, _ = planted
    logs = heads.clamp_min(1e-6).log()
    strengths = fit_strengths(fit, heads, logs)
    assert strengths.shape == (len(fit.names) + 1, 2)
    plain = fit_strengths(fit, heads)
    for number, (head, log) in enumerate(zip(heads, logs, strict=True)):
        without = overlap_and_kl(head, attention(fit, plain[:, number]))[1]
        assert overlap_and_kl(head, attention(fit, strengths[:, number], log))[1] < without / 2
        assert strengths[-1, number] > 0.5
