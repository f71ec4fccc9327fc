"""Operators in Python give the trees of the text form."""

import jaxtyping
import pytest

from interp.errors import ArgumentError
from interp.program.dsl import (
    Boolean,
    Lines,
    Number,
    choose,
    count,
    false,
    holds,
    larger,
    smaller,
    sym,
    true,
)
from interp.program.parser import parse_program as parse
from interp.program.predicates import built_in

A, N = sym("a"), count(sym("a"))
PRED, EVEN = built_in("pred"), built_in("pos_even")


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (N >= 2, '# "a" >= 2'),
        (N < N + 1, '# "a" < # "a" + 1'),
        (1 - N <= 2 * N, '1 - # "a" <= 2 * # "a"'),
        (1 + N > N * -3, '1 + # "a" > -3 * # "a"'),
        (-N == N, '-# "a" == # "a"'),
        (N != 3 - (N - 1), '# "a" != 3 - (# "a" - 1)'),
        (N > 2, '# "a" > 2'),
        ((A | ~A) & (true | false), '("a" || !"a") && (true || false)'),
        (smaller(N, 2) == larger(1, N), 'min(# "a", 2) == max(1, # "a")'),
        (choose(A, 1, N) == 0, '(1 if "a" else # "a") == 0'),
        (count(A, future=True) == 1, '#> "a" == 1'),
        (count(A, guard=PRED) + 1, '#[pred] "a" + 1'),
        (holds(EVEN) & A, 'pos_even && "a"'),
    ],
)
def test_operators(built: Boolean | Number, text: str) -> None:
    lines = Lines(PRED, EVEN)
    lines.let("x", built)
    assert lines.program() == parse(f"#import pred\n#import pos_even\nx = {text}")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it: without the types that the tests check at run time."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: 1 < N < 3, "a < b < c"),
        (lambda: A and A, "combine with & | ~"),
        (lambda: A & 1, "must be a formula, got 1"),
        (lambda: N + A, "must be a number or an int"),
        (lambda: N + True, "must be a number or an int, got True"),
        (lambda: count("a"), "must be a formula, got 'a'"),
    ],
)
def test_what_python_would_read_otherwise_is_refused(build, said: str, unchecked: None) -> None:
    with pytest.raises(ArgumentError, match=said.replace("|", r"\|")):
        build()


def test_a_program_checks_its_names() -> None:
    lines = Lines()
    lines.let("x", sym("a"))
    lines.let("x", holds(EVEN) & (count(A, guard=PRED) > 0))
    with pytest.raises(ArgumentError) as caught:
        lines.program()
    said = str(caught.value)
    assert "name must be given once, got 'x'" in said
    assert "must be imported and take 1 position, got 'pos_even'" in said
    assert "must be imported and take 2 positions, got 'pred'" in said
    with pytest.raises(ArgumentError, match="at least one"):
        Lines().program()
