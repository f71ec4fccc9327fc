"""The files of a store: their names, the manifest and the index.

A store is a folder::

    manifest.json           what was planned: model, weights, source, hooks, dtypes, plan digest
    index.jsonl             one line per sealed file, with its SHA-256 and shapes
    part-00000.h5 …         sealed parts: whole rows of every hook
    measurements-NAME.h5    sealed tables that analyses wrote about this store

A file is *sealed*: written as a draft, closed, fsynced, hashed, renamed, and only then indexed
(:mod:`interp.output`). What the index names is finished; anything else in the folder is not part of
the store. An index line is one ``write`` ending in a newline, so a torn last line is recognised and
dropped. Manifest and lines are checked whenever they are read. A line's file name follows from its
kind and its number or name: no line can name a file outside the store, or one of another kind. An
HDF5 file that is being written can be lost whole when its process dies; a sealed one cannot, which
is why there are many files and not one.

Not for data that changes: a sealed part is never written again. That a store is complete and
verifies says that its bytes are those that were written, not that the model was the right one:
for that the manifest has the SHA-256 of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from interp.errors import StoreError
from interp.lock import LOCK, alone
from interp.output import DRAFT, append_line, drop, replace_text
from interp.reading import open_regular, parse_json, read_json, sha256_file
from interp.schema import FileTable, Positive, Text, Whole, faults, fits, rule_error

FORMAT = "prooflens-store"
VERSION, _MAJOR = "1.0", 1
MANIFEST = "manifest.json"
INDEX = "index.jsonl"
DAMAGED = "damaged"
_LONGEST_LINE = 16 << 20
NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}"
_Digest = Annotated[str, fits("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]
_Word = Annotated[str, fits(r"[^\x00]+", "text", 4096)]
_Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
]  # fmt: skip
_Axes = Annotated[list[Annotated[int, Field(ge=0, le=2**40)]], Field(max_length=32)]


def part_name(number: int) -> str:
    """The name of a store's HDF5 file number ``number``, such as ``part-00000.h5``."""
    return f"part-{number:05d}.h5"


def measurement_name(name: str) -> str:
    """The file name of a measurement."""
    return f"measurements-{name}.h5"


class _PlannedModel(FileTable):
    kind: _Word = Field(alias="class")
    weights_sha256: _Digest
    name: _Word | None = None


class _PlannedSource(FileTable):
    kind: _Word


class _StorePlan(FileTable):
    model: _PlannedModel
    source: _PlannedSource
    seed: Whole
    rows: Whole | None
    hooks: list[_Word]
    batch: Positive
    part_rows: Positive
    compression: _Word | None


class _StoredHook(FileTable):
    shape: _Axes
    dtype: _Dtype
    labels: Annotated[list[_Word], Field(min_length=1, max_length=33)]

    @model_validator(mode="after")
    def _a_label_for_each_axis(self) -> _StoredHook:
        labels, axes = len(self.labels), len(self.shape) + 1
        if labels != axes:
            raise rule_error(f"must have a label for each axis, not {labels} labels for {axes}")
        return self


class _ManifestAbout(FileTable):
    conformance: list[Text] = Field([])


class _ManifestFile(FileTable):
    format: _Word
    version: _Word
    product: _Word
    plan_digest: _Digest
    plan: _StorePlan
    hooks: dict[str, _StoredHook]
    aliases: dict[str, _Word]
    rows: Whole | None
    complete: bool
    environment: dict[str, Text] = Field({})
    about: _ManifestAbout = _ManifestAbout.model_construct()


def _two_ids(run: list[int]) -> list[int]:
    if not (len(run) == 2 and 0 <= run[0] < run[1] < 2**53):
        raise rule_error("must be two row ids [from, below]")
    return run


class _SealedFile(FileTable):
    n: Whole
    bytes: Positive
    sha256: _Digest


class _SealedPart(_SealedFile):
    part: Annotated[int, Field(ge=0, le=10**9)]
    file: Text
    rows: Annotated[list[Annotated[list[int], AfterValidator(_two_ids)]], Field(min_length=1)]
    source_sha256: Annotated[str, fits("([0-9a-f]{64})?", "a SHA-256 in hexadecimal")]
    shapes: dict[str, _Axes]
    overflows: dict[str, Whole] = Field({})


