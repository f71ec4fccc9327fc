"""What is said about programs, and the programs of L_k."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from interp.errors import ArgumentError
from interp.program.analysis import analyse, depth, depths, is_past_only, used_names
from interp.program.evaluation import evaluate
from interp.program.languages import prediction_program
from interp.program.parser import parse_program as parse


def test_depth_follows_names_and_takes_the_largest() -> None:
    program = parse(
        'zero = "a" && !"b"\n'
        "one = # zero\n"
        'mixed = min(one, 2 * # ("b" && one > 1)) if zero else 3\n'
        "three = # (mixed == 2) - one\n"
        "answer = three > 0 || zero\n"
    )
    assert list(depths(program).values()) == [0, 1, 2, 3, 3]
    assert depth(program) == 3
    assert depth(parse('deep = # (# "a" > 0)\nx = "a"')) == 0


def test_direction_and_names() -> None:
    program = parse('n = # "a"\nm = n\nx = # "b" > 1\ny = m > 1')
    assert used_names(program) == {"n", "m", "y"}
    assert is_past_only(program)
    assert not is_past_only(parse('y = # (#> "a" > 0) > 1'))


def test_findings_hold_every_warning() -> None:
    program = parse(
        "#import pred\n#import pred2\n#import pos_even\n"
        'idle = # (# "zz" > 0)\ntoken = "a b" || "" || "b" || pos_even\nlast = #[pred2] token'
    )
    found = analyse(program)
    assert (found.depth, found.past_only) == (1, True)
    assert found.alphabet == ("", "a b", "b", "zz")
    assert found.names == {"idle": 2, "token": 0, "last": 1}
    assert found.warnings == (
        "idle: not used by the last line last",
        "idle: deeper than the last line, whose depth counts",
        "pred: imported and not used",
        '"", "a b": holds white space or nothing, so no token of a line equals it',
        "last, the last line, is a number: it accepts nothing",
    )
    assert analyse(parse('x = "a"')).warnings == ()


def blocks(lengths: list[int]) -> tuple[str, list[bool]]:
    """A string of L_k, and where its last block has begun."""
    string = "".join("ab"[i % 2] * n for i, n in enumerate(lengths))
    return string, [i >= sum(lengths[:-1]) for i in range(len(string))]


def short_strings(k: int, longest: int) -> Iterator[list[int]]:
    """Block lengths of all strings of L_k up to a length."""
    for length in range(k, longest + 1):
        for cuts in combinations(range(1, length), k - 1):
            ends = (0, *cuts, length)
            yield [ends[i + 1] - ends[i] for i in range(k)]


@pytest.mark.parametrize("k", range(2, 13))
def test_the_prediction_program_is_right_on_all_short_and_random_long_strings(k: int) -> None:
    program = prediction_program(k)
    assert depth(program) == k - 2
    assert program.lines[-1].name == "last"
    generator = np.random.default_rng(k)
    long = [list(map(int, generator.integers(1, 40, k))) for _ in range(100)]
    cases = [blocks(lengths) for lengths in (*short_strings(k, k + 4), *long)]
    run = evaluate(program, [string for string, _ in cases])
    for row, (string, wanted) in enumerate(cases):
        assert run.values["last"][row, : len(string)].tolist() == wanted


def test_k_must_leave_a_block_to_predict() -> None:
    with pytest.raises(ArgumentError, match="k must be at least 2, got 1"):
        prediction_program(1)
