"""What confirmed roles explain of a head on the rows given, against sums by hand."""

import pandas as pd
import pytest

from interp.attention.key_sets import token_key_sets
from interp.tasks.base import Batch
from probes.columns import ExplainedRow, columns
from probes.inspection.explained import explain_heads
from probes.roles import LANGUAGE
from probes.roles.find import examine, role_table
from probes.roles.gathering import evidence_of
from trained import zoo


@pytest.fixture(scope="module")
def found() -> tuple[object, Batch, pd.DataFrame, pd.DataFrame]:
    shipped = zoo.load("induction-attention")
    batch, given = (shipped.task.sample(24, seed=seed) for seed in (5, 6))
    evidence = evidence_of(shipped.model, {"repeated": batch, "rows": given}, LANGUAGE)
    told = examine(evidence)
    roles = role_table(told, LANGUAGE)
    return (
        shipped.model,
        given,
        roles,
        explain_heads(evidence, roles, told, lambda token: f"<{token}>"),
    )


def test_a_row_for_every_head_with_a_confirmed_role_that_has_keys(found) -> None:
    _, _, roles, table = found
    sure = roles[
        (roles["status"] == "confirmed") & roles["role"].isin(["previous-token", "induction"])
    ]
    assert tuple(table.columns) == columns(ExplainedRow)
    assert set(zip(table["layer"], table["head"], strict=True)) == set(
        zip(sure["layer"], sure["head"], strict=True)
    )
    assert set(table["trial"]) == {"rows"}


def test_the_share_of_attention_is_the_sum_over_the_roles_keys(found) -> None:
    model, given, _, table = found
    (row,) = table[table["roles"].str.contains("induction")].itertuples()
    _, cache = model.run_with_cache(given.inputs, return_cache_object=False)
    pattern = cache[f"blocks.{row.layer}.attn.hook_pattern"][:, row.head].double()
    keys = token_key_sets(given.inputs)["after_same"]
    share = (pattern * keys).sum(-1)[given.mask].mean()
    assert row.attention == pytest.approx(float(share), abs=1e-6)
    assert 0.9 < row.loss <= 1
    assert row.rest.startswith("<")


def test_without_text_or_rows_nothing_is_told(found) -> None:
    model, given, roles, _ = found
    assert explain_heads(evidence_of(model, given, LANGUAGE), roles, []).empty


def test_a_head_of_no_confirmed_role_is_left_out(found) -> None:
    model, given, roles, _ = found
    evidence = evidence_of(model, {"repeated": given, "rows": given}, LANGUAGE)
    assert explain_heads(evidence, roles.assign(status="rejected"), []).empty
