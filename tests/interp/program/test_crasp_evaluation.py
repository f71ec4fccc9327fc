"""The evaluator against the definition, one position at a time."""

from itertools import product

import numpy as np
import pytest
from crasp_trees import Parts, program_parts, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.program.decision_parser import parse as parse_decisions
from interp.program.evaluation import (
    NONE,
    Vocabulary,
    accepts,
    evaluate,
    evaluate_codes,
    keys,
    line_values,
)
from interp.program.parser import parse_program as parse
from interp.program.predicates import binary, unary
from interp.program.syntax import Program

STRINGS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=7), min_size=1, max_size=3)


@given(program_parts(), STRINGS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_line_has_its_defined_value_at_every_position(
    parts: Parts, strings: list[list[str]]
) -> None:
    program = Program(parts[0], imports=parts[1])
    run = evaluate(program, strings)
    for row, string in enumerate(strings):
        for line in program.lines:
            wanted = [value(program, line.expression, string, i) for i in range(len(string))]
            assert run.values[line.name][row, : len(string)].tolist() == wanted
            assert not run.values[line.name][row, len(string) :].any()
        last = program.lines[-1].expression
        assert run.accepted[row] == value(program, last, string, len(string) - 1)


DYCK = """
C_open = # "("
C_close = # ")"
below = # (C_open < C_close)
balanced = below == 0 && C_open == C_close
"""


def test_dyck_1_is_recognised_on_all_strings_up_to_ten_tokens() -> None:
    program = parse(DYCK)
    for length in range(1, 11):
        strings = ["".join(tokens) for tokens in product("()", repeat=length)]
        accepted = evaluate(program, strings).accepted
        for string, verdict in zip(strings, accepted, strict=True):
            rest, before = string, ""
            while rest != before:
                rest, before = rest.replace("()", ""), rest
            assert verdict == (rest == ""), string


def test_predicates_count_positions_from_zero() -> None:
    program = parse("#import pos_even\n#import pos_mod3\n#import pos_mod3_2\n"
                    "x = pos_even\ny = pos_mod3\nz = pos_mod3_2")  # fmt: skip
    run = evaluate(program, ["aaaaa"])
    assert run.values["x"].tolist() == [[True, False, True, False, True]]
    assert run.values["y"].tolist() == [[True, False, False, True, False]]
    assert run.values["z"].tolist() == [[False, False, True, False, False]]


def test_a_users_predicates() -> None:
    square = unary("square", lambda i: round(i**0.5) ** 2 == i)
    same = binary("same_half", lambda i, j: (i < 2) == (j < 2))
    program = parse(
        '#import square\n#import same_half\nn = #[same_half] "a"\ns = square && n > 0',
        [square, same],
    )
    run = evaluate(program, ["aabaa"])
    assert run.values["n"].tolist() == [[1, 2, 0, 1, 2]]
    assert run.values["s"].tolist() == [[True, True, False, False, True]]


def test_a_guard_cannot_reach_the_future() -> None:
    anywhere = binary("anywhere", lambda i, j: True)
    program = parse('#import anywhere\nn = #[anywhere] "a"', [anywhere])
    assert evaluate(program, ["aaa"]).values["n"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("sign", ["#", "#>"])
def test_the_keys_of_a_count_are_those_that_it_counts(sign: str) -> None:
    """In rows with BOS, one of which ends early."""
    program = parse_decisions(f'n = {sign} "a"\nnext = "a" if n == 1 else "b"')
    rows = np.array([[2, 0, 1, 0, 0], [2, 1, 0, 1, NONE]])
    vocabulary = Vocabulary(("a", "b", "<bos>"))
    found = keys([], program.lines[0].expression, rows, vocabulary)
    for row, query, key in np.ndindex(found.shape):
        seen = key <= query if sign == "#" else key >= query
        assert found[row, query, key] == (seen and rows[row, key] == 0)
    counted = line_values(program.lines, rows, vocabulary)["n"]
    assert counted.tolist() == found.sum(-1).tolist()


def test_the_future_ends_where_the_string_ends() -> None:
    run = evaluate(parse("n = #> true"), ["aaa", "a"])
    assert run.values["n"].tolist() == [[3, 2, 1], [1, 0, 0]]


def test_codes_and_tokens_agree() -> None:
    program = parse('n = 2 * # "a" - # "b"\nx = n > 0')
    codes = np.array([[1, 0, 2, -1], [0, 0, 1, 1]])
    by_code = evaluate_codes(program, codes, ["b", "a"], np.array([3, 4]))
    by_token = evaluate(program, ["abz", "bbaa"])
    for name in ("n", "x"):
        assert (by_code.values[name][:, :4] == by_token.values[name]).all()


def test_long_strings_are_counted_exactly() -> None:
    tokens = np.random.default_rng(0).integers(0, 2, (2, 3000))
    program = parse('#import pred7\nn = # "a"\nm = # (n > # "b")\ng = #[pred7] (n > 3)')
    run = evaluate_codes(program, tokens, ["b", "a"])
    a = b = m = 0
    held = []
    for i, token in enumerate(tokens[1]):
        a, b = a + token, b + 1 - token
        m += a > b
        held.append(a > 3)
        assert (run.values["n"][1, i], run.values["m"][1, i]) == (a, m)
        assert run.values["g"][1, i] == (i >= 7 and held[i - 7])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1000000000000 * (100000000 * # true)", "below 2\\^62"),
        ("x = 4000000000000 * 4000000000000 == 0", "below 2\\^62"),
    ],
)
def test_numbers_that_would_overflow_are_refused(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        evaluate(parse(text), ["aaa"])


def test_empty_strings_and_wrong_lengths_are_refused() -> None:
    program = parse('x = "a"')
    with pytest.raises(ArgumentError, match=r"strings\[1\] must have .*; strings\[2\] must"):
        evaluate(program, ["a", "", []])
    with pytest.raises(ArgumentError, match="lengths must lie in 1 … 2"):
        evaluate_codes(program, np.zeros((2, 2), dtype=np.int64), ["a"], np.array([1, 3]))


def test_a_program_that_ends_in_a_number_accepts_nothing() -> None:
    with pytest.raises(ArgumentError, match="last line must be a formula"):
        accepts(parse('n = # "a"'), "a")


def test_no_strings_give_no_answers() -> None:
    assert evaluate(parse('x = "a"'), []).accepted.tolist() == []
