"""The language of programs: text and trees, and its meaning against loops over positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError, ProoflensError
from interp.program.decision_parser import parse
from interp.program.evaluation import NONE, Vocabulary, line_values, run
from interp.program.evaluation import evaluate as evaluate_counts
from interp.program.parser import ProgramError
from interp.program.parser import parse_program as parse_counts
from interp.program.printer import program_text
from interp.program.syntax import (
    Allow,
    And,
    Assignment,
    Choice,
    Comparison,
    Constant,
    CountWhere,
    Key,
    Literal_,
    Name,
    Next,
    Not,
    Operation,
    Or,
    Pick,
    Position,
    Program,
    Table,
    Token,
    Truth,
)

WORDS = Vocabulary(("a", "b", "<bos>", "<sep>"))
NUMBERS = Vocabulary(("<bos>", "3", "1", "2", "<sep>"))

tokens = st.sampled_from([Token(), Literal_("a"), Literal_("b")])
terms = st.recursive(
    st.one_of(st.integers(-3, 9).map(Constant), st.just(Position())),
    lambda inner: st.one_of(
        st.builds(Operation, st.sampled_from("+-*%"), inner, inner),
        st.builds(CountWhere, st.builds(Comparison, st.just("=="), st.just(Key("token")), tokens)),
    ),
    max_leaves=6,
)
formulas = st.recursive(
    st.one_of(
        st.builds(Comparison, st.sampled_from(["==", "!=", "<", ">="]), terms, terms),
        st.builds(Comparison, st.sampled_from(["==", "!="]), tokens, tokens),
        st.booleans().map(Truth),
    ),
    lambda inner: st.one_of(
        st.builds(Not, inner), st.builds(And, inner, inner), st.builds(Or, inner, inner)
    ),
    max_leaves=8,
)
picks = st.builds(
    Pick,
    st.sampled_from(["first", "last", "least", "greatest", "commonest", "rarest"]),
    st.just(Key("token")),
    st.builds(Comparison, st.sampled_from(["==", ">", "<"]), st.just(Key("token")), tokens),
)


@given(formulas, terms, picks)
@settings(max_examples=150, deadline=None)
def test_what_is_printed_is_read_back(formula, term, pick) -> None:
    lines = (Assignment("n", term), Assignment("p", pick))
    allowed = Program(lines, (Allow("a", formula),))
    assert parse(program_text(allowed)) == allowed
    chosen = Program(lines, (Next(Choice(Name("p"), formula, Token())),))
    assert parse(program_text(chosen)) == chosen


def test_parts_of_programs_that_count_are_read_back() -> None:
    text = """#import pred2
