"""Error budgets: training from a construction plus noise, and what is read from it."""

import json
import math

import pandas as pd
import pytest
import torch
from made_up import TABLE, ledger
from typer.testing import CliRunner

from analyses.cli.claims import app
from analyses.papers import error_budget
from analyses.papers.claims_report import write_report
from analyses.papers.error_budget import Budget, Nearby, cases, measure, measure_budgets
from analyses.papers.ledger import read_ledger
from interp.errors import ArgumentError, OutputError
from trained.ensemble import Ensemble
from trained.run import Run
from trained.training import Training

NAME = "kernel-memory-single-heavy-0-2-log"
TINY = Nearby(noises=(1e-6, 1.0), seeds=2, steps=3, batch=2, learning_rates=(1e-6,))


def made(errors, means=None, rows=0, certificate=0.5):
    """A budget whose runs are given: noise → the error of each seed."""
    table = pd.DataFrame(
        [
            {"noise": noise, "seed": seed, "learning_rate": 1e-3, "start": 1.0, "error": error,
             "mean": (means or errors)[noise][seed], "train_mean": 0.25, "loss": 0.0}
            for noise, listed in errors.items()
            for seed, error in enumerate(listed)
        ]
    )  # fmt: skip
    return Budget("made-up", certificate, 0.1, "in the target's unit", rows, {"seeds": 2}, table)


def test_training_starts_from_the_given_models():
    built = cases()[NAME].construct()
    run = Run("run", built.task, built.model.spec, Training(1, 2))
    (back,) = Ensemble([run], starts=[built.model]).models()
    inputs = built.task.sample(3, seed=1).inputs
    assert torch.equal(back(inputs), built.model(inputs))


def test_noise_is_a_share_of_each_tensors_own_size():
    model = cases()["template-same-different"].construct().model
    moved = error_budget._noisy(model, 1e-2, 5)
    for (name, old), new in zip(model.named_parameters(), moved.parameters(), strict=True):
        size, change = (float(t.detach().square().mean().sqrt()) for t in (old, new - old))
        if old.numel() >= 100:
            assert change == pytest.approx(1e-2 * size, rel=0.3, abs=1e-15), name
        if size == 0:
            assert change == 0, name
    assert torch.equal(error_budget._noisy(model, 0.0, 5).embed.W_E, model.embed.W_E)


def test_the_largest_noise_is_one_from_which_every_seed_returns_and_from_all_below():
    assert made({0.1: [0.9, 1.0], 1.0: [0.2, 1.1]}).optimisation == 0.1
    assert made({0.1: [0.9, 1.1], 1.0: [0.2, 0.3]}).optimisation is None
    assert made({0.1: [0.9, 1.0], 1.0: [0.2, math.inf]}).optimisation == 0.1


def test_estimation_is_zero_for_fresh_rows_and_else_fresh_less_training_rows():
    assert made({0.1: [0.5, 0.75]}).estimation == 0
    assert made({0.1: [0.5, 0.75]}, rows=8).estimation == pytest.approx(0.375)


def test_what_is_not_reached_is_told_with_its_numbers():
    words = made({0.1: [2.0, 4.0]}, means={0.1: [0.001, 0.002]}, certificate=0.0).words
    assert "within 2 × the certificate (0) from no noise that was tried" in words
    assert "least error reached 3" in words
    assert "at a mean error of at most 0.01 from noise up to 1e-01" in words


def test_the_rate_with_the_least_training_loss_counts():
    runs = made({0.1: [0.5, 0.5]}).runs
    worse = runs.assign(learning_rate=1e-2, loss=math.inf, error=0.1)
    both = Budget("x", 0.5, 0.1, "u", 0, {"seeds": 2}, pd.concat([worse, runs]))
    assert both.kept["error"].tolist() == [0.5, 0.5]


def test_a_step_too_small_to_train_leaves_noise_as_it_is():
    budget = measure(cases()[NAME], TINY)
    assert budget.measured <= budget.certificate
    near = budget.kept[budget.kept["noise"] == 1e-6]
    assert near["error"].tolist() == pytest.approx([budget.measured] * 2, rel=1e-2)
    assert (budget.kept["error"] / budget.kept["start"]).between(0.9, 1.1).all()
    assert budget.optimisation == 1e-6
    pd.testing.assert_frame_equal(measure(cases()[NAME], TINY).runs, budget.runs)


