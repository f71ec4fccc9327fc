"""``prooflens crasp`` from the outside."""

import io
import json
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest
import torch

from interp.models.checkpoint import load_checkpoint
from interp.program.parser import parse_program as parse

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


@pytest.mark.parametrize(
    ("words", "accepted"),
    [(["( ( ) )"], True), (["(", "(", ")"], False), (["( )", ")", "("], False)],
)
def test_tokens_are_one_input_however_they_are_given(dyck, told, words, accepted) -> None:
    assert told("crasp", dyck, *words) == f"{accepted}\n"


def test_tokens_that_the_program_does_not_name_are_told(dyck, run) -> None:
    note = "note: not among the program's tokens (( )), so none of them holds there: a z\n"
    assert astuple(run("crasp", dyck, "( a ) z a")) == (0, "True\n", note)
    assert run("crasp", dyck, "( )").err == ""


def test_another_program_accepts_the_same_strings_or_is_told_apart(
    dyck: Path, tmp_path: Path, told
) -> None:
    found = tmp_path / "program.txt"
    behind = 'behind = count(key.token == "(") < count(key.token == ")")'
    same = 'count(key.token == "(") == count(key.token == ")") && count(key.behind) == 0'
    found.write_text(f'{behind}\nnext = "1" if {same} else "0"\n')
    assert told("crasp", dyck, "--same-as", found) == "the same strings, of every length\n"
    other = tmp_path / "other.cr"
    other.write_text('same = # "(" == # ")"\n')
    assert told("crasp", dyck, "--same-as", other) == "they part, on no shorter string than: ) (\n"
    found = json.loads(told("crasp", dyck, "--same-as", other, "--json"))
    assert (found["same"], found["difference"]) == (False, [")", "("])


CASES = "( )\n\n// skipped ( )\n   \n( ( )\n\t( ) ( )\n) (\n"


def test_cases_come_from_a_file_or_standard_input(dyck, told, monkeypatch) -> None:
    cases = dyck.parent / "cases.txt"
    cases.write_text(CASES)
    assert told("crasp", dyck, "--file", cases) == "True\nFalse\nTrue\nFalse\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(CASES))
    assert told("crasp", dyck, "--file", "-") == "True\nFalse\nTrue\nFalse\n"


def test_check_tells_depth_alphabet_names_and_warnings(dyck, told) -> None:
    dyck.write_text(DYCK.replace("below == 0 && ", "") + "// end\n")
    assert told("crasp", dyck).splitlines() == [
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


def test_compile_writes_a_checkpoint_that_computes_the_program(dyck, told, refused) -> None:
    out = dyck.parent / "model"
    said = told("crasp", "--compile", dyck, "--out", out, "--longest", 6).splitlines()
    assert said[0].startswith("2 layers, width")
    assert said[1] == "exact for every string of 1 to 6 tokens, at every position after BOS"
    about = json.loads((out / "model.json").read_text())
    assert about["vocabulary"] == [None, "(", ")", None]
    assert parse(about["program"]) == parse(DYCK)
    model = load_checkpoint(out)
    answers = model(torch.tensor([[0, 1, 2, 1, 1, 2, 2]]))[0, 1:, 0]
    assert answers.tolist() == [0, 1, 0, 0, 0, 1]
    assert "exists" in refused("crasp", "--compile", dyck, "--out", out)
    signs = ("--compile", dyck, "--out", out, "--precision", "sign", "--overwrite")
    assert "the same weights are exact to" in told("crasp", *signs)
    assert load_checkpoint(out).spec.activation_of(0) == "pair_sign"


def test_mistakes_are_shown_with_a_caret(dyck, run) -> None:
    dyck.write_text('x = # "a" &&\ny = z\n')
    for command in ([dyck], [dyck, "a"]):
        ended = run("crasp", *command)
        error = ended.err.splitlines()
        assert ended.code == 2
        assert error[0] == f"prooflens: {dyck}: 2 mistakes"
        assert error[1].startswith(f"{dyck}:1:13: the line ends where")
        assert error[3] == " " * 16 + "^"
        assert error[6] == "        ^"
        assert len(error) == 7


def test_running_a_program_does_not_load_torch(dyck) -> None:
    code = (
        "import sys\nfrom prooflens.cli.main import app\n"
        f"app(['crasp', {str(dyck)!r}, '( )'], standalone_mode=False)\n"
        "print([name for name in ('torch', 'transformer_lens') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "[]"]


def test_a_compiled_program_is_read_off_its_folder(tmp_path: Path, told, refused) -> None:
    """It asked for rows, in which ids cannot be numbered as a compiled model's are."""
    program, back = tmp_path / "p.cr", tmp_path / "back.cr"
    program.write_text('n = # "a"\nsecond = # ("b" && n > 1)\nok = second > 0\n')
    folder = tmp_path / "compiled"
    told("crasp", program, "--compile", "--longest=12", "--out", folder)
    found = json.loads(told("decompile", folder, "--json"))
    assert found["agreement"] == 1.0
    back.write_text(found["program"])
    same = told("crasp", program, "--same-as", back)
    assert same.strip() == "the same strings, of every length"
    file = folder / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocabulary": "a b"}))
    assert "data must be given" in refused("decompile", folder)
