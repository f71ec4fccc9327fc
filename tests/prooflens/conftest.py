"""The command in this process, and an inspection of a language model, for several files."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from prooflens.cli.main import main
from prooflens.inspection import Inspected, inspect


@dataclass(frozen=True)
class Ended:
    """The exit code of a command, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """``run("weights", model)`` as a user calls it."""

    def command(*words: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["prooflens", *map(str, words)])
        capsys.readouterr()  # what was said before the command
        with pytest.raises(SystemExit) as caught:
            main()
        return Ended(int(caught.value.code or 0), *capsys.readouterr())

    return command


@pytest.fixture
def told(run: Callable[..., Ended]) -> Callable[..., str]:
    """What a command that works prints."""

    def command(*words: object) -> str:
        ended = run(*words)
        assert ended.code == 0, ended.err
        return ended.out

    return command


@pytest.fixture
def refused(run: Callable[..., Ended]) -> Callable[..., str]:
    """The one line with which a command is refused."""

    def command(*words: object) -> str:
        ended = run(*words)
        assert ended.code == 2
        assert ended.err.startswith("prooflens: ")
        assert ended.err.count("\n") == 1, ended.err
        return ended.err

    return command


@pytest.fixture(scope="session")
def language() -> Inspected:
    """A trained language model on a text, with a prompt."""
    text = Path(textwrap.__file__).read_text()
    return inspect("code-lm", count=16, text=text, prompts=["for i in range(3):"])
