"""Writes the golden store; run as a program only when the format changes on purpose."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from interp.lock import LOCK
from interp.store import layout
from interp.store.hdf5 import PartFile
from interp.store.measurements import write_measurement
from interp.store.pipeline import to_array

PATTERN = ("row", "head", "query", "key")
EMBED = ("row", "pos", "d_model")

PLAN = {
    "model": {"class": "Golden", "name": None, "spec": None, "weights_sha256": "0" * 64},
    "source": {"kind": "arrays"},
    "seed": 0,
    "rows": 5,
    "hooks": ["hook_embed", "blocks.0.attn.hook_pattern"],
    "batch": 2,
    "part_rows": 4,
    "compression": None,
}


def golden_parts():
    """Row ids and columns of the two parts: rows of length 2, and of length 3."""
    short = {
        "inputs": to_array(torch.tensor([[1, 2], [3, 1], [2, 2]]), ("row", "pos")),
        "activations/hook_embed": to_array(torch.ones(3, 2, 1), EMBED, "bfloat16"),
        "activations/blocks.0.attn.hook_pattern": to_array(
            torch.arange(24.0).reshape(3, 2, 2, 2) / 8, PATTERN
        ),
    }
    wide = torch.tensor([[0.0, 0.5, 1.0], [1.5, -2.0, torch.inf]])[..., None]
    long = {
        "inputs": to_array(torch.tensor([[7, 8, 9], [4, 5, 6]]), ("row", "pos")),
        "activations/hook_embed": to_array(wide, EMBED, "bfloat16"),
        "activations/blocks.0.attn.hook_pattern": to_array(torch.full((2, 2, 3, 3), 0.25), PATTERN),
    }
    return [(np.array([0, 2, 3]), short), (np.array([1, 4]), long)]


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    hooks = {
        "hook_embed": {"shape": [2, 1], "dtype": "bfloat16", "labels": EMBED},
        "blocks.0.attn.hook_pattern": {"shape": [2, 2, 2], "dtype": "float32", "labels": PATTERN},
    }
    manifest = {
        "format": layout.FORMAT,
        "version": "1.0",
        "product": "prooflens 0.1.0",
        "plan_digest": layout.digest(PLAN),
        "plan": PLAN,
        "hooks": hooks,
        "aliases": {"blocks.0.hook_resid_pre": "hook_embed"},
        "rows": 5,
        "complete": True,
        "about": {},
    }
    layout.write_manifest(folder, manifest)
    for number, (rows, columns) in enumerate(golden_parts()):
        part = PartFile(folder, number, rows, 2, None, "")
        part.write(0, columns)
        layout.append_index(folder, part.seal())
    table = pd.DataFrame({"head": [0, 1], "score": [0.5, np.nan], "role": ["induction", None]})
    write_measurement(folder, "heads", table, {"analysis": "by hand"})
    (folder / LOCK).unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
