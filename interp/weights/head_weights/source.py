"""Find and open a checkpoint: a file, a folder, or an id on the Hugging Face hub.

A hub id is looked for in the local cache first and downloaded only if it is not there; of a hub
repository only the configuration and safetensors files are ever fetched. Code that a repository
brings along is never run, here or anywhere in weight-only inspection, so there is no flag for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from interp.errors import CheckpointError
from interp.reading import regular
from interp.weights.head_weights.tensors import TensorFiles, read_json

__all__ = ["Source", "Tensors", "fetch_if_there", "find_source"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@runtime_checkable
class Tensors(Protocol):
    """A mapping from names to tensors, from files or from a model in memory."""

    names: list[str]

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor, converted to ``dtype``; CheckpointError where it is missing or damaged."""


@dataclass(frozen=True)
class Source:
    """An opened checkpoint or model: its tensors, configuration and, if it is ours, its
    description.

    Attributes:
        name: the path or id as the user gave it.
        files: the tensors.
        config: ``config.json``, or an empty mapping where there is none.
        description: ``model.json`` of a prooflens checkpoint, or None.
    """

    name: str
    files: Tensors
    config: dict[str, Any]
    description: dict[str, Any] | None = None


def find_source(
    path_or_id: str | Path, *, revision: str | None = None, download: bool = True
) -> Source:
    """Open the checkpoint at a path or hub id.

    Raises:
        CheckpointError: if nothing is there, only pickled weights are, a shard is missing, or a
            file is damaged; or the hub cannot be reached and the cache does not hold it.
    """
    name = str(path_or_id)
    path = Path(name)
    if path.is_dir():
        return _folder(name, path)
    if path.is_file():
        return _file(name, path)
    looks_like_path = path.is_absolute() or name.startswith(".") or bool(path.suffix == ".json")
    if looks_like_path or path.suffix == ".safetensors" or not _HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"{name!r} does not exist: give a folder, a .safetensors file or a hub id"
        )
    return _folder(name, _from_hub(name, revision, download))


def _file(name: str, path: Path) -> Source:
    if path.name.endswith(".safetensors.index.json"):
        return _source(name, TensorFiles.of_index(path), path.parent)
    if path.suffix in _PICKLED:
        raise CheckpointError(
            f"{path} holds pickled weights, which can run code when loaded and are never opened: "
            "convert it to safetensors"
        )
    return _source(name, TensorFiles([path]), path.parent)


def _folder(name: str, folder: Path) -> Source:
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    single = sorted(folder.glob("*.safetensors"))
    if (folder / _SINGLE).is_file():
        return _source(name, TensorFiles([folder / _SINGLE]), folder)
    if len(indexes) == 1:
        return _source(name, TensorFiles.of_index(indexes[0]), folder)
    if len(single) == 1:
        return _source(name, TensorFiles(single), folder)
    if single or indexes:
        found = [p.name for p in (*indexes, *single)][:6]
        raise CheckpointError(
            f"{folder} holds several safetensors files and no single index: {found}: name one file"
        )
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLED)
    if pickled:
        raise CheckpointError(
            f"{folder} holds only pickled weights ({pickled[0]}), which can run code when loaded "
            "and are never opened: convert them to safetensors"
        )
    raise CheckpointError(f"{folder} holds no .safetensors file")


def _source(name: str, files: TensorFiles, folder: Path) -> Source:
    config, ours = folder / "config.json", folder / "model.json"
    description = read_json(ours) if ours.is_file() else None
    if description is not None and (folder / _SINGLE).is_file():
        _check_own(folder / _SINGLE, description)
    return Source(
        name=name,
        files=files,
        config=read_json(config) if config.is_file() else {},
        description=description,
    )


def _check_own(weights: Path, description: dict[str, Any]) -> None:
    """The weights of a checkpoint of ours are those that its description was written with."""
    told = description.get("weights_sha256")
    regular(weights, "weights", CheckpointError)
    with weights.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if told != found:
        raise CheckpointError(
            f"{weights} does not match the weights_sha256 in model.json: one of them was changed "
            "or belongs to another checkpoint"
        )


def _from_hub(name: str, revision: str | None, download: bool) -> Path:
    """The local folder of a hub repository's files, from the cache or downloaded."""
    config = _cached(name, "config.json", revision)
    if config is not None and _is_complete(config.parent):
        return config.parent
    if not download:
        raise CheckpointError(f"{name!r} is no local path and not in the local hub cache")
    _reach_hub(name)
    config = _download(name, "config.json", revision)
    if config is None:
        raise CheckpointError(f"{name} on the hub has no config.json: it is not a model")
    if _download(name, _SINGLE, revision) is None:
        index = _download(name, _INDEX, revision)
        if index is None:
            raise CheckpointError(
                f"{name} on the hub has neither {_SINGLE} nor {_INDEX}: pickled weights can run "
                "code when loaded and are never opened; look for a safetensors revision"
            )
        for shard in _shards(index):
            _download(name, shard, revision)
    return config.parent


def fetch_if_there(name: str, files: Sequence[str], revision: str | None = None) -> list[str]:
    """Which small files of a hub repository are in the local cache, after fetching those it has.

    Without a connection it is what the cache holds.

    Raises:
        CheckpointError: if the connection to the hub fails.
    """
    cached = [file for file in files if _cached(name, file, revision) is not None]
    if cached:
        return cached
    try:
        _reach_hub(name)
    except CheckpointError:
        return []
    return [file for file in files if _download(name, file, revision) is not None]


def _is_complete(snapshot: Path) -> bool:
    index = snapshot / _INDEX
    if (snapshot / _SINGLE).is_file():
        return True
    return index.is_file() and all((snapshot / shard).is_file() for shard in _shards(index))


def _shards(index: Path) -> list[str]:
    return sorted({str(shard) for shard in (read_json(index).get("weight_map") or {}).values()})


def _cached(name: str, file: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError as error:
        raise CheckpointError(f"{name!r} is neither a local path nor a hub id: {error}") from error
    return Path(found) if isinstance(found, str) else None


def _reach_hub(name: str) -> None:
    """One short try, because the hub's own client retries for half a minute, and says so."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # which library's errors these are differs between hub versions
        raise CheckpointError(
            f"{name!r} is no local path, is not in the local hub cache, and the hub cannot be "
            f"reached ({error}): download it first or give a folder"
        ) from error


def _download(name: str, file: str, revision: str | None) -> Path | None:
    """The local path of a file fetched from the hub; None where the repository has no such file."""
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except hub.GatedRepoError as error:
        raise CheckpointError(
            f"{name} on the hub asks for its licence to be accepted: log in and accept it"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name!r} is neither a local path nor a repository on the hub that can be seen"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} on the hub has no revision {revision!r}") from error
    except hub.LocalEntryNotFoundError as error:
        raise CheckpointError(f"the hub stopped answering while {name} was fetched") from error
    except hub.EntryNotFoundError:
        return None
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"cannot fetch {file} of {name} from the hub: {first}") from error
