"""How fast weight-only inspection is, against forming the D × D products, and how much it holds.

    python -m analyses benchmark weights [--gpt2 FOLDER] [--out FILE.json] [--threads N]

On a synthetic checkpoint of Llama-7B's layer shapes (no embedding, no MLP), from the same factors
in memory, circuit by circuit in turn so that both sides see the same machine:

    dense       M = W_Q W_Kᵀ and W_V W_O formed; trace, norm and diagonal taken of them
    basic       trace_share, diag_ratio, identity_coefficient from factors
    all         every metric of single heads from factors (scores, no nulls)

JSON keys: ``speedup_basic`` and ``speedup_all`` (dense seconds over ours);
``speedup_basic_with_load`` (reading the file counted on both sides);
``speedup_table_with_load_and_nulls`` (dense and reading over the finished table);
``peak_memory_ratio`` (peak resident memory of the full table above the memory after import, over
the largest tensor in float32, in its own process); ``gpt2_seconds`` (real GPT-2: all metrics,
compositions, singular values and nulls; null without the weights) and ``gpt2_basic_seconds``.
Ratios, not absolute speeds, are what carries over.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prooflens.weights import Circuit

__all__ = ["main", "measure", "synthetic_llama"]

WIDTH, HEADS, LAYERS = 4096, 32, 4

_MEMORY = """
import re, sys
import scipy.stats
from prooflens.weights import head_weights, weight_table

def kib(field):
    return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1))

base = kib("VmRSS")
weight_table(head_weights(sys.argv[1]))
print((kib("VmHWM") - base) * 1024)
"""


def synthetic_llama(
    folder: Path, *, width: int = WIDTH, heads: int = HEADS, layers: int = LAYERS, seed: int = 0
) -> None:
    """Write a random checkpoint with the attention shapes of a Llama, one shard a layer."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    where: dict[str, str] = {}
    for layer in range(layers):
        shard = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
        tensors = {
            f"model.layers.{layer}.self_attn.{name}_proj.weight": torch.randn(
                width, width, generator=generator
            )
            / width**0.5
            for name in "qkvo"
        }
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(width)
        save_file(tensors, folder / shard)
        where |= dict.fromkeys(tensors, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    (folder / "config.json").write_text(json.dumps(config))


def measure(folder: Path, gpt2: Path | None, repeats: int = 2) -> dict[str, float | None]:
    """Measure the numbers of this page for the checkpoint in ``folder``."""
    from prooflens.weights import BASIC, METRICS, head_weights, weight_table

    factors = head_weights(folder)
    seconds = dict.fromkeys(("load", "dense", "basic", "all"), 0.0)
    for layer in factors:
        for name in layer.circuits:
            start = time.perf_counter()
            circuit = layer.circuit(name)
            seconds["load"] += time.perf_counter() - start
            for kind, run in (
                ("dense", lambda c=circuit: _dense(c)),
                ("basic", lambda c=circuit: _scores(c, BASIC, spectrum=False)),
                ("all", lambda c=circuit: _scores(c, list(METRICS), spectrum=True)),
            ):
                seconds[kind] += _best(run, repeats)
            del circuit, run
    whole = _best(lambda: weight_table(factors), repeats)
    gpt2_all = gpt2_basic = None
    if gpt2 is not None:
        real = head_weights(gpt2)
        gpt2_basic = _best(lambda: weight_table(real, ["basic"]), repeats)
        gpt2_all = _best(lambda: weight_table(real, ["all"]), repeats)
    sizes, load = factors.layout.sizes, seconds["load"]
    return {
        "speedup_basic": seconds["dense"] / seconds["basic"],
        "speedup_all": seconds["dense"] / seconds["all"],
        "speedup_basic_with_load": (seconds["dense"] + load) / (seconds["basic"] + load),
        "speedup_table_with_load_and_nulls": (seconds["dense"] + load) / whole,
        "peak_memory_ratio": _peak(folder) / (4 * sizes.d_model * sizes.n_heads * sizes.d_head),
        "gpt2_seconds": gpt2_all,
        "gpt2_basic_seconds": gpt2_basic,
        **{f"{kind}_seconds": spent for kind, spent in seconds.items()},
    }


def _best(run: Callable[[], Any], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _dense(circuit: Circuit) -> list[tuple[float, float, float]]:
    """Return trace, squared norm and diagonal energy of every head's circuit, by forming the whole
    matrix."""
    found = []
    for left, right in circuit.pairs():
        dense = left @ right.mT
        diagonal = dense.diagonal()
        energy = float(dense.flatten() @ dense.flatten())
        found.append((float(diagonal.sum()), energy, float(diagonal @ diagonal)))
    return found


def _scores(circuit: Circuit, names: Sequence[str], *, spectrum: bool) -> list[float]:
    """Return the named metrics of every head, computed from the factors and without nulls."""
    from prooflens.weights import METRICS, low_rank_circuits

    moments = low_rank_circuits(circuit, spectrum=spectrum)
    return [METRICS[name].score(known) for known in moments for name in names]


def _peak(folder: Path) -> float:
    import torch

    command = [sys.executable, "-c", _MEMORY, str(folder)]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    run = subprocess.run(  # noqa: S603
        command, check=True, capture_output=True, text=True, env={**os.environ, **threads}
    )
    return float(run.stdout)


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of weight-only inspection.")
    parser.add_argument("--gpt2", type=Path, default=os.environ.get("PROOFLENS_GPT2"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    import torch

    from analyses.benchmarks.result import write_result

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        synthetic_llama(Path(folder))
        found = measure(Path(folder), options.gpt2)
    for name, value in found.items():
        sys.stdout.write(f"{name:<36} {'not measured' if value is None else f'{value:8.2f}'}\n")
    write_result(found, options.out)
