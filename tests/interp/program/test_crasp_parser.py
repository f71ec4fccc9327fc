"""Text and tree: round trips, precedence, and mistakes with their places."""

from pathlib import Path

import pytest
from crasp_trees import Parts, program_parts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.program.parser import ProgramError, read_program
from interp.program.parser import parse_program as parse
from interp.program.printer import program_text
from interp.program.syntax import Program

GOLDEN = Path(__file__).parent / "golden"
IMPORTS = "#import pred\n#import pos_even\n"


@given(program_parts())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_printed_is_read_back(parts: Parts) -> None:
    program = Program(parts[0], imports=parts[1])
    text = program_text(program)
    assert parse(text) == program
    assert program_text(parse(text)) == text


@pytest.mark.parametrize(
    ("short", "bracketed"),
    [
        ('"a" || "b" && "c"', '"a" || ("b" && "c")'),
        ('!"a" && "b"', '(!"a") && "b"'),
        ('"a" && "b" && "c"', '("a" && "b") && "c"'),
        ('"a" || "b" || "c"', '("a" || "b") || "c"'),
        ('# "a" == 0 && "b"', '((# "a") == 0) && "b"'),
        ('# !"a" > 1', "(# (!" + '"a")) > 1'),
        ("# pos_even + 1 > 0", "((# pos_even) + 1) > 0"),
        ("1 - 2 - 3 == 0", "((1 - 2) - 3) == 0"),
        ("1 - 2 + 3 == 0", "((1 - 2) + 3) == 0"),
        ("2 * # true + 1 < 3", "((2 * (# true)) + 1) < 3"),
        ("2 * 3 * # true < 3", "(2 * (3 * (# true))) < 3"),
        ("-2 * # true < 3", "((-2) * (# true)) < 3"),
        ("-# true < 3", "(-(# true)) < 3"),
        ('1 + 1 if "a" else 2 + 2 < 3', '((1 + 1) if "a" else (2 + 2)) < 3'),
        ('1 if "a" else 2 if "b" else 3 < 4', '(1 if "a" else (2 if "b" else 3)) < 4'),
        ('1 if "a" || # true < 2 else 2 < 4', '(1 if ("a" || ((# true) < 2)) else 2) < 4'),
        ('#[pred] "a" + 1 >= 2', '((#[pred] "a") + 1) >= 2'),
        ('#> "a" >= 2', '(#> "a") >= 2'),
        ('# # "a" == 1', None),
    ],
)  # fmt: skip
def test_precedence(short: str, bracketed: str | None) -> None:
    if bracketed is None:
        with pytest.raises(ProgramError, match="a formula is needed"):
            parse(f"x = {short}")
    else:
        assert parse(f"{IMPORTS}x = {short}") == parse(f"{IMPORTS}x = {bracketed}")


def test_brackets_that_do_not_matter_go() -> None:
    assert program_text(parse('x = (("a") && ((("b"))))')) == 'x = "a" && "b"\n'
    assert program_text(parse('x = # ("a" && "b") > (2 - 1)')) == 'x = # ("a" && "b") > 2 - 1\n'


def test_layout_is_free_within_a_line() -> None:
    plain = parse('n = # "a"\nx = n >= 2')
    crowded = '\ufeff\r\n// say\r\nn=#"a"//count\r\n\r\n\tx\t=\tn>=2  // "quoted" && more'
    assert parse(crowded.removeprefix("\ufeff")) == plain


def test_a_quoted_token_may_hold_anything_but_quotes() -> None:
    for token in ("//", "#", "&&", "∀", "a b", "\\", "'"):
        program = parse(f'x = "{token}" // comment')
        assert program_text(program) == f'x = "{token}"\n'
    assert parse("iffy = true\nminimum = iffy").lines[1].name == "minimum"


def test_mistakes_are_told_all_at_once_as_in_the_stored_file() -> None:
    source = (GOLDEN / "mistakes.cr").read_text()
    with pytest.raises(ProgramError) as caught:
        parse(source, name="mistakes.cr")
    assert str(caught.value) + "\n" == (GOLDEN / "mistakes.txt").read_text()


def test_a_mistake_knows_its_place() -> None:
    with pytest.raises(ProgramError) as caught:
        parse('\n\tx = "a" && missing\ny = x && (')
    first, second = caught.value.mistakes
    assert (first.line, first.column, first.width) == (2, 13, 7)
    assert first.report("f").splitlines()[-1] == "    \t           ^^^^^^^"
    assert (second.line, second.column) == (3, 11)


def test_what_follows_from_a_mistake_is_not_told_again() -> None:
    with pytest.raises(ProgramError) as caught:
        parse("a = 1 +\nb = a\nc = b + 1\nd = nowhere\ne = d && b == 2\n#import nope\nf = nope")
    assert [mistake.line for mistake in caught.value.mistakes] == [1, 4, 6]


@given(st.text(alphabet='ab"#()&|!<=>+-*/ \n1if,[]else', max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_program_or_a_program_error(text: str) -> None:
    try:
        program = parse(text)
    except ProgramError as error:
        lines = text.split("\n")
        for mistake in error.mistakes:
            assert lines[mistake.line - 1] == mistake.source
            assert 1 <= mistake.column <= len(mistake.source) + 1
    else:
        assert parse(program_text(program)) == program


def test_deep_nesting_is_refused_in_words() -> None:
    parse("x = " + "(" * 5000 + "true" + ")" * 5000)
    parse("x = " + "!" * 59 + "true")
    for deep in ("!" * 80 + "true", "0" + " + 1" * 5000 + " > 0"):
        with pytest.raises(ProgramError, match="give parts of it names") as caught:
            parse("x = " + deep)
        assert len(caught.value.mistakes) == 1


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "x.cr"
    path.write_bytes(b'\xef\xbb\xbfx = "a"\r\n')
    assert read_program(path) == parse('x = "a"')
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match="not UTF-8"):
        read_program(path)
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        read_program(tmp_path / "none.cr")
