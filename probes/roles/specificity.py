"""Is the loss under ablation due to the role? Necessity, specificity, transfer and sufficiency.

    necessity     attention that is removed goes to other keys, and may do harm there. So the head
                  must also be missed when its output is replaced by its mean, or by its output on
                  another row
    specificity   a head can be needed for everything: ablating it raises the loss on a role's
                  tokens, and as much on all others

For specificity, each role names its control (:class:`probes.roles.registry.Role`):

    events     E  positions where the role's event happens, C  positions where it does not. Heads
               are replaced by their means: rise(E) − rise(C)
    keys       the event happens at every position. Attention to the role's keys is removed, or
               all other attention: rise(without them) − rise(without the others)
    straight   heads are replaced by their means, either everywhere or for later layers alone,
               with what they write straight to the output left there: rise(heads) −
               rise(later layers). Of the loss when their direct effect on the logits is removed,
               at least half must be due to the logits of the attended tokens (or of these tokens'
               images) alone
    pattern    heads are replaced by their means, or their attention by its mean over rows:
               rise(heads) − rise(mean attention)

*Specificity* is this difference, in nats or as a share of the output's variance, and as a share of
the first term. Controls are matched: E and C lie on the same rows, at the same positions and, where
possible, in the same band of loss. The bands are of the expected loss (the entropy of the model's
prediction), provided that the actual loss is alike in them; bands of the actual loss would select
the positions at which the model happens to be right. If the model gets nothing right but the event,
no control has its loss: the test's name says so, and it tests only that nothing gets worse there.
An output that changes need not get worse: in the unit ``variance`` a role of events is compared by
``keys``.

All this is run on few rows first (:meth:`probes.roles.evidence.Evidence.looks`), then on twice as
many, until every test is settled: necessity, then specificity, then transfer. If a test of one
fails by its whole interval, the later ones are not run: the status follows from the first.

*Same answer* (arXiv 2606.08292): the loss when a head's output is replaced by that on another row,
and the share of it that is avoided when the other row leads to the same next token by another route
(:func:`probes.roles.views.other_routes`), at the positions where it does. It is reported for roles
whose output is the answer, in the unit nats, and decides nothing.

*Transfer* is the same cause on rows with other tokens, offsets and lengths
(:func:`probes.roles.views.elsewhere`). *Sufficiency* is the share of the head's effect that
attention to the role's keys alone preserves; it decides nothing.

A specific cause says that the head is needed for the role on these rows. Controls with another loss
leave open whether there was less to lose at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from interp.run import Array, Replace
from interp.run.edits import Edits
from probes.roles.change import RowMean, beyond, over_rows
from probes.roles.decision import SAME_ANSWER, Found, Test, holds
from probes.roles.direct import direct_loss_rises
from probes.roles.effects import DECISIONS, Effects
from probes.roles.evidence import Place
from probes.roles.registry import ROLES, Role
from probes.roles.views import ELSEWHERE, other_routes

_FEWEST = 8
"""Least number of rows that both sides of a comparison must have."""

_LARGEST = 1 / 4
"""Largest share of the total weight of the controls that may come from one row, so that no single
row decides."""

_BAND = 1.0
"""Width, in nats, of a band of the loss that the model itself expects (its entropy). In a band, the
mean clean losses of event and controls may also differ by at most this."""

_SAME_WRITE = "cause: what it writes is the same on every row, so that no other can take its place"

_COVERED = 0.5
"""Least share of an event's positions that must have controls; otherwise the controls count as
unmatched."""

Marks = Bool[Tensor, "row pos"]
Numbers = Float[Tensor, "row pos"]


def with_controls(found: Sequence[Found], effects: Effects) -> list[Found]:
    """Add the tests that separate a role from other effects to the findings.

    Tests of necessity, specificity, transfer and sufficiency are added to each head or group of
    heads that has passed its tests of behaviour and of causal effect (``cause``), if its role has
    controls on those rows. If it has none, ``missing`` says why. All others are returned unchanged.

    Args:
        found: The findings.
        effects: The effects of edits on the model.

    Returns:
        The findings in their order.
    """
    cases = {key: one for one in found if (key := _case_of(one)) is not None}
    known: dict[_Key, _Controls] = {}
    for name in dict.fromkeys(role for role, _, _ in cases):
        heads = {(one.layer, one.head): one for one in found if one.role == name}
        asked = {key: one for key, one in cases.items() if key[0] == name}
        known |= _of_role(effects, asked, heads)
    asides = {key: controls.asides(key[2]) for key, controls in known.items()}
    result = []
    for one in found:
        role, key = ROLES.get(one.role), _case_of(one)
        if key is not None:
            result.append(_with(one, known[key], asides[key], key[2]))
        elif role is not None and one.cause and holds([*one.behaviour, *one.cause]):
            told = "; ".join(filter(None, (one.missing, _unput(role, one.cause[-1].rows))))
            result.append(replace(one, missing=told))
        else:
            result.append(one)
    return result


_Key = tuple[str, tuple[Place, ...], str]
"""A role, the heads that may play it, and the kind of rows on which its cause was tested."""


def _case_of(one: Found) -> _Key | None:
    """Return the key under which a finding's controls are run.

    None where the behaviour or the cause fails, or where the role has no controls on these rows.
    """
    role = ROLES.get(one.role)
    if role is None or not one.cause or not holds([*one.behaviour, *one.cause]):
        return None
    rows = one.cause[-1].rows
    if not role.control or not rows or (role.uncontrolled and rows == "given"):
        return None
    return role.name, one.together or ((one.layer, one.head),), rows


def _of_role(
    effects: Effects, cases: Mapping[_Key, Found], heads: Mapping[Place, Found]
) -> dict[_Key, _Controls]:
    """Run the controls of all findings of one role, on as many rows as it takes.

    At first about half of them are assumed to pass: the more do, the larger a p each may have. If
    fewer pass, the controls are run again with that number, which needs more rows.

    Args:
        effects: The effects of edits on the model.
        cases: Key → a finding of the role.
        heads: Place of each head tested for the role → its finding.
    """
    passing = max(1, len(cases) // 2)
    while True:
        share = passing / max(len(effects.evidence.heads), len(cases))
        known = {
            key: _run_controls(effects, key, [heads[place] for place in key[1]], one, share)
            for key, one in cases.items()
        }
        passed = sum(holds(controls.tests) for controls in known.values())
        if passed >= passing or passing == 1:
            return known
        passing = max(1, passed)


@dataclass(frozen=True)
class _Controls:
    """The deciding tests of one cause: necessity (ablation of the output), specificity and
    transfer; and the heads, with the rows that were run."""

    case: _Case
    necessity: Sequence[Test]
    specificity: Sequence[Test] = ()
    transfer: Sequence[Test] = ()

    @property
    def tests(self) -> list[Test]:
        """All tests that decide the role's status: necessity, specificity and transfer."""
        return [*self.necessity, *self.specificity, *self.transfer]

    def asides(self, kind: str) -> list[Test]:
        """Return the tests that decide nothing; none if a deciding test fails by its whole
        interval."""
        if _failing(self.tests):
            return []
        return [*self.case.sufficiency(kind), *self.case.same_answer(kind)]

    def is_settled(self, odds: float) -> bool:
        """Return whether more rows would hardly change the status: a kind of test fails and all
        kinds before it are settled, or all are settled."""
        before: list[Test] = []
        for tests in (self.necessity, self.specificity, self.transfer):
            if all(test.is_settled(odds) for test in before) and _failing(tests):
                return True
            before += tests
        return all(test.is_settled(odds) for test in before)


