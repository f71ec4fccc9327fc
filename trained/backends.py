"""Train stacks of models outside this process, in worker processes or as Ray tasks.

Each stack leaves its state in a file, which this process reads when it is done. Workers run on one
thread each. A worker that dies takes its stack's progress since the last save with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from interp.errors import ProoflensError
from interp.ray_tasks import ray_results
from trained.run import Run
from trained.stack_runner import Options, finish

__all__ = ["Job", "cores", "run_elsewhere"]

Job = tuple[list[Run], Options, Path]


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_elsewhere(jobs: Sequence[Job], *, backend: str, workers: int) -> Iterator[int]:
    """Train each job's stack in another process; yield the job's number when it is done.

    Args:
        jobs: Runs, options, and the file of the stack's state, which all machines must see.
        backend: ``local`` or ``ray``.
        workers: Local processes; for Ray, cores of a Ray that is started here.

    Raises:
        MissingDependencyError: for ``ray`` without Ray.
        ProoflensError: if a worker fails or its file does not arrive.
    """
    done = _on_ray(jobs, workers) if backend == "ray" else _on_processes(jobs, workers)
    for number in done:
        if not jobs[number][2].is_file():
            raise ProoflensError(
                f"a worker trained {jobs[number][2].name} but it is not here: the folder must be "
                "on a file system that all machines share"
            )
        yield number


def _on_processes(jobs: Sequence[Job], workers: int) -> Iterator[int]:
    from joblib import Parallel, delayed

    # Loky sends functions by value: a caller's script needs no ``__main__`` guard.
    parallel = Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1)
    yield from parallel(delayed(_numbered)(number, job) for number, job in enumerate(jobs))


def _on_ray(jobs: Sequence[Job], workers: int) -> Iterator[int]:
    far = [(runs, options, file.absolute()) for runs, options, file in jobs]
    found = ray_results(finish, far, name=_name(jobs), gpus=_gpus(jobs), workers=workers)
    return (number for number, _ in found)


def _name(jobs: Sequence[Job]) -> Callable[[int], str]:
    return lambda number: f"the training of {jobs[number][2].name}"


def _gpus(jobs: Sequence[Job]) -> int:
    return int(any(options.device != "cpu" for _, options, _ in jobs))


def _numbered(number: int, job: Job) -> int:
    finish(*job)
    return number
