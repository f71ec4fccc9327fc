"""Roles decided on as many rows as it takes are those that all rows give."""

import pytest

from interp.hooks.capture import evaluating
from interp.models.pretrained import load_pretrained
from probes.roles import LANGUAGE
from probes.roles.find import examine, role_table
from probes.roles.gathering import evidence_of
from probes.roles.trials import rows_of, token_trials
from trained import zoo


@pytest.mark.slow
def test_statuses_of_a_language_model_are_those_of_every_row() -> None:
    model = load_pretrained(zoo.folder("code-lm"))
    trials, _ = token_trials(model, rows=32, seed=3)
    where = ["component", "layer", "head", "group", "role"]
    found, passes = [], []
    with evaluating(model.model):
        for exhaustive in (True, False):
            evidence = evidence_of(model.model, rows_of(trials), LANGUAGE, exhaustive=exhaustive)
            table = role_table(examine(evidence), LANGUAGE)
            found.append(table.set_index(where)["status"].to_dict())
            passes.append(sum(evidence.run(kind).passes for kind in evidence.views))
    assert found[0] == found[1]
    assert passes[1] < passes[0]
