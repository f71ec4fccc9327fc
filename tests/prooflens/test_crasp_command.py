"""``prooflens crasp`` from the outside."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from interp.models.checkpoint import load_checkpoint
from interp.program.parser import parse_program as parse
from prooflens.cli.main import app, main

DYCK = """// one kind of brackets
open = # "("
close = # ")"
below = # (open < close)
balanced = below == 0 && open == close
"""


@pytest.fixture
def dyck(tmp_path: Path) -> Path:
    path = tmp_path / "dyck.cr"
    path.write_text(DYCK)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["prooflens", "crasp", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_tokens_are_one_input_however_they_are_given(dyck, monkeypatch, capsys) -> None:
    for words, wanted in (
        (["( ( ) )"], True),
        (["(", "(", ")"], False),
        (["( )", ")", "("], False),
    ):
        assert run(monkeypatch, dyck, *words) == 0
        assert capsys.readouterr().out == f"{wanted}\n"


def test_tokens_that_the_program_does_not_name_are_told(dyck, monkeypatch, capsys) -> None:
    assert run(monkeypatch, dyck, "( a ) z a") == 0
    said = capsys.readouterr()
    assert said.out == "True\n"
    told = "note: not among the program's tokens (( )), so none of them holds there: a z\n"
    assert said.err == told
    assert run(monkeypatch, dyck, "( )") == 0
    assert capsys.readouterr().err == ""


def test_another_program_accepts_the_same_strings_or_is_told_apart(
    dyck: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    found = tmp_path / "program.txt"
    behind = 'behind = count(key.token == "(") < count(key.token == ")")'
    same = 'count(key.token == "(") == count(key.token == ")") && count(key.behind) == 0'
    found.write_text(f'{behind}\nnext = "1" if {same} else "0"\n')
    assert run(monkeypatch, dyck, "--same-as", found) == 0
    assert capsys.readouterr().out == "the same strings, of every length\n"
    other = tmp_path / "other.cr"
    other.write_text('same = # "(" == # ")"\n')
    assert run(monkeypatch, dyck, "--same-as", other) == 0
    assert capsys.readouterr().out == "they part, on no shorter string than: ) (\n"
    assert run(monkeypatch, dyck, "--same-as", other, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["same"], told["difference"]) == (False, [")", "("])


CASES = "( )\n\n// skipped ( )\n   \n( ( )\n\t( ) ( )\n) (\n"


def test_cases_come_from_a_file_or_standard_input(dyck, monkeypatch, capsys) -> None:
    cases = dyck.parent / "cases.txt"
    cases.write_text(CASES)
    assert run(monkeypatch, dyck, "--file", cases) == 0
    assert capsys.readouterr().out == "True\nFalse\nTrue\nFalse\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(CASES))
    assert run(monkeypatch, dyck, "--file", "-") == 0
    assert capsys.readouterr().out == "True\nFalse\nTrue\nFalse\n"


def test_check_tells_depth_alphabet_names_and_warnings(dyck, monkeypatch, capsys) -> None:
    dyck.write_text(DYCK.replace("below == 0 && ", "") + "// end\n")
    assert run(monkeypatch, dyck) == 0
    assert capsys.readouterr().out.splitlines() == [
        "depth     1",
        "counts    the past only",
        "alphabet  ( )",
        "imports   (none)",
        "name      open, depth 1",
        "name      close, depth 1",
        "name      below, depth 2",
        "name      balanced, depth 1",
        "warning   below: not used by the last line balanced",
        "warning   below: deeper than the last line, whose depth counts",
    ]


def test_compile_writes_a_checkpoint_that_computes_the_program(dyck, monkeypatch, capsys) -> None:
    out = dyck.parent / "model"
    assert run(monkeypatch, "--compile", dyck, "--out", out, "--longest", 6) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("2 layers, width")
    assert said[1] == "exact for every string of 1 to 6 tokens, at every position after BOS"
    about = json.loads((out / "model.json").read_text())
    assert about["vocabulary"] == [None, "(", ")", None]
    assert parse(about["program"]) == parse(DYCK)
    model = load_checkpoint(out)
    answers = model(torch.tensor([[0, 1, 2, 1, 1, 2, 2]]))[0, 1:, 0]
    assert answers.tolist() == [0, 1, 0, 0, 0, 1]
    assert run(monkeypatch, "--compile", dyck, "--out", out) == 2
    assert "exists" in capsys.readouterr().err
    signs = ("--compile", dyck, "--out", out, "--precision", "sign", "--overwrite")
    assert run(monkeypatch, *signs) == 0
    assert "the same weights are exact to" in capsys.readouterr().out
    assert load_checkpoint(out).spec.activation_of(0) == "pair_sign"


def test_mistakes_are_shown_with_a_caret(dyck, monkeypatch, capsys) -> None:
    dyck.write_text('x = # "a" &&\ny = z\n')
    for command in ([dyck], [dyck, "a"]):
        assert run(monkeypatch, *command) == 2
        error = capsys.readouterr().err.splitlines()
        assert error[0] == f"prooflens: {dyck}: 2 mistakes"
        assert error[1].startswith(f"{dyck}:1:13: the line ends where")
        assert error[3] == " " * 16 + "^"
        assert error[6] == "        ^"
        assert len(error) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{file}", "--out", "x"), "--out is not for a program that is not compiled"),
        (("{file}", "a", "--compile"), "--compile, got 'TOKENS and --compile': keep one"),
        (
            ("{file}", "a", "--file", "x"),
            "what to do must be one of TOKENS, --file CASES, --same-as",
        ),
        (("{file}", " "), "input must hold a line with tokens"),
        (("{file}", "--file", "/nowhere.txt"), "/nowhere.txt cannot be read: No such file"),
        (("/nowhere.cr", "a"), "/nowhere.cr cannot be read: No such file"),
        (("--compile", "{file}", "--out", "{folder}/m", "--longest", "0"), "longest must be at"),
        (("--compile", "{file}", "--out", "{folder}/m", "--precision", "x"), "of 'ramp', 'sign'"),
        (("--compile", "{number}", "--out", "{folder}/m"), "program must end with a formula"),
        (("{folder}",), "cannot be read: Is a directory"),
        (("{number}", "a"), "last line must be a formula"),
    ],
)
def test_refusals_are_one_line_and_code_two(words, said, dyck, monkeypatch, capsys) -> None:
    number = dyck.parent / "number.cr"
    number.write_text('n = # "a"\n')
    places = {"file": dyck, "folder": dyck.parent, "number": number}
    assert run(monkeypatch, *(word.format(**places) for word in words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert said in error


def test_running_a_program_does_not_load_torch(dyck) -> None:
    code = (
        "import sys\nfrom prooflens.cli.main import app\n"
        f"app(['crasp', {str(dyck)!r}, '( )'], standalone_mode=False)\n"
        "print([name for name in ('torch', 'transformer_lens') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "[]"]


def test_a_compiled_program_is_read_off_its_folder(tmp_path: Path) -> None:
    """It asked for rows, in which ids cannot be numbered as a compiled model's are."""
    program = tmp_path / "p.cr"
    program.write_text('n = # "a"\nsecond = # ("b" && n > 1)\nok = second > 0\n')
    folder = str(tmp_path / "compiled")
    CliRunner().invoke(app, ["crasp", str(program), "--compile", "--longest=12", "--out", folder])
    done = CliRunner().invoke(app, ["decompile", folder, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["agreement"] == 1.0
    (tmp_path / "back.cr").write_text(told["program"])
    same = CliRunner().invoke(app, ["crasp", str(program), "--same-as", str(tmp_path / "back.cr")])
    assert same.stdout.strip() == "the same strings, of every length"
    file = tmp_path / "compiled" / "model.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "vocabulary": "a b"}))
    refused = CliRunner().invoke(app, ["decompile", folder])
    assert "data must be given" in str(refused.exception)