class _SealedMeasurement(_SealedFile):
    name: Annotated[str, fits(NAME, "letters, digits, . _ + -")]
    file: Text
    replaces: _SealedFile = _SealedFile.model_construct()


_KINDS: dict[str, type[FileTable]] = {"part": _SealedPart, "measurement": _SealedMeasurement}


def entry_faults(entry: Any, place: str) -> list[str]:
    """Messages on what is wrong with an entry of the store's index; empty if nothing is.

    An entry of an unknown kind, as a newer version may write, is accepted.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return [f"{place} is not an index entry"]
    kind = entry["kind"]
    shape = _KINDS.get(kind)
    if shape is None:
        return []
    if found := faults(shape, entry, place):
        return found
    part = kind == "part"
    name = part_name(entry["part"]) if part else measurement_name(entry["name"])
    if entry["file"] != name:
        return [f"{place}.file must be {name}, got {entry['file'][:80]!r}"]
    if not part:
        return []
    n, shapes = entry["n"], entry["shapes"]
    if sum(stop - start for start, stop in entry["rows"]) != n:
        return [f"{place}.rows must hold n = {n} rows"]
    if not {"row", "inputs"} <= shapes.keys():
        return [f"{place}.shapes must have row and inputs"]
    return [
        f"{place}.shapes.{name} must begin with n = {n}, got {shape}"
        for name, shape in shapes.items()
        if not shape or shape[0] != n
    ]


def writing(folder: Path) -> AbstractContextManager[None]:
    """Hold the store's write lock.

    Raises:
        StoreError: if another process holds it; names that process.
    """
    return alone(folder, "writing this store", error=StoreError)


def digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record's canonical JSON."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_store(folder: Path) -> bool:
    """Whether ``folder`` is a store, which it is if it has a manifest."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a store.

    Raises:
        StoreError: if there is none, its major version is newer (the message names the version
            found and the newest one that can be read), or it does not fit the schema.
    """
    if folder.is_file():
        raise StoreError(f"{folder}: is a file: a store is a folder, give that")
    if not is_store(folder):
        raise StoreError(f"{folder}: not an activation store (it has no {MANIFEST})")
    manifest: Any = read_json(folder / MANIFEST, "manifest", StoreError)
    if not isinstance(manifest, dict):
        raise StoreError(f"{folder}: the manifest is not a JSON object")
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{folder}: not an activation store (format {manifest.get('format')!r})")
    version = str(manifest.get("version", ""))
    major = version.partition(".")[0]
    if not major.isdecimal():
        raise StoreError(f"{folder}: the store's version {version!r} is not MAJOR.MINOR")
    if int(major) > _MAJOR:
        raise StoreError(
            f"{folder}: store version {version} is newer than {_MAJOR}.x, which this prooflens "
            "reads: install a newer prooflens"
        )
    if found := faults(_ManifestFile, manifest, "it"):
        raise StoreError(f"{folder}: the manifest is damaged: {'; '.join(found[:5])}")
    return manifest


def manifest_faults(manifest: Mapping[str, Any]) -> list[str]:
    """Check that the fields of a manifest agree with each other.

    Args:
        manifest: A manifest that fits the schema.

    Returns:
        One message per contradiction, such as hooks that are not the plan's; empty if there is
        none.
    """
    hooks, plan = manifest["hooks"], manifest["plan"]
    found = []
    if digest(plan) != manifest["plan_digest"]:
        found.append("plan_digest is not that of the plan")
    if list(hooks) != plan["hooks"]:
        odd = sorted({*hooks} ^ {*plan["hooks"]}) or plan["hooks"]
        found.append(f"hooks are not those of the plan: {', '.join(odd[:3])}")
    lost = sorted(f"{a} → {b}" for a, b in manifest["aliases"].items() if b not in hooks)
    if lost:
        found.append(f"aliases lead to no hook: {', '.join(lost[:3])}")
    if manifest["complete"] and manifest["rows"] is None:
        found.append("it is complete and does not say how many rows")
    return found


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest, whole or not at all."""
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def index_lines(folder: Path) -> Iterator[tuple[int, bytes]]:
    """The index's whole lines and their numbers, from 1; a torn last line is none.

    Raises:
        StoreError: if the index cannot be read.
    """
    path = folder / INDEX
    if not os.path.lexists(path):
        return
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            number = 0
            while line := stream.readline(_LONGEST_LINE):
                number += 1
                if line.endswith(b"\n"):
                    yield number, line
                elif len(line) == _LONGEST_LINE:
                    raise StoreError(f"{path}: line {number} is too long")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def index_entries(folder: Path, where: str = "") -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The entry that each whole line of the index holds, and what is wrong with it.

    A line that is no entry gives an empty one; one of a file that an earlier line names is wrong.

    Args:
        folder: The store's folder.
        where: What messages say before a line's number.

    Raises:
        StoreError: if the index cannot be read.
    """
    seen: dict[str, int] = {}
    for number, line in index_lines(folder):
        place = f"{where}line {number}"
        try:
            entry = parse_json(line, place, StoreError)
        except StoreError as error:
            yield {}, [str(error)]
            continue
        wrong = entry_faults(entry, place)
        name = entry.get("file") if isinstance(entry, dict) else None
        if not wrong and isinstance(name, str):
            if name in seen:
                wrong = [f"{place} names {name}, as line {seen[name]} does"]
            seen.setdefault(name, number)
        yield entry if isinstance(entry, dict) else {}, wrong


def read_index(folder: Path) -> Iterator[dict[str, Any]]:
    """The entries of the index one by one, without a torn last line, each checked.

    Raises:
        StoreError: if the index cannot be read, a line that ends in a newline is not an entry, or
            two are of one file.
    """
    for entry, wrong in index_entries(folder, f"{folder / INDEX}: "):
        if wrong:
            raise StoreError(f"{'; '.join(wrong[:3])}: see prooflens store --verify")
        yield entry


def append_index(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add one line and bring it to the disk. The caller holds the store's lock.

    Raises:
        OSError: if the disk refuses; the index is as it was.
    """
    append_line(folder / INDEX, json.dumps(entry).encode())


