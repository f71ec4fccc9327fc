"""The same strings of every length: against all strings up to a length, and languages by hand."""

from itertools import product

import numpy as np
import pytest

import prooflens as pl
from interp.errors import ArgumentError
from interp.program.decision_parser import parse
from interp.program.equivalence import shortest_difference
from interp.program.evaluation import evaluate
from interp.program.parser import parse_program
from interp.program.syntax import Program

BLOCKS = 'as = # "a"\nbs = # "b"\ncs = # "c"\nsoon = # ("a" && bs + cs >= 1) + # ("b" && cs >= 1)\n'


def language(name: str) -> Program:
    return pl.tasks.language(name).membership


def first_apart(one: Program, other: Program, letters: str, longest: int) -> int | None:
    """The length of the shortest string that both do not answer alike, by running both."""
    for n in range(1, longest + 1):
        strings = list(product(letters, repeat=n))
        said = [evaluate(program, strings).accepted for program in (one, other)]
        if not np.array_equal(*said):
            return n
    return None


@pytest.mark.parametrize(
    ("one", "other", "letters"),
    [
        (language("dyck-1"), 'o = # "("\nc = # ")"\nb = # (o < c)\nm = b <= 1 && o == c', "()"),
        (language("dyck-1"), 'm = # "(" == # ")"', "()"),
        (language("dyck-1"), 'o = # "("\nc = # ")"\nb = # (o < c)\nm = b == 0 && o <= c', "()"),
        (language("dyck-1"), 'o = # "("\nm = # (o < # ")") < 1 && o == # ")" && o < 5', "()"),
        (language("majority"), 'm = # "a" > # "b"', "ab"),
        (language("majority"), 'm = 3 * # "a" > 2 * # "b"', "ab"),
        (language("majority"), 'm = # "a" > # "b" && # ("a" && # "b" >= 3) != 4', "ab"),
        (language("L_3"), 'm = # ("a" && # ("b" && # "a" >= 1) >= 1) >= 1', "ab"),
        (language("L_3"), language("L_4"), "ab"),
        (language("anbncn"), BLOCKS + "m = soon == 0 && as == bs && bs == cs && cs >= 2", "abc"),
        (language("anbncn"), BLOCKS + "m = soon == 0 && as == bs && bs == cs && cs >= 1", "abc"),
        (language("anbncn"), BLOCKS + "m = as == bs && bs == cs && cs >= 1", "abc"),
        ('m = # "a" > max(# "b", # "c")', 'm = # "a" > # "b" && # "a" > # "c"', "abc"),
        ('m = # "a" > (# "b" if # "c" < 2 else # "c")', 'm = # "a" > # "b"', "abc"),
        ('m = # "a" > # "b" && # "a" > # "c"', 'm = # "a" > # "b" + # "c"', "abc"),
        ('m = true', 'm = # "a" - # "b" != 4 || # ("a" && # "a" < # "b") != 2', "ab"),
    ],
)  # fmt: skip
def test_as_running_both_on_every_string_says(
    one: Program | str, other: Program | str, letters: str
) -> None:
    if isinstance(one, str):
        one = parse_program(one)
    if isinstance(other, str):
        other = parse_program(other)
    longest = 12 if len(letters) == 2 else 8
    found = shortest_difference(one, other, letters=tuple(letters))
    told = first_apart(one, other, letters, longest)
    if told is not None:
        assert found is not None
        assert len(found) == told
    else:
        assert found is None or len(found) > longest
    if found is not None:
        assert evaluate(one, [found]).accepted[0] != evaluate(other, [found]).accepted[0]


@pytest.mark.parametrize("k", [1, 60])
def test_where_they_part_only_on_long_strings(k: int) -> None:
    """Both are Dyck-1, one no deeper than k: they part at k + 1 brackets that open."""
    text = f'o = # "("\nc = # ")"\nbad = # (o < c) + # (o - c > {k})\nm = bad == 0 && o == c'
    assert shortest_difference(language("dyck-1"), parse_program(text)) == (
        *("(" for _ in range(k + 1)),
        *(")" for _ in range(k + 1)),
    )


def test_several_differences_part_only_on_long_strings() -> None:
    text = BLOCKS + "m = soon == 0 && as == bs && bs == cs && cs >= 1 && as <= 4"
    found = shortest_difference(language("anbncn"), parse_program(text))
    assert found == tuple("a" * 5 + "b" * 5 + "c" * 5)
    text = 'm = # "a" {} 2 * # "b" && # "c" > 9'
    one, other = (parse_program(text.format(sign)) for sign in (">", ">="))
    assert len(shortest_difference(one, other) or ()) == 10


def test_programs_that_decide_count_bos() -> None:
    text = 'behind = count(key.token == "(") < count(key.token == ")")\n'
    same = 'count(key.token == "(") == count(key.token == ")")'
    found = parse(f'{text}next = "1" if {same} && count(key.behind) == 0 else "0"')
    assert shortest_difference(language("dyck-1"), found) is None
    assert shortest_difference(found, language("dyck-1").deciding("1", "0")) is None
    three = parse('next = "1" if count(key.token != "a") >= 3 else "0"')  # BOS is no a either
    for least, apart in ((2, None), (3, ("b", "b"))):
        one = parse_program(f'm = # (!"a") >= {least}')
        assert shortest_difference(one, three, letters="ab") == apart


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('#import pred\nm = #[pred] "a" == 1', "got Count"),
        ('m = #> "a" >= 1', "got Count"),
        ('#import pos_even\nm = # (pos_even && "a") > 1', "got Holds"),
        ('m = # (# "a" > # "b") > # (# "b" > # "c")', "got 3 of which 2 are"),
    ],
)
def test_what_is_not_decided_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        shortest_difference(language("majority"), parse_program(text))


def test_what_picks_a_position_is_refused() -> None:
    picks = parse('next = "1" if last(key.token where key.position == 1) == "a" else "0"')
    with pytest.raises(ArgumentError, match="tokens, counts of the past and comparisons"):
        shortest_difference(language("majority"), picks)
