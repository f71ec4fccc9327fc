"""Every help ends with an example, and every example is a command that there is."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from prooflens.cli.main import app
from prooflens.cli.usage import shipped_models, usage_error
from trained.loading import models

PROGRAM = 'opened = # "("\nclosed = # ")"\nbalanced = opened == closed\n'
QUICK = ("crasp", "extract", "models", "tasks")
"""Commands whose examples take less than a second."""


def commands(one: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(words), one
    for name in one.list_commands(None) if hasattr(one, "list_commands") else ():
        yield from commands(one.get_command(None, name), (*words, name))


EVERY = dict(commands(typer.main.get_command(app)))


def example(command: Any) -> list[str]:
    """The words of a command's example after ``prooflens``."""
    _, heading, line = command.epilog.split("\n")
    assert heading == "Example:"
    product, *words = shlex.split(line, comments=True)
    assert product == "prooflens"
    return words


@pytest.mark.parametrize("name", EVERY)
def test_the_help_ends_with_an_example_of_this_command_that_is_parsed(name: str) -> None:
    done = CliRunner().invoke(app, [*name.split(), "--help"])
    assert done.exit_code == 0
    shown = shlex.split(done.output.rstrip().splitlines()[-1], comments=True)
    words = example(EVERY[name])
    assert shown[1:] == words or " ".join(shown[1:]).startswith(name)
    assert " ".join(words).startswith(name)
    found: Any = EVERY[""]
    while hasattr(found, "commands"):
        found = found.get_command(None, words.pop(0))
    found.make_context("prooflens", words)


def test_quick_examples_run_and_print_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dyck.cr").write_text(PROGRAM)
    for name, command in EVERY.items():
        if name in QUICK:
            done = CliRunner().invoke(app, [*example(command), "--json"])
            assert done.exit_code == 0, (name, done.output, done.exception)
            assert "lines" in json.loads(done.stdout), name


@pytest.mark.parametrize("name", [n for n, one in EVERY.items() if not hasattr(one, "commands")])
def test_a_wrong_option_is_one_line_with_the_nearest(name: str) -> None:
    known = {word for option in EVERY[name].params for word in option.opts if word[:2] == "--"}
    for word in sorted(known):
        slip = word + "q"
        done = CliRunner().invoke(app, [*name.split(), slip], standalone_mode=False)
        told = usage_error(done.exception)
        assert told.count("\n") == 0
        assert f"no such option: {slip}; did you mean {word}?" in told


@pytest.mark.parametrize("name", EVERY)
def test_a_value_that_is_no_choice_is_one_line_with_all_of_them(name: str) -> None:
    for option in EVERY[name].params:
        choices = getattr(option.type_descriptor, "choices", None) or ()
        if choices:
            words = [*name.split(), option.opts[0], choices[0] + "q"]
            told = usage_error(CliRunner().invoke(app, words, standalone_mode=False).exception)
            assert told.count("\n") == 0
            assert "is not one of " + ", ".join(map(repr, choices)) in told


def test_the_same_option_is_of_one_type_everywhere() -> None:
    found: dict[str, set[str]] = {}
    for command in EVERY.values():
        for option in command.params:
            choices = getattr(option.type_descriptor, "choices", None)
            for word in (word for word in option.opts if word[:2] == "--"):
                found.setdefault(word, set()).add(str(choices and list(choices)))
    assert {word for word, kinds in found.items() if len(kinds) > 1} == set()
    assert found["--backend"] == {"['local', 'ray']"}


def completions(words: str, place: int) -> list[str]:
    """What bash would offer."""
    code = "from prooflens.cli.main import main; main()"
    asked = {"_PROOFLENS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_the_shell_completes_commands_options_and_models() -> None:
    assert completions("prooflens we", 1) == ["weights"]
    assert completions("prooflens weights code-lm --rev", 3) == ["--revision", "--revisions"]
    assert completions("prooflens weights code-lm/step", 2) == [
        "code-lm/step-500",
        "code-lm/step-900",
    ]
    assert shipped_models("") == models()
