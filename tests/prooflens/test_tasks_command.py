"""``prooflens tasks``."""

from typing import Any

import pytest
from typer.testing import CliRunner

from interp.errors import ArgumentError
from interp.models.card import ModelCard
from interp.tasks.catalogue import KINDS
from prooflens.cli.loading import task_of
from prooflens.cli.main import app


def run(*words: str) -> Any:
    result = CliRunner().invoke(app, ["tasks", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_all_kinds_are_listed_with_what_they_are() -> None:
    lines = run().splitlines()
    assert [line.split()[0] for line in lines[: len(KINDS)]] == list(KINDS)
    assert all(len(line.split()) > 3 for line in lines[: len(KINDS)])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described(kind: str) -> None:
    assert f"--task {kind}" in run(kind)


def test_arguments_have_types_defaults_and_meanings() -> None:
    told = run("fixed_memory")
    assert "lags: list of integers; must be given\n    The lags T_1, …, T_M, distinct" in told
    assert 'readout: one of parity, majority, multiplexer, table; default "parity"' in told
    assert "--task fixed_memory:lags=…    (values as JSON" in told
    with pytest.raises(ArgumentError, match=r"KIND must be one of fixed_memory, .*got 'fixed'"):
        run("fixed")
    with pytest.raises(ArgumentError, match="readout must be an argument of token_relation"):
        task_of("token_relation:relation=sink,readout=copy", ModelCard("none"))


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("weights", "[OPTIONS] MODEL"),
        ("train", "[OPTIONS] [RECIPE]"),
        ("tasks", "[OPTIONS] [KIND]"),
        ("crasp", "[OPTIONS] FILE [TOKENS]..."),
        ("store", "[OPTIONS] STORE"),
    ],
)
def test_usage_names_what_must_be_given_in_capitals(command: str, usage: str) -> None:
    told = CliRunner().invoke(app, [*command.split(), "--help"]).output.splitlines()
    line = next(line for line in told if "Usage:" in line)
    assert line.endswith(f" {command} {usage}")
