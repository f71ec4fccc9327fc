"""Does the model do some rows at all? Where it only seems to, what is lost there is no cause.

Compared is always the same answer, the most frequent one of a row: what copies one of two labels
without knowing which is right half of the time, and so is that answer. A model does better if

    it is right more often     share right − share of the row's most frequent answer, on average
                               over rows, with the lower end of its 95 % interval above 0
    or it loses less           than the entropy of the row's answers, by the same rule

Rows with fewer than four scored positions have no most frequent answer of their own, and in rows of
one answer that is what is asked for; there it is that of all rows. A model that does better need
not do it by the rule that made the rows.

On rows that a model cannot do no cause counts. They are those on which it does no better, and

    answers are few         always the same one is right a third of the time or more. A head that
                            copies labels is missed there, though the model does not know which is
                            due
    or a guess is better    the loss is above ln V, that of an even guess among all V outputs, by
                            more than the floor of a cause, with its 95 % interval. What a head
                            takes off so high a loss is no knowledge of the answer

In the profile ``task``, where a cause is a change of the output, all rows are of one kind: where
the model does no better on them, and their targets are known, nothing that holds counts as a
cause.

Between the two, where answers are many and the loss is no higher than that, whatever lowers it is
knowledge, however little the model gets right. Where a model does better on no kind of rows, those
with many answers are asked all the same: a head that takes back a wrong prediction is needed there
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from interp.interventions.ablation_effects import loss_unit
from interp.run import Run
from interp.tasks.base import Batch
from probes.roles.change import over_rows
from probes.roles.decision import Found, Test
from probes.roles.evidence import Evidence

CANNOT = "cause: the model cannot do these rows: a guess would lose no more"

_FEWEST = 4
_FEW_ANSWERS = 1 / 3
"""Rows have few answers if always the same one is right so often."""


def does_better(run: Run) -> bool:
    """Whether a model does better on its rows than always the same answer."""
    rows = run.batch.mask.any(1)
    if run.batch.targets.is_floating_point():
        spared = 1 - run.by_row(run.value())[rows] / loss_unit(run.batch)
        return over_rows(spared.double().numpy()).low > 0
    share, entropy = _constant(run.batch)
    ahead = run.by_row(run.value(_right)) - share, entropy - run.by_row(run.value())
    return any(over_rows(one[rows].double().numpy()).low > 0 for one in ahead)


def only_guesses(run: Run) -> bool:
    """Whether a constant answer is often right, and the model does no better than that answer.

    Often: on average over rows, the row's most frequent answer is right at a third of the scored
    positions or more. Only for rows whose answers are tokens.
    """
    few = float(_constant(run.batch)[0].mean()) >= _FEW_ANSWERS
    return few and not does_better(run)


def cannot_do(run: Run, floor: float) -> bool:
    """Whether a model only guesses on rows of tokens, or loses more there than an even guess.

    Args:
        run: The model on these rows.
        floor: By how much more, in nats.
    """
    if does_better(run):
        return False
    above = run.by_row(run.value(_above_even))[run.batch.mask.any(1)]
    return only_guesses(run) or over_rows(above.double().numpy()).low > floor


def able_kinds(evidence: Evidence) -> tuple[str, ...]:
    """The kinds of rows on which what is lost counts: those that the model can do, or where it does
    better on none those on which it does more than guess one of few answers."""
    kinds = [kind for kind in evidence.views if kind != "shuffled"]
    runs = {kind: evidence.run(kind) for kind in kinds}
    if any(does_better(run) for run in runs.values()):
        floor = evidence.floors.loss
        return tuple(kind for kind in kinds if not cannot_do(runs[kind], floor))
    return tuple(kind for kind in kinds if not only_guesses(runs[kind]))


def count_causes(evidence: Evidence, found: Sequence[Found]) -> list[Found]:
    """Discount the passed causal tests of what was found if the model cannot do the task.

    It cannot if it does no better on the given rows than always the same answer. Each causal test
    that passes is then replaced by one marked as not made; tests that fail are kept. Nothing
    changes if the profile's unit is nats, or without given rows whose targets may be read.
    """
    known = evidence.profile.unit != "nats" and "given" in evidence.views and evidence.targets
    if not known or does_better(evidence.run("given")):
        return list(found)
    none = Test(CANNOT, 0.0, evidence.floors.change, 1.0, untested=CANNOT)
    causes = [
        [none if test.score >= test.floor else test for test in one.cause or ()] for one in found
    ]
    return [replace(one, cause=cause) for one, cause in zip(found, causes, strict=True)]


def _constant(batch: Batch) -> tuple[Tensor, Tensor]:
    """For each row the share of its most frequent answer, and the entropy of its answers."""
    all_ = _frequencies(batch.targets[batch.mask])
    found = []
    for targets, mask in zip(batch.targets, batch.mask, strict=True):
        own = _frequencies(targets[mask]) if int(mask.sum()) >= _FEWEST else all_
        found.append(all_ if own[0] == 1 else own)
    share, entropy = torch.tensor(found, dtype=torch.float64).T
    return share, entropy


def _frequencies(answers: Tensor) -> tuple[float, float]:
    share = answers.unique(return_counts=True)[1].double() / max(len(answers), 1)
    return float(share.max()) if len(share) else 0.0, float(-(share * share.log()).sum())


def _above_even(output: Tensor, targets: Tensor) -> Tensor:
    """By how many nats the loss is above that of an even guess."""
    loss = torch.nn.functional.cross_entropy(output, targets, reduction="none")
    return loss - math.log(output.shape[-1])


def _right(output: Tensor, targets: Tensor) -> Tensor:
    """Whether the right token has the largest logit."""
    return (output.argmax(-1) == targets).double()
