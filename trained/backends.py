"""Train stacks of models outside this process, in worker processes or as Ray tasks.

Each stack leaves its state in a file, which this process reads when it is done. Workers run on one
thread each. A worker that dies takes its stack's progress since the last save with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from interp.errors import ProoflensError
from interp.store.cluster import require_ray
from trained.run import Run
from trained.stack_runner import Options, finish

__all__ = ["BACKENDS", "Job", "cores", "run_elsewhere"]

BACKENDS = ("local", "ray")
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
    ray: Any = require_ray()
    started = not ray.is_initialized()
    if started:
        there = "RAY_ADDRESS" in os.environ  # a cluster that runs already has its own cores
        ray.init(
            num_cpus=None if there else workers,
            log_to_driver=False,
            include_dashboard=False,
            logging_level="ERROR",
        )
    try:
        task = ray.remote(num_cpus=1, num_gpus=_gpus(jobs), max_retries=3)(_numbered)
        pending = [
            task.remote(number, (runs, options, file.absolute()))
            for number, (runs, options, file) in enumerate(jobs)
        ]
        while pending:
            ready, pending = ray.wait(pending, num_returns=1)
            try:
                yield ray.get(ready[0])
            except ray.exceptions.RayTaskError as error:
                raise ProoflensError(f"a Ray worker failed: {error.cause}") from error
            except ray.exceptions.RayError as error:
                raise ProoflensError(
                    f"a Ray worker died 4 times ({type(error).__name__}): resume to go on"
                ) from error
    finally:
        if started:
            ray.shutdown()


def _gpus(jobs: Sequence[Job]) -> int:
    return int(any(options.device != "cpu" for _, options, _ in jobs))


def _numbered(number: int, job: Job) -> int:
    finish(*job)
    return number
