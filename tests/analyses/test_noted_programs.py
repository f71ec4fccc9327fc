"""Programs that share notes: a head that hangs on a token further back is found again."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from analyses.benchmarks.heads_as_programs import overlap_and_kl
from analyses.benchmarks.help_texts import docstrings, further_rows
from analyses.benchmarks.noted_programs import NotedPrograms, Texts, fit_noted_programs, overlaps
from analyses.benchmarks.token_terms import TokenTerms, attention, fit_strengths

WORDS = ["<bos>", "\n", ".", ",", "7", " cat", " dog", " The", "ing", "(", " sees", " an"]


def _rows(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, len(WORDS), (rows, 20), generator=generator)
    tokens[:, 0] = 0
    return tokens


def _vocabulary(tokens: Tensor) -> TokenTerms:
    embedding = torch.randn(len(WORDS), 40, generator=torch.Generator().manual_seed(1))
    return TokenTerms(tokens, WORDS.__getitem__, embedding)


def _heads(tokens: Tensor) -> Tensor:
    """Two heads: both rest where the token two or three places back is a comma, a full stop or a
    digit; elsewhere one looks at the token before, the other at itself."""
    length = tokens.shape[1]
    even = torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]
    found = 0.1 * even.repeat(2, len(tokens), 1, 1)
    for r, row in enumerate(tokens.tolist()):
        for q in range(length):
            rests = any(row[back] in (2, 3, 4) for back in range(max(1, q - 3), q - 1))
            found[0, r, q, 0 if rests else max(q - 1, 0)] += 0.9
            found[1, r, q, 0 if rests else q] += 0.9
    return found


def test_a_head_that_hangs_on_a_token_further_back_is_found_on_other_texts() -> None:
    fit, judge = _rows(48, 0), _rows(24, 1)
    vocabulary = _vocabulary(fit)
    texts, others = Texts(vocabulary, fit), Texts(vocabulary, judge)
    programs = fit_noted_programs(texts, _heads(fit), notes=16, steps=250)
    said, seen = programs.attention(others), _heads(judge)
    assert torch.allclose(said.sum(-1), torch.ones(2, 24, 20), atol=1e-5)
    terms = vocabulary.terms(judge)
    strengths = fit_strengths(vocabulary.terms(fit), _heads(fit))
    for head in range(2):
        without = overlap_and_kl(seen[head], attention(terms, strengths[:, head]))[0]
        found = overlap_and_kl(seen[head], said[head])[0]
        assert found > 0.8 > without + 0.1
        assert float(overlaps(seen[head], said[head]).mean()) == pytest.approx(found)
    assert "·[lag 1]" in programs.words(texts, WORDS.__getitem__)[0]


def test_no_program_sees_what_comes_after_its_query() -> None:
    fit = _rows(6, 0)
    vocabulary = _vocabulary(fit)
    other = fit.clone()
    other[:, 12:] = _rows(6, 1)[:, 12:]
    torch.manual_seed(0)
    programs = NotedPrograms(Texts(vocabulary, fit), heads=3, notes=8)
    one, two = (programs.attention(Texts(vocabulary, rows)) for rows in (fit, other))
    assert torch.allclose(one[:, :, :12], two[:, :, :12], atol=1e-6)
    assert not torch.allclose(one[:, :, 12:], two[:, :, 12:], atol=1e-3)


def test_further_rows_have_no_dozen_tokens_in_a_row_with_judged_ones() -> None:
    spelling = SimpleNamespace(encode=lambda text, add_special_tokens: [*text.encode()])
    strings = [text for some in docstrings() for text in some]
    assert len(strings) > 500
    assert min(map(len, strings)) >= 150
    plain = further_rows(spelling, torch.zeros(1, 64, dtype=torch.long), bos=0)
    judged = plain[::7]
    rows = further_rows(spelling, judged, bos=0)
    assert len(rows) > 1000
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)
    assert bool((rows[:, 0] == 0).all())
    seen = {tuple(row[i : i + 12]) for row in judged.tolist() for i in range(1, 53)}
    for row in rows.tolist():
        assert not any(tuple(row[i : i + 12]) in seen for i in range(1, 53))
