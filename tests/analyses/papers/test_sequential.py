"""Seeds in turn: the stated error by simulation, exact stops, and who is asked when."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from analyses.papers import experiment
from analyses.papers.base import Setting
from analyses.papers.experiment import Experiment
from analyses.papers.sequential import ERROR, in_turn, seeds_missing


def answer(outcomes: list[bool], needed: int, error: float) -> tuple[bool, int]:
    """The answer at the first stop, by the share of those taken, and how many were."""
    taken = 0
    while more := seeds_missing(outcomes[:taken], needed, len(outcomes), error):
        taken += more
    return sum(outcomes[:taken]) * len(outcomes) >= needed * taken, taken


@pytest.mark.parametrize(
    ("needed", "planned"), [(2, 3), (3, 4), (5, 6), (4, 7), (5, 9), (8, 10), (2, 12)]
)
def test_the_answer_differs_from_that_of_all_seeds_no_more_often_than_stated(
    needed: int, planned: int
) -> None:
    rng = np.random.default_rng(needed * planned)
    runs = 1500
    for share in np.linspace(0.05, 0.95, 13):
        drawn = rng.random((runs, planned)) < share
        wrong = [
            answer(row, needed, ERROR)[0] != (sum(row) >= needed)
            for row in map(list, drawn.tolist())
        ]
        assert np.mean(wrong) <= ERROR + 3 * (ERROR * (1 - ERROR) / runs) ** 0.5


@pytest.mark.parametrize(("needed", "planned"), [(2, 3), (3, 4), (4, 7), (1, 5)])
def test_without_error_every_outcome_has_the_answer_of_all_seeds(needed, planned) -> None:
    for outcomes in product((False, True), repeat=planned):
        said, taken = answer(list(outcomes), needed, 0.0)
        assert said == (sum(outcomes) >= needed)
        short = outcomes[: taken - 1]  # a seed fewer does not settle it
        assert sum(short) < needed
        assert len(short) - sum(short) <= planned - needed


def test_an_error_saves_seeds_and_a_smaller_one_fewer() -> None:
    taken = [answer([True] * 9, 5, error)[1] for error in (0.0, 0.01, 0.05, 0.2)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] == 5
    assert taken[2] < 5


def test_cells_are_asked_while_they_are_open() -> None:
    answers = {"all": [1, 1, 1], "none": [0, 0, 0], "late": [1, 0, 1], "two": [1, 1, 0]}
    asked: list[list[tuple[str, int]]] = []

    def ask(cases: list[tuple[str, int]]) -> list[list[bool]]:
        asked.append(cases)
        return [
            [bool(answers[cell][seed - 7])] + [seed == 8] * (cell == "two") for cell, seed in cases
        ]

    in_turn((7, 8, 9), {"all": [2], "none": [2], "late": [2], "two": [2, 2]}, ask)
    first = [(cell, seed) for cell in answers for seed in (7, 8)]
    assert asked == [first, [("late", 9), ("two", 9)]]


@pytest.mark.parametrize(("seeds", "levels", "taken"), [
    ((1, 2, 3), (0.5,), {"low": [1, 2], "high": [1, 2], "both": [1, 2, 3]}),
    ((1, 2, 3), (0.5, 0.05), {"low": [1, 2, 3], "high": [1, 2], "both": [1, 2, 3]}),
    ((1, 2, 3, 4), (0.5,), {key: [1, 2, 3, 4] for key in ("low", "high", "both")}),
    ((1, 2, 3), (), {key: [1, 2, 3] for key in ("low", "high", "both")}),
])  # fmt: skip
def test_an_experiment_stops_where_medians_are_on_a_side_of_the_levels(
    seeds, levels, taken, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"low": [0.1, 0.01, 0.2, 0.1], "high": [0.9] * 4, "both": [0.1, 0.9, 0.1, 0.9]}
    parts = []

    def train_runs(setting, runs, part):
        parts.append(part)
        return [
            SimpleNamespace(metrics={"error": errors[run.task][run.training.seed - 1]})
            for run in runs
        ]

    monkeypatch.setattr(experiment, "train_runs", train_runs)
    monkeypatch.setattr(experiment, "parameters", lambda spec: 0)
    monkeypatch.setattr(
        experiment, "TrainingRun", lambda name, task, spec, training, test: SimpleNamespace(
            task=task, training=training, spec=spec))  # fmt: skip
    options = {"steps": 1, "batch": 1, "learning_rate": 1e-3}
    planned = Experiment(Setting("quick", seeds, options, tmp_path))
    for name in errors:
        planned.add({"model": name}, name, None)
    table, fits = planned.run(levels=levels)
    assert table.groupby("model")["seed"].agg(list).to_dict() == taken
    assert [fit.metrics["error"] for fit in fits] == table["error"].tolist()
    assert len(set(parts)) == len(parts)
