"""Can the model do the task on these rows? If it cannot, a loss under ablation is not evidence of a
cause.

The model is compared with a constant answer: for each row, its most frequent answer. A head that
copies one of two labels without knowing which is due is right half of the time, and so is that
constant answer. The model does better if

    it is right more often     share right − share of the row's most frequent answer, on average
                               over rows, with the lower end of its 95 % interval above 0
    or it loses less           than the entropy of the row's answers, by the same rule

A row with fewer than four scored positions, or with one answer throughout, takes its most frequent
answer and its entropy from all rows together. A model that does better than the constant answer
need not use the rule that made the rows.

On rows that the model cannot do, no loss counts as a cause. These are the rows on which it does not
do better than the constant answer, and

    answers are few         one constant answer is right a third of the time or more. Ablating a
                            head that copies labels costs loss there, although the model does not
                            know which label is due
    or a guess is better    the loss is above ln V, the loss of an even guess among all V outputs,
                            by more than the floor of a cause, with its whole 95 % interval. A
                            head that lowers so high a loss need not know the answer

In the profile ``task``, where a cause is a change of the output, all rows are of one kind. If the
model does not do better on them, and their targets are known, no causal test counts as passed.

In between, where there are many answers and the loss is not above that bound, whatever lowers the
loss counts as knowledge, even if the model is seldom right. If the model does better on no kind of
rows, the kinds with many answers are still used, because a head that takes back a wrong prediction
is needed there as well.
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
"""Rows count as having few answers if one and the same answer is right at this share of the scored
positions or more. Beating a guess means little there."""


def does_better(run: Run) -> bool:
    """Return whether the model does better on its rows than a constant answer.

    For token targets, accuracy must exceed the share of each row's most frequent answer, or the
    loss must be below the entropy of the row's answers. For real targets, the loss must be below
    that of predicting the targets' mean. In each case the lower end of the 95 % interval of the
    mean over rows must be above 0.
    """
    rows = run.batch.mask.any(1)
    if run.batch.targets.is_floating_point():
        spared = 1 - run.by_row(run.value())[rows] / loss_unit(run.batch)
        return over_rows(spared.double().numpy()).low > 0
    share, entropy = _constant(run.batch)
    ahead = run.by_row(run.value(_right)) - share, entropy - run.by_row(run.value())
    return any(over_rows(one[rows].double().numpy()).low > 0 for one in ahead)


def only_guesses(run: Run) -> bool:
    """Return whether a constant answer is often right, and the model does no better than that
    answer.

    "Often" means that, on average over rows, the row's most frequent answer is right at a third of
    the scored positions or more. Only for rows whose answers are tokens.
    """
    few = float(_constant(run.batch)[0].mean()) >= _FEW_ANSWERS
    return few and not does_better(run)


def cannot_do(run: Run, floor: float) -> bool:
    """Return whether the model cannot do some rows: it only guesses one of few answers, or its loss
    is above that of an even guess among all outputs.

    Always False if it does better than a constant answer (:func:`does_better`).

    Args:
        run: The model on these rows.
        floor: How far, in nats, the lower end of the loss's 95 % interval must be above ln V, V
            being the number of outputs.
    """
    if does_better(run):
        return False
    above = run.by_row(run.value(_above_even))[run.batch.mask.any(1)]
    return only_guesses(run) or over_rows(above.double().numpy()).low > floor


def able_kinds(evidence: Evidence) -> tuple[str, ...]:
    """Return the kinds of rows on which a rise of the loss counts as a cause.

    These are the kinds that the model can do (:func:`cannot_do`). If it does better than a constant
    answer on no kind, they are the kinds on which it does not merely guess one of few answers.
    ``shuffled`` is never among them.
    """
    kinds = [kind for kind in evidence.views if kind != "shuffled"]
    runs = {kind: evidence.run(kind) for kind in kinds}
    if any(does_better(run) for run in runs.values()):
        floor = evidence.floors.loss
        return tuple(kind for kind in kinds if not cannot_do(runs[kind], floor))
    return tuple(kind for kind in kinds if not only_guesses(runs[kind]))


def count_causes(evidence: Evidence, found: Sequence[Found]) -> list[Found]:
    """Discount the causal tests that passed, if the model cannot do the task.

    It cannot if it does no better on the given rows than a constant answer. Each causal test whose
    score reaches its floor is then replaced by a test marked as not made; tests that fail are kept.
    Nothing changes if the profile's unit is nats, or if there are no given rows with known targets.

    Args:
        evidence: The model and its rows.
        found: The findings of all detectors.

    Returns:
        The findings in the same order.
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
    """Return, for each row, the share of its most frequent answer and the entropy of its answers in
    nats.

    Rows with fewer than four scored positions, or with one answer throughout, get the two numbers
    of all rows' answers together.
    """
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
    """Return by how many nats the loss is above ln V, the loss of an even guess among V outputs."""
    loss = torch.nn.functional.cross_entropy(output, targets, reduction="none")
    return loss - math.log(output.shape[-1])


def _right(output: Tensor, targets: Tensor) -> Tensor:
    """Return 1 where the target token has the largest logit, and 0 elsewhere."""
    return (output.argmax(-1) == targets).double()
