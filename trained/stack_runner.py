"""Train one stack of models from start to end, in this process, in worker processes or as Ray
tasks.

A stack's state is saved every few minutes and on Ctrl-C, as one safetensors file: its tensors are
weights and AdamW's moments, and its header says as JSON which runs it belongs to. Resuming from it
gives what an uninterrupted training gives, bit by bit on the same machine with the same number of
threads. A step that is under way is always finished, so that whole steps are saved. In threads
other than the main one Python delivers no signals, and training is never interrupted.

Workers run on one thread each and leave their stack's state in a file, which this process reads. If
a worker dies, its stack's progress since the last save is lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from interp.errors import CheckpointError, OutputError, ProoflensError
from interp.lock import LOCK, alone
from interp.machine import keep_freed_memory
from interp.models.tensor_files import read_tensors, write_tensors
from interp.output import DRAFT, drop, output_file
from interp.ray_tasks import ray_results
from interp.threads import one_thread
from trained.ensemble import Ensemble, State
from trained.run import TrainingRun

_FORMAT = "prooflens-training-1"
_TENSORS = ("weights", "first", "second", "smooth", "alive", "taken")


def digest(runs: Sequence[TrainingRun]) -> str:
    """Return the SHA-256 of everything that defines the runs."""
    text = json.dumps([run.to_dict() for run in runs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def save_state(ensemble: Ensemble, file: Path) -> None:
    """Save an ensemble's state; an older file is replaced.

    Raises:
        OutputError: if the file cannot be written.
    """
    state = ensemble.state
    tensors = {name: getattr(state, name) for name in _TENSORS}
    tensors |= {f"snapshot.{step}": weights for step, weights in state.snapshots.items()}
    if state.losses:
        tensors["losses"] = torch.stack(state.losses)
    header = {"format": _FORMAT, "runs": digest(ensemble.runs), "step": str(state.step)}
    with output_file(file, overwrite=True) as draft:
        write_tensors(tensors, draft, header)


def load_state(ensemble: Ensemble, file: Path) -> None:
    """Restore an ensemble's state from a file.

    Raises:
        CheckpointError: if the file is damaged, or belongs to other runs.
    """
    try:
        tensors, header = read_tensors(file)
    except CheckpointError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.__cause__ or error}: begin anew with "
            "overwrite=True (--overwrite)"
        ) from error
    if header.get("format") != _FORMAT:
        raise CheckpointError(f"{file} does not hold the state of a training")
    if header.get("runs") != digest(ensemble.runs):
        raise CheckpointError(f"{file} belongs to other runs: use another folder")
    moved = {name: tensor.to(ensemble.device) for name, tensor in tensors.items()}
    losses = list(moved["losses"].unbind()) if "losses" in moved else []
    snapshots = {
        int(name.removeprefix("snapshot.")): tensor
        for name, tensor in tensors.items()
        if name.startswith("snapshot.")
    }
    lacking = sorted(set(_TENSORS) - set(moved))
    if lacking or not header.get("step", "").isdecimal():
        raise CheckpointError(f"{file} lacks {', '.join(lacking) or 'its step'}: begin anew")
    parts = {name: moved[name] for name in _TENSORS}
    ensemble.state = State(int(header["step"]), **parts, losses=losses, snapshots=snapshots)


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Provide a function that says whether Ctrl-C or a termination signal came; the step in
    progress is always finished."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Options:
    """Options of how stacks are trained.

    Attributes:
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
        minutes: Time between two saves of the state.
    """

    device: str = "cpu"
    minutes: float = 5.0


def train_unit(
    runs: Sequence[TrainingRun],
    options: Options,
    file: Path | None = None,
    advanced: Callable[[int], None] = lambda steps: None,
) -> Ensemble:
    """Train a stack of runs to its end.

    Args:
        runs: Runs whose models have the same shape.
        options: How the stack is trained.
        file: The file in which its state is saved; if it exists, training continues from it.
        advanced: A function that is called with the number of steps since its last call.

    Raises:
        KeyboardInterrupt: after Ctrl-C or a termination signal, with the state saved.
        CheckpointError: if the file is damaged or belongs to other runs.
    """
    keep_freed_memory()
    ensemble = Ensemble(runs, device=options.device)
    if file is not None and file.exists():
        load_state(ensemble, file)
        advanced(ensemble.state.step)
    with one_thread(), stop_asked() as asked:
        saved = time.monotonic()
        for _ in ensemble.run():
            advanced(1)
            due = time.monotonic() - saved > 60 * options.minutes
            if file is not None and (due or asked()):
                save_state(ensemble, file)
                saved = time.monotonic()
            if asked():
                raise KeyboardInterrupt
    if file is not None:
        save_state(ensemble, file)
    return ensemble


def finish(runs: Sequence[TrainingRun], options: Options, file: Path) -> None:
    """Call :func:`train_unit` in a worker process; its result is the saved file."""
    train_unit(runs, options, file)


Job = tuple[list[TrainingRun], Options, Path]


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_elsewhere(jobs: Sequence[Job], *, backend: str, workers: int) -> Iterator[int]:
    """Train each job's stack in another process; yield the job's number when it is done.

    Args:
        jobs: Runs, options, and the file of the stack's state, which all machines must see.
        backend: ``local`` or ``ray``.
        workers: The number of local processes; for Ray, the cores of a Ray that is started here.

    Raises:
        MissingDependencyError: for ``ray`` if Ray is not installed.
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
    yield from parallel(delayed(_finish_job)(number, job) for number, job in enumerate(jobs))


