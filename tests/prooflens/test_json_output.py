"""``--json``: one object on standard output whatever the command, and nothing else there."""

import json
from typing import Any

import pandas as pd
import pytest
import typer

from interp.tasks.catalogue import KINDS
from prooflens.cli import usage
from prooflens.cli.usage import App, facts


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line with one command more."""
    small = App()

    @small.command("tell")
    def tell(wrong: bool = False) -> None:
        typer.echo("a line")
        typer.echo("note: aside", err=True)
        facts(table=pd.DataFrame({"a": [1, 2], "b": [0.5, float("nan")]}), worst=float("inf"))
        if wrong:
            raise typer.Exit(1)

    @small.command("other")
    def other() -> None:
        facts(unheard=1)

    monkeypatch.setattr("prooflens.cli.main.app", small)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("wrong", [False, True])
def test_lines_and_facts_become_one_object(run: Any, wrong: bool) -> None:
    ended = run("tell", "--json", *["--wrong"] * wrong)
    assert ended.code == int(wrong)
    table = [{"a": 1, "b": 0.5}, {"a": 2, "b": None}]
    assert json.loads(ended.out) == {"lines": ["a line"], "table": table, "worst": None}
    assert ended.err == "note: aside\n"


@pytest.mark.usefixtures("own")
def test_without_it_lines_are_printed_and_facts_are_not(told: Any) -> None:
    assert told("tell") == "a line\n"
    facts(nobody="listens")
    assert json.loads(told("other", "--json")) == {"lines": [], "unheard": 1}
    assert usage._FACTS.get() is None


def test_what_commands_tell_has_keys(told: Any) -> None:
    assert set(json.loads(told("tasks", "--json"))["tasks"]) == set(KINDS)
    found = json.loads(told("tasks", "fixed_memory", "--json"))
    assert found["kind"] == "fixed_memory"
    assert found["arguments"]["lags"]["needed"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "--row", "3"], "inspect: no such option: --row; did you mean --rows?"),
        (["train", "--seeed", "1"], "train: no such option: --seeed; did you mean --seed?"),
        (["inspect", "x", "--zzzzz"], "inspect: no such option: --zzzzz ("),
        (["inspect"], "inspect: missing argument 'model'"),
        (["inspct"], "no such command 'inspct'. Did you mean 'inspect'?"),
        (["store", "x", "--verfy"], "store: no such option: --verfy; did you mean --verify?"),
        (["store"], "store: missing argument 'STORE'"),
        (["doctor"], "no such command 'doctor'; it is part of prooflens --version"),
        (["plot", "x"], "no such command 'plot'; it is part of prooflens store STORE --figures"),
        (["heads"], "no such command 'heads'; it is part of prooflens inspect"),
        (["view"], "no such command 'view'; it is part of prooflens inspect"),
        (["tasks", "nothing", "--json"], "KIND must be one of"),
        (["inspect", "x", "--rows", "a"], "inspect: invalid value for '--rows'"),
    ],
)
def test_a_refusal_is_one_line_and_no_object(words: list[str], said: str, run: Any) -> None:
    ended = run(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"prooflens: {said}")
    assert ended.err.count("\n") == 1
