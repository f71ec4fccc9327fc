"""A head that is needed for everything is not confirmed; what is compared with what, by algebra."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.attention.key_sets import token_key_sets
from interp.tasks.base import Batch
from interp.tasks.induction import RepeatedTokens
from probes.roles import LANGUAGE, find_roles, views
from probes.roles.decision import STATUSES, Found, Test, decide
from probes.roles.specificity import match_controls
from probes.roles.views import SCORED, elsewhere, positions_scored
from probes.roles.views import WIDE as VOCABULARY
from trained import zoo

GOOD = Test("share", 0.9, 0.6, 1e-6)
CAUSE = Test("change", 0.5, 0.1, 1e-6, 0.4)
LOW = Test("control", 0.0, 0.5, 1.0, -0.1)
WIDE = Test("control", 0.6, 0.5, 1e-6, 0.1)
UNPUT = Test.too_few("controls", 8, 0.5)


@pytest.mark.parametrize(
    ("specificity", "transfer", "status"),
    [
        ((GOOD,), (GOOD,), "confirmed"),
        ((), (), "confirmed"),
        ((LOW,), (GOOD,), "necessary, not specific"),
        ((LOW,), (LOW,), "necessary, not specific"),
        ((GOOD,), (LOW,), "rejected"),
        ((WIDE,), (GOOD,), "candidate"),
        ((UNPUT,), (GOOD,), "candidate"),
        ((GOOD,), (UNPUT,), "candidate"),
    ],
)
def test_specificity_is_asked_before_transfer(specificity, transfer, status) -> None:
    one = Found(
        "head", 0, "induction", 0.9, (GOOD,), (CAUSE,),
        head=1, specificity=specificity, transfer=transfer, sufficiency=(LOW,),
    )  # fmt: skip
    row = decide([one]).iloc[0]
    assert row["status"] == status
    assert status in STATUSES
    assert status != "confirmed" or row["q"] < 0.01, "what is told beside does not count"
    assert bool(row["missing"]) == (status == "candidate"), "what could not be put is named"
    kinds = [test["kind"] for test in json.loads(row["tests"])]
    assert kinds.count("specificity") == len(specificity)
    assert kinds[-1] == "sufficiency"


@given(
    st.lists(
        st.builds(
            Test,
            st.sampled_from(["a", "b"]),
            st.sampled_from([0.0, 0.5]),
            st.just(0.1),
            st.sampled_from([1e-9, 0.5]),
            untested=st.sampled_from(["", "nothing to see it on"]),
            loss=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_missed_is_not_rejected_and_what_is_not_missed_is_not_open(causes) -> None:
    status = decide([Found("head", 0, "induction", 0.9, (GOOD,), causes)]).iloc[0]["status"]
    losses = [test for test in causes if test.loss and not test.untested]
    if any(test.score >= test.floor and test.p < 0.01 for test in losses):
        assert status != "rejected"
    elif losses and all(test.score < test.floor for test in losses):
        assert status == "rejected"


@given(st.integers(0, 2**31), st.integers(8, 40))
def test_controls_weigh_as_much_as_the_event_in_every_class(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    happens = torch.from_numpy(rng.random((rows, 12)) < 0.4)
    absent = torch.from_numpy(rng.random((rows, 12)) < 0.4) & ~happens
    expected = torch.from_numpy(rng.uniform(0, 3, (rows, 12)))
    losses = expected + torch.from_numpy(rng.normal(0, 0.05, (rows, 12)))
    found = match_controls(happens, absent, losses, expected)
    if found is None:
        few = min(int(side.any(1).sum()) for side in (happens, absent)) < 8
        assert few or int(absent.sum(1).max()) >= int(absent.sum()) / 4
        return
    event, control, words = found
    assert not bool((event.bool() & ~happens).any())
    assert not bool((control.bool() & ~absent).any())
    assert float(event.sum()) == pytest.approx(float(control.sum()))
    assert event.sum() >= 0.5 * happens.sum()
    if words.startswith("others"):
        bands = expected.long()
        for band in bands.unique():
            mine = bands == band
            assert float(event[mine].sum()) == pytest.approx(float(control[mine].sum()))


def test_positions_where_the_model_is_right_by_chance_are_no_matched_controls() -> None:
    happens = torch.zeros(16, 8, dtype=torch.bool)
    happens[:, 4:] = True
    expected = torch.full((16, 8), 0.1)
    losses = torch.where(happens, 0.1, 5.0)
    losses[0, 0] = 0.1
    found = match_controls(happens, ~happens, losses, expected)
    assert found is not None
    assert found[2] == "other positions, none of the same loss"
    assert match_controls(happens, torch.zeros_like(happens), losses, expected) is None


def test_one_position_does_not_stand_for_all() -> None:
    """Where a row repeats, one position has a small loss though no token is an earlier one: the
    last before the repetition, in one row of many. All others are controls of another loss."""
    happens = torch.zeros(16, 24, dtype=torch.bool)
    happens[:, 12:] = True
    expected = torch.where(happens, 0.1, 3.0)
    expected[:, :11] += torch.arange(11) % 2
    expected[3, 11] = 0.1
    expected[:, 12] = 3.0  # so that some controls of the same band are found in every row
    found = match_controls(happens, ~happens, expected, expected)
    assert found is not None
    assert found[2].startswith("other positions, none of the same loss")


def test_rows_elsewhere_have_other_tokens_in_the_same_relations() -> None:
    batch = RepeatedTokens(30, 24, (6, 10), bos=0).sample(16, seed=3)
    found = elsewhere(batch, renamed=True, seed=1)
    assert found.inputs.shape == (16, 20)
    assert bool((found.inputs[:, 0] == 0).all()), "what begins every row stays"
    kept = [0, *range(5, 24)]
    before, after = (token_key_sets(x)["same"] for x in (batch.inputs[:, kept], found.inputs))
    assert torch.equal(before[:, 1:, 1:], after[:, 1:, 1:])
    assert float((found.inputs == batch.inputs[:, kept]).double().mean()) < 0.2
    same = token_key_sets(found.inputs)["same"].any(-1)
    assert bool(same[found.mask].all()), "a token that comes for the first time is not scored"
    assert int(found.mask.sum()) > 0
    assert torch.equal(elsewhere(batch, renamed=False).inputs, batch.inputs[:, kept])


def test_too_few_rows_are_named() -> None:
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(4, seed=5)
    roles = find_roles(shipped.model, batch, profile=LANGUAGE)
    mine = roles[roles["role"] == "induction"]
    assert (mine["status"] == "candidate").all()
    assert mine["missing"].str.contains("too few rows|needs more rows").all()


def test_controls_come_from_the_rows_given_too() -> None:
    """Rows of another length, on which the event never happens and the head writes nothing new."""
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(32, seed=5)
    order = torch.rand(200, 30, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :12] + 1
    given = Batch(order, order.roll(-1, 1), torch.ones_like(order, dtype=torch.bool))
    beyond = []
    for rows in ({"repeated": batch}, {"repeated": batch, "rows": given}):
        roles = find_roles(shipped.model, rows, profile=LANGUAGE).set_index("role")
        tests = json.loads(roles.loc["induction", "tests"])
        assert roles.loc["induction", "status"] == "confirmed"
        assert {t["kind"] for t in tests} >= {"cause", "transfer", "sufficiency"}
        beyond.append(next(t["score"] for t in tests if t["kind"] == "specificity"))
    assert beyond[0] != beyond[1], "what is lost on the other rows counts"


@given(st.integers(1, 4), st.integers(1, 90), st.integers(0, 2**16))
def test_of_a_very_large_vocabulary_few_positions_are_scored_spread_evenly(
    rows, length, seed
) -> None:
    mask = torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)) < 0.7
    assert positions_scored(mask, VOCABULARY - 1) is mask
    kept = positions_scored(mask, VOCABULARY)
    assert not (kept & ~mask).any()
    for own, some in zip(mask, kept, strict=True):
        ranks = torch.arange(int(own.sum()))[some[own]]
        assert len(ranks) == min(int(own.sum()), SCORED)
        gaps = ranks.diff()
        assert len(gaps) == 0 or int(gaps.max() - gaps.min()) <= 1


def test_roles_are_the_same_at_few_positions_of_each_row(monkeypatch) -> None:
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(32, seed=5)
    columns = ["component", "layer", "head", "role", "status"]
    every = find_roles(shipped.model, batch, profile=LANGUAGE)
    monkeypatch.setattr(views, "WIDE", 1)
    monkeypatch.setattr(views, "SCORED", 5)
    few = find_roles(shipped.model, batch, profile=LANGUAGE)
    assert every[columns].equals(few[columns])
    assert "confirmed" in set(few["status"])
    assert every["effect"].tolist() != few["effect"].tolist()
