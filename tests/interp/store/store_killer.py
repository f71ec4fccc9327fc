"""Extracts into folders and dies on the way; run as a program by test_store_faults.

``python store_killer.py FOLDER`` imports once, then forks one child per way to die.
"""

import os
import resource
import signal
import sys
from pathlib import Path

import torch
from store_models import Echo, TinyTransformer

from interp.errors import StoreError
from interp.store import extract as extraction
from interp.store import hdf5, layout

HOOKS = ["blocks.*.hook_resid_post", "blocks.*.attn.hook_pattern"]
ROWS, BATCH, PART_ROWS = 50, 4, 12


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function, call, *, after=False):
    """``function``, except that the process dies at the given call."""
    calls = iter(range(1, 1_000_000))

    def replacement(*arguments, **options):
        due = next(calls) == call
        if due and not after:
            die()
        result = function(*arguments, **options)
        if due:
            die()
        return result

    return replacement


def tear_index(folder, entry, original=layout.append_index):
    if entry["part"] < 2:
        return original(folder, entry)
    with (folder / layout.INDEX).open("ab") as file:
        file.write(b'{"kind": "part", "pa')
        file.flush()
    return die()


def small_disk() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))


def arrange(way: str, model: TinyTransformer) -> None:
    if way == "forward":
        model.forward = dying(model.forward, 11)
    elif way == "write":
        hdf5.PartFile.write = dying(hdf5.PartFile.write, 8, after=True)
    elif way == "close":
        hdf5.fsync = dying(hdf5.fsync, 5)
    elif way == "rename":
        os.replace = dying(os.replace, 4)
    elif way == "before index":
        os.replace = dying(os.replace, 4, after=True)
    elif way == "torn index":
        layout.append_index = tear_index
    elif way == "small disk":
        small_disk()


WAYS = ("forward", "write", "close", "rename", "before index", "torn index", "small disk")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for way in WAYS:
        child = os.fork()
        if child == 0:
            model = TinyTransformer()
            arrange(way, model)
            try:
                extraction(
                    model, Echo(), HOOKS, folder / way, rows=ROWS, batch=BATCH, part_rows=PART_ROWS
                )
            except StoreError as error:
                sys.stderr.write(f"{way}: {error}\n")
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{way}={os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