def rewrite_index(folder: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Replace the index by these entries, whole or not at all: parts in order, then tables."""
    ordered = sorted(entries, key=lambda e: (e["kind"] != "part", e.get("part", 0)))
    replace_text(folder / INDEX, "".join(json.dumps(entry) + "\n" for entry in ordered))


def settle_replacements(folder: Path) -> None:
    """Repair the index after a process died while it replaced a table of measurements.

    The index entry then describes both the old and the new table. The one whose file is there is
    recognised by its SHA-256, and the entry is rewritten to describe it alone.

    The caller holds the store's lock.
    """
    entries = list(read_index(folder))
    if not any("replaces" in entry for entry in entries):
        return
    settled = []
    for entry in entries:
        old = entry.get("replaces")
        now = {key: value for key, value in entry.items() if key != "replaces"}
        path = folder / str(entry.get("file"))
        if old is not None and path.is_file() and sha256_file(path) == old["sha256"]:
            now |= old
        settled.append(now)
    rewrite_index(folder, settled)


def store_files(folder: Path) -> list[Path]:
    """The paths of a store's own files in ``folder``, sorted.

    They are the manifest, the index, the HDF5 files of activations and measurements, and drafts
    (files whose writing has not finished).
    """
    return sorted(path for path in folder.iterdir() if _own(path.name))


def foreign_files(folder: Path) -> list[str]:
    """Names in a store's folder that are not a store's."""
    known = (LOCK, DAMAGED)
    return sorted(p.name for p in folder.iterdir() if p.name not in known and not _own(p.name))


def _own(name: str) -> bool:
    sealed = name.startswith(("part-", "measurements-")) and name.endswith(".h5")
    return sealed or name in (INDEX, MANIFEST) or _is_draft(name)


def _is_draft(name: str) -> bool:
    return name.startswith(".") and name.endswith(DRAFT)


def drop_drafts(folder: Path) -> None:
    """Delete what writers left that died. The caller holds the store's lock: none lives."""
    for path in folder.iterdir():
        if _is_draft(path.name):
            drop(path)
