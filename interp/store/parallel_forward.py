"""Run two forward passes at once on a CPU, each with half of the threads.

The threads of one forward pass wait for each other after every operation: for the slower one, and
whenever the writer takes a core. In two lanes a core that is free goes on with another batch. Every
lane has modules of its own, because hooked models keep notes in theirs while they run; parameters
and buffers are shared. A model that cannot be copied in this way, or whose copy does not fire the
same bits from hooks of its own, has one lane.

The number of lanes is part of the plan: sums of floating-point numbers depend on how many threads
share them. Lanes say nothing about models on a GPU, which have one.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from interp.hooks.capture import Capture, Firing, attached
from interp.threads import workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interp.hooks.transformer_lens_adapter import HookedModel

__all__ = ["Forward", "ParallelForward", "parallel_forwards_for"]

Forward = Callable[[Tensor], dict[str, Tensor]]
Job = TypeVar("Job")
Result = TypeVar("Result")
_MOST = 2


def replica(model: Any) -> Any:
    """A copy of a model's modules that shares its parameters and buffers."""
    shared: dict[int, Any] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


def parallel_forwards_for(
    model: HookedModel, hooks: Sequence[Firing], inputs: Tensor, batches: int | None
) -> int:
    """How many forward passes may run at once for this model.

    Args:
        model: the model, in any mode.
        hooks: the hooks that will be stored.
        inputs: a row or two to try a copy on.
        batches: how many batches there will be, if known.
    """
    threads = torch.get_num_threads()
    alone = inputs.device.type != "cpu" or threads % _MOST or (batches or _MOST) < _MOST
    return 1 if alone or not _copies(model, hooks, inputs) else _MOST


def _copies(model: HookedModel, hooks: Sequence[Firing], inputs: Tensor) -> bool:
    strayed: list[str] = []
    try:
        other = replica(model)
        with Capture(model, hooks).running() as forward:
            wanted = forward(inputs)
        with (
            attached(model, model.hook_dict, lambda name, values: strayed.append(name)),
            Capture(other, hooks).running() as forward,
        ):
            found = forward(inputs)
    except Exception:  # whatever a foreign module raises when it is copied
        return False
    same = all(torch.equal(_bits(wanted[name]), _bits(found[name])) for name in wanted)
    return same and not strayed


def _bits(values: Tensor) -> Tensor:
    return values.detach().contiguous().reshape(-1).view(torch.uint8)


class ParallelForward:
    """Runs calls that need a forward pass, some at once, and gives their results in order.

    Use as a context manager.

    Args:
        model: the model; it is in evaluation mode while it runs.
        hooks: the wanted hooks, in the order in which they fire.
        count: how many; with one, calls run in the caller's thread.
    """

    def __init__(self, model: HookedModel, hooks: Sequence[Firing], count: int) -> None:
        self._models = [model, *(replica(model) for _ in range(count - 1))]
        self._hooks = hooks
        self._free: SimpleQueue[Forward] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[ParallelForward]:
        """Attach the hooks and divide the threads; both are restored afterwards."""
        with ExitStack() as stack:
            for model in self._models:
                self._free.put(stack.enter_context(Capture(model, self._hooks).running()))
            if (count := len(self._models)) > 1:
                self._pool = stack.enter_context(workers(count))
            yield self

    def map(
        self, function: Callable[[Forward, Job], Result], jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """Yield ``(job, function(forward, job))`` in the order of the jobs, with few of them in
        memory."""
        if self._pool is None:
            for job in jobs:
                yield job, self._call(function, job)
            return
        ahead: deque[tuple[Job, Future[Result]]] = deque()
        for job in jobs:
            ahead.append((job, self._pool.submit(self._call, function, job)))
            if len(ahead) > len(self._models):
                first, future = ahead.popleft()
                yield first, future.result()
        while ahead:
            first, future = ahead.popleft()
            yield first, future.result()

    def _call(self, function: Callable[[Forward, Job], Any], job: Job) -> Any:
        forward = self._free.get()
        try:
            return function(forward, job)
        finally:
            self._free.put(forward)
