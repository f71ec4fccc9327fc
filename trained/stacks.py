"""Choose how many models are trained as one stack.

A stack shares the fixed cost of each operation between its members; too large a one no longer fits
the cache, and large models gain nothing. Its size changes float rounding, so on a CPU no clock has
a say in it: the same runs give the same bits. There a member's step takes least time in stacks of
16 or up to 12% more (measured on every shipped recipe). Stacks of large models, or of long rows in
large batches, are smaller, so that the weights and one activation stay small: on rows of 80 tokens,
64 a batch, three models together took twice the time of one after another. On other devices a few
steps of each candidate size are timed, from one model upwards until two sizes in a row gained
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

import torch

from interp.models.kinds import build
from interp.models.spec import TransformerSpec
from interp.threads import one_thread
from trained.ensemble import Ensemble
from trained.run import Run

__all__ = ["best_size", "cut", "step_seconds"]

_LARGEST = (1, 2, 4, 8, 16, 32)
_STEPS = 6
_WORTH = 40  # measured only if a run has this many times the steps
_UNMEASURED = 8
_MEMBERS, _WEIGHTS, _ACTIVATION = 16, 1 << 20, 1 << 20  # of a stack on a CPU, at most
_PATIENCE = 2  # sizes without a gain after which larger ones are not tried


def cut(members: Sequence[int], size: int) -> list[list[int]]:
    """Divide members into stacks of about equal size, of at most ``size`` members."""
    count = -(-len(members) // size)
    return [
        list(members[i * len(members) // count : (i + 1) * len(members) // count])
        for i in range(count)
    ]


def best_size(runs: Sequence[Run], *, device: str = "cpu", compiled: bool = False) -> int:
    """The stack size that takes about the least time per member and step.

    Args:
        runs: Runs whose models have the same shape.
        device: Where they will be trained; what is not ``cpu`` is measured.
        compiled: Whether the step will be compiled.
    """
    if len(runs) == 1:
        return 1
    if device == "cpu":
        weights = sum(weight.numel() for weight in build(runs[0].spec).parameters())
        fitting = _WEIGHTS // max(1, int(weights)), _ACTIVATION // _largest_activation(runs[0])
        return max(1, min(_MEMBERS, *fitting, len(runs)))
    sizes = [*(len(cut(range(len(runs)), size)[-1]) for size in _LARGEST), len(runs)]
    if runs[0].training.steps < _WORTH * _STEPS:
        return min(_UNMEASURED, len(runs))
    best, least, idle = 1, float("inf"), 0
    for size in sorted(set(sizes)):
        seconds = step_seconds(runs[:size], device=device, compiled=compiled)
        if seconds < least:
            best, least, idle = size, seconds, 0
        else:
            idle += 1
        if idle == _PATIENCE:
            break
    return best


def _largest_activation(run: Run) -> int:
    """Entries of a transformer's widest activation in a batch: a layer's attention patterns, if
    they depend on the row, or the neurons of an FFN. Of other models those of the inputs."""
    inputs = run.task.sample(1, seed=0).inputs
    wide, spec = int(inputs[0].numel()), run.spec
    if isinstance(spec, TransformerSpec):
        positions = len(inputs[0])
        own = spec.score != "none" or spec.uses_queries
        heads = max(spec.heads, default=0) * positions * own
        neurons = max(chain(spec.input_ffn, *spec.ffn_widths), default=0)
        wide = positions * max(spec.d_model, heads, neurons)
    return max(1, wide) * run.training.batch


@one_thread()
def step_seconds(runs: Sequence[Run], *, device: str = "cpu", compiled: bool = False) -> float:
    """The time per member of one step in a stack of these runs, on one thread.

    It is infinite if memory does not suffice.
    """
    try:
        ensemble = Ensemble(runs, device=device, compiled=compiled)
        for _ in ensemble.run(until=2):
            pass
        best = float("inf")
        for until in range(3, 3 + _STEPS):
            before = _clock(device)
            for _ in ensemble.run(until=until):
                pass
            best = min(best, _clock(device) - before)
    except torch.OutOfMemoryError:
        return float("inf")
    return best / len(runs)


def _clock(device: str) -> float:
    """A clock of this thread's own processor time, which other programs do not disturb."""
    if device == "cpu":
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()
