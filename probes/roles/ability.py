"""Does the model do some rows at all? Where it only seems to, what is lost there is no cause.

Compared is always the same answer, the most frequent one of a row: what copies one of two labels
without knowing which is right half of the time, and so is that answer. A model does better if

    it is right more often     share right − share of the row's most frequent answer, on average
                               over rows, with the lower end of its 95 % interval above 0
    or it loses less           than the entropy of the row's answers, by the same rule

Rows with fewer than four scored positions have no most frequent answer of their own; there it is
that of all rows. A model that does better need not do it by the rule that made the rows.

Where rows have few answers (always the same one is right a third of the time or more), a model that
does no better still gains by bringing up one of them: a head that copies labels is missed there,
though the model does not know which label is due. On such rows no cause counts. Where answers are
many, whatever lowers the loss is knowledge, however little the model gets right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interp.interventions.ablation_effects import loss_unit
from interp.run import Run
from interp.tasks.base import Batch
from probes.roles.change import over_rows

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
    """Whether rows of tokens have few answers, and the model does no better than one of them."""
    few = float(_constant(run.batch)[0].mean()) >= _FEW_ANSWERS
    return few and not does_better(run)


def _constant(batch: Batch) -> tuple[Tensor, Tensor]:
    """For each row the share of its most frequent answer, and the entropy of its answers."""
    all_ = _frequencies(batch.targets[batch.mask])
    found = []
    for targets, mask in zip(batch.targets, batch.mask, strict=True):
        found.append(_frequencies(targets[mask]) if int(mask.sum()) >= _FEWEST else all_)
    share, entropy = torch.tensor(found, dtype=torch.float64).T
    return share, entropy


def _frequencies(answers: Tensor) -> tuple[float, float]:
    share = answers.unique(return_counts=True)[1].double() / max(len(answers), 1)
    return float(share.max()) if len(share) else 0.0, float(-(share * share.log()).sum())


def _right(output: Tensor, targets: Tensor) -> Tensor:
    """Whether the right token has the largest logit."""
    return (output.argmax(-1) == targets).double()
