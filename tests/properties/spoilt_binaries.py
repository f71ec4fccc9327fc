"""Ways to spoil files that libraries in C read: HDF5, NumPy's arrays and archives, safetensors.

Bytes are flipped, cut, doubled and zeroed anywhere; and what a file says about itself is exchanged
for what no writer of ours would say: links out of the file, data that lie elsewhere, sizes that no
machine holds, types that are no numbers.
"""

import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

__all__ = ["edits", "spoil_bytes"]

Edit = Callable[[Path], None]
_HUGE = 10**15


def spoil_bytes(good: bytes, seed: int) -> bytes:
    """One to four things done to the bytes, most of them where a file tells about itself."""
    rng, data = random.Random(seed), bytearray(good)  # noqa: S311
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(max(1, min(len(data), rng.choice((64, 1024, 8192, 1 << 30)))))
        size = rng.choice((1, 2, 4, 8))
        new = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
        way = rng.randrange(6)
        if way == 0:
            del data[at:]
        elif way == 1:
            del data[at : at + size]
        elif way == 2:
            data[at:at] = data[at : at + 8 * size]
        elif way == 3 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        else:
            data[at : at + size] = new
    return bytes(data)


def edits(file: Path) -> Iterator[tuple[str, Edit]]:
    """Names and edits of what a file says about itself; an edit is given the file, good again."""
    kinds = {".h5": _hdf5, ".npz": _archive, ".npy": _array, ".safetensors": _tensors}
    yield from kinds[file.suffix](file)


def _hdf5(good: Path) -> Iterator[tuple[str, Edit]]:
    with h5py.File(good) as file:
        names: list[str] = []
        file.visit(names.append)
        datasets = [name for name in names if isinstance(file[name], h5py.Dataset)]
        attributes = [(name, key) for name in ["/", *names] for key in file[name].attrs]
    for name in names:
        for words, change in _LINKS.items():
            yield f"{name}: {words}", _exchange_entry(name, change)
    for name in datasets:
        for words, other in _DATASETS.items():
            yield f"{name}: {words}", _exchange_entry(name, _dataset(**other))
    for name, key in attributes:
        for value in (None, 7, -1, "x", 1e300, [[1]], h5py.Empty("f")):
            yield f"{name}@{key}: {value!r}", _attribute(name, key, value)


def _out(file: h5py.File, name: str) -> None:
    file[name] = h5py.ExternalLink("other.h5", "/inputs")


def _elsewhere(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (3,), "u1", external=[("other.txt", 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File, name: str) -> None:
    layout = h5py.VirtualLayout((1, 3), "i8")
    layout[:] = h5py.VirtualSource("other.h5", "inputs", (1, 3))
    file.create_virtual_dataset(name, layout)


_LINKS: dict[str, Callable[[h5py.File, str], Any]] = {
    "gone": lambda file, name: None,
    "a group": lambda file, name: file.create_group(name),
    "a link to nowhere": lambda file, name: file.__setitem__(name, h5py.SoftLink("/none")),
    "a link to itself": lambda file, name: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
    "a link to the root": lambda file, name: file.__setitem__(name, file["/"]),
    "a link out of the file": _out,
    "data in another file": _elsewhere,
    "data of another store": _virtual,
    "a type": lambda file, name: file.__setitem__(name, np.dtype("f8")),
}
_DATASETS: dict[str, dict[str, Any]] = {
    "nothing": {"data": h5py.Empty("f")},
    "one number": {"data": 7.0},
    "words": {"data": "words"},
    "other words": {"data": [b"\xff\xfe", b"[]"]},
    "JSON that is none": {"data": "[" * 9999},
    "JSON of another kind": {"data": '{"a": [1]}'},
    "no rows": {"shape": (0, 3), "dtype": "i8"},
    "other rows": {"data": np.ones((7, 2))},
    "one axis more": {"data": np.ones((1, 3, 1, 1))},
    "pairs": {"data": np.zeros(1, [("a", "i4"), ("b", "S3")])},
    "names of an enumeration": {"data": [1], "dtype": h5py.enum_dtype({"A": 1})},
    "lists": {"shape": (1,), "dtype": h5py.vlen_dtype("i4")},
    "references": {"shape": (1,), "dtype": h5py.ref_dtype},
    "bytes without meaning": {"data": np.array([b"abc"], "V3")},
    "complex numbers": {"data": [[1j, 2, 3]]},
    "the other order of bytes": {"data": np.array([[1, 2, 3]], ">i8")},
    "not finite": {"data": [[np.nan, np.inf, -np.inf]]},
    "more rows than a disk holds": {"shape": (_HUGE, 3), "dtype": "i8", "chunks": (1, 3)},
    "longer rows than memory": {"shape": (1, _HUGE), "dtype": "i8", "chunks": (1, 1 << 20)},
}


def _dataset(**options: Any) -> Callable[[h5py.File, str], Any]:
    return lambda file, name: file.create_dataset(name, **options)


def _exchange_entry(name: str, change: Callable[[h5py.File, str], Any]) -> Edit:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name]
            change(file, name)

    return edit


def _attribute(name: str, key: str, value: Any) -> Edit:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[name].attrs[key]
            if value is not None:
                file[name].attrs[key] = value

    return edit


_HEADERS = {
    "a size of 10¹⁵": "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,)}",
    "a size of 10⁴⁰": f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({10**40},)}}",
    "rows of no columns": "{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999, 0)}",
    "below 0": "{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 3)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (9,)}",
    "text": "{'descr': '<U2', 'fortran_order': False, 'shape': (3, 6)}",
    "pairs": "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (3, 6)}",
    "an unknown type": "{'descr': 'zz', 'fortran_order': False, 'shape': (3, 6)}",
    "no table": "7",
    "half": "{'descr': '<i8'",
    "deep": "(" * 5000,
    "half floats": "{'descr': '<f2', 'fortran_order': True, 'shape': (3, 6)}",
    "dates": "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (3, 6)}",
    "one number": "{'descr': '<i8', 'fortran_order': False, 'shape': ()}",
}


