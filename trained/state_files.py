"""Save and load the state of a training, as one safetensors file.

Its tensors are the ensemble's state, weights and AdamW's moments included; its header says as JSON
which runs it belongs to. Resuming from it gives what an uninterrupted training gives, bit by bit on
the same machine with the same number of threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from interp.errors import CheckpointError
from interp.models.tensor_files import read_tensors, write_tensors
from interp.output import output_file
from trained.ensemble import Ensemble, State
from trained.run import Run

__all__ = ["digest", "load_state", "save_state"]

_FORMAT = "prooflens-training-1"
_TENSORS = ("weights", "first", "second", "smooth", "alive", "taken")


def digest(runs: Sequence[Run]) -> str:
    """The SHA-256 of everything that defines the runs."""
    text = json.dumps([run.to_dict() for run in runs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def save_state(ensemble: Ensemble, file: Path) -> None:
    """Save an ensemble's state; an older file is replaced.

    Raises:
        OutputError: if the disk refuses.
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
        CheckpointError: if the file is damaged, or of other runs.
    """
    try:
        tensors, header = read_tensors(file)
    except CheckpointError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.__cause__ or error}: begin anew with --overwrite"
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
