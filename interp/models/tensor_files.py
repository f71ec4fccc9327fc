"""Write and read safetensors files; nothing is executed, and errors are one sentence.

The safetensors library reports a full disk and a damaged header alike as its own error, makes files
private, and waits on a FIFO. Here a full disk is reported as such, and only regular files are
opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from interp.errors import CheckpointError, OutputError
from interp.reading import regular, utf8_name


def write_tensors(
    tensors: Mapping[str, torch.Tensor], file: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, on whatever device they are, to a file that everybody may read.

    Raises:
        OutputError: if the file cannot be written.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        said = None if metadata is None else dict(metadata)
        try:
            os.fspath(file).encode()
        except UnicodeEncodeError:  # a name that the library does not take
            file.write_bytes(save(whole, said))
        else:
            save_file(whole, file, metadata=said)
        file.chmod(0o644)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write {file.name}: {error}") from error


def read_tensors(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a file's tensors and the text entries of its header.

    Raises:
        CheckpointError: if it is no regular file, or damaged.
    """
    regular(file, "weights", CheckpointError)
    try:
        with utf8_name(file) as name, safe_open(name, framework="pt") as source:
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
            return tensors, source.metadata() or {}
    except (OSError, SafetensorError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
