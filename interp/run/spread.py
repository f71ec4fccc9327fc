"""Edits of one run, spread as tasks of a Ray cluster: the same numbers, from several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from torch import Tensor

from interp.ray_tasks import built_once, ray_results
from interp.run.edits import Edits, sentence
from interp.run.metrics import Metric

if TYPE_CHECKING:
    from interp.run.run import Run

__all__ = ["spread_rises"]

_AT_ONCE = 8
"""Edits of one task: enough that its batch is filled, few enough that all workers get some."""


def spread_rises(
    run: Run, many: Sequence[Edits], metric: Metric, rows: Sequence[int]
) -> Iterator[Tensor]:
    """Yield the rise for each of many edits, in their order.

    Args:
        run: Sent to each worker once, as its model and rows.
        many: Edits, some of them a task.
        metric: Measured by the workers.
        rows: Which rows.
    """
    jobs = [many[start : start + _AT_ONCE] for start in range(0, len(many), _AT_ONCE)]
    shared = (run.model, run.batch, run.edits, run.tokens, torch.get_num_threads(), uuid4().hex)
    results = ray_results(
        _rises,
        ((job, metric, rows) for job in jobs),
        name=lambda number: sentence(jobs[number][0]),
        shared=shared,
        cores=torch.get_num_threads(),
    )
    waiting: dict[int, list[Tensor]] = {}
    following = 0
    for number, found in results:
        waiting[number] = found
        while following in waiting:
            yield from waiting.pop(following)
            following += 1


def _rises(
    model: Any,
    batch: Any,
    edits: Edits,
    tokens: int,
    threads: int,
    name: str,
    many: Sequence[Edits],
    metric: Metric,
    rows: Sequence[int],
) -> list[Tensor]:
    from interp.run.run import Run

    torch.set_num_threads(threads)
    run: Run = built_once(partial(Run, model, batch, tokens=tokens), name)
    found = list(run.with_(*edits, only=True).rises(many, metric, rows))
    run.forget()
    return found
