"""Heads that share one job: groups without which something is lost that no member is missed for.

    candidates   heads with the behaviour of one role
    search       all lose their attention to the role's keys (or are replaced by their means)
                 together; then half of them gets it back, and is left out of the group unless less
                 is lost with it back, when its halves are asked one after the other, down to
                 single heads. Of what stays each head brings something back: a least set that must
                 be taken away together
    parting      members that bring back losses at the same positions are one group, others another
    judged       joint  N(G), and  excess  N(G) − Σ N(g):  what no head alone is missed for;
                 and beyond what is lost without any of ten random sets of as many heads of the
                 same layers that do not behave so, where there are so many

The search uses every second row (of language models the first eight of these), and the judgement
the rows in between, so that p need not pay for the search; q is taken over the groups of a role. A
member's row has the group's cause in place of its own, and what it brings back by itself; what is
lost without it alone is told beside.

    share of g = ½ (N(g) + N(G) − N(G without g)) / the sum of these over the group

the mean of what a head adds first and last; of two heads that is their Shapley value.

In the profile ``task`` groups are sought by the change of the output; where that finds none and
answers are tokens, by the share of right answers that is lost, as single heads are.

A least set is one of several where jobs overlap: that a head is in no group does not say that it
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
"""How many random sets of heads a group is compared with."""

_ALIKE = 0.5
"""The least cosine of what two members of a group bring back, position by position."""


def with_groups(found: Sequence[Found], effects: Effects) -> list[Found]:
    """What was found, with the groups of heads that share a job of one role, and with their cause
    in place of the members' own where these are not missed alone."""
    result = list(found)
    for role in ROLES.values():
        if not role.control:
            continue
        mine = {(one.layer, one.head): one for one in found if _can_share(one, role)}
        if len(mine) < 2:
            continue
        kind = effects.evidence.profile.rows.get(role.keys, "")
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
    """Whether a head has the behaviour of a role, and its cause says what is lost without it
    alone."""
    if one.role != role.name or one.component != "head" or not one.cause:
        return False
    others = [test for test in one.cause if not test.alone]
    return len(others) < len(one.cause) and holds([*one.behaviour, *others])


class _Search:
    """The search for groups among the heads that have the behaviour of one role; by right answers
    (``decisions``) where nothing was found in the profile's unit."""

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
        only = self._effects.evidence.profile.rows.get(self._role.keys, "")
        if not self._nats:
            return [only]
        trials = self._effects.trials
        if self._role.keys != "after_same":
            return trials
        return [kind for kind in trials if kind == only]

    def _half(self, kind: str, half: int, *, few: bool) -> range:
        """The rows that are searched (0) or judged (1); of language models few of them."""
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
        """What is lost without heads (without the keys that are the role's, or of other heads
        their ``own``) at each scored place, and in each row, of the rows that are searched (0) or
        judged (1)."""
        rows = self._half(kind, half, few=few or not half)
        mask = self._effects.evidence.batch(kind).mask[rows.start : rows.stop : 2]
        if not heads:
            return torch.zeros(int(mask.sum())), torch.zeros(len(mask))
        away = self._rises.away(kind, tuple(heads), self._role.keys, own or self._own)
        values = self._rises.at(kind, away, rows)
        return values[mask], (values * mask).sum(1) / mask.sum(1).clamp_min(1)

    def _loss_without(self, heads: Sequence[Place], kind: str = "") -> float:
        """What is lost on the rows that are searched."""
        return float(self._without(heads, kind or self._kind, 0)[1].mean())

    def _places(self, heads: Sequence[Place]) -> Tensor:
        return self._without(heads, self._kind, 0)[0]

    def _judging(self, heads: Sequence[Place]) -> Tensor:
        """What is lost in each of the rows that are judged."""
        return self._without(heads, self._kind, 1)[1]

    def _least(self) -> tuple[Place, ...]:
        """The heads of which each brings something back, the weakest asked first."""
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
        """The heads by the positions at which each brings something back."""
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
        """The tests of a group, on the rows that the search did not use, what is lost without it
        last; and the share of random sets without which less is lost."""
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
        """What is lost without each random set, in each row that it is asked of."""
        first = self._own[group[0]]
        return [
            self._without(heads, self._kind, 1, few=True, own=dict.fromkeys(heads, first))[1]
            for heads in self._random_sets(group)
        ]

    def _beyond_random(
        self, group: tuple[Place, ...], joint: Tensor, random: Sequence[Tensor]
    ) -> Test:
        """That more is lost than without the random set that costs most."""
        most = max(random, key=lambda lost: float(lost.mean()))
        words = f"random sets of {len(group)} other heads of the same layers"
        name = f"beyond what is lost without any of {len(random)} {words} {self._unit}"
        return self._test(over_rows((joint[: len(most)] - most).numpy()), name, "random")

    def _test(self, change: RowMean, name: str, family: str) -> Test:
        """One of a group's tests; p of right answers is paid twice, since the output's change was
        looked at first."""
        if self._decisions:
            change, family = replace(change, p=min(1.0, 2 * change.p)), f"{DECISIONS} {family}"
        return replace(change.test(name, self._floor, family), rows=self._kind)

    def _random_sets(self, group: tuple[Place, ...]) -> list[tuple[Place, ...]]:
        """Sets with as many heads of each layer as the group, none of which behaves so; none where
        a layer has too few."""
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