def _on_ray(jobs: Sequence[Job], workers: int) -> Iterator[int]:
    far = [(runs, options, file.absolute()) for runs, options, file in jobs]
    found = ray_results(finish, far, name=_name(jobs), gpus=_gpus(jobs), workers=workers)
    return (number for number, _ in found)


def _name(jobs: Sequence[Job]) -> Callable[[int], str]:
    return lambda number: f"the training of {jobs[number][2].name}"


def _gpus(jobs: Sequence[Job]) -> int:
    return int(any(options.device != "cpu" for _, options, _ in jobs))


def _finish_job(number: int, job: Job) -> int:
    finish(*job)
    return number


PLAN = "grid.json"
"""Name of the file with the plan of a grid. It is written before any training begins."""
_SUFFIX, _LONGEST = ".partial", 255


@contextmanager
def training_place(folder: str | Path) -> Iterator[Path]:
    """Provide a folder in which this process alone trains; it is removed again if it has no
    results.

    Raises:
        OutputError: if it cannot be made, or another process trains there.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {where}: {error.strerror or error}") from error
    with alone(where, "training in this folder", keep=False):
        for path in where.glob(f".*{DRAFT}"):
            drop(path)
        try:
            yield where
        except Exception:
            if where.is_dir() and not has_output(where):
                drop(where)
            raise


def partial_of(out: Path) -> Path:
    """Return the folder for training states on the way to an output: beside it, under its name.

    A digest of the name is used if the name would be too long for a file system.

    Raises:
        OutputError: for a path that has no name.
    """
    there = Path(os.path.abspath(out)) if out.name in ("", "..") else out
    if not there.name:
        raise OutputError(f"cannot train into {out}: name a folder in it")
    name = os.fsencode(there.name)
    if len(name) + len(_SUFFIX) > _LONGEST:
        return there.with_name(hashlib.sha256(name).hexdigest() + _SUFFIX)
    return there.with_name(there.name + _SUFFIX)


def has_output(folder: Path) -> bool:
    """Return whether a training folder exists and has more than its plan and its lock file, so that
    a training that ended or was interrupted left output in it."""
    return folder.is_dir() and not {path.name for path in folder.iterdir()} <= {PLAN, LOCK}
