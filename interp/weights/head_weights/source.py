"""Find and open a checkpoint: a file, a folder, or an id on the Hugging Face hub.

A GGUF file, or a folder with GGUF weights, is converted and then opened (:mod:`.gguf_files`).

A hub id is looked up in the local cache first. What is not there is read by ranged requests, only
the tensors that are used (:mod:`.remote`), or downloaded whole for a model that is to be run. Of a
hub repository only the configuration and safetensors files are ever downloaded. Code in a
repository is never run, here or anywhere in weight-only inspection, so there is no flag for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from interp.errors import CheckpointError
from interp.reading import regular, sha256_file
from interp.weights.head_weights.gguf_files import SUFFIX, convert_gguf
from interp.weights.head_weights.hub import (
    SINGLE,
    cached_snapshot,
    hub_file,
    reach_hub,
    whole_snapshot,
)
from interp.weights.head_weights.remote import RemoteTensors
from interp.weights.head_weights.tensors import TensorFiles, read_json

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
ADAPTER_CONFIG = "adapter_config.json"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@runtime_checkable
class Tensors(Protocol):
    """The interface for reading tensors by name, from files or from a model in memory.

    Attributes:
        names: The names of all tensors.
    """

    names: list[str]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a tensor of this name."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape."""

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the tensor, converted to ``dtype``; raise CheckpointError if it is missing or
        damaged."""


@dataclass(frozen=True)
class TensorSource:
    """An opened checkpoint or model: its tensors, configuration and, if it is ours, its
    description.

    Attributes:
        name: the path or id as the user gave it.
        files: the tensors.
        config: the contents of ``config.json``, or an empty mapping if there is none.
        description: the contents of ``model.json`` of a prooflens checkpoint, or None.
        folder: the folder of the files, for a GGUF file the converted one; None on the hub and in
            memory.
        merged: the adapter that is merged into the tensors: its folder and a description; or None.
    """

    name: str
    files: Tensors
    config: dict[str, Any]
    description: dict[str, Any] | None = None
    folder: Path | None = None
    merged: tuple[Path, str] | None = None


def find_source(
    path_or_id: str | Path,
    *,
    revision: str | None = None,
    download: bool = True,
    whole: bool = False,
) -> TensorSource:
    """Open the checkpoint at a path or hub id.

    Args:
        path_or_id: The file, folder or hub id.
        revision: Branch, tag or commit on the hub.
        download: Whether anything may be downloaded.
        whole: Whether to download all weights, for a model that is to be run.

    Raises:
        CheckpointError: if nothing is there, only pickled weights are, a shard is missing, or a
            file is damaged; or if the hub cannot be reached and the cache does not hold it.
    """
    name = str(path_or_id)
    path = Path(name)
    if path.is_dir():
        return _folder(name, path)
    if path.is_file():
        return _file(name, path)
    looks_like_path = path.is_absolute() or name.startswith(".") or path.suffix in (".json", SUFFIX)
    if looks_like_path or path.suffix == ".safetensors" or not _HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"{name!r} does not exist: give a folder, a .safetensors or .gguf file, or a hub id"
        )
    return _remote(name, revision, download, whole)


def _file(name: str, path: Path) -> TensorSource:
    if path.suffix == SUFFIX:
        return _folder(name, convert_gguf([path], name))
    if path.name.endswith(".safetensors.index.json"):
        return _source(name, TensorFiles.of_index(path), path.parent)
    if path.suffix in _PICKLED:
        raise CheckpointError(
            f"{path} holds pickled weights, which can run code when loaded and are never opened: "
            "convert it to safetensors"
        )
    return _source(name, TensorFiles([path]), path.parent)


def _folder(name: str, folder: Path) -> TensorSource:
    _need_base(folder)
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    single = sorted(folder.glob("*.safetensors"))
    if (folder / SINGLE).is_file():
        return _source(name, TensorFiles([folder / SINGLE]), folder)
    if len(indexes) == 1:
        return _source(name, TensorFiles.of_index(indexes[0]), folder)
    if len(single) == 1:
        return _source(name, TensorFiles(single), folder)
    if single or indexes:
        found = [p.name for p in (*indexes, *single)][:6]
        raise CheckpointError(
            f"{folder} holds several safetensors files and no single index: {found}: name one file"
        )
    packed = sorted(folder.glob(f"*{SUFFIX}"))
    if len(packed) == 1:
        return _file(name, packed[0])
    if packed:
        found = [p.name for p in packed][:6]
        raise CheckpointError(f"{folder} holds several GGUF files: {found}: name one file")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLED)
    if pickled:
        raise CheckpointError(
            f"{folder} holds only pickled weights ({pickled[0]}), which can run code when loaded "
            "and are never opened: convert them to safetensors"
        )
    raise CheckpointError(f"{folder} holds no .safetensors and no .gguf file")


def _need_base(folder: Path) -> None:
    """Refuse an adapter's folder, which holds only an update of another model's weights."""
    adapter = folder / ADAPTER_CONFIG
    if not adapter.is_file() or (folder / "config.json").is_file():
        return
    base = read_json(adapter).get("base_model_name_or_path") or "a model that it does not name"
    raise CheckpointError(
        f"{folder} holds an adapter alone, whose base model is {base}: give the base model, "
        "and this as its adapter"
    )


def _source(name: str, files: TensorFiles, folder: Path) -> TensorSource:
    config, ours = folder / "config.json", folder / "model.json"
    description = read_json(ours) if ours.is_file() else None
    if description is not None and (folder / SINGLE).is_file():
        _check_own(folder / SINGLE, description)
    return TensorSource(
        name=name,
        files=files,
        config=read_json(config) if config.is_file() else {},
        description=description,
        folder=folder,
    )


def _check_own(weights: Path, description: dict[str, Any]) -> None:
    """Check that the weights of a prooflens checkpoint are those that its description was written
    with."""
    told = description.get("weights_sha256")
    regular(weights, "weights", CheckpointError)
    if told != sha256_file(weights):
        raise CheckpointError(
            f"{weights} does not match the weights_sha256 in model.json: one of them was changed "
            "or belongs to another checkpoint"
        )


def _remote(name: str, revision: str | None, download: bool, whole: bool) -> TensorSource:
    """Open a repository on the hub: its cached or downloaded folder, or its tensors by ranges."""
    folder = cached_snapshot(name, revision)
    if folder is None and not download:
        raise CheckpointError(f"{name!r} is no local path and not in the local hub cache")
    if folder is not None:
        return _folder(name, folder)
    reach_hub(name)
    if whole:
        return _folder(name, whole_snapshot(name, revision))
    config = hub_file(name, "config.json", revision)
    # every request after this one asks for the commit that the configuration is of
    return TensorSource(name, RemoteTensors(name, config.parent.name), read_json(config))
