"""Read single tensors from safetensors files.

A checkpoint is one safetensors file, or several with an index that says which file holds each
tensor. Only headers are read until a tensor is used, and then that tensor alone: plain reads
instead of a memory map, so that the memory in use is that of the tensors in use. Nothing is
executed on load; pickled weights are not a checkpoint here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interp import reading
from interp.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        CheckpointError: if the file is missing, unreadable, or holds anything but an object.
    """
    found = reading.read_json(path, error=CheckpointError)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a JSON {type(found).__name__}, not an object")
    return found


def read_index(path: Path) -> dict[str, str]:
    """Read a ``*.safetensors.index.json``: tensor's name → name of the file beside it that holds
    it.

    Raises:
        CheckpointError: if it is malformed, or names a file of another folder.
    """
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map of tensor names to files")
    found = {str(name): str(shard) for name, shard in weight_map.items()}
    if outside := sorted(s for s in set(found.values()) if Path(s).name != s):
        raise CheckpointError(f"{path} names the shard {outside[0]!r} outside its folder")
    return found


class TensorFiles:
    """The tensors of a checkpoint by name, each read when it is used.

    Attributes:
        names: every tensor's name, sorted.
    """

    def __init__(self, files: Iterable[Path], index: dict[str, Path] | None = None) -> None:
        """Open the headers of ``files``; an ``index`` (tensor → file) selects the tensors.

        Raises:
            CheckpointError: if a file is missing, truncated or not safetensors, or lacks a tensor
                that the index names.
        """
        self._open = {path: _header(path) for path in files}
        held = {path: set(handle.keys()) for path, handle in self._open.items()}
        if index is None:
            self._home = {name: path for path, names in held.items() for name in names}
        else:
            lacking = sorted(n for n, path in index.items() if n not in held[path])
            if lacking:
                raise CheckpointError(
                    f"{len(lacking)} tensors of the index are not in the files it names, "
                    f"first {lacking[0]!r} in {index[lacking[0]]}: download the checkpoint again"
                )
            self._home = dict(index)
        self.names = sorted(self._home)

    @classmethod
    def of_index(cls, index_path: Path) -> TensorFiles:
        """Open a sharded checkpoint from its ``*.safetensors.index.json``.

        Raises:
            CheckpointError: if the index is malformed or a shard is missing.
        """
        weight_map, folder = read_index(index_path), index_path.parent
        shards = sorted(set(weight_map.values()))
        missing = [s for s in shards if not (folder / s).is_file()]
        if missing:
            raise CheckpointError(
                f"{len(missing)} of {len(shards)} shards are missing from {folder}, "
                f"first {missing[0]}: download the checkpoint again"
            )
        return cls([folder / s for s in shards], {n: folder / s for n, s in weight_map.items()})

    def __contains__(self, name: object) -> bool:
        """Return whether the checkpoint holds a tensor of this name."""
        return name in self._home

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape, read from the header alone."""
        return tuple(self._open[self._home[name]].get_slice(name).get_shape())

    def formats(self) -> list[str]:
        """Return the number format of each tensor, as the safetensors header names it (``BF16``
        …)."""
        return [
            str(self._open[home].get_slice(name).get_dtype()) for name, home in self._home.items()
        ]

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the tensor, converted to ``dtype``.

        Raises:
            CheckpointError: if it is missing, cannot be read, is not floating point, or holds a
                value that is not finite.
        """
        if name not in self._home:
            raise CheckpointError(f"no tensor {name!r} in the checkpoint")
        path = self._home[name]
        try:
            tensor: Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {name!r} from {path}: {error}") from error
        return check_tensor(tensor, name, str(path), dtype)


def check_tensor(tensor: Tensor, name: str, place: str, dtype: torch.dtype) -> Tensor:
    """Return the tensor converted to ``dtype``, or refuse it.

    Raises:
        CheckpointError: if it is not floating point, or holds a value that is not finite.
    """
    if not tensor.is_floating_point():
        raise CheckpointError(
            f"{name!r} in {place} is {tensor.dtype}, a quantised or integer tensor: "
            "inspect the checkpoint in float16, bfloat16 or float32"
        )
    tensor = tensor.to(dtype)
    # One pass without a mask: the sum of finite weights is finite, or the mask decides.
    if not torch.isfinite(tensor.sum()) and (bad := int((~torch.isfinite(tensor)).sum())):
        raise CheckpointError(
            f"{name!r} in {place} has {bad} values of {tensor.numel()} that are not finite"
        )
    return tensor


def _header(path: Path) -> Any:
    reading.regular(path, "weights", CheckpointError)
    try:
        with reading.utf8_name(path) as name:
            return safe_open(name, "pt", backend="pread")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is missing, truncated or not a safetensors file: {error}"
        ) from error
