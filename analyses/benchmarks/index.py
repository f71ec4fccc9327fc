"""How large may a store's index become? Opening, verifying and appending with very many parts.

    python -m analyses benchmark index [--parts 100000] [--out index.json]

A store of one small part is made by an extraction; further lines of its index name that part under
other numbers and rows, a hundred rows each, and their files are links to the one file. What is
measured is the index's cost, not the activations': a real store of ten million rows has larger
files, which nothing here reads but ``verify``. Seconds are of the
processor; memory is what a fresh process has at its most, above what it has after importing the
reader (Linux).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.store import extract, layout

__all__ = ["main", "measure"]

ROWS = 100
_LINKS = 30_000  # a file system lets one file have some tens of thousands of names
_APPENDED = 200
_MEASURED = """
import re, sys, time
from pathlib import Path
from prooflens.store import ActivationStore, verify
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
before, started = peak(), time.process_time()
store = ActivationStore(sys.argv[1]) if sys.argv[2] == "open" else None
faults = verify(sys.argv[1]) if store is None else []
seconds = time.process_time() - started
print(seconds, (peak() - before) / 1024, len(faults), store.rows if store else 0)
"""


def measure(folder: Path, parts: int) -> dict[str, Any]:
    """Build a store with ``parts`` parts in ``folder`` and return the measurements of its index."""
    store = _simulate_store(folder / f"parts-{parts}", parts)
    seconds, memory, _, rows = _in_a_process(store, "open")
    checking, checked, faults, _ = _in_a_process(store, "verify")
    return {
        "parts": parts,
        "rows": int(rows),
        "index_megabytes": (store / layout.INDEX).stat().st_size / 1e6,
        "open_seconds": seconds,
        "open_megabytes": memory,
        "verify_seconds": checking,
        "verify_megabytes": checked,
        "faults": int(faults),
        "append_ms": _appending(store),
    }


def _simulate_store(folder: Path, parts: int) -> Path:
    spec = TransformerSpec(d_in=5, d_out=5, n_ctx=4, d_model=4, n_layers=1, n_heads=1, d_head=2)
    tokens = torch.zeros(ROWS, 3, dtype=torch.long)
    extract(SequenceTransformer(spec, seed=0), tokens, ["hook_embed"], folder, batch=ROWS)
    (first,) = layout.read_index(folder)
    lines, linked = [], folder / first["file"]
    for part in range(parts):
        entry = {**first, "part": part, "file": layout.part_name(part)}
        lines.append(json.dumps({**entry, "rows": [[part * ROWS, (part + 1) * ROWS]]}))
        if part:
            linked = _link(linked, folder / entry["file"], part)
    (folder / layout.INDEX).write_text("\n".join(lines) + "\n")
    manifest = layout.read_manifest(folder)
    manifest["plan"]["rows"] = manifest["rows"] = parts * ROWS
    manifest["plan_digest"] = layout.digest(manifest["plan"])
    layout.write_manifest(folder, manifest)
    return folder


def _link(old: Path, new: Path, number: int) -> Path:
    """Give a file one more name as a hard link, or copy it if it has too many links. Return the
    file that the next link is made to."""
    if number % _LINKS:
        os.link(old, new)
        return old
    new.write_bytes(old.read_bytes())
    return new


def _in_a_process(store: Path, what: str) -> list[float]:
    words = [sys.executable, "-c", _MEASURED, str(store), what]
    done = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603
    return [float(word) for word in done.stdout.split()]


def _appending(store: Path) -> float:
    """Return how many milliseconds it takes to append a line and sync it to the disk."""
    entry = {"kind": "note", "words": "of a newer version"}
    started = time.perf_counter()
    for _ in range(_APPENDED):
        layout.append_index(store, entry)
    return (time.perf_counter() - started) / _APPENDED * 1e3


def main(
    parts: Annotated[int, typer.Option(min=2, help="Parts of the large index.")] = 100_000,
    out: Annotated[Path | None, typer.Option(help="A file for the JSON.")] = None,
) -> None:
    """Measure an index of a hundredth of the parts, and the large one."""
    with tempfile.TemporaryDirectory() as folder:
        small = measure(Path(folder), max(2, parts // 100))
        large = measure(Path(folder), parts)
    write_result({"small": small, "large": large}, out)
