"""Extract parts as tasks on a Ray cluster, or on Ray on this machine.

Each part is one task: its rows travel to a worker, the worker runs the model, seals the part in
the store's folder (which every machine must see under the same path) and returns the index entry,
which this process writes. Every worker uses the plan's number of threads, so that the data are
those of a local run; a worker that dies is replaced and its part computed again. The index has
one writer, so no locks are needed between machines.

Not worth it for one machine whose cores a single forward pass already fills.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interp.errors import MissingDependencyError, ProoflensError, StoreError
from interp.store.layout import part_name
from interp.store.pipeline import Sealed, write_parts
from interp.store.plan import Plan, weights_sha256
from interp.store.sources import Part

__all__ = ["require_ray", "run_on_ray"]

_RETRIES = 3
_models: dict[str, Any] = {}


def run_on_ray(
    parts: Iterator[Part],
    model: Any,
    plan: Plan,
    folder: Path,
    *,
    sealed: Sealed,
    advanced: Callable[[int], None],
) -> None:
    """Compute and seal parts on a Ray cluster.

    Args:
        parts: the parts to compute.
        model: a model that can be pickled, or a function that builds it on a worker.
        plan: the plan, with the hooks and the selection.
        folder: the store, on a file system that all machines share.
        sealed: called with the index entry of each finished part.
        advanced: called with the rows of each part that was sealed.

    Raises:
        MissingDependencyError: if Ray is not installed.
        StoreError: if the model cannot be sent, a worker dies again and again, or a part does
            not arrive in the folder.
    """
    ray = require_ray()
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    try:
        _run(ray, parts, model, plan, folder.absolute(), sealed, advanced)
    finally:
        if started:
            ray.shutdown()


def require_ray() -> Any:
    """Import the module ``ray``.

    Raises:
        MissingDependencyError: saying how to install it.
    """
    try:
        import ray
    except ImportError:
        raise MissingDependencyError(
            "backend 'ray' needs Ray: pip install 'prooflens[ray]'"
        ) from None
    return ray


def _run(
    ray: Any,
    parts: Iterator[Part],
    model: Any,
    plan: Plan,
    folder: Path,
    sealed: Sealed,
    advanced: Callable[[int], None],
) -> None:
    sent = _send(ray, model)
    plan_sent = ray.put(plan)
    threads = plan.record["threads"]
    cores = int(ray.cluster_resources().get("CPU", 1))
    task = ray.remote(num_cpus=min(threads, cores), max_retries=_RETRIES)(_write_part)
    at_once = 2 * max(1, cores // min(threads, cores))
    run = uuid.uuid4().hex
    running: dict[Any, Part] = {}

    def collect(keep: int) -> None:
        while len(running) > keep:
            ready, _ = ray.wait(list(running), num_returns=1)
            part = running.pop(ready[0])
            sealed(_arrived(ray, ready[0], part, folder))
            advanced(len(part.rows))

    for part in parts:
        running[task.remote(sent, plan_sent, part, str(folder), run)] = part
        collect(at_once - 1)
    collect(0)


def _send(ray: Any, model: Any) -> Any:
    try:
        return ray.put(model)
    except Exception as error:
        cause = error.__cause__ or error.__context__ or error
        reason = str(cause).partition("\n")[0]
        raise StoreError(
            f"backend 'ray' cannot send a {type(model).__name__} to a worker ({reason}): give "
            "loader=…, a function that builds it there"
        ) from error


def _arrived(ray: Any, reference: Any, part: Part, folder: Path) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, ProoflensError) else error
        raise StoreError(f"part {part.number} failed on a worker: {cause}") from error
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"part {part.number}: its worker died {_RETRIES + 1} times: {type(error).__name__}; "
            "sealed parts stay readable: resume"
        ) from error
    if not (folder / part_name(part.number)).is_file():
        raise StoreError(
            f"{folder}: a worker sealed {part_name(part.number)} but it is not here: the folder "
            "must be on a file system that all machines share"
        )
    return entry


def _write_part(model: Any, plan: Plan, part: Part, folder: str, run: str) -> dict[str, Any]:
    import torch

    torch.set_num_threads(plan.record["threads"])
    found: list[dict[str, Any]] = []
    write_parts(
        [part],
        _model(model, plan, run),
        plan,
        Path(folder),
        sealed=found.append,
        advanced=lambda rows: None,
    )
    return found[0]


def _model(model: Any, plan: Plan, run: str) -> Any:
    """The model of this worker process, built or unpickled once per run and checked by its hash."""
    if run not in _models:
        built = model if hasattr(model, "hook_dict") else model()
        if weights_sha256(built) != plan.record["model"]["weights_sha256"]:
            raise StoreError(f"the model on worker {platform.node()} has other weights")
        _models.clear()
        _models[run] = built
    return _models[run]