def _run_controls(
    effects: Effects, key: _Key, members: Sequence[Found], one: Found, share: float
) -> _Controls:
    """Run the tests of one cause on more and more rows, until they are settled."""
    name, _, kind = key
    cause, odds = (one.cause or ())[-1], effects.evidence.odds(kind, share)
    for rows in effects.evidence.looks(kind):
        case = _Case(effects, ROLES[name], members, rows, cause, one.positions)
        found = _controls(case, cause)
        if found.is_settled(odds):
            break
    return found


def _controls(case: _Case, cause: Test) -> _Controls:
    """Run the tests of one cause on some rows, up to the first kind of which a test fails by its
    whole interval."""
    kind = cause.rows
    necessity = case.necessity(kind, cause)
    if _failing(necessity):
        return _Controls(case, necessity)
    specificity = case.specificity(kind)
    if _failing(specificity):
        return _Controls(case, necessity, specificity)
    moved = []
    if kind != "given":
        moved = [case.cause(kind + ELSEWHERE, cause)]
        moved += case.specificity(kind + ELSEWHERE) if case.by_events else []
    transfer = [replace(test, name=f"on other rows {test.name}") for test in moved]
    return _Controls(case, necessity, specificity, transfer)


def _failing(tests: Sequence[Test]) -> bool:
    return any(test.high < test.floor for test in tests)


