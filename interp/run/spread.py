"""Measure the edits of one run in several processes of a Ray cluster, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from interp.ray_tasks import ray_results, worker_model
from interp.run.edits import Edits, sentence
from interp.run.metrics import Metric

_AT_ONCE = 8
"""Number of edits in one task. It is large enough to fill the task's batch and small enough to give
every worker some."""


def spread_rises(
    run: Any, many: Sequence[Edits], metric: Metric, rows: Sequence[int]
) -> Iterator[Tensor]:
    """Yield the rise for each of many edits, in their order.

    Args:
        run: A :class:`~interp.run.run.Run`; each worker gets its model and rows once.
        many: The edits; each Ray task measures a few of them.
        metric: The metric that the workers measure.
        rows: Indices of the rows that are run.
    """
    jobs = [many[start : start + _AT_ONCE] for start in range(0, len(many), _AT_ONCE)]
    kind: Callable[..., Any] = type(run)
    options = {"tokens": run.tokens, "causal": run.causal}
    build, threads = partial(kind, run.model, run.batch, **options), torch.get_num_threads()
    results = ray_results(
        _rises,
        ((job, metric, rows) for job in jobs),
        name=lambda number: sentence(jobs[number][0]),
        shared=(build, run.edits, threads, uuid4().hex),
        cores=threads,
    )
    waiting: dict[int, list[Tensor]] = {}
    following = 0
    for number, found in results:
        waiting[number] = found
        while following in waiting:
            yield from waiting.pop(following)
            following += 1


def _rises(
    build: Callable[[], Any],
    edits: Edits,
    threads: int,
    name: str,
    many: Sequence[Edits],
    metric: Metric,
    rows: Sequence[int],
) -> list[Tensor]:
    torch.set_num_threads(threads)
    run = worker_model(build, name)
    found: list[Tensor] = list(run.with_(*edits, only=True).rises(many, metric, rows))
    run.forget()
    return found
