"""Models on disk: weights as safetensors, everything else as JSON. Nothing is executed on load.

A checkpoint is a folder with ``model.safetensors`` (tensors under the model's own parameter names)
and ``model.json``: format version, spec (with its ``kind``; without one it is a transformer's),
SHA-256 of the weights file, and any further data of the writer (recipe, metrics, task). Loading
refuses a hash that does not match, a newer format, tensors that do not fit the spec, and NaN. A
matching hash shows that the two files belong together, not who wrote them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from interp.errors import ArgumentError, CheckpointError, Problems
from interp.models.kinds import Model, build, spec_from_dict
from interp.models.tensor_files import read_tensors, write_tensors
from interp.output import output_folder
from interp.reading import read_json, regular, sha256_file
from interp.schema import FileTable, Positive, Text, faults

FORMAT_VERSION = 1
_WEIGHTS, _METADATA = "model.safetensors", "model.json"


class _CheckpointFormat(FileTable):
    name: Text
    version: Positive


class _CheckpointTask(FileTable):
    kind: Text = ""
    bos: Annotated[int, Field(ge=-1)] = -1


class _CheckpointTest(FileTable):
    kind: Text


class _CheckpointFile(FileTable):
    format: _CheckpointFormat
    spec: dict[str, Any]
    weights_sha256: Text
    name: Text = ""
    about: Text = ""
    claim: Text = ""
    task: _CheckpointTask | None = None
    test: _CheckpointTest | None = None
    metrics: dict[str, float] = Field({})


def save_checkpoint(
    model: Model,
    path: str | Path,
    *,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``model`` to the folder ``path``; a failure leaves no half-written checkpoint.

    Args:
        model: The model.
        path: The folder.
        about: JSON data that is stored beside the spec (task, recipe hash, metrics …).
        overwrite: Whether to replace an existing checkpoint.

    Raises:
        ArgumentError: if ``about`` is not JSON or uses a key of the format itself, or the weights
            are not finite or not of the spec's dtype.
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    path, problems = Path(path), Problems("save_checkpoint")
    for key in sorted({"format", "spec", "weights_sha256"} & set(about or {})):
        problems.need(False, "about", "must not redefine the format's own keys", key, "rename it")
    told = model.spec.torch_dtype
    rule, advice = f"must hold weights of its spec's dtype {told}", "convert it back"
    for name, tensor in model.state_dict().items():
        problems.need(tensor.dtype == told, "model", rule, f"{name}: {tensor.dtype}", advice)
        finite = bool(torch.isfinite(tensor).all())
        problems.need(finite, "model", "must hold finite weights", name, "did training diverge?")
    try:
        json.dumps(about or {}, allow_nan=False)
    except (TypeError, ValueError) as error:
        problems.need(False, "about", "must be JSON data", str(error), "convert it")
    problems.raise_if_any()
    with output_folder(path, overwrite=overwrite, marker=_METADATA) as draft:
        write_tensors(model.state_dict(), draft / _WEIGHTS)
        metadata = {
            "format": {"name": "prooflens-checkpoint", "version": FORMAT_VERSION},
            "spec": model.spec.to_dict(),
            "weights_sha256": sha256_file(draft / _WEIGHTS),
            **(about or {}),
        }
        (draft / _METADATA).write_text(json.dumps(metadata, indent=2, allow_nan=False) + "\n")
    return path


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint's ``model.json`` and check its format and version.

    Raises:
        CheckpointError: if it is missing, not JSON, of another format or of a newer version.
    """
    file = Path(path) / _METADATA
    if not os.path.lexists(file):
        raise CheckpointError(f"no checkpoint at {path}: {_METADATA} is missing")
    metadata = read_json(file, error=CheckpointError)
    form = metadata.get("format") if isinstance(metadata, dict) else None
    if not isinstance(form, dict) or form.get("name") != "prooflens-checkpoint":
        raise CheckpointError(f"{file} does not describe a prooflens checkpoint")
    if not isinstance(metadata.get("spec"), dict):
        raise CheckpointError(f"{file} has no spec: it is damaged")
    if type(form.get("version")) is not int or form["version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {form.get('version')}, this prooflens reads up to "
            f"{FORMAT_VERSION}: upgrade prooflens"
        )
    if found := faults(_CheckpointFile, metadata, "it"):
        raise CheckpointError(f"{file} is damaged: {'; '.join(found)}")
    return metadata


def load_checkpoint(path: str | Path, *, device: str = "cpu") -> Any:
    """Load a checkpoint's model, in evaluation mode: a ``SequenceTransformer`` or a baseline.

    Raises:
        CheckpointError: if anything is missing, damaged, mismatched, newer, or not finite.
    """
    path, metadata = Path(path), read_metadata(path)
    file = path / _WEIGHTS
    if not os.path.lexists(file):
        raise CheckpointError(f"no weights at {path}: {_WEIGHTS} is missing")
    regular(file, "weights", CheckpointError)
    found, told = sha256_file(file), metadata.get("weights_sha256")
    if found != told:
        raise CheckpointError(
            f"{file} is not the file its {_METADATA} describes: SHA-256 {found[:12]}…, "
            f"expected {str(told)[:12]}…"
        )
    try:
        spec = spec_from_dict(metadata["spec"])
    except ArgumentError as error:
        raise CheckpointError(f"{path / _METADATA} has a spec that is refused: {error}") from error
    weights, _ = read_tensors(file)
    broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise CheckpointError(f"{file} holds NaN or infinity in {', '.join(broken)}")
    odd = [name for name, tensor in weights.items() if tensor.dtype != spec.torch_dtype]
    if odd:
        raise CheckpointError(f"{file} is not of its spec's dtype {spec.dtype}: {', '.join(odd)}")
    model = build(spec)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise CheckpointError(f"{file} does not fit its spec: {lines}") from error
    return model.to(device)
