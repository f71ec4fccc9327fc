"""Programs cut down: the same strings, fewer parts."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.program.decision_parser import parse
from interp.program.evaluation import evaluate
from interp.program.parser import parse_program
from interp.program.reduction import smallest
from interp.program.syntax import Program

WORDS = [list(word) for n in range(1, 8) for word in product("ab", repeat=n)]
_ATOMS = (
    *('"a"', "true", '# "a" >= 2', '# "a" > # "b"', '# ("a" && # "b" >= 1) == 0'),
    *('# "a" - # "b" <= 0', '# "b" - # "a" >= 1'),
)


def formulas() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(_ATOMS),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(("&&", "||")), inner).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            inner.map(lambda of: f"!({of})"),
        ),
        max_leaves=5,
    )


@given(formulas())
@settings(max_examples=40, deadline=None)
def test_what_is_left_accepts_the_same_strings(text: str) -> None:
    program = parse_program(f'unused = # "b"\nanswer = {text}')
    found = smallest(program, letters="ab")
    assert found.nodes < program.nodes
    assert [line.name for line in found.lines] == ["answer"]
    own, cut = (evaluate(one, WORDS).accepted for one in (program, found))
    assert own.tolist() == cut.tolist()
    assert smallest(found, letters="ab") == found


@pytest.mark.parametrize(
    ("wordy", "plain"),
    [
        ('x = # "a" > 1 && # "a" >= 2', 'x = # "a" > 1'),
        ('x = "a" && true || false', 'x = "a"'),
        ('x = # "a" >= # "b" || # "a" - # "b" < 0', "x = true"),
        ('n = # "a"\nx = n >= 1 || n >= 3', 'n = # "a"\nx = n >= 1'),
        ('x = # ("b" && # "a" >= 1) >= 1 && # "b" >= 1', 'x = # ("b" && # "a" >= 1) >= 1'),
    ],
)
def test_what_changes_nothing_goes(wordy: str, plain: str) -> None:
    assert smallest(parse_program(wordy), letters="ab").nodes == parse_program(plain).nodes


def test_a_language_that_is_written_briefly_stays() -> None:
    brief = parse_program('below = # (# "(" < # ")")\nx = below == 0 && # "(" == # ")"')
    assert smallest(brief).nodes == brief.nodes


def test_a_program_that_decides_is_cut_and_keeps_its_form() -> None:
    text = """
    n = count(key.token == "a")
    next = "1" if n >= 2 && n >= 1 && count(key.token == "b") >= 0 else "0"
    """
    found = smallest(parse(text))
    assert isinstance(found, Program)
    assert found == parse('n = count(key.token == "a")\nnext = "1" if n >= 2 else "0"')


def test_what_is_not_decided_is_refused() -> None:
    with pytest.raises(ArgumentError, match="whose strings are decided"):
        smallest(parse('next = last(key.token where key.token == "a")'))
