"""The command as its user meets it: help, versions, and one clear line for every refusal."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked_calls import RECIPE
from typer.testing import CliRunner

from prooflens.cli import main as cli


def prooflens(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a user has it."""
    code = "from prooflens.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_help_lists_the_commands_without_loading_anything_heavy() -> None:
    heavy = "('torch', 'numpy', 'transformer_lens', 'pandas', 'matplotlib', 'h5py')"
    code = (
        "import sys; from prooflens.cli.main import app\n"
        "try: app(['--help'])\n"
        f"except SystemExit: print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("demo", "extract", "store", "train", "weights"):
        assert f"\n  {command}" in done.stdout


def test_the_version_tells_what_is_installed() -> None:
    output = CliRunner().invoke(cli.app, ["--version"]).output
    assert output.startswith("prooflens ")
    for word in ("python", "torch", "transformer-lens", "device", "threads", "ray"):
        assert word in output


REFUSED = [
    ("demo --out folder", "exists"),
    ("demo --out folder --overwrite", "holds other things and no .prooflens-demo"),
    ("demo --out file/x", "cannot write to"),
    ("inspect folder --out folder/new", "is neither a store (no manifest.json)"),
    ("inspect coupling-order-rnn", "RNN has no attention heads"),
    ("inspect depth-L3-layers0", "depth-L3-layers0 has no attention heads"),
    ("inspect none --task no_such", "kind must be one of"),
    ("inspect induction-attention --out folder", "exists: choose another name"),
    ("inspect induction-attention --out folder --resume", "holds nothing to resume, but other thi"),
    ("inspect induction-attention --out folder --overwrite", "is not replaced"),
    ("inspect induction-attention --task own --data rows.jsonl", "must be a task's or your own"),
    ("inspect induction-attention --profile x", "'x' is not one of 'task', 'language'"),
    ("inspect induction-attention --rows 0", "rows must be at least 4"),
    ("inspect induction-attention --mapping map.toml", "n_layers must be at least 1, got 0"),
    ("inspect induction-attention --data few.jsonl", "which exchange rows: needs 4"),
    ("inspect induction-attention --device nowhere", "device"),
    ("inspect induction-attention --device meta", "device"),
    ("inspect x --text none", "cannot be read"),
    (
        "inspect fixed-memory-multiplexer --data rows.jsonl --out new",
        "rows of a file need a model of tokens",
    ),
    (
        "extract induction-attention --hooks x --data rows.jsonl --task own",
        "one of --task, --tokens, --dataset and --data, got 2",
    ),
    (
        "extract induction-attention --hooks x --tokens tokens --heads a",
        "heads must be integers and commas",
    ),
    (
        "extract induction-attention --hooks hook_embed --tokens tokens",
        "from 0 to 31, the model's vocabulary, got 300",
    ),
    ("store folder", "not an activation store"),
    ("store --figures folder --out new", "manifest.json"),
    ("tasks fixed", "got 'fixed'"),
    ("train", "RECIPE or --all must be given"),
    ("train tiny.toml --all", "RECIPE or --all must be given"),
    ("train tiny.toml --seeds 0,x", "--seeds must be different whole numbers, got '0,x'"),
    ("train nothing.toml", "recipe nothing.toml cannot be read: no such file"),
    ("train file --out new", "cannot be read"),
    ("weights folder", "holds no .safetensors"),
    ("weights /nowhere/at/all", "does not exist"),
    ("weights induction-mlp --metrics trase", "metrics must be"),
    ("weights induction-mlp --lag 2", "lag must be 0"),
    ("weights induction-mlp --lag -5", "'--lag'"),
    ("weights induction-mlp --basis x", "'x' is not one of 'residual', 'token'"),
    ("weights induction-mlp --mapping /nowhere.toml", "cannot be read"),
    ("weights induction-mlp --out /proc/no/table.csv", "cannot write"),
    ("weights induction-mlp --out table.csv", "exists"),
    ("weights induction-mlp --out x.txt", "--out must be FILE.csv or a folder, got 'x.txt'"),
    ("weights code-lm --revisions main --revision x", "must not be named beside --revision"),
    ("weights code-lm --revisions step-500,step-400", "step-400"),
    ("weights code-lm --revisions step-500,,step-500", "step-"),
    ("probe fixed-memory-multiplexor", "did you mean the shipped fixed-memory-multiplexer?"),
    ("probe induction-mlp --hooks nothing*", "hooks: --hooks '*' lists them"),
    (
        "probe induction-mlp --hooks *hook_pattern",
        "read hooks of [row, pos, …], got blocks.0.attn.hook_pattern [row, head, query,",
    ),
    ("probe fixed-memory-multiplexer --latents g", "latents must be among x[t]"),
    (
        "probe induction-mlp --positions 5-7",
        "positions must be a number, all, last or START:STOP[:STEP]",
    ),
    (
        "probe fixed-memory-multiplexer --positions 1",
        "positions 1 hold nothing to probe (scored in some row: 3 to",
    ),
    ("probe induction-attention --data six.jsonl", "which exchange rows: needs 20, got 6"),
    ("probe induction-attention --data uneven.jsonl --labels l.npz", "of one length for labels"),
    ("crasp true.cr --out x", "--out is not for a program that is not compiled"),
    ("crasp true.cr a --compile", "--compile, got 'TOKENS and --compile': keep one"),
    ("crasp true.cr a --file x", "what to do must be one of TOKENS, --file CASES, --same-as"),
    ("crasp true.cr ' '", "input must hold a line with tokens"),
    ("crasp true.cr --file /nowhere.txt", "/nowhere.txt cannot be read: No such file"),
    ("crasp /nowhere.cr a", "/nowhere.cr cannot be read: No such file"),
    ("crasp --compile true.cr --out m --longest 0", "longest must be at"),
    ("crasp --compile true.cr --out m --precision x", "of 'ramp', 'sign'"),
    ("crasp --compile number.cr --out m", "program must end with a formula"),
    ("crasp folder", "cannot be read: Is a directory"),
    ("crasp number.cr a", "last line must be a formula"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sound and odd files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    texts = {
        "folder/keep.txt": "mine",
        "file": "not toml = [",
        "tiny.toml": RECIPE,
        "map.toml": "n_layers = 0\n",
        "true.cr": 'n = # "a"\nmany = n > 1\n',
        "number.cr": 'n = # "a"\n',
        "tokens": "1 2 300\n",
        "table.csv": "mine",
        "few.jsonl": "[1, 2, 3]\n",
        "six.jsonl": "[1, 2, 3]\n" * 6,
        "rows.jsonl": "[1, 2, 3]\n" * 24,
        "uneven.jsonl": "[1, 2, 3]\n" * 24 + "[1, 2]\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    np.savez(tmp_path / "l.npz", large=np.ones((24, 3)))
    return tmp_path


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refusals_are_one_line_and_leave_nothing(
    refused: Any, place: Path, words: str, said: str
) -> None:
    def files() -> dict[Path, str]:
        return {p: "" if p.is_dir() else p.read_text("latin-1") for p in place.rglob("*")}

    before = files()
    assert said in refused(*shlex.split(words))
    assert files() == before


@pytest.mark.parametrize("arguments", [("weights", "{folder}"), ("inspect", "coupling-order-rnn")])
def test_a_process_says_what_the_command_says_and_nothing_else(
    run: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Nothing that is imported, be it light or heavy, has a word of its own."""
    words = [word.format(folder=tmp_path) for word in arguments]
    done, here = prooflens(*words), run(*words)
    assert (done.returncode, done.stderr) == (here.code, here.err)
    assert done.stdout == ""


def test_a_mistake_of_ours_is_one_line_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def crash(**options: object) -> None:
        raise ZeroDivisionError("nobody\nforesaw this")

    monkeypatch.setattr(cli, "app", crash)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: nobody (please report it" in line
    (file,) = tmp_path.glob("prooflens-*.txt")
    assert str(file) in line
    assert "in crash" in file.read_text()
    monkeypatch.setenv("PROOFLENS_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main()