#import pos_even
n = #[pred2] ("a" && pos_even)
m = min(# !"b", 2 * # true) - #> "a"
next = "a" if "b" || n >= 1 && m != 0 else "b"
"""
    assert program_text(parse(text)) == text
    with pytest.raises(ProgramError, match="there is no predicate prod: there are pred, predN"):
        parse("#import prod\nnext = token")


def test_tables_are_read_back_and_looked_up() -> None:
    table = Table((Token(),), ((("a",), Literal_("b")),), Literal_("a"))
    program = Program((), (Next(table),))
    assert parse(program_text(program)) == program
    assert program.unnamed == 1
    assert run(program, np.array([[0, 1, 2]]), WORDS).chosen.tolist() == [[1, 0, 0]]


def test_counts_are_those_of_counting_programs() -> None:
    ours = parse(
        'd = count(key.token == "a") - count(key.token == "b")\n'
        "deep = count(key.d >= 2)\n"
        'allow "a" if deep >= 1 && d == 0'
    )
    theirs = parse_counts('d = #"a" - #"b"\ndeep = #(d >= 2)\nanswer = deep >= 1 && d == 0')
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (40, 11))
    found = run(ours, rows, WORDS).allowed[..., 0]
    expected = evaluate_counts(theirs, [["ab"[c] for c in row] for row in rows]).values["answer"]
    assert np.array_equal(found, expected)


def test_picks_are_those_of_a_loop() -> None:
    program = parse(
        "before = last(key.token where key.position == position - 1)\n"
        "next = first(key.token where key.before == token)"
    )
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 3, (30, 9))
    found = run(program, rows, WORDS).chosen
    for row, told in zip(rows, found, strict=True):
        for i, token in enumerate(row):
            after = [row[j] for j in range(1, i + 1) if row[j - 1] == token]
            assert told[i] == (after[0] if after else NONE)


def test_numbers_are_ordered_by_size_and_words_come_before_them() -> None:
    program = parse("s = least(key.token where key.token > token)\nnext = s")
    rows = np.array([[0, 1, 2, 3, 4, 2, 3, 1]])  # <bos> 3 1 2 <sep> 1 2 3
    told = [NUMBERS.texts[c] if c >= 0 else "none" for c in run(program, rows, NUMBERS).chosen[0]]
    assert told == ["none", "none", "3", "3", "1", "2", "3", "none"]
    after = parse('next = "<sep>" if token + 1 == none else token + 1')
    told = [NUMBERS.texts[c] for c in run(after, rows, NUMBERS).chosen[0]]
    assert told == ["<sep>", "<sep>", "2", "3", "<sep>", "2", "3", "<sep>"]


def test_averages_and_scores() -> None:
    program = parse(
        'n = count(key.token == "b")\nshare = average(key.n where true)\n'
        'score "a" = 1\nscore "b" = share'
    )
    found = run(program, np.array([[1, 1, 1, 1]]), WORDS).chosen
    assert found.tolist() == [[0, 1, 1, 1]]  # averages 1, 1.5, 2, 2.5; the first of equals wins


def test_padding_is_never_looked_at() -> None:
    program = parse('allow "a" if count(true) >= 3')
    rows = np.array([[0, 0, 0, NONE], [0, 0, NONE, NONE]])
    allowed = run(program, rows, WORDS).allowed[..., 0]
    assert allowed.tolist() == [[False, False, True, True], [False, False, False, False]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('allow "a" if token =! "b"', "program:1:20: unexpected"),
        ("d = count(key.token == )\nnext = token", "program:1:24: unexpected"),
        ("d = 1", "nothing is decided"),
        ("next = first(key.token where", "ends too early"),
        ("next = key.token", "must stand in a condition .* write it without key"),
        ("next = before", "must be an earlier line"),
        ('allow "a" if 1 + 2', "must be a truth"),
        ('allow "a" if true\nallow "a" if false', "must have one output"),
        ('allow "a" if true\nnext = token', "must be allow lines"),
        ("token = 1\nnext = token", "must be given once"),
        ('allow "a" if token == 1', "must compare values of one kind"),
    ],
)
def test_mistakes_and_programs_without_meaning_are_refused(text: str, said: str) -> None:
    with pytest.raises(ProoflensError, match=said):
        parse(text)


def test_a_token_that_the_rows_do_not_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must all be in the vocabulary, got 'c'"):
        run(parse('allow "c" if true'), np.zeros((1, 2), dtype=np.int64), WORDS)


def test_the_commonest_and_rarest_tokens_are_counted() -> None:
    """Against counting by hand; of equally many the first in the vocabulary."""
    program = parse(
        'c = commonest(key.token where key.token != "x")\n'
        'r = rarest(key.token where key.token != "x")\n'
        "next = c"
    )
    words = Vocabulary(("a", "b", "x"))
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (30, 9))
    found = line_values(program.lines, rows, words)
    for row, most, least in zip(rows, found["c"], found["r"], strict=True):
        for end in range(9):
            times = [int((row[: end + 1] == code).sum()) for code in (0, 1)]
            there = [code for code in (0, 1) if times[code]]
            assert most[end] == (max(there, key=lambda c: (times[c], -c)) if there else NONE)
            assert least[end] == (min(there, key=lambda c: (times[c], c)) if there else NONE)


def test_tokens_that_write_whole_numbers_are_ordered_by_size() -> None:
    words = Vocabulary(("10", "²", "--5", "-3", "a"))
    assert words.numbers == {0: 10, 3: -3}
    assert words.order.tolist() == [4, 0, 1, 3, 2]
