"""What is lost when an attention pattern, a head or a group is ablated: the causal tests of roles.

    unit variance   change = Σ |out′ − out|² / Σ |out − mean out|²   over scored positions, row by
                    row; where targets are known and a role asks for it, the loss must rise, too.
                    Where targets are tokens, a change of the output below its floor still counts
                    if it costs right answers: the test is then of the share of right answers lost
    unit nats       rise of the loss at scored positions, row by row, on the kind of rows where it
                    is largest; p is multiplied by the number of kinds. More rows are run until it
                    is decided whether the rise reaches the floor (:mod:`interp.run.evidence`)

No change is found for a head that other heads stand in for, and a change of the output need not be
a change for the worse. Every effect is measured once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from interp.interventions.ablation_effects import loss_unit
from interp.run import gather_evidence
from interp.run.edits import Edits
from interp.run.evidence import CHEAP, MANY
from interp.stats.head_table import adjust
from probes.roles.ability import CANNOT, able_kinds
from probes.roles.change import NONE, RowMean, beyond, from_finding, over_rows
from probes.roles.decision import Test
from probes.roles.evidence import Evidence, KeysOf, Place
from probes.roles.rises import AttentionFalls, LossRises
from probes.roles.writes import Writes

_FEWEST = 8
"""Least number of rows on which losses are compared. With fewer, the test reports that there are
too few."""

_MISSED = 0.05
"""Error probability, both sides together, with which something that is needed may be called not
needed after only some of the rows were run."""

DECISIONS = "decisions"
"""Prefix of the families of tests that count how many answers become wrong."""


class Effects:
    """The effects of ablations and other edits on the model of some evidence, each measured once.

    Args:
        evidence: The evidence, with its model and rows.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._floors, self._nats = evidence.floors, evidence.profile.unit == "nats"
        self.rises, self.writes = LossRises(evidence), Writes(evidence)
        self.decisions, self.falls = LossRises(evidence, decisions=True), AttentionFalls(self.rises)
        self._known: dict[tuple[Place, str], Test] = {}
        self._rises_by: dict[tuple[str, Edits], RowMean] = {}
        self._odds_of: dict[tuple[str, Edits], float] = {}

    def without_keys(self, place: Place, name: str, own: KeysOf | None = None) -> list[Test]:
        """Test whether ablating a head's attention to a key set matters: the cause of a role that
        says where a head attends.

        The removed attention goes to the query's other keys, in their proportions.

        Args:
            place: Layer and number of the head.
            name: The name of the key set.
            own: The head's own keys, if each head has its own.

        Returns:
            One test: that the loss rises (unit nats), or that the output changes (unit variance).
        """
        rows, words = self.evidence.profile.rows, "without that attention"
        kind = rows[name] if name in rows else rows["own"]
        kinds = self._kinds_of(name) if self._nats else (kind,)
        away = {k: self.rises.away(k, [place], name, {place: own}) for k in kinds}
        if self._nats:
            return [replace(self.worst(words, away), alone=True)]
        over = "later" if kind == "given" else "all"
        found = self._output_test(words, kind, over, away[kind])
        return [replace(found, rows=kind, alone=True)]

    def without_equal(self, place: Place, kind: str) -> Test:
        """Test whether the output changes when a head's attention to equal tokens is removed.

        Args:
            place: Layer and number of the head.
            kind: The kind of rows.
        """
        words, away = "without attention to equal tokens", self.rises.away(kind, [place], "same")
        return self._output_test(words, kind, "all", away)

    def without_head(self, place: Place, *, over: str = "all") -> list[Test]:
        """Test whether mean ablation of a head matters: the cause of a role that says what a head
        does.

        The head's output is replaced by its mean over rows. If it is the same on every row of a
        task, the mean over rows and positions is used instead.

        Args:
            place: Layer and number of the head.
            over: The positions at which a change of the output counts: ``all`` scored positions, or
                the ``later`` ones. Ignored in the unit nats.

        Returns:
            One test: that the loss rises (unit nats), or that the output changes (unit variance).
        """
        words = "without the head"
        if (place, over) not in self._known:
            if self._nats:
                found = self.worst(words, {k: self.rises.away(k, [place]) for k in self.trials})
                self._known[place, over] = replace(found, alone=True)
            else:
                edits = self.rises.away("given", [place])
                if self.writes.same_on_all_rows(place):
                    words = "with the mean over positions of what it writes on every row"
                    edits = self.rises.level_edits(place)
                self._known[place, over] = self._output_test(words, "given", over, edits)
        return [self._known[place, over]]

    def losing_keys(self, place: Place, name: str) -> list[Test]:
        """Test whether the loss on the given rows rises when a head's attention to a key set is
        removed.

        Only queries that have such keys count.

        Args:
            place: Layer and number of the head.
            name: The name of the key set.

        Returns:
            One test. An empty list if the profile's unit is nats, because :meth:`without_keys`
            tests the loss then, or if the targets are not known.
        """
        evidence = self.evidence
        if self._nats or not evidence.targets:
            return []
        where = evidence.views["given"].batch.mask & evidence.keys("given", name).any(-1)
        if int(where.any(1).sum()) < _FEWEST:
            words = "the loss after a token that comes twice"
            return [Test.too_few(words, _FEWEST, self._floors.loss, "loss")]
        edits = self.rises.away("given", [place], name)
        return [replace(self.worse(edits, "without that attention", where), alone=True)]

    def straight(self, places: Sequence[Place]) -> Test:
        """Test whether the output depends on the direct effect of heads of a layer.

        What the heads together write, minus its mean over rows, is subtracted from the residual
        stream after the last layer. So the layers in between still read it, and only its direct
        path to the unembedding is cut.

        Args:
            places: (layer, head) of heads of one layer.
        """
        edits = (self.writes.at_end(-self.writes.together(places)),)
        words = "without what it writes straight to the output"
        if len(places) > 1:
            words = f"without what {len(places)} such heads of the layer write straight to it"
        return self._output_test(words, "given", "all", edits)

    def part(self, place: Place, places: Sequence[Place]) -> Test:
        """Test whether a head contributes a large enough part to what several heads of its layer
        write.

        The score is ⟨own, joint⟩ / ‖joint‖²: the projection of the head's output on the heads'
        summed output, both minus their means over rows, at the scored positions of the given rows.

        Args:
            place: Layer and number of the head.
            places: The heads of the layer, the head itself among them.
        """
        scored = self.evidence.views["given"].batch.mask
        mine, all_ = (self.writes.together(some)[scored] for some in ((place,), tuple(places)))
        found = float((mine * all_).sum() / all_.square().sum().clamp_min(1e-30))
        return Test("its part in what they write", found, self._floors.mixed)

    def change_test(self, edits: Edits, floor: float, name: str) -> Test:
        """Test whether edits, made together, change the output on the given rows by at least a
        floor.

        The p-value is computed against half of the floor.

        Args:
            edits: The edits.
            floor: The least change, as a share of the output's variance.
            name: The name of the test.
        """
        change = self._change("given", "all", edits, floor).test(name, floor, "changed")
        return replace(change, loss=True)

    def kept_output(self, without: Edits, edits: Edits, name: str, floor: float) -> Test:
        """Test how much of what components do to the output on the given rows is left when edits
        are made.

        The score is 1 − (change of the output by the edits) / (change of the output without the
        components), over all rows; 0 if the output does not change without them.

        Args:
            without: The edits that ablate the components.
            edits: The edits.
            name: The name of the test.
            floor: The least score that passes.
        """
        left, whole = (self._change_by_row("given", "all", one) for one in (edits, without))
        if not whole.mean() > 0:
            return Test(name, 0.0, floor)
        kept = over_rows(1 - left / whole.mean())
        return replace(kept.test(name, floor), p=0.0)

    def worse(self, edits: Edits, words: str, where: Tensor | None = None) -> Test:
        """Test whether edits, made together, raise the loss on the given rows.

        Args:
            edits: The edits.
            words: What is ablated, in words, for the name of the test.
            where: True at the positions that count, ``[row, pos]``; by default those that are
                scored.

        Returns:
            The test. Its score is in nats for token targets, and a share of the targets' variance
            for real ones.
        """
        batch = self.evidence.views["given"].batch
        where = batch.mask if where is None else where
        rises = _row_means(self.rises.losses("given", edits), where) / loss_unit(batch)
        real = batch.targets.is_floating_point()
        unit = " a share of the targets' variance of" if real else ", in nats,"
        name = f"{words} the loss on these rows rises by{unit}"
        return replace(over_rows(rises.numpy()).test(name, self._floors.loss, "loss"), loss=True)

    @cached_property
    def trials(self) -> tuple[str, ...]:
        """The kinds of rows on which a rise of the loss counts
        (:func:`~probes.roles.ability.able_kinds`)."""
        return able_kinds(self.evidence)

    def decides(self, kind: str) -> bool:
        """Return whether a fall of the share of right answers can decide a test on rows of one
        kind.

        True only for the given rows of a task, if their targets are known and are tokens.
        """
        given = self.evidence.views.get("given")
        if self._nats or kind != "given" or given is None or not self.evidence.targets:
            return False
        return not given.batch.targets.is_floating_point()

    def _output_test(self, words: str, kind: str, over: str, edits: Edits) -> Test:
        """Test whether edits change the output at the positions that count.

        Where answers are tokens, the name of the test also says how many fewer are right. If the
        output changes by less than its floor, but the share of right answers falls by at least its
        own floor, the test is of that fall instead, with p doubled.
        """
        name = f"{words} the output changes by a share of its variance of"
        change = self._change(kind, over, edits)
        test = replace(change.test(name, self._floors.change), loss=True)
        if not self.decides(kind):
            return test
        floor = self._floors.decisions
        scored, _ = self.rises.spread(kind, over)
        fewer = over_rows(_row_means(self.decisions.at(kind, edits), scored).numpy())
        falls = "the share of right answers falls by"
        if test.score >= test.floor or fewer.score < floor:
            told = f"{words} {falls} {fewer.score:.2f}, and the output"
            return replace(test, name=name.replace(f"{words} the output", told), family=name)
        paid = replace(fewer, p=min(1.0, 2 * fewer.p))  # the output's change was looked at first
        told = f"{words} the output changes by {test.score:.2f} of its variance, and {falls}"
        return replace(paid.test(told, floor, DECISIONS), loss=True)

    def expect(self, asked: Sequence[tuple[Place, str]]) -> None:
        """Measure the rises of the loss for many ablations together, so that later tests reuse
        them.

        The slopes of many edits cost as much as those of one. Nothing is done in a profile whose
        unit is not nats.

        Args:
            asked: Pairs of a head, as (layer, head), and the name of the key set to which its
                attention is removed. An empty name ablates the whole head.
        """
        if not self._nats:
            return
        by_name: dict[str, list[Place]] = {}
        for place, name in asked:
            by_name.setdefault(name, []).append(place)
        away, many = self.rises.away, []
        for name, places in by_name.items():
            kinds = self._kinds_of(name)
            many.append([{k: away(k, [place], name) for k in kinds} for place in places])
        for kind in self.trials if not self.evidence.exhaustive else ():
            edits = [one[kind] for some in many for one in some if kind in one]
            most = max(map(len, many), default=0) * len(self.evidence.batch(kind))
            if len(edits) >= MANY and most > CHEAP:  # else all rows are run
                self.evidence.run(kind).slopes(edits)  # of all at once; the run remembers them
        for some in many:
            self._gather_many(some)

    def _gather_many(self, many: Sequence[Mapping[str, Edits]]) -> None:
        """Gather evidence for many ablations, assuming at first that half of them raise the loss.

        The more do, the larger the p-value that each of them may have after the correction for
        false discovery. While fewer turn out to, the number is lowered and more rows are run.

        Args:
            many: For each ablation, kind of rows → the edits made there.
        """
        heads, needed = len(self.evidence.heads), max(1.0, len(many) / 2)
        while True:
            found = self._gather(many, needed / heads)
            least = [min(one.values(), key=lambda c: -c.score) if one else NONE for one in found]
            p = np.array([min(1.0, c.p * len(one)) for c, one in zip(least, found, strict=True)])
            q = adjust(np.concatenate([p, np.ones(max(heads - len(p), 0))]))[: len(p)]
            above = np.array([c.score >= self._floors.loss for c in least])
            if needed == 1 or not (above & (q >= self.evidence.profile.level)).any():
                return
            needed = max(1.0, min(needed / 2, float((above & (q < 1)).sum())))

    def _kinds_of(self, name: str) -> tuple[str, ...]:
        """Return the kinds of rows on which removing attention to a key set may raise the loss."""
        only = self.evidence.profile.rows[name] if name == "after_same" else ""
        return tuple(kind for kind in self.trials if kind == only) if only else self.trials

    def worst(self, words: str, edits: Mapping[str, Edits]) -> Test:
        """Test whether the loss rises on the kind of rows where it rises most.

        Args:
            words: What is ablated, in words.
            edits: Kind of rows → the edits made there.

        Returns:
            The test, with p multiplied by the number of kinds. A test marked as not made if there
            are no kinds that the model can do, or if each has fewer than eight rows with scored
            positions.
        """
        (changes,) = self._gather([edits])
        if not edits:
            return Test(CANNOT, 0.0, self._floors.loss, 1.0, family="loss", untested=CANNOT)
        if not changes:
            return Test.too_few("the loss at scored positions", _FEWEST, self._floors.loss, "loss")
        kind = max(changes, key=lambda name: changes[name].score)
        one = changes[kind]
        paid = replace(one, p=min(1.0, one.p * len(changes)))
        name = f"{words} the loss on {kind} rises, in nats, by"
        return replace(paid.test(name, self._floors.loss, "loss"), rows=kind, loss=True)

    def _gather(
        self, many: Sequence[Mapping[str, Edits]], share: float = 0.0
    ) -> list[dict[str, RowMean]]:
        """Measure by how much the loss rises on rows of each kind, on as many rows as it takes to
        decide.

        To be decided for each kind is whether the loss rises by the floor, and by more than on the
        kinds before it.

        Args:
            many: For each ablation, kind of rows → the edits made there.
            share: The share of the model's heads assumed to be needed; one head by default.

        Returns:
            For each ablation, kind of rows → the mean rise; kinds with fewer than eight rows with
            scored positions are left out.
        """
        found: list[dict[str, RowMean]] = [{} for _ in many]
        for kind in many[0]:
            edits = [one[kind] for one in many]
            if int(self.evidence.batch(kind).mask.any(1).sum()) < _FEWEST:
                continue
            floors = [max([self._floors.loss, *(c.score for c in one.values())]) for one in found]
            odds = self.evidence.profile.level * max(share, 1 / len(self.evidence.heads))
            self._measure(kind, edits, floors, odds / len(many[0]))
            for one, made in zip(found, edits, strict=True):
                one[kind] = self._rises_by[kind, made]
        return found

    def _measure(
        self, kind: str, edits: Sequence[Edits], floors: Sequence[float], odds: float
    ) -> None:
        """Measure the rise of the loss on rows of one kind for every edit, and keep it.

        An edit is measured again only if it was found to be above its floor when a larger
        probability of error (``odds``) was allowed than now.
        """
        run, scored = self.evidence.run(kind), self.evidence.batch(kind).mask.any(1)
        new = [i for i, e in enumerate(edits) if self._odds_of.get((kind, e), 1.0) > odds]
        some = gather_evidence(
            run,
            [edits[i] for i in new],
            floor=[floors[i] for i in new],
            alpha=(_MISSED, 2 * odds),
            exhaustive=self.evidence.exhaustive or not bool(scored.all()),
            seed=self.evidence.seed,
        )
        for i, one in zip(new, some, strict=True):
            self._odds_of[kind, edits[i]] = odds if one.status == "above" else 0.0
            if one.rows < len(run):
                self._rises_by[kind, edits[i]] = from_finding(one, len(run))
            else:
                rows = run.by_row(run.rise(edits[i]))[scored]
                self._rises_by[kind, edits[i]] = over_rows(rows.numpy())

    def _change(self, kind: str, over: str, edits: Edits, floor: float | None = None) -> RowMean:
        """Compute by how much edits change the output where it counts, as a share of its variance.

        Only some of the rows are run if these settle the test.

        Args:
            kind: The kind of rows.
            over: ``all`` scored positions, or the ``later`` ones.
            edits: The edits, made together.
            floor: The least change that passes; by default the profile's.
        """
        least = self._floors.change if floor is None else floor
        scored, variance = self.rises.spread(kind, over)
        if not variance > 0:
            return NONE
        for rows in self.evidence.looks(kind):
            means = self._change_by_row(kind, over, edits, rows)
            of = None if rows is None else len(scored)
            found = over_rows(means, than=beyond(least, squared=True), of=of)
            if found.test("", least).is_settled(self.evidence.odds(kind)):
                break
        return found

    def _change_by_row(
        self, kind: str, over: str, edits: Edits, rows: list[int] | None = None
    ) -> Float[np.ndarray, " row"]:
        """Return by how much edits change the output of each row, as a share of its variance over
        all rows; of all rows by default."""
        scored, variance = self.rises.spread(kind, over)
        where = scored if rows is None else scored[rows]
        shares = self.rises.at(kind, edits, rows) * (self.rises.spread(kind, "all")[1] or 1.0)
        found: Float[np.ndarray, " row"] = (_row_means(shares, where) / (variance or 1.0)).numpy()
        return found


def _row_means(values: Float[Tensor, "row pos"], where: Bool[Tensor, "row pos"]) -> Tensor:
    """Return each row's mean over the chosen positions, for the rows that have some."""
    return ((values * where).sum(1) / where.sum(1).clamp_min(1))[where.any(1)]
