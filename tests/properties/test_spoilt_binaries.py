"""Spoilt files that libraries in C read: they are taken or refused in words, and nothing dies.

Each is read in a forked child with little memory and time, so that a crash of the library is seen.
``PROOFLENS_FUZZ`` says how many files with spoilt bytes are tried instead of a few.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import h5py
import pytest
from forked_calls import Child, limit_resources
from readers import BINARY, Reader
from safetensors.numpy import load_file, save_file
from spoilt_binaries import edits, spoil_bytes

from interp.errors import ProoflensError

TRIED = int(os.environ.get("PROOFLENS_FUZZ", "40"))
SEED = int(os.environ.get("PROOFLENS_FUZZ_SEED", "0"))
AT_ONCE = 200
Case = tuple[str, Callable[[Path], None]]


@pytest.fixture(scope="module", autouse=True)
def others(home: Path) -> None:
    """What links and data out of a file lead to."""
    for folder in (home, home / "st"):
        (folder / "other.txt").write_text("secret")
        with h5py.File(folder / "other.h5", "w") as file:
            file["inputs"] = [[7, 7, 7]]


def cases(file: Path) -> Iterator[Case]:
    """Edits of what the file says about itself, then spoilt bytes.

    HDF5 files are spoilt by edits alone: for flipped bytes there are the checksums, of which
    ``verify`` and the readers of tables ask before the library in C does.
    """
    good = file.read_bytes()
    yield from edits(file)
    if file.suffix == ".h5":
        return
    for seed in range(SEED, SEED + TRIED):
        yield (
            f"seed {seed}",
            lambda path, seed=seed: (path.write_bytes(spoil_bytes(good, seed)), None)[1],
        )


def wrong(reader: Reader, home: Path) -> list[str]:
    """The cases that were neither taken nor refused, or killed the child, and how."""
    file = home / reader.file
    good, found, todo = file.read_bytes(), [], cases(file)
    while some := list(islice(todo, AT_ONCE)):
        while some:
            ended = Child(lambda some=some: try_all(some, reader, home, good)).end()
            told = [
                line.partition(" ")[2] for line in ended.said.splitlines() if line[:5] == "CASE "
            ]
            found += [line for line in ended.said.splitlines() if line[:6] == "WRONG "]
            if ended.code == 0:
                break
            found.append(f"ended by {ended.code}: {told[-1]}: {ended.said[-300:]}")
            some = some[len(told) :]
    file.write_bytes(good)
    return found


def try_all(some: list[Case], reader: Reader, home: Path, good: bytes) -> None:
    limit_resources()
    for name, spoil in some:
        sys.stdout.write(f"CASE {name!r}\n")
        (home / reader.file).write_bytes(good)
        spoil(home / reader.file)
        try:
            reader.read(home)
        except ProoflensError:
            continue
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__} {error} at {place.filename}:{place.lineno}"
            sys.stdout.write(f"WRONG {name!r}: {told}".replace("\n", " ") + "\n")


@pytest.mark.parametrize("start", ["{}", "{0}", "{layer}", "{layer.x}", "{", "%s"])
def test_braces_in_names_of_tensors_mean_nothing(start: str, home: Path) -> None:
    """Names before the layers are the file's own: they are followed, or not found."""
    file = home / BINARY["weights"].file
    good, tensors = file.read_bytes(), load_file(file)
    try:
        save_file({name.replace("transformer", start): t for name, t in tensors.items()}, file)
        with contextlib.suppress(ProoflensError):
            BINARY["weights"].read(home)
    finally:
        file.write_bytes(good)


LONG = ("part-verify", "measurement-verify")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in BINARY]
)
def test_a_spoilt_binary_is_read_or_refused(name: str, home: Path) -> None:
    BINARY[name].read(home)
    found = wrong(BINARY[name], home)
    assert not found, f"{len(found)} of {name}:\n" + "\n".join(found[:40])
