"""Right answers in the place of a model: what one layer with positions could decide can be said."""

from dataclasses import replace

import numpy as np

from interp.program.evaluation import NONE, Vocabulary, run
from interp.program.printer import program_text
from probes.decompile.decisions import decide
from probes.decompile.features import bracket_lines
from probes.decompile.primitives import primitives
from probes.decompile.rows import TokenRows
from probes.decompile.search import Candidate, candidates


def scored_programs(rows: TokenRows, layers: int = 1) -> list[tuple[float, Candidate]]:
    """Programs for a model that decides as the labels say, with how often each decides so."""
    assert rows.labels is not None
    truth = rows.labels[rows.asked]
    fetched = [(-1, one) for one in primitives(rows, deep=layers > 1)]
    return [
        (float((decide(run(one.program, rows.tokens, rows.vocabulary), rows) == truth).mean()), one)
        for one in candidates(rows, truth, fetched, layers=layers)
    ]


def test_as_many_of_one_as_of_the_other_is_said_in_so_many_words() -> None:
    rng, words = np.random.default_rng(0), ("a", "b", "y", "n", "<bos>", "<eos>")
    tokens, labels = (np.full((60, 26), NONE) for _ in range(2))
    for row, label in zip(tokens, labels, strict=True):
        n = int(rng.integers(4, 24))
        row[: n + 2] = [4, *rng.integers(2, size=n), 5]
        ones = np.cumsum(row[1 : n + 1])
        label[1 : n + 1] = np.where(2 * ones == np.arange(1, n + 1), 2, 3)
    rows = TokenRows(tokens, labels != NONE, labels, Vocabulary(words), "next token")
    right, first = next(each for each in scored_programs(rows) if each[0] == 1.0)
    assert right == 1.0
    text = program_text(first.program)
    assert 'count(key.token == "a") == count(key.token == "b")' in text.replace("!=", "==")
    assert "%" not in text


def test_sorting_with_repeats_compares_counts_before_and_after_the_separator() -> None:
    rng, words = np.random.default_rng(1), ("0", "1", "2", "3", "<bos>", "<sep>", "<eos>")
    tokens, labels = (np.full((80, 29), NONE) for _ in range(2))
    for row, label in zip(tokens, labels, strict=True):
        x = rng.integers(4, size=int(rng.integers(2, 13)))
        n = len(x)
        row[: 2 * n + 3] = [4, *x, 5, *np.sort(x), 6]
        label[n + 1 : 2 * n + 2] = [*np.sort(x), 6]
    rows = TokenRows(tokens, labels != NONE, labels, Vocabulary(words), "next token")
    right, best = max(scored_programs(rows), key=lambda each: each[0])
    assert right > 0.97
    assert "count(key.token == token && !key.after_sep)" in program_text(best.program)


def nested_brackets(rng: np.random.Generator, count: int) -> TokenRows:
    """Brackets of two kinds, nested at most three deep, and which may follow."""
    words = ("(", ")", "[", "]", "<bos>", "<eos>")
    tokens, labels = np.full((count, 24), NONE), np.zeros((count, 24, 6), dtype=bool)
    for row, label in zip(tokens, labels, strict=True):
        open_: list[int] = []
        row[0], place, wanted = 4, 1, int(rng.integers(2, 17))
        while True:
            may = [*([0, 2] if len(open_) < 3 else []), *([open_[-1] + 1] if open_ else [5])]
            label[place - 1, may] = 1
            if place > wanted and not open_:
                break
            picked = int(rng.choice([code for code in may if code != 5]))
            row[place], place = picked, place + 1
            open_ = open_[:-1] if picked % 2 else [*open_, picked]
            if place > wanted and open_:
                for code in reversed(open_):
                    label[place - 1, code + 1] = 1
                    label[place - 1, [0, 2]] = len(open_) < 3
                    row[place], place, open_ = code + 1, place + 1, open_[:-1]
                label[place - 1, [0, 2, 5]] = 1
                break
        row[place] = 5
    asked = (tokens != NONE) & (tokens != 5)
    return TokenRows(tokens, asked, labels, Vocabulary(words), "sets")


def test_nested_brackets_are_said_by_the_innermost_that_is_open() -> None:
    rows = nested_brackets(np.random.default_rng(2), 80)
    right, first = next(each for each in scored_programs(rows, layers=2) if each[0] == 1.0)
    assert right == 1.0
    text = program_text(first.program)
    assert 'allow ")" if opened == "("' in text
    assert 'allow "(" if depth <= 2' in text
    one = {line.name for _, c in scored_programs(rows) for line in c.program.lines}
    assert "opened" not in one, "two counts deep takes two layers"


def test_no_balance_is_seen_where_rows_do_not_come_back() -> None:
    rng = np.random.default_rng(3)
    rows = nested_brackets(rng, 40)
    assert bracket_lines(rows) is not None
    tokens = rows.tokens.copy()
    tokens[0, 1:4] = [0, 0, 5]
    tokens[0, 4:] = NONE
    assert bracket_lines(replace(rows, tokens=tokens)) is None
    letters = np.where(rows.tokens < 4, rng.integers(4, size=tokens.shape), rows.tokens)
    assert bracket_lines(replace(rows, tokens=np.where(rows.tokens < 0, NONE, letters))) is None