def _with(one: Found, controls: _Controls, asides: Sequence[Test], kind: str) -> Found:
    unmoved = _UNMOVED if kind == "given" else ""
    return replace(
        one,
        cause=[*controls.necessity, *(one.cause or ())],
        specificity=controls.specificity,
        transfer=controls.transfer,
        sufficiency=[*one.sufficiency, *asides],
        missing="; ".join(filter(None, (one.missing, unmoved))),
    )


_UNMOVED = "transfer: the task's rows have no other tokens or offsets"


def _unput(role: Role, kind: str) -> str:
    """Return why a role's specificity and transfer are not tested, in words."""
    none = "its cause is measured on the task's rows" if role.control else "it names no control"
    reason = role.uncontrolled or none
    return (
        f"specificity: {reason}; {_UNMOVED}" if kind in ("", "given") else f"specificity: {reason}"
    )


@dataclass(frozen=True)
class _Side:
    """One side of a comparison.

    Attributes:
        values: The loss rise (or change of the output) at each position.
        weights: The weight of each position.
    """

    values: Numbers
    weights: Numbers


class _Case:
    """The heads that may play a role, alone or together, and the comparisons made for them on some
    rows."""

    def __init__(
        self,
        effects: Effects,
        role: Role,
        members: Sequence[Found],
        rows: list[int] | None,
        cause: Test,
        positions: tuple[int, ...],
    ) -> None:
        self._positions = positions
        self._rows, self._decisions = rows, cause.family.startswith(DECISIONS)
        self._effects, self._role = effects, role
        self._rises = effects.decisions if self._decisions else effects.rises
        self._members = {(one.layer, one.head): one for one in members}
        self._heads, self._evidence = tuple(self._members), effects.evidence
        self._own = {place: one.keys for place, one in self._members.items()}
        self._nats = effects.evidence.profile.unit == "nats"
        told = role.control == "events" and not self._nats
        self._control = "keys" if told else role.control
        model = self._evidence.model
        hooks = {self._evidence.site(place).name for place in self._heads}
        self._unhooked = sorted(hooks - {*model.hook_dict})

    @property
    def by_events(self) -> bool:
        """Whether positions where the role's event happens are compared with control positions
        where it does not, rather than one ablation with another."""
        return self._control == "events"

    def cause(self, kind: str, found: Test) -> Test:
        """Test the cause again, on rows of another kind."""
        mask = self._mask(kind)
        chosen = mask.any(1)
        if int(chosen.sum()) < _FEWEST:
            return Test.too_few(
                "the cause on other tokens, offsets and lengths", _FEWEST, found.floor
            )
        away = self._rises.away(kind, self._heads, self._role.keys, self._own)
        again = self._over(kind, self._loss_rises(kind, away), mask, found.floor)
        return again.test(found.name, found.floor, family="elsewhere")

    def necessity(self, kind: str, found: Test) -> list[Test]:
        """Test the cause by ablating the heads' outputs instead of their attention.

        The outputs are replaced by their means over rows, and by those on the row before. What a
        head writes from the first position is the same in every row, so that neither changes it: a
        role about the first position has no such tests. For a role without a key set, whose cause
        is mean ablation already, only the second test is made.

        Args:
            kind: The kind of rows.
            found: The cause that was found, whose floor is used.
        """
        if self._role.keys == "first":
            return []
        if self._unhooked:
            return [self._unhooked_test(found.floor)]
        mask, rises = self._mask(kind), [self._loss_rises(kind)]
        rises.append(self._loss_rises(kind, self._rises.exchange_edits(kind, self._heads)))
        unit = "the loss rises, in nats, by" if self._nats else "the output changes by"
        unit = "the share of right answers falls by" if self._decisions else unit
        words = [f"with its mean in its place {unit}", f"with another row's in its place {unit}"]
        tests = []
        for values, name, family in zip(rises, words, ("mean", "resampled"), strict=True):
            change = self._over(kind, values, mask, found.floor)
            tests.append(change.test(name, found.floor, family))
        same = self._effects.writes.same_on_all_rows
        if all(test.score == 0 and same(place, kind) for test in tests for place in self._heads):
            return [Test(_SAME_WRITE, 0.0, found.floor, 1.0, untested=_SAME_WRITE)]
        return tests if self._role.keys else tests[1:]

    def _loss_rises(self, kind: str, edits: Edits | None = None) -> Numbers:
        """Return what is lost at each position when the heads are mean-ablated, or under other
        edits."""
        if edits is not None:
            return self._rises.at(kind, edits, self._rows)
        away = self._rises.away(kind, self._heads)
        # Where controls are positions, specificity needs the positions that are not scored, too.
        return self._rises.at(kind, away, self._rows, everywhere=self.by_events)

    def _over(self, kind: str, values: Numbers, mask: Marks, floor: float) -> RowMean:
        """Return the mean over rows of what is lost, tested against the null that belongs to the
        floor."""
        rows = (values * mask).sum(1) / mask.sum(1).clamp_min(1)
        than = beyond(floor, squared=not self._nats and not self._decisions)
        return over_rows(rows[mask.any(1)].numpy(), than=than, of=self._of(kind))

    def _of(self, kind: str) -> int | None:
        """Return the number of rows of a kind, if only some of them are used; else None."""
        return None if self._rows is None else len(self._evidence.batch(kind))

    def _unhooked_test(self, floor: float) -> Test:
        words = f"no hook {', '.join(self._unhooked)}, where what heads write would be replaced"
        return Test(words, 0.0, floor, 1.0, untested=words)

    def specificity(self, kind: str) -> list[Test]:
        """Test the difference of the two sides that the role's control compares, and its share of
        the first.

        Args:
            kind: The kind of rows.

        Returns:
            The tests. For the control ``straight`` they begin with the share of the direct effect
            that is due to attended tokens. If there are too few controls, or a hook is missing, one
            test marked as not made.
        """
        if self._unhooked and self._control != "keys":
            return [self._unhooked_test(self._evidence.floors.loss)]
        found: tuple[_Side, _Side, str] | None = getattr(self, f"_{self._control}")(kind)
        unit = "in nats" if self._nats else "as a share of its variance"
        unit = "as a share of the answers" if self._decisions else unit
        floors = self._evidence.floors
        least = floors.loss if self._nats else floors.change
        least = floors.decisions if self._decisions else least
        if found is None:
            return [Test.too_few(f"controls of {self._role.name}", _FEWEST, least)]
        own, control, words = found
        difference, share = _compare(own, control, self._of(kind))
        raised = self._logit_tests(kind) if self._control == "straight" else []
        return [
            *raised,
            difference.test(f"beyond {words}, {unit},", least, "specific"),
            share.test(
                "lost through the role, of all that is lost, a share of",
                floors.specific,
                "specific share",
            ),
        ]

    def _logit_tests(self, kind: str) -> list[Test]:
        """Test which share of the direct effect's loss is due to the attended tokens' logits.

        Both losses are rises: when what the heads add to all logits is removed, and when what they
        add to the attended tokens' logits is.
        """
        named = {place: one.tokens(kind) for place, one in self._members.items() if one.tokens}
        whole, some = direct_loss_rises(self._evidence, kind, self._heads, named, self._rows)
        mask = self._mask(kind).double()
        _, share = _compare(_Side(whole, mask), _Side(whole - some, mask), self._of(kind))
        name = "of what it adds to the logits, due to the tokens it attends to, a share of"
        return [share.test(name, self._evidence.floors.specific, "raised")]

    def sufficiency(self, kind: str) -> list[Test]:
        """Test whether attention to the role's keys alone is enough for the heads' effect.

        The score is 1 − b / a: a is the loss rise (or output change) when the heads' attention to
        these keys is removed, b the one when all their other attention is removed; a negative b
        counts as 0.

        Args:
            kind: The kind of rows that this is measured on.

        Returns:
            One test; none if the role's controls are not positions, or too few rows are scored.
        """
        if not self.by_events:
            return []
        found = self._keys(kind)
        if found is None:
            return []
        _, share = _compare(*found[:2], self._of(kind))
        return [share.test("with its keys alone it keeps, of what is lost without them,", 0.0)]

    def same_answer(self, kind: str) -> list[Test]:
        """Test how much of the loss is avoided when a head's output comes from a row with the same
        answer.

        The score is 1 − b / a: a is the loss rise when the output is replaced by that on another
        row, b the one when it is replaced by that on a row that leads to the same next token by
        another route (:func:`probes.roles.views.other_routes`).

        Args:
            kind: The kind of rows.

        Returns:
            One test; none for roles whose output is not the answer, in other units than nats, or
            with too few positions.
        """
        writes = self._role.keys == "after_same" or self._role.control == "straight"
        if not self._nats or not writes or self._unhooked:
            return []
        batch = self._evidence.batch(kind)
        others = other_routes(batch.inputs, seed=self._evidence.seed)
        same = (others != batch.inputs) & (others.roll(-1, 1) == batch.targets)
        weights = self._mask(kind) & self._some(same)
        if int(weights.any(1).sum()) < _FEWEST:
            return []
        many = [Array(inputs) for inputs in (batch.inputs.roll(1, 0), others)]
        lost = [self._loss_rises(kind, edits) for edits in self._exchanges(kind, same, many)]
        own, control = (_Side(values, weights.double()) for values in lost)
        share = _compare(own, control, self._of(kind))[1]
        name = "with the same answer's write, by another route, it keeps, of what another's costs,"
        return [share.test(name, self._evidence.floors.specific, SAME_ANSWER)]

    def _exchanges(self, kind: str, where: Marks, many: Sequence[Array]) -> Iterator[Edits]:
        """Yield, for each of several other inputs, the edits that replace the heads' outputs at
        some positions by their outputs there on these inputs."""
        run, sites = self._evidence.run(kind), [self._evidence.site(head) for head in self._heads]
        rows = torch.arange(len(where)) if self._rows is None else torch.tensor(self._rows)
        whole = run.at(sites, rows.tolist())
        for inputs in many:
            found = []
            for site, own in whole.items():
                other = site.take(run.clean_values(site.every_head, rows, inputs))
                here = where[rows].to(own.device)[..., None]
                values = own.new_zeros(len(where), *own.shape[1:])  # 0 in rows not looked at
                values[rows] = torch.where(here, other, own)
                found.append(Replace(site, Array(values)))
            yield tuple(found)

    def _mask(self, kind: str) -> Marks:
        """Return the scored positions of the rows that are used; for a head that acts over a range,
        those in it."""
        mask = self._some(self._evidence.batch(kind).mask)
        if not self._positions:
            return mask
        at, (first, last) = torch.arange(mask.shape[1]), self._positions
        return mask & (at >= first) & (at <= last)

    def _some(self, values: Tensor) -> Tensor:
        """Return the rows that are used, of values on all rows of a kind."""
        rows = self._within(len(values))
        return values if rows is None else values[rows]

    def _within(self, size: int) -> list[int] | None:
        """Return the numbers of the rows that are used and that a kind with ``size`` rows has; None
        for all."""
        return None if self._rows is None else [row for row in self._rows if row < size]

    def _sides(self, kind: str, name: str, other: Edits) -> tuple[_Side, _Side] | None:
        """Return both sides of a comparison of two ablations.

        The first side is what is lost without attention to the key set ``name`` (without a name:
        when the heads are mean-ablated), the second what is lost under other edits. None if too few
        rows are scored.
        """
        mask = self._mask(kind).double()
        if int(mask.any(1).sum()) < _FEWEST:
            return None
        own = self._loss_rises(kind, self._rises.away(kind, self._heads, name, self._own))
        return _Side(own, mask), _Side(self._loss_rises(kind, other), mask)

    def _keys(self, kind: str) -> tuple[_Side, _Side, str] | None:
        keys = self._role.keys
        found = self._sides(kind, keys, self._rises.only(kind, self._heads, keys, self._own))
        return None if found is None else (*found, "what is lost without its other attention")

    def _pattern(self, kind: str) -> tuple[_Side, _Side, str] | None:
        found = self._sides(kind, "", self._rises.average_edits(self._heads))
        return None if found is None else (*found, "what is lost with its mean attention")

    def _straight(self, kind: str) -> tuple[_Side, _Side, str] | None:
        mask = self._mask(kind).double()
        if int(mask.any(1).sum()) < _FEWEST:
            return None
        effects, heads = self._effects, self._heads
        kept = effects.writes.keep_at_end(kind, heads)
        whole, later = (
            self._loss_rises(kind),
            self._loss_rises(kind, (*effects.rises.away(kind, heads), kept)),
        )
        return _Side(whole, mask), _Side(later, mask), "what is lost through later layers"

    def _events(self, kind: str) -> tuple[_Side, _Side, str] | None:
        """Compare positions where the role's event happens with controls; None if they cannot be
        matched.

        Controls are also taken from the kinds ``text`` and ``rows``, where more can be predicted.
        """
        views = self._evidence.views
        kinds = [kind, *(one for one in ("text", "rows") if one in views and one != kind)]
        sides = [self._happens(one) for one in kinds]
        happens = [sides[0][0], *(torch.zeros_like(some) for some, _ in sides[1:])]
        runs = [self._evidence.run(one, everywhere=True) for one in kinds]
        rows = [self._within(len(run)) for run in runs]
        pairs = list(zip(runs, rows, strict=True))
        found = match_controls(
            _stack_rows(happens),
            _stack_rows([absent for _, absent in sides]),
            _stack_rows([run.value(rows=some) for run, some in pairs]),
            _stack_rows([run.value(_entropy, some) for run, some in pairs]),
        )
        if found is None:
            return None
        away = self._rises.away("", self._heads)
        lost = [
            self._rises.at(one, away, some, everywhere=True)
            for one, some in zip(kinds, rows, strict=True)
        ]
        values = _stack_rows(lost)
        return _Side(values, found[0]), _Side(values, found[1]), f"what is lost at {found[2]}"

    def _happens(self, kind: str) -> tuple[Marks, Marks]:
        """Return where the role's event happens, and where it does not and can serve as a
        control."""
        batch, name = self._evidence.batch(kind), self._role.keys
        keys = reduce(or_, (self._evidence.keys(kind, name, own) for own in self._own.values()))
        any_, first = keys.any(-1), torch.arange(keys.shape[1]) == 0
        happens = any_ & batch.mask
        if self._role.keys == "after_same":
            found = keys & (batch.inputs[:, None, :] == batch.targets[:, :, None])
            happens &= found.any(-1)
        measured = self._evidence.run(kind, everywhere=True).batch.mask
        return self._some(happens), self._some(~any_ & ~first & measured)


