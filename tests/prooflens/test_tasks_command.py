"""``prooflens tasks``."""

from typing import Any

import pytest

from interp.errors import ArgumentError
from interp.models.card import ModelCard
from interp.tasks.catalogue import KINDS
from prooflens.cli.loading import task_of


def test_all_kinds_are_listed_with_what_they_are(told: Any) -> None:
    lines = told("tasks").splitlines()
    assert [line.split()[0] for line in lines[: len(KINDS)]] == list(KINDS)
    assert all(len(line.split()) > 3 for line in lines[: len(KINDS)])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described(kind: str, told: Any) -> None:
    assert f"--task {kind}" in told("tasks", kind)


def test_arguments_have_types_defaults_and_meanings(told: Any) -> None:
    said = told("tasks", "fixed_memory")
    assert "lags: list of integers; must be given\n    The lags T_1, …, T_M, distinct" in said
    assert 'readout: one of parity, majority, multiplexer, table; default "parity"' in said
    assert "--task fixed_memory:lags=…    (values as JSON" in said
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
def test_usage_names_what_must_be_given_in_capitals(command: str, usage: str, told: Any) -> None:
    line = next(line for line in told(command, "--help").splitlines() if "Usage:" in line)
    assert line.endswith(f" {command} {usage}")
