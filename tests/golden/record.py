"""Record anew what the product answers: ``python -m tests.golden.record [NAME…]``.

A name is that of a case (``roles/max-of-4``) or the beginning of some (``roles``); without names
all are recorded whose models are there. The seconds that each took are printed.
"""

from __future__ import annotations

import shutil
import sys
import time

import torch

from . import answers
from .cases import CASES, STORES
from .files import DATA, write


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if _is_asked(name, names):
            if case.needs and not answers.folder_named(case.needs):
                _say(f"{name}: left out, {case.needs} names no folder")
                continue
            start = time.monotonic()
            write(name, {"about": case.about, **case.answer()})
            _say(f"{name}: {time.monotonic() - start:.1f} s")
    for name, asked in STORES.items():
        if _is_asked(f"stores/{name}", names):
            folder = DATA / "stores" / name
            shutil.rmtree(folder, ignore_errors=True)
            answers.write_store(folder, **asked)
            write(f"stores/{name}", answers.store_facts(folder))
            (folder / ".lock").unlink(missing_ok=True)
            _say(f"stores/{name}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _is_asked(name: str, names: list[str]) -> bool:
    return not names or any(name == one or name.startswith(f"{one}/") for one in names)


if __name__ == "__main__":
    main(sys.argv[1:])