def test_templates_are_tested_on_unseen_symbols_and_estimated_from_a_training_set():
    nearby = Nearby(noises=(1.0,), seeds=1, steps=2, batch=4)
    budget = measure(cases()["template-same-different"], nearby, rows=8)
    (mean, seen) = budget.kept[["mean", "train_mean"]].to_numpy()[0]
    assert budget.estimation == pytest.approx(mean - seen)
    assert mean != seen


def test_share_of_wrong_tokens_where_answers_are_tokens():
    budget = measure(cases()["template-copying-αβα-β"], TINY, rows=8)
    assert (budget.certificate, budget.measured, budget.unit) == (0.0, 0.0, "of tokens wrong")
    assert budget.runs["error"].between(0, 1).all()


def test_every_shipped_claim_has_constructions_of_the_catalogue_or_a_reason():
    known = cases()
    assert all(name == case.name for name, case in known.items())
    for claim in read_ledger().values():
        assert bool(claim.constructions) != bool(claim.no_budget), claim.id
        assert set(claim.constructions) <= set(known), claim.id


@pytest.mark.parametrize(("line", "words"), [
    ("budget = []", "budget must name constructions"),
    ("budget = { constructions = [], rows = 3 }", "budget must name constructions"),
    ('budget = { constructions = ["a"], rows = -1 }', "budget must name constructions"),
    ('budget = { constructions = ["a"], rose = 1 }', "budget must name constructions"),
    ('no_budget = ""', "no_budget must be a reason"),
    ('budget = { constructions = ["a"] }\nno_budget = "b"', "must have a budget or no_budget"),
])  # fmt: skip
def test_a_budget_that_is_none_is_refused(tmp_path, line, words):
    with pytest.raises(ArgumentError, match=words):
        ledger(
            tmp_path,
            TABLE.replace("[claims.depth-made-up.quick]", f"{line}\n[claims.depth-made-up.quick]"),
        )


@pytest.mark.parametrize(("options", "words"), [
    ({"noises": (1.0, 0.1)}, "--noise must be positive and rise"),
    ({"noises": (0.0,)}, "--noise"), ({"seeds": 0}, "--seeds"), ({"steps": 0}, "--steps"),
])  # fmt: skip
def test_unfit_options_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        Nearby(**options)


def budgeted(tmp_path, name=NAME):
    line = f'budget = {{ constructions = ["{name}"] }}\n'
    return ledger(
        tmp_path,
        TABLE.replace("[claims.depth-made-up.quick]", f"{line}[claims.depth-made-up.quick]"),
    )


def test_budgets_are_kept_resumed_replaced_and_shown(tmp_path, monkeypatch):
    known, out = budgeted(tmp_path), tmp_path / "out"
    first = measure_budgets(known.values(), out, TINY)[NAME]
    files = {path.name for path in (out / "budgets" / NAME).iterdir()}
    assert {"budget.json", "runs.csv", "noise.png", "noise.svg"} <= files
    stored = json.loads((out / "budgets" / NAME / "budget.json").read_text())
    assert (stored["optimisation"], stored["estimation"]) == (1e-6, 0.0)
    with pytest.raises(OutputError, match="--resume"):
        measure_budgets(known.values(), out, TINY)
    monkeypatch.setattr(error_budget, "measure", None)
    again = measure_budgets(known.values(), out, TINY, resume=True)[NAME]
    assert again.words == first.words
    assert first.words.split(";")[0] in write_report(known, out).read_text().replace("&#39;", "'")


def test_an_unknown_construction_is_told_before_any_work(tmp_path):
    with pytest.raises(ArgumentError, match="catalogue, got 'no-such'"):
        measure_budgets(budgeted(tmp_path, "no-such").values(), tmp_path / "out", TINY)
    assert not (tmp_path / "out").exists()


def test_the_command_tells_reasons_where_there_is_no_budget(tmp_path):
    done = CliRunner().invoke(app, ["budget", "depth-programs", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0
    assert "depth-programs: no error budget: The claim trains nothing" in done.output
