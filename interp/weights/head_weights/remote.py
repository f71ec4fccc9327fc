"""Read single tensors of safetensors files on the hub: first the headers, then the tensors in use.

A safetensors file begins with the length of its header and a header that says where each tensor is
stored, so a tensor can be downloaded alone, by a ranged request (HTTP's ``Range``). Each remote
file gets a local twin of the same length in a temporary folder: the header is written into it, and
the tensors are holes, which take no space if the file system supports sparse files. When a tensor
is read for the first time it is downloaded into its hole; everything else is as with a file on
disk. So only the heads' weights are transferred: the MLPs and the embedding never are.

The downloaded data is deleted when the process ends. To read a model many times, download it once:
the local cache is used first.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import torch
from torch import Tensor

from interp.errors import CheckpointError
from interp.reading import parse_json
from interp.weights.head_weights.hub import INDEX, SINGLE, hub_errors, hub_file
from interp.weights.head_weights.tensors import TensorFiles, read_index

_PREFIX = 8  # bytes that tell the header's length
_LONGEST = 100_000_000  # bytes of a header, as safetensors has it
_RETRIES, _TIMEOUT = 2, 30


class _Place(NamedTuple):
    """Where a tensor is stored: the remote file, its local twin, and the range of bytes."""

    file: str
    twin: Path
    start: int
    stop: int


class RemoteTensors(TensorFiles):
    """The tensors of a checkpoint on the hub by name, each downloaded when it is first read.

    Attributes:
        names: every tensor's name, sorted.
        size: the total size of its files in bytes.
        fetched: the number of bytes downloaded so far, headers included.
    """

    def __init__(self, repository: str, revision: str) -> None:
        """Download the headers of the safetensors files of a repository's commit.

        Raises:
            CheckpointError: if it has no safetensors, the hub cannot be reached or refuses, the
                server does not support ranges, or a header is damaged.
        """
        from huggingface_hub.errors import EntryNotFoundError

        self._repository, self._revision = repository, revision
        self._folder = Path(mkdtemp(prefix="prooflens-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.size = self.fetched = 0
        self._holes: dict[str, _Place] = {}
        try:
            twins, index = {SINGLE: self._twin(SINGLE)}, None
        except EntryNotFoundError:
            listed = read_index(hub_file(repository, INDEX, revision))
            twins = {shard: self._twin(shard) for shard in sorted(set(listed.values()))}
            index = {name: twins[shard] for name, shard in listed.items()}
        super().__init__(twins.values(), index)
        for file, twin in twins.items():
            self._holes.update(_holes(file, twin))

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the tensor, converted to ``dtype``, downloading it if necessary.

        Raises:
            CheckpointError: as :meth:`TensorFiles.read` does, or if it cannot be downloaded.
        """
        if (place := self._holes.get(name)) is not None:
            if place.stop > place.start:
                self._fetch(place.file, place.twin, place.start, place.stop)
            del self._holes[name]
        return super().read(name, dtype)

    def _twin(self, file: str) -> Path:
        """Create a local file of the remote one's length, with its header and holes for the
        rest."""
        twin = self._folder / file
        twin.touch()
        length = self._fetch(file, twin, 0, _PREFIX)
        header = int.from_bytes(twin.read_bytes(), "little")
        if not 0 < header <= min(_LONGEST, length - _PREFIX):
            raise CheckpointError(f"{file} of {self._repository} is not a safetensors file")
        self._fetch(file, twin, _PREFIX, _PREFIX + header)
        with twin.open("r+b") as stream:
            stream.truncate(length)
        self.size += length
        return twin

    def _fetch(self, file: str, twin: Path, start: int, stop: int) -> int:
        """Download the bytes from ``start`` to ``stop`` into the twin; return the remote file's
        length."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (
            build_hf_headers,
            hf_raise_for_status,
            http_stream_backoff,
        )

        url = hf_hub_url(self._repository, file, revision=self._revision)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}"}
        headers["Accept-Encoding"] = "identity"  # a range of packed bytes would be another one
        with (
            hub_errors(self._repository, file, self._revision),
            http_stream_backoff(
                "GET", url, headers=headers, timeout=_TIMEOUT, max_retries=_RETRIES
            ) as response,
        ):
            hf_raise_for_status(response)
            told = str(response.headers.get("Content-Range", ""))
            if response.status_code != 206 or not told.startswith(f"bytes {start}-{stop - 1}/"):
                raise CheckpointError(
                    f"the server gives no ranges of {file} of {self._repository}: download it "
                    "first and give the folder"
                )
            with twin.open("r+b") as stream:
                stream.seek(start)
                for chunk in response.iter_bytes():
                    stream.write(chunk)
                written = stream.tell() - start
        self.fetched += written
        if written != stop - start:
            raise CheckpointError(f"the hub sent {written} of {stop - start} bytes of {file}")
        return int(told.rpartition("/")[2])


def _holes(file: str, twin: Path) -> Mapping[str, _Place]:
    """Return where the tensors of a file are stored; its header was checked when it was opened."""
    with twin.open("rb") as stream:
        length = int.from_bytes(stream.read(_PREFIX), "little")
        header = parse_json(stream.read(length), "header", CheckpointError)
    first = _PREFIX + length
    return {
        name: _Place(file, twin, *(first + int(n) for n in entry["data_offsets"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }
