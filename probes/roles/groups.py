"""Groups of heads that do one job together: something is lost when all are ablated, and more than
when each is ablated alone.

    candidates   heads with the behaviour of one role
    search       ablate the candidates together (their attention to the role's keys, or their
                 outputs by their means). Then restore half of them. If the loss hardly falls,
                 that half is left out of the group; otherwise its halves are tried one after the
                 other, down to single heads. What remains is a minimal set: restoring any head
                 of it lowers the loss
    splitting    heads whose restoring lowers the loss at the same positions form one group
    judged       joint  N(G), the loss rise when the group is ablated, and  excess
                 N(G) − Σ N(g), the part beyond the sum of single ablations; and N(G) beyond what
                 is lost without any of ten random sets with as many heads of each layer that do
                 not have the behaviour, if there are enough of them

The search uses every second row (for language models the first eight of these), and the judgement
uses the other rows, so that p need not be corrected for the search; q is taken over the groups of a
role. In a member's row the group's cause stands in place of its own, together with how much the
loss falls when it alone is restored; the effect of ablating it alone is reported as well.

    share of g = ½ (N(g) + N(G) − N(G without g)) / the sum of these over the group

which is the mean of what a head adds when it is ablated first and when it is ablated last; for two
heads this is their Shapley value.

In the profile ``task`` groups are searched by the change of the output. If that finds none and
answers are tokens, they are searched by the share of right answers that is lost, as for single
heads.

A minimal set is one of several where jobs overlap: that a head is in no group does not show that it
backs up none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from interp.interventions.components import Component
from interp.run.evidence import LEAST_ROWS
from probes.roles.change import RowMean, beyond, over_rows
from probes.roles.decision import Found, Test, holds
from probes.roles.effects import DECISIONS, Effects
from probes.roles.evidence import Place
from probes.roles.registry import ROLES, Role
from probes.roles.rises import Own

_DRAWN = 10
"""Number of random sets of heads with which a group is compared."""

_ALIKE = 0.5
"""Two heads are put into one group if restoring them lowers the loss at the same positions: this is
the least cosine between the two, over positions."""


def with_groups(found: Sequence[Found], effects: Effects) -> list[Found]:
    """Search for groups of heads that do one job of a role together, and add them to the findings.

    Args:
        found: The findings for single components.
        effects: The effects of ablations on the model.

    Returns:
        The findings in their order, with the cause of each group member replaced by that of its
        group, followed by one finding for each group.
    """
    result = list(found)
    for role in ROLES.values():
        if not role.control:
            continue
        mine = {(one.layer, one.head): one for one in found if _can_share(one, role)}
        if len(mine) < 2:
            continue
        rows = effects.evidence.profile.rows
        kind = rows.get(role.keys, rows["own"])
        ways = (False, True)[: 1 + effects.decides(kind)]
        searched = (list(_Search(effects, role, mine, decisions=way).groups()) for way in ways)
        for group in next(filter(None, searched), []):
            places = {(one.layer, one.head): one for one in group if one.component == "head"}
            for at, one in enumerate(result):
                if one.role == role.name and one.component == "head":
                    result[at] = places.get((one.layer, one.head), one)
            result += [one for one in group if one.component == "group"]
    return result


def _can_share(one: Found, role: Role) -> bool:
    """Return whether a head may be a member of a group of a role: it has the behaviour, its cause
    includes a test that ablates it alone, and all its other tests reach their floors."""
    if one.role != role.name or one.component != "head" or not one.cause:
        return False
    others = [test for test in one.cause if not test.alone]
    return len(others) < len(one.cause) and holds([*one.behaviour, *others])


class _Search:
    """The search for groups among the heads that have the behaviour of one role.

    Args:
        effects: The effects of ablations on the model.
        role: The role.
        mine: Place of each head with the behaviour → its finding.
        decisions: Whether to measure loss by the share of right answers that is lost, instead of in
            the profile's unit.
    """

    def __init__(
        self, effects: Effects, role: Role, mine: dict[Place, Found], *, decisions: bool
    ) -> None:
        self._heads, self._mine, self._role = tuple(sorted(mine)), mine, role
        self._effects, self._decisions = effects, decisions
        self._rises = effects.decisions if decisions else effects.rises
        self._own = {place: one.keys for place, one in mine.items()}
        floors, self._nats = effects.evidence.floors, effects.evidence.profile.unit == "nats"
        self._floor = floors.loss if self._nats else floors.change
        self._unit = "the loss rises, in nats, by"
        if not self._nats:
            self._unit = "the output changes by a share of its variance of"
        if decisions:
            self._floor, self._unit = floors.decisions, "the share of right answers falls by"
        self._kind = ""

    def groups(self) -> Iterator[list[Found]]:
        """Search for groups, and yield the findings of each group that passes its tests.

        Each list has a finding for every member, followed by one for the group as a whole.
        """
        together = {kind: self._loss_without(self._heads, kind) for kind in self._kinds()}
        if not together:
            return
        self._kind = max(together, key=lambda kind: together[kind])
        if together[self._kind] < self._floor:
            return
        for group in self._split_heads(self._least()):
            tests, percentile = self._judge(group)
            if holds(tests):
                yield list(self._findings(group, tests, percentile))

    def _kinds(self) -> Sequence[str]:
        rows = self._effects.evidence.profile.rows
        only = rows.get(self._role.keys, rows["own"])
        if not self._nats:
            return [only]
        trials = self._effects.trials
        if self._role.keys != "after_same":
            return trials
        return [kind for kind in trials if kind == only]

    def _half(self, kind: str, half: int, *, few: bool) -> range:
        """Return the numbers of the rows for the search (``half`` 0) or for the judgement (1).

        Args:
            kind: The kind of rows.
            half: 0 or 1.
            few: Whether to return only the first eight of them, in a profile whose unit is nats.
        """
        rows = range(half, len(self._effects.evidence.batch(kind)), 2)
        return rows[:LEAST_ROWS] if self._nats and few else rows

    def _without(
        self,
        heads: Sequence[Place],
        kind: str,
        half: int,
        *,
        few: bool = False,
        own: Own | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Measure what is lost when heads are ablated together, on the rows of the search or the
        judgement.

        Args:
            heads: The heads. Their attention to the role's keys is removed, or, for a role without
                keys, their outputs are replaced by their means.
            kind: The kind of rows.
            half: 0 for the rows of the search, 1 for those of the judgement.
            few: Whether to use only the first eight of these rows, in a profile whose unit is nats.
            own: Each head's own keys; by default those of the candidates.

        Returns:
            The loss at each scored position of these rows, flattened, and each row's mean.
        """
        rows = self._half(kind, half, few=few or not half)
        mask = self._effects.evidence.batch(kind).mask[rows.start : rows.stop : 2]
        if not heads:
            return torch.zeros(int(mask.sum())), torch.zeros(len(mask))
        away = self._rises.away(kind, tuple(heads), self._role.keys, own or self._own)
        values = self._rises.at(kind, away, rows)
        return values[mask], (values * mask).sum(1) / mask.sum(1).clamp_min(1)

    def _loss_without(self, heads: Sequence[Place], kind: str = "") -> float:
        """Return what is lost, on average over the rows of the search, when heads are ablated
        together."""
        return float(self._without(heads, kind or self._kind, 0)[1].mean())

    def _places(self, heads: Sequence[Place]) -> Tensor:
        return self._without(heads, self._kind, 0)[0]

    def _judging(self, heads: Sequence[Place]) -> Tensor:
        """Return what is lost in each row of the judgement when heads are ablated together."""
        return self._without(heads, self._kind, 1)[1]

    def _least(self) -> tuple[Place, ...]:
        """Return a minimal set of heads, each of which lowers the loss when it is restored; weak
        heads are tried first."""
        left = self._heads
        asked = [sorted(left, key=lambda place: abs(self._mine[place].strength))]
        while asked:
            some = asked.pop()
            without = tuple(one for one in left if one not in some)
            whole = self._loss_without(left)
            least = max(self._floor, whole * self._effects.evidence.floors.joint)
            if whole - self._loss_without(without) < least:
                left = without
            elif len(some) > 1:
                asked += [some[len(some) // 2 :], some[: len(some) // 2]]
        return left

    def _split_heads(self, heads: tuple[Place, ...]) -> Iterator[tuple[Place, ...]]:
        """Split heads into groups whose members lower the loss at the same positions when restored;
        yield the groups of two or more."""
        whole = self._places(heads)
        back = [whole - self._places([one for one in heads if one != head]) for head in heads]
        left = list(range(len(heads)))
        while left:
            group = [left.pop(0)]
            for at in group:
                near = [i for i in left if _cosine(back[at], back[i]) >= _ALIKE]
                left = [i for i in left if i not in near]
                group += near
            if len(group) > 1:
                yield tuple(heads[i] for i in sorted(group))

    def _judge(self, group: tuple[Place, ...]) -> tuple[list[Test], float]:
        """Test a group on the rows of the judgement.

        Returns:
            The tests, the joint loss last; and the share of random sets whose ablation costs less
            than the group's, NaN if there are no random sets.
        """
        joint = self._judging(group)
        alone = torch.stack([self._judging([head]) for head in group]).sum(0)
        names = " and ".join(_name(head) for head in group)
        than = beyond(self._floor, squared=not self._nats and not self._decisions)
        changes = over_rows((joint - alone).numpy()), over_rows(joint.numpy(), than=than)
        told = (
            (f"without all of them more than one at a time {self._unit}", "excess"),
            (f"without {names} together {self._unit}", "joint"),
        )
        tests = [self._test(change, *words) for change, words in zip(changes, told, strict=True)]
        random = self._random(group) if holds(tests) else []
        if not random:
            return tests, float("nan")
        below = [float(lost.mean()) < float(joint[: len(lost)].mean()) for lost in random]
        excess, together = tests
        tests = [excess, self._beyond_random(group, joint, random), together]
        return tests, sum(below) / len(below)

    def _random(self, group: tuple[Place, ...]) -> list[Tensor]:
        """Return, for each random set of heads, what is lost in each row when it is ablated."""
        first = self._own[group[0]]
        return [
            self._without(heads, self._kind, 1, few=True, own=dict.fromkeys(heads, first))[1]
            for heads in self._random_sets(group)
        ]

    def _beyond_random(
        self, group: tuple[Place, ...], joint: Tensor, random: Sequence[Tensor]
    ) -> Test:
        """Test whether more is lost without the group than without the random set that costs
        most."""
        most = max(random, key=lambda lost: float(lost.mean()))
        words = f"random sets of {len(group)} other heads of the same layers"
        name = f"beyond what is lost without any of {len(random)} {words} {self._unit}"
        return self._test(over_rows((joint[: len(most)] - most).numpy()), name, "random")

    def _test(self, change: RowMean, name: str, family: str) -> Test:
        """Make one of a group's tests; for right answers p is doubled, because the change of the
        output was tested first."""
        if self._decisions:
            change, family = replace(change, p=min(1.0, 2 * change.p)), f"{DECISIONS} {family}"
        return replace(change.test(name, self._floor, family), rows=self._kind)

    def _random_sets(self, group: tuple[Place, ...]) -> list[tuple[Place, ...]]:
        """Draw ten different sets of heads without the behaviour, with as many heads of each layer
        as the group.

        Empty if a layer has too few such heads; fewer than ten if there are not so many sets.
        """
        evidence, sets = self._effects.evidence, set[tuple[Place, ...]]()
        others = [place for place in evidence.heads if place not in self._mine]
        counts = Counter(layer for layer, _ in group)
        of_layer = {at: [place for place in others if place[0] == at] for at in counts}
        if any(len(of_layer[at]) < count for at, count in counts.items()):
            return []
        draw = np.random.default_rng(
            [evidence.seed, *(number for head in group for number in head)]
        )
        for _ in range(10 * _DRAWN):  # in small layers some are drawn again
            if len(sets) == _DRAWN:
                break
            chosen = (draw.permutation(len(of_layer[at]))[:n] for at, n in sorted(counts.items()))
            places = zip(sorted(counts), chosen, strict=True)
            sets.add(tuple(sorted(of_layer[at][i] for at, some in places for i in some)))
        return sorted(sets)

    def _findings(
        self, group: tuple[Place, ...], tests: list[Test], percentile: float
    ) -> Iterator[Found]:
        name = "+".join(_name(head) for head in group)
        whole, adds = self._judging(group), []
        for head in group:
            one = self._mine[head]
            back = whole - self._judging([other for other in group if other != head])
            adds.append(max(0.0, float((back + self._judging([head])).mean()) / 2))
            alone = [test for test in one.cause or () if test.alone]
            own = over_rows(back.numpy()).test("it alone brings back", self._floor, "back")
            rest = [test for test in one.cause or () if not test.alone]
            cause = [*rest, replace(own, rows=self._kind), tests[-1]]
            yield replace(one, group=name, cause=cause, sufficiency=alone, together=group)
        shares = np.array(adds) / max(sum(adds), 1e-12)
        yield Found(
            "group",
            group[0][0],
            self._role.name,
            float(np.mean([self._mine[head].strength for head in group])),
            [Test(f"heads that do this (of {len(self._mine)})", float(len(group)), 2.0)],
            tests,
            group=name,
            sufficiency=[
                Test(f"share of {_name(head)}", share, 0.0)
                for head, share in zip(group, shares.tolist(), strict=True)
            ],
            together=group,
            percentile=percentile,
        )


def _name(place: Place) -> str:
    return Component("head", *place).name


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-12))