def _entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Return the entropy of the model's prediction in nats: the loss that the model itself
    expects."""
    logs = output.float().log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def _stack_rows(kinds: Sequence[Tensor]) -> Tensor:
    """Stack rows of several kinds, padding shorter ones with zeros."""
    longest = max(some.shape[1] for some in kinds)
    return torch.cat([functional.pad(some, (0, longest - some.shape[1])) for some in kinds])


def match_controls(
    happens: Marks, absent: Marks, losses: Numbers, expected: Numbers
) -> tuple[Numbers, Numbers, str] | None:
    """Weight the positions of an event and control positions so that the two are alike.

    Positions are sorted into bands of one nat by the entropy of the model's prediction, which is
    the loss that the model itself expects. Four kinds of controls are tried in turn: of the same
    band at the same position, of the same band, at the same position, all. A band counts only if
    the mean clean losses of the event's positions and of the controls in it differ by at most one
    nat. The first kind that covers half of the event's positions is taken.

    Args:
        happens: True where the event happens, ``[row, pos]``.
        absent: True at positions that may serve as controls.
        losses: The clean loss at each position, in nats.
        expected: The entropy of the model's prediction, in nats.

    Returns:
        The weights ``[row, pos]`` of the event's positions and of the controls, and the kind of
        controls in words. None if no kind has enough controls: half of the event's positions
        covered, eight rows on both sides, and at most a quarter of the weight from one row.
    """
    place = torch.arange(happens.shape[1]).expand(happens.shape)
    bands = (expected / _BAND).long()
    both = place * (int(bands.max()) + 1) + bands
    none = "other positions, none of the same loss"
    for classes, alike, words in (
        (both, losses, "others of the same loss and position"),
        (bands, losses, "others of the same loss"),
        (place, None, f"{none}, at the same positions"),
        (torch.zeros_like(place), None, none),
    ):
        found = _balance_classes(happens, absent, classes, alike)
        if found is not None:
            return *found, words
    return None


def _balance_classes(
    happens: Marks, absent: Marks, classes: Tensor, losses: Numbers | None
) -> tuple[Numbers, Numbers] | None:
    """Weight controls so that in every class they weigh as much as the event's positions.

    Only classes that both sides have are used and, if losses are given, only those in which the two
    mean losses differ by at most one nat. None if that leaves less than half of the event's
    positions, if either side has too few rows, or if the controls of one row have more than a
    quarter of all weight.
    """
    size = int(classes.max()) + 1
    own, other = (torch.bincount(classes[side], minlength=size) for side in (happens, absent))
    kept = (own > 0) & (other > 0)
    if losses is not None:
        sums = [
            torch.bincount(classes[side], losses[side], minlength=size) / count.clamp_min(1)
            for side, count in ((happens, own), (absent, other))
        ]
        kept &= (sums[1] - sums[0]).abs() <= _BAND
    if float(own[kept].sum()) < _COVERED * float(own.sum().clamp_min(1)):
        return None
    weight = torch.where(kept, own / other.clamp_min(1), 0.0).double()
    event, control = (happens & kept[classes]).double(), absent * weight[classes]
    if min(int((side > 0).any(1).sum()) for side in (event, control)) < _FEWEST:
        return None
    if float(control.sum(1).max()) > _LARGEST * float(control.sum()):
        return None
    return event, control


def _compare(own: _Side, control: _Side, of: int | None) -> tuple[RowMean, RowMean]:
    """Return the difference own − control and the share 1 − control / own of two weighted means.

    Both have values by row: what each row contributes, to first order. A control below 0 counts as
    0 in the share.
    """
    means, parts = [], []
    for side in (own, control):
        total = side.weights.sum()
        mean = (side.values * side.weights).sum() / total
        means.append(float(mean))
        off = ((side.values - mean) * side.weights).sum(1) / total
        parts.append((off * len(off)).numpy())
    (e, c), (a, b) = means, parts
    size = e if abs(e) > 1e-12 else 1e-12
    lost = max(c, 0.0)  # what gets better at the controls is no reason for a share above 1
    share = 1 - lost / size + (lost * a / size - b * (c > 0)) / size
    return over_rows(e - c + a - b, of=of), over_rows(np.asarray(share), of=of)