def _npy(header: str, version: bytes = b"\x01\x00") -> bytes:
    said = header.encode() + b"\n"
    return b"\x93NUMPY" + version + len(said).to_bytes(2, "little") + said + bytes(432)


def _array(_: Path) -> Iterator[tuple[str, Edit]]:
    for words, header in _HEADERS.items():
        yield words, _overwrite(_npy(header))
    yield "another version", _overwrite(_npy(_HEADERS["text"], b"\x09\x09"))


def _archive(_: Path) -> Iterator[tuple[str, Edit]]:
    for words, header in _HEADERS.items():
        yield words, _overwrite(_zip({"a.npy": _npy(header)}))
    whole = _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (3,)}")
    yield "no arrays", _overwrite(_zip({}))
    yield "other files", _overwrite(_zip({"../up.txt": b"words", "/a.npy": whole}))
    yield "the same name twice", _overwrite(_zip({"a.npy": whole, "A.npy": whole, "a": whole}))
    yield "much from little", _overwrite(_zip({"a.npy": _npy(_LARGE) + bytes(1 << 27)}))
    yield (
        "a member of a wrong method",
        _overwrite(_zip({"a.npy": whole}).replace(b"\x08\0", b"\x63\0")),
    )


_LARGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000,)}"


def _zip(members: dict[str, bytes]) -> bytes:
    said = io.BytesIO()
    with zipfile.ZipFile(said, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return said.getvalue()


def _tensors(good: Path) -> Iterator[tuple[str, Edit]]:
    data = good.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = max(header, key=lambda one: header[one].get("data_offsets", [0, 0])[1])
    for key, values in _FIELDS.items():
        for value in values:
            spoilt = {**header, name: {**header[name], key: value}}
            yield f"{key}: {value}", _overwrite(_safetensors(spoilt, rest))
    for words, other in {
        "no tensors": {},
        "a list": [],
        "words that are none": {**header, "__metadata__": {"a": 1}},
        "no offsets": {**header, name: {"dtype": "F32"}},
        "a tensor more": {**header, "x": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}},
        "a name that is none": {**header, "\ud800": header[name]},
    }.items():
        yield words, _overwrite(_safetensors(other, rest))
    yield "a longer header", _overwrite((10**18).to_bytes(8, "little") + data[8:])
    yield "less than it says", _overwrite(data[:-1])
    yield "more than it says", _overwrite(data + b"\0")


_FIELDS: dict[str, list[Any]] = {
    "dtype": ["BOOL", "U8", "F16", "F8_E4M3", "F64", "C64", "x", None],
    "shape": [[], [_HUGE], [_HUGE, 0], [-1], [2**63, 2], [1] * 99, "x"],
    "data_offsets": [[0, 0], [8, 0], [0, _HUGE], [-8, 8], [2**64, 2**64], "x"],
}


def _safetensors(header: Any, rest: bytes) -> bytes:
    said = json.dumps(header).encode()
    return len(said).to_bytes(8, "little") + said + rest


def _overwrite(data: bytes) -> Edit:
    return lambda path: (path.write_bytes(data), None)[1]
