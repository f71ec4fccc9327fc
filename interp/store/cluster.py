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

from interp.errors import StoreError
from interp.ray_tasks import built_once, ray_results
from interp.store.layout import part_name
from interp.store.pipeline import Sealed, write_parts
from interp.store.plan import Plan, weights_sha256
from interp.store.sources import Part


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
    given: dict[int, Part] = {}

    def jobs() -> Iterator[tuple[Part]]:
        for number, part in enumerate(parts):
            given[number] = part
            yield (part,)

    finished = ray_results(
        _write_part,
        jobs(),
        name=lambda number: f"part {given[number].number}",
        shared=(model, plan, str(folder.absolute()), uuid.uuid4().hex),
        cores=plan.record["threads"],
        error=StoreError,
    )
    for number, entry in finished:
        part = given.pop(number)
        name = part_name(part.number)
        if not (folder / name).is_file():
            raise StoreError(
                f"{folder}: a worker sealed {name} but it is not here: the folder must be on a "
                "file system that all machines share"
            )
        sealed(entry)
        advanced(len(part.rows))


def _write_part(model: Any, plan: Plan, folder: str, run: str, part: Part) -> dict[str, Any]:
    import torch

    torch.set_num_threads(plan.record["threads"])
    found: list[dict[str, Any]] = []
    write_parts(
        [part],
        built_once(model, run, lambda built: _check_weights(built, plan)),
        plan,
        Path(folder),
        sealed=found.append,
        advanced=lambda rows: None,
    )
    return found[0]


def _check_weights(model: Any, plan: Plan) -> None:
    if weights_sha256(model) != plan.record["model"]["weights_sha256"]:
        raise StoreError(f"the model on worker {platform.node()} has other weights")
