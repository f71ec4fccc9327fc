"""Run independent pieces of work as tasks of a Ray cluster, or of Ray on this machine.

    function(*shared, *job)   for every job, on whichever worker is free

What all jobs share (a model, a plan) is sent to each machine once. A few more jobs than there are
cores are in progress at a time, so that jobs may come from an endless generator. A worker that dies
is replaced and its job restarted, three times; a job that raises an error stops the run. Results
are returned as they are finished, with the number of their job.

A task takes about a second to start on a new worker, so this is not for work that one machine's
cores do in seconds. Results equal those of a local run only if the function's do: sums depend on
the number of threads, which the function has to set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from interp.errors import MissingDependencyError, Problems, ProoflensError

Backend = Literal["local", "ray"]
"""Where independent pieces of work run: ``local`` on this machine, ``ray`` as tasks of a Ray
cluster."""

_RETRIES = 3
_built: dict[str, Any] = {}


def need_backend(problems: Problems, backend: str, argument: str = "backend") -> None:
    """Record a problem if a backend does not exist.

    Args:
        problems: The collection that the problem is added to.
        backend: The name that was given.
        argument: The name of the argument in the message.
    """
    known = get_args(Backend)
    rule = f"must be {' or '.join(known)}"
    problems.need(backend in known, argument, rule, backend, "choose one")


def require_ray() -> Any:
    """Import the module ``ray``.

    Raises:
        MissingDependencyError: if it is not installed, saying how to install it.
    """
    try:
        import ray
    except ImportError:
        raise MissingDependencyError(
            "backend 'ray' needs Ray: pip install 'prooflens[ray]'"
        ) from None
    return ray


def ray_results(
    function: Callable[..., Any],
    jobs: Iterable[tuple[Any, ...]],
    *,
    name: Callable[[int], str],
    shared: tuple[Any, ...] = (),
    cores: int = 1,
    gpus: int = 0,
    workers: int | None = None,
    error: type[ProoflensError] = ProoflensError,
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of each job, in the order in which they are finished.

    Args:
        function: The function that a task calls; it must be a module's, so that workers can import
            it.
        jobs: The further arguments of each call.
        name: A function from the job's number to its name in messages.
        shared: The first arguments of every call; they must be picklable.
        cores, gpus: The cores and GPUs that one task takes.
        workers: Cores of a Ray that is started here; all of this machine's by default. A cluster
            that runs already (``RAY_ADDRESS``, or :func:`ray.init` called before) has its own.
        error: The class of errors raised.

    Raises:
        MissingDependencyError: if Ray is not installed.
        ProoflensError: of the class ``error``, if ``shared`` cannot be sent, a job fails, or its
            worker dies four times.
    """
    ray = require_ray()
    with _running(ray, workers):
        sent = [_send(ray, value, error) for value in shared]
        there = int(ray.cluster_resources().get("CPU", 1))
        cores = min(cores, max(1, there))
        task = ray.remote(num_cpus=cores, num_gpus=gpus, max_retries=_RETRIES)(function)
        at_once, running = 2 * max(1, there // cores), {}
        for number, job in enumerate(jobs):
            running[task.remote(*sent, *job)] = number
            while len(running) >= at_once:
                yield _next(ray, running, name, error)
        while running:
            yield _next(ray, running, name, error)


def worker_model(model: Any, run: str, check: Callable[[Any], None] = lambda built: None) -> Any:
    """Return the model of this worker process, built at its first job of a run and kept for the
    others.

    Args:
        model: A model, or a function that builds it.
        run: An id of the run.
        check: A function that is called with a model that was just built, and raises an error if it
            is the wrong one.
    """
    if run not in _built:
        built = model if hasattr(model, "hook_dict") else model()
        check(built)
        _built.clear()
        _built[run] = built
    return _built[run]


@contextmanager
def _running(ray: Any, workers: int | None) -> Iterator[None]:
    """Give a running Ray: one that exists already, otherwise a new one that is stopped
    afterwards."""
    started = not ray.is_initialized()
    if started:
        cluster = "RAY_ADDRESS" in os.environ
        quiet = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
        ray.init(num_cpus=None if cluster else workers, **quiet)
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def _send(ray: Any, value: Any, error: type[ProoflensError]) -> Any:
    try:
        return ray.put(value)
    except Exception as failure:
        cause = failure.__cause__ or failure.__context__ or failure
        reason = str(cause).partition("\n")[0]
        raise error(
            f"backend 'ray' cannot send a {type(value).__name__} to a worker ({reason}): give "
            "loader=…, a function that builds it there"
        ) from failure


def _next(
    ray: Any, running: dict[Any, int], name: Callable[[int], str], error: type[ProoflensError]
) -> tuple[int, Any]:
    """Return the number and result of a finished job, and remove it from ``running``."""
    ready, _ = ray.wait(list(running), num_returns=1)
    number = running.pop(ready[0])
    try:
        return number, ray.get(ready[0])
    except ray.exceptions.RayTaskError as failure:
        cause = failure.cause if isinstance(failure.cause, ProoflensError) else failure
        raise error(f"{name(number)} failed on a worker: {cause}") from failure
    except ray.exceptions.RayError as failure:
        raise error(
            f"{name(number)}: its worker died {_RETRIES + 1} times ({type(failure).__name__}); "
            "what is finished stays: resume to go on"
        ) from failure
