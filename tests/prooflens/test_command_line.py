"""The command as its user meets it: help, versions, and one clear line for every refusal."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prooflens.cli import main as cli


def prooflens(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a user has it."""
    code = "from prooflens.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: its exit code, and what it says on standard error."""

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["prooflens", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return command


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "--out", "{folder}"), "exists"),
        (("demo", "--out", "{folder}", "--overwrite"), "holds other things and no .prooflens-demo"),
        (("demo", "--out", "{file}/x"), "cannot write to"),
        (("train", "{file}", "--out", "{folder}/new"), "cannot be read"),
        (("weights", "{folder}"), "holds no .safetensors"),
        (("inspect", "{folder}", "--out", "{folder}/new"), "is neither a store (no manifest.json)"),
        (("inspect", "coupling-order-rnn"), "RNN has no attention heads"),
        (("inspect", "depth-L3-layers0"), "depth-L3-layers0 has no attention heads"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "keep.txt").write_text("mine")
    file.write_text("not toml = [")
    code, error = run(*(a.format(folder=folder, file=file) for a in arguments))
    assert code == 2
    assert said in error
    assert error.startswith("prooflens: ")
    assert len(error.strip().splitlines()) == 1
    assert [p.name for p in folder.iterdir()] == ["keep.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("arguments", [("weights", "{folder}"), ("inspect", "coupling-order-rnn")])
def test_a_process_says_what_the_command_says_and_nothing_else(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Nothing that is imported, be it light or heavy, has a word of its own."""
    words = [word.format(folder=tmp_path) for word in arguments]
    done = prooflens(*words)
    assert (done.returncode, done.stderr) == run(*words)
    assert done.stdout == ""


def test_a_mistake_of_ours_is_one_line_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(**options: object) -> None:
        raise ZeroDivisionError("nobody\nforesaw this")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: nobody (please report it" in line
    (file,) = tmp_path.glob("prooflens-*.txt")
    assert str(file) in line
    assert "in broken" in file.read_text()
    monkeypatch.setenv("PROOFLENS_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main()
