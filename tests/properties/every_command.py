"""Runs every command that writes, from a process of its own: ``python every_command.py FOLDER``.

Whatever a command takes is made in the folder first; what it writes lies beside. The clock stands
still, because results tell seconds. Prints what failed.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from forked_calls import RECIPE, call

HOOKS = ("--hooks=blocks.0.hook_resid_post", "--hooks=blocks.0.attn.hook_pattern")
CALLS = {
    "train": ("train", "tiny.toml", "--out=ck"),
    "train-grid": ("train", "grid.toml", "--out=grid"),
    "extract": ("extract", "ck", "--rows=40", *HOOKS, "--out=st"),
    # A model whose sums are shared between threads.
    "extract-large": ("extract", "code-lm", "--data=long.jsonl", *HOOKS, "--out=large"),
    "probe": ("probe", "ck", "--rows=24", "--out=probed"),
    "inspect-task": ("inspect", "ck", "--rows=16", "--out=headed"),
    "inspect-store": ("inspect", "st", "--out=headed-store"),
    "plot": ("store", "--figures", "st", "--out=plotted"),
    "weights": ("weights", "small", "--metrics=trace_share", "--out=weighed"),
    "weights-csv": ("weights", "ck", "--out=w.csv"),
    "inspect": ("inspect", "gpt2", "--rows=16", "--out=inspected"),
    "certify": ("certify", "ck", "--strategy=black-box", "--out=certified"),
    "compile": ("crasp", "--compile", "p.cr", "--longest=8", "--out=compiled"),
    "decompile": ("decompile", "small", "--data=rows.json", "--lines=3", "--out=found"),
}
"""In this order: some take what another wrote."""
LOADED = (
    "prooflens.pages.certify",
    "prooflens.pages.decompiled",
    "prooflens.pages.inspection",
    "prooflens.pages.probing",
    "prooflens.inspection",
    "prooflens.pages.weights",
    "interp.models.pretrained",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "sklearn.model_selection",
    "trained.grid",
    "transformers",
)
"""What is loaded here no command loads again."""


def make(home: Path) -> None:
    """What the commands take."""
    from interp.models.checkpoint import save_checkpoint
    from interp.models.export import export_gpt2
    from interp.models.spec import TransformerSpec
    from interp.models.transformer import SequenceTransformer

    spec = TransformerSpec(
        d_in=16, d_out=16, n_ctx=16, d_model=4, n_layers=1, n_heads=1, d_head=4, ffn=(8,),
        norm="layernorm", positions="learned", activation="gelu",
    )  # fmt: skip
    export_gpt2(SequenceTransformer(spec, seed=1), home / "gpt2")
    (home / "tiny.toml").write_text(RECIPE)
    (home / "grid.toml").write_text(RECIPE + 'seed = 0\n[grid]\n"training.seed" = [1, 2, 3]\n')
    rows = [[3 + (row + place) % 32 for place in range(64)] for row in range(32)]
    (home / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (home / "p.cr").write_text('n = # "a"\nmany = n > 1\n')
    small = TransformerSpec(d_in=5, d_out=5, n_ctx=8, d_model=4, n_layers=1, n_heads=1, d_head=2)
    save_checkpoint(SequenceTransformer(small, seed=1), home / "small")
    told = {"<bos>": 2, "a": 0, "b": 1, "<eos>": 3, "<pad>": 4}
    words = [[2, *map(int, f"{n:05b}"), 3] for n in range(32)]
    rows = [{"tokens": word, "label": [4, *word[1:]]} for word in words]
    data = {"vocabulary": told, "objective": "next token", "rows": rows}
    (home / "rows.json").write_text(json.dumps(data))


def run_all(home: Path) -> list[str]:
    """Every call that failed, with what it said."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for module in LOADED:
        importlib.import_module(module)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for clock in ("perf_counter", "monotonic", "process_time"):
        setattr(time, clock, lambda: 0.0)
    home.mkdir()
    make(home)
    ended = {name: call(home, lambda: None, words) for name, words in CALLS.items()}
    return [f"{name}: {code} {said}" for name, (code, said, _) in ended.items() if code]


if __name__ == "__main__":
    sys.stdout.write("\n".join(run_all(Path(sys.argv[1]))))
