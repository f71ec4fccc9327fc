"""Are p and q right where there is nothing to find?

    python -m analyses.benchmarks.calibration [--models N] [--out FILE]

Small models that nobody trained, with six heads each, are put to tests whose null is true:

    weights         the trace share of QK and OV: initial weights relate nothing to anything
    composition     K-composition of the second layer's heads with the first's
    decodability    numbers drawn at random, read from what a head writes
    patterns        attention to earlier equal tokens, where the tokens are those of other sequences

``uniformity`` is the Kolmogorov–Smirnov distance of all p of a test from an even distribution (of
decodability: the most by which p up to a level below 0.5 are more than that, for held-out
predictions of noise lean against it and p is then too large). ``small`` is the share of p up to
0.01. ``fdr`` is the share of families (one model and test each) in which any q is below 0.01: every
discovery is false, so this is the false-discovery rate. Trained models with nothing to find, and
the nulls of ablation, are not tried here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.stats import kstest

from analyses.benchmarks.result import write_result
from interp.attention.attention_to_keys import AttentionMass
from interp.attention.key_sets import token_key_sets
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.stats.head_table import adjust
from interp.stats.nulls import decodability_null
from interp.threads import one_thread
from interp.weights.weight_table import weight_table
from probes.linear import decode

__all__ = ["calibration"]

_SPEC = TransformerSpec(
    d_in=12, d_out=12, n_ctx=12, d_model=24, n_layers=2, n_heads=3, d_head=8, input="tokens"
)
_ROWS, _LEVEL = 32, 0.01
_WEIGHTS = {"weights": "trace_share", "composition": "k_composition"}


@one_thread()
def calibration(models: int = 200, *, seed: int = 0) -> dict[str, object]:
    """The p-values of true nulls, and how often q calls one of them a discovery.

    Args:
        models: How many models are drawn, with six heads each.
        seed: Seed of the first model; the others follow.
    """
    start, console = time.perf_counter(), Console(stderr=True)
    found: dict[str, list[np.ndarray]] = {}
    numbers = range(seed, seed + models)
    for number in track(numbers, "models", console=console, disable=not console.is_terminal):
        for name, p in _tests(number):
            found.setdefault(name, []).append(p)
    families = {name: [float(adjust(p).min()) < _LEVEL for p in ps] for name, ps in found.items()}
    pooled = {name: np.concatenate(ps) for name, ps in found.items()}
    return {
        "models": models,
        "components": models * sum(_SPEC.heads),
        "tests": {name: len(p) for name, p in pooled.items()},
        "uniformity": {name: _distance(name, p) for name, p in pooled.items()},
        "small": {name: float((p <= _LEVEL).mean()) for name, p in pooled.items()},
        "fdr": float(np.mean([one for found in families.values() for one in found])),
        "fdr_by_test": {name: float(np.mean(found)) for name, found in families.items()},
        "seconds": time.perf_counter() - start,
    }


def _distance(name: str, p: np.ndarray) -> float:
    """How far p is from even: by either side, or of decodability by too many small ones."""
    if name != "decodability":
        return float(kstest(p, "uniform").statistic)
    levels = np.linspace(0.01, 0.49, 49)
    return float(((p[:, None] <= levels).mean(0) - levels).max())


@torch.no_grad()
def _tests(number: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each test, with the p-values of the components put to it."""
    model = SequenceTransformer(_SPEC, seed=number)
    generator = torch.Generator().manual_seed(number)
    tokens, others = torch.randint(_SPEC.d_in, (2, _ROWS, _SPEC.n_ctx), generator=generator)
    table = weight_table(model, list(_WEIGHTS.values()))
    for name, metric in _WEIGHTS.items():
        for _, rows in table[table["metric"] == metric].groupby("circuit"):
            yield name, rows["p"].to_numpy()
    _, cache = model.run_with_cache(tokens)
    latent = np.random.default_rng(number).normal(size=(_ROWS, _SPEC.n_ctx))
    p = []
    for layer in range(_SPEC.n_layers):
        written = cache[f"blocks.{layer}.attn.hook_z"].double().numpy()
        for head in range(written.shape[2]):
            read = decode(written[:, :, head], latent)
            p.append(decodability_null(read.predicted, latent).p)
    yield "decodability", np.array(p)
    yield "patterns", _pattern_p(model, tokens, others)


def _pattern_p(
    model: SequenceTransformer, tokens: torch.Tensor, others: torch.Tensor
) -> np.ndarray:
    """The p-values of attention from one set of rows to equal tokens of another set."""
    _, cache = model.run_with_cache(tokens)
    found = AttentionMass(resamples=0)
    patterns = {n: cache[f"blocks.{n}.attn.hook_pattern"] for n in range(_SPEC.n_layers)}
    found.add(patterns, {}, token_key_sets(others), torch.ones(others.shape, dtype=torch.bool))
    table = found.table()
    rows = table[(table["target"] == "same") & (table["null"] == "tokens")]
    return rows["p"].to_numpy()


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of p and q under true nulls.")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_result(calibration(options.models), options.out)


if __name__ == "__main__":
    main()
