"""What is lost without an attention pattern, a head or a group: the causes that roles rest on.

    unit variance   change = Σ |out′ − out|² / Σ |out − mean out|²   over scored positions, row by
                    row; where targets are known and a role asks for it, the loss must rise, too
    unit nats       rise of the loss at scored positions, row by row, on the kind of rows where it
                    is largest; p is taken times the number of kinds

No change is found for a head that others stand in for; a change is not yet one for the worse.
Every effect is measured once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, isnan, nan

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.interventions.ablation_effects import loss_unit, position_losses
from interp.interventions.components import Component, hook_of
from interp.tasks.counterfactual import Variable
from probes.exchange import Exchanged
from probes.locate import LEAST_PAIRS, exchanged
from probes.roles.change import NONE, Change, over_rows
from probes.roles.decision import Test
from probes.roles.evidence import Evidence, Keys, Place
from probes.roles.runs import Edits, knock_out
from probes.roles.views import later

__all__ = ["Effects"]

_FEWEST = 8
"""The least number of rows on which losses are compared."""

Edited = Callable[[str], Edits]
"""A function from a kind of rows to what is changed on them."""


class Effects:
    """The effects of changing the model of some evidence, each measured once.

    Args:
        evidence: The evidence, with its model and rows.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._floors, self._nats = evidence.floors, evidence.profile.unit == "nats"
        self._spreads: dict[tuple[str, str], tuple[Tensor, float]] = {}
        self._known: dict[tuple[Place, str], Test] = {}
        self._writes: dict[int, Tensor] = {}

    def without_keys(self, place: Place, name: str) -> list[Test]:
        """The cause of a role that says where a head looks: that attention is taken away."""
        kind, words = self.evidence.profile.rows[name], "without that attention"
        if self._nats:
            kinds = (kind,) if name == "after_same" else self._trials
            return [self._worst(words, lambda one: self._keys(one, place, name), kinds)]
        over = "later" if kind == "given" else "all"
        change = self._change(kind, over, self._keys(kind, place, name))
        return [self._output_test(words, change)]

    def without_equal(self, place: Place, kind: str) -> Test:
        """The test that the output changes without attention to equal tokens, on one kind of
        rows."""
        change = self._change(kind, "all", self._keys(kind, place, "same"))
        return self._output_test("without attention to equal tokens", change)

    def without_head(self, place: Place, *, over: str = "all") -> list[Test]:
        """The cause of a role that says what a head does: the head is ablated.

        Args:
            place: Layer and number of the head.
            over: Positions where a change of the output counts, ``all`` that are scored or the
                ``later`` ones.
        """
        part, runs, words = [Component("head", *place)], self.evidence.runs, "without the head"
        if (place, over) not in self._known:
            if self._nats:
                found = self._worst(words, lambda one: runs(one).without(part), self._trials)
                self._known[place, over] = found
            else:
                squared = self._squared(
                    "given", self._outputs("given", runs("given").without(part))
                )
                for some in ("all", "later"):
                    change = self._shared("given", some, squared)
                    self._known[place, some] = self._output_test(words, change)
        return [self._known[place, over]]

    def losing_keys(self, place: Place, name: str) -> list[Test]:
        """That the head's attention lowers the loss on the given rows, where targets are known."""
        evidence, floor = self.evidence, self._floors.loss
        if self._nats or not evidence.targets:
            return []
        batch, keys = evidence.views["given"].batch, evidence.keys("given", name)
        found = self._rise("given", self._keys("given", place, name), batch.mask & keys.any(-1))
        if found is None:
            words = "the loss after a token that comes twice"
            return [Test.too_few(words, _FEWEST, floor, "loss")]
        return [self._loss_test("without that attention", found)]

    def falls(self, place: Place, name: str, others: Sequence[Place], lost: str) -> Change:
        """How much a head's attention to a key set falls when earlier heads lose another attention.

        All the earlier heads lose their attention to the second key set together. What they wrote
        of it is then gone, and everything else that they write stays.
        """
        evidence, kind = self.evidence, self.evidence.profile.rows[name]
        keys, away = evidence.keys(kind, name), evidence.keys(kind, lost)
        edits = [knock_out(evidence.model, *other, away) for other in others]
        before = self._shares(kind, lambda rows: [], place, keys)
        after = self._shares(
            kind, lambda rows: [e for some in edits for e in some(rows)], place, keys
        )
        return over_rows(before - after)

    def _shares(
        self, kind: str, edits: Edits, place: Place, keys: Keys
    ) -> Float[np.ndarray, "row"]:
        """The share of a head's attention that goes to some keys, row by row."""
        layer, head = place
        hook, found = f"blocks.{layer}.attn.hook_pattern", []
        for rows, _, kept in self.evidence.runs(kind).changed(edits, keep=[hook]):
            pattern, own = kept[hook][:, head].double(), keys if len(keys) == 1 else keys[rows]
            weight = own.any(-1).double()
            share = (pattern * own).sum(-1) / pattern.sum(-1).clamp_min(1e-12)
            found.append((share * weight).sum(1) / weight.sum(1).clamp_min(1))
        shares: np.ndarray = torch.cat(found).cpu().numpy()
        return shares

    def exchange(self, place: Place, circuit: str, variable: Variable) -> list[Test]:
        """That a head's ``output`` or ``attention``, exchanged between the given rows, moves the
        answers as the latent would, and leaves those that must stay.

        This is the exchange of :func:`probes.locate.locate`, of one head and one latent.
        """
        model, floor = self.evidence.model, self._floors.exchange
        part, batch = Component("head", *place), self.evidence.views["given"].batch
        pattern = f"blocks.{place[0]}.attn.hook_pattern"
        hook = pattern if circuit == "attention" else hook_of(model, part)
        one = Exchanged(part.name, circuit, part.layer, (part.head,), ((hook, (part.head,)),))
        with torch.no_grad():
            (found,) = exchanged(model, batch, variable, [one], seed=self.evidence.seed + 1)
        if not isfinite(found.get("share", nan)):
            return [Test.too_few(f"pairs that differ in {variable.name}", LEAST_PAIRS, floor)]
        moved = "its attention" if circuit == "attention" else "it"
        name = f"exchanged between rows {moved} moves answers as {variable.name} would, by a share "
        leak = 0.0 if isnan(found["leak"]) else found["leak"]
        return [
            Test(f"{name}of", found["share"], floor, found["p"], found["low"], found["high"]),
            Test("of the answers that must stay, kept", 1 - leak, floor),
        ]

    def straight(self, places: Sequence[Place]) -> Test:
        """That the output changes without what heads of a layer write straight to it.

        Their joint write, less its mean over rows, is taken from the stream after the last layer:
        every layer between sees it as before.
        """
        outputs = self.evidence.runs("given").ended(-self.written(places))
        words = "without what it writes straight to the output"
        if len(places) > 1:
            words = f"without what {len(places)} such heads of the layer write straight to it"
        return self._output_test(words, self._compared("given", "all", outputs))

    def part(self, place: Place, places: Sequence[Place]) -> Test:
        """That a head has its part in what heads of its layer write together: the projection."""
        scored = self.evidence.views["given"].batch.mask
        mine, all_ = (self.written(some)[scored] for some in ((place,), tuple(places)))
        found = float((mine * all_).sum() / all_.square().sum().clamp_min(1e-30))
        return Test("its part in what they write", found, self._floors.mixed)

    def written(self, places: Sequence[Place]) -> Float[Tensor, "row pos feature"]:
        """What heads of a layer write together, less its mean over rows."""
        runs, layer = self.evidence.runs("given"), places[0][0]
        if layer not in self._writes:
            hook = hook_of(self.evidence.model, Component("head", *places[0]))
            value = runs.written(layer, hook)
            if not hook.endswith("hook_result"):
                value = torch.einsum("rphk,hkd->rphd", value, self.evidence.model.W_O[layer])
            self._writes[layer] = value
        value = self._writes[layer][:, :, [head for _, head in places]].double().sum(2)
        return value - value.mean(0)

    def changed(self, outputs: Iterable[tuple[slice, Tensor]], floor: float, name: str) -> Test:
        """The test that changed outputs of the given rows differ from the clean ones."""
        return self._compared("given", "all", outputs).test(name, floor, "changed")

    def worse(self, losses: Float[Tensor, "row pos"], words: str) -> Test:
        """The test that changed losses of the given rows are above the clean ones."""
        batch = self.evidence.views["given"].batch
        scored, clean = batch.mask, self.evidence.runs("given").losses
        rises = ((losses - clean) * scored).sum(1) / scored.sum(1).clamp_min(1)
        return self._loss_test(words, over_rows(rises[scored.any(1)].numpy() / loss_unit(batch)))

    def _loss_test(self, words: str, rise: Change) -> Test:
        real = self.evidence.views["given"].batch.targets.is_floating_point()
        unit = " a share of the targets' variance of" if real else ", in nats,"
        name = f"{words} the loss on these rows rises by{unit}"
        return rise.test(name, self._floors.loss, "loss")

    @property
    def _trials(self) -> tuple[str, ...]:
        """The kinds of rows on which the loss may rise."""
        return tuple(kind for kind in self.evidence.views if kind != "shuffled")

    def _keys(self, kind: str, place: Place, name: str) -> Edits:
        return knock_out(self.evidence.model, *place, self.evidence.keys(kind, name))

    def _output_test(self, words: str, change: Change) -> Test:
        name = f"{words} the output changes by a share of its variance of"
        return change.test(name, self._floors.change)

    def _worst(self, words: str, edited: Edited, kinds: Sequence[str]) -> Test:
        """The test that the loss rises on the kind of rows where it rises most."""
        rises = {}
        for kind in kinds:
            found = self._rise(kind, edited(kind), self.evidence.views[kind].batch.mask)
            if found is not None:
                rises[kind] = found
        if not rises:
            return Test.too_few("the loss at scored positions", _FEWEST, self._floors.loss, "loss")
        kind = max(rises, key=lambda name: rises[name].score)
        one = rises[kind]
        paid = Change(one.score, one.low, one.high, min(1.0, one.p * len(rises)))
        return paid.test(
            f"{words} the loss on {kind} rises, in nats, by", self._floors.loss, "loss"
        )

    def _rise(self, kind: str, edits: Edits, scored: Bool[Tensor, "row pos"]) -> Change | None:
        """How much the loss rises at some positions: in nats, or as a share of the targets'
        variance. None where too few rows have such positions."""
        runs, batch = self.evidence.runs(kind), self.evidence.views[kind].batch
        chosen = scored.any(1)
        if int(chosen.sum()) < _FEWEST:
            return None
        after = torch.cat(
            [
                position_losses(output, batch.targets[rows])
                for rows, output, _ in runs.changed(edits)
            ]
        )
        rises = ((after - runs.losses) * scored).sum(1) / scored.sum(1).clamp_min(1)
        return over_rows(rises[chosen].numpy() / loss_unit(batch))

    def _change(self, kind: str, over: str, edits: Edits) -> Change:
        return self._compared(kind, over, self._outputs(kind, edits))

    def _outputs(self, kind: str, edits: Edits) -> Iterable[tuple[slice, Tensor]]:
        return ((rows, output) for rows, output, _ in self.evidence.runs(kind).changed(edits))

    def _compared(self, kind: str, over: str, outputs: Iterable[tuple[slice, Tensor]]) -> Change:
        """How much outputs differ from the clean ones."""
        return self._shared(kind, over, self._squared(kind, outputs))

    def _squared(
        self, kind: str, outputs: Iterable[tuple[slice, Tensor]]
    ) -> Float[Tensor, "row pos"]:
        """The squared distances of outputs from the clean ones."""
        runs = self.evidence.runs(kind)
        return torch.cat(
            [(output.double() - runs.output(rows)).square().sum(-1) for rows, output in outputs]
        )

    def _shared(self, kind: str, over: str, squared: Float[Tensor, "row pos"]) -> Change:
        """The squared distances where the output counts, as a share of the output's variance."""
        scored, variance = self._spread(kind, over)
        rows = (squared * scored).sum(1) / scored.sum(1).clamp_min(1)
        rows = rows[scored.any(1)] / (variance or 1.0)
        return over_rows(rows.cpu().numpy()) if variance > 0 else NONE

    def _spread(self, kind: str, over: str) -> tuple[Bool[Tensor, "row pos"], float]:
        """Where the output counts, and its mean squared distance there from its mean."""
        if (kind, over) not in self._spreads:
            scored, runs = self.evidence.views[kind].batch.mask, self.evidence.runs(kind)
            late = scored & later(scored.shape[1])
            scored = late if over == "later" and bool(late.any()) else scored
            count, total = max(int(scored.sum()), 1), torch.zeros((), dtype=torch.float64)
            mean = sum(runs.output(r)[scored[r]].sum(0) for r in runs.blocks()) / count
            for rows in runs.blocks():
                total += (runs.output(rows)[scored[rows]] - mean).square().sum()
            self._spreads[kind, over] = scored, float(total / count)
        return self._spreads[kind, over]
