"""Groups of heads that back each other up, on losses that are written down."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from probes.roles import LANGUAGE, TASK, Profile
from probes.roles.decision import Found, Test
from probes.roles.effects import Effects
from probes.roles.groups import with_groups

ROWS, LENGTH, LAYER = 32, 6, 1
PAIR = ((LAYER, 0), (LAYER, 1))


@dataclass
class Planted:
    """A layer in which two heads back each other up, and any two others cost what they cost."""

    others: float
    heads: int = 6
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def rise_without(self, heads: Any) -> float:
        return 1.0 if set(PAIR) <= set(heads) else self.others * (len(set(heads) - {*PAIR}) == 2)

    def away(self, kind: str, heads: Any, name: str, own: Any) -> Any:
        """Who is taken away stands for the edits that do it."""
        return heads

    def at(self, kind: str, heads: Any, rows: range) -> Tensor:
        if {*PAIR}.isdisjoint(heads):  # a random set, which loses the keys of a head of the group
            self.asked.append(tuple(heads))
        # Rows differ a little, so that a mean has an interval.
        return self.rise_without(heads) * (1 + 0.01 * torch.tensor(rows)[:, None]).expand(
            -1, LENGTH
        )


class Rows:
    """Rows of which every position is scored."""

    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)

    def __len__(self) -> int:
        return ROWS


def group_findings(
    planted: Planted, profile: Profile = LANGUAGE, decisions: Planted | None = None
) -> list[Found]:
    evidence = SimpleNamespace(
        profile=profile,
        floors=profile.floors,
        targets=True,
        views={"given": SimpleNamespace(batch=SimpleNamespace(targets=torch.zeros(1).long()))},
        batch=lambda kind: Rows(),
        heads=tuple((LAYER, head) for head in range(planted.heads)),
        seed=0,
    )
    effects = Effects.__new__(Effects)  # of no model: what is lost is written down
    vars(effects).update(
        evidence=evidence, rises=planted, trials=("repeated",), decisions=decisions,
        _nats=profile.unit == "nats",
    )  # fmt: skip
    alone = Test("without the head", 0.0, profile.floors.loss, 1.0, alone=True)
    heads = [
        Found("head", layer, "previous-token", 0.9, [Test("share", 0.9, 0.3)], [alone], head=head)
        for layer, head in PAIR
    ]
    return with_groups(heads, effects)


def test_heads_that_back_each_other_up_are_a_group() -> None:
    planted = Planted(others=0.0)
    (group,) = [one for one in group_findings(planted) if one.component == "group"]
    assert group.together == PAIR
    *_, random, _ = group.cause or ()
    assert random.name.startswith("beyond what is lost without any of 6 random sets of 2 other")
    assert random.score == pytest.approx(1.0, rel=0.1)
    # Every set is two heads of that layer, none of the group, and none twice.
    assert len(set(planted.asked)) == len(planted.asked) == 6
    assert all(not set(PAIR) & set(heads) and len(heads) == 2 for heads in planted.asked)


def test_what_any_two_heads_of_the_layer_cost_makes_no_group() -> None:
    assert not [one for one in group_findings(Planted(others=1.0)) if one.component == "group"]


def test_a_layer_with_too_few_other_heads_is_not_compared() -> None:
    planted = Planted(others=1.0, heads=3)
    assert [one for one in group_findings(planted) if one.component == "group"]
    assert planted.asked == []


@dataclass
class Nothing(Planted):
    """A layer without whose heads nothing changes."""

    def rise_without(self, heads: Any) -> float:
        return 0.0


def test_groups_of_a_model_that_decides_are_judged_by_right_answers_where_outputs_do_not() -> None:
    rows = group_findings(Nothing(others=0.0), TASK, Planted(others=0.0))
    (group,) = [one for one in rows if one.component == "group"]
    assert group.together == PAIR
    assert all("the share of right answers falls by" in test.name for test in group.cause or ())
    assert {test.floor for test in group.cause or ()} == {TASK.floors.decisions}
    members = [one for one in rows if one.component == "head"]
    assert {one.group for one in members} == {group.group}


def test_groups_by_the_change_of_the_output_go_first() -> None:
    rows = group_findings(Planted(others=0.0), TASK, Planted(others=0.0))
    (group,) = [one for one in rows if one.component == "group"]
    assert "the output changes by a share of its variance of" in (group.cause or ())[0].name
