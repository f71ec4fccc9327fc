"""The rows of each training step, drawn by the task's own sampler from seeds alone.

Fresh rows are drawn in blocks of many steps at once, because a sampler's fixed cost is often more
than the step itself; a block's seed follows from (seed, block), so any step can be had without the
ones before it. A fixed set of rows is drawn once and read in epochs, each in an order of its own;
where an epoch ends inside a batch the next one begins there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, Task
from trained.training import Training

__all__ = ["Rows", "training_set"]

_BLOCK_ROWS = 1024
_SET = 2**62  # the fixed set's block number


class Rows:
    """The batches of one training run.

    Args:
        task: The task from which rows are drawn.
        training: Batch size, seed, and how many rows there are.
    """

    def __init__(self, task: Task, training: Training) -> None:
        self.task, self.training = task, training
        self.steps = max(1, _BLOCK_ROWS // training.batch)
        """How many steps' rows are drawn at once, as one block."""
        self._set = training_set(task, training) if training.rows else None

    def block(self, number: int) -> Batch:
        """The rows of steps ``number · steps`` to ``(number + 1) · steps``, without latents."""
        rows = self.steps * self.training.batch
        if self._set is not None:
            batch, order = self._set, self._order(number * rows, rows)
            drawn = Batch(batch.inputs[order], batch.targets[order], batch.mask[order])
        else:
            drawn = self.task.sample(rows, seed=_seed(self.training.row_seed, number))
        problems = Problems(f"task {self.task.name}")
        rule, advice = "must score some position", "its mask is empty"
        problems.need(bool(drawn.mask.any()), "mask", rule, False, advice)
        problems.raise_if_any()
        return drawn

    def _order(self, start: int, count: int) -> Tensor:
        """Which rows of the set stand at places ``start`` … of its endless shuffled repetition."""
        size = self.training.rows
        first, last = start // size, (start + count - 1) // size
        epochs = [self._shuffled(epoch) for epoch in range(first, last + 1)]
        return torch.cat(epochs)[start - first * size :][:count]

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(_seed(self.training.row_seed, _SET + 1 + epoch))
        return torch.randperm(self.training.rows, generator=generator)


def training_set(task: Task, training: Training) -> Batch:
    """The fixed set of rows that is trained on if ``training.rows`` asks for one."""
    return task.sample(training.rows, seed=_seed(training.row_seed, _SET))


def _seed(seed: int, number: int) -> int:
    """A seed for every pair (seed, number), never equal to one that the evaluation uses."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 2)
