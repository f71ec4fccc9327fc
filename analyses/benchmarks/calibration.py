"""Are p and q right where there is nothing to find?

    python -m analyses benchmark calibration [--models N] [--out FILE]

Small models with six heads each are put to tests whose null is true. Half of them nobody trained:

    weights         the trace share of QK and OV: initial weights relate nothing to anything
    composition     K-composition of the second layer's heads with the first's
    decodability    numbers drawn at random, read from what a head writes
    patterns        attention to earlier equal tokens, where the tokens are those of other sequences
    ablation        the rise of the loss without each head, FFN and layer (its mean, or another
                    row's write, in its place), on targets that have nothing to do with the rows

The others were trained until they knew a few rows with random targets by heart. On fresh rows, with
targets as random, they are put to the last three again (``… of shuffled labels``).

``uniformity`` is the Kolmogorov–Smirnov distance of all p of a test from an even distribution (of
decodability and ablation: the most by which p up to a level below 0.5 are more than that, for they
lean to the safe side: held-out predictions of noise against it, and ablation's p is the larger of
two). ``small`` is the share of p up to 0.01. ``fdr`` is the share of families (one model and test
each) in which any q is below 0.01: every discovery is false, so this is the false-discovery rate.
``rises`` is what ablation's ``small`` would be if a loss that rises were enough, whatever the
targets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.stats import kstest
from scipy.stats import t as student

from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.attention import AttentionMass, token_key_sets
from prooflens.errors import need
from prooflens.interventions import ablate
from prooflens.machine import one_thread
from prooflens.probes import decode
from prooflens.stats import adjust, decodability_null
from prooflens.tasks import Batch
from prooflens.trained import Ensemble, Training, TrainingRun
from prooflens.weights import weight_table

__all__ = ["RandomTargets", "calibration"]

_SPEC = TransformerSpec(
    d_in=12, d_out=12, n_ctx=12, d_model=24, n_layers=2, n_heads=3, d_head=8, input="tokens"
)
_ROWS, _LEVEL = 32, 0.01
_WEIGHTS = {"weights": "trace_share", "composition": "k_composition"}
_SHUFFLED = " of shuffled labels"
_LEANING = ("decodability", "ablation")
_LEARNED, _STEPS, _TOGETHER = 16, 300, 50
"""How models learn random targets by heart: number of rows, number of steps, and number of models
trained in one stack."""


@dataclass(frozen=True)
class RandomTargets:
    """A task without anything to learn: random tokens, and targets that are drawn independently of
    them.

    Attributes:
        vocabulary, length: The number of tokens, and of positions of a row.
    """

    vocabulary: int = _SPEC.d_in
    length: int = _SPEC.n_ctx
    name: str = "random-targets"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` ids, scored everywhere."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(self.vocabulary, (2, n, self.length), generator=generator)
        mask = torch.ones(n, self.length, dtype=torch.bool)
        return Batch(drawn[0], drawn[1], mask).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": self.name, "vocabulary": self.vocabulary, "length": self.length}


@one_thread()
def calibration(models: int = 200, *, seed: int = 0) -> dict[str, object]:
    """Collect p-values of tests whose null is true, and count how often q calls one of them a
    discovery.

    Args:
        models: The number of untrained models, with six heads each. As many more are trained on
            random targets.
        seed: Seed of the first model; the others follow.

    Raises:
        ArgumentError: for fewer than one model.
    """
    need("calibration", models >= 1, "models", "must be at least 1", models, "e.g. 200")
    start, console = time.perf_counter(), Console(stderr=True)
    found: dict[str, list[np.ndarray]] = {}
    subjects = track(
        _subjects(models, seed),
        "models",
        total=2 * models,
        console=console,
        disable=not console.is_terminal,
    )
    for number, model, trained in subjects:
        for name, p in _tests(number, model, trained=trained):
            found.setdefault(name, []).append(p)
    rises = {
        name.replace("rise", "ablation"): np.concatenate(found.pop(name))
        for name in [*found]
        if name.startswith("rise")
    }
    families = {name: [float(adjust(p).min()) < _LEVEL for p in ps] for name, ps in found.items()}
    pooled = {name: np.concatenate(ps) for name, ps in found.items()}
    return {
        "models": models,
        "components": models * sum(_SPEC.heads),
        "tests": {name: len(p) for name, p in pooled.items()},
        "uniformity": {name: _distance(name, p) for name, p in pooled.items()},
        "small": {name: float((p <= _LEVEL).mean()) for name, p in pooled.items()},
        "rises": {name: float((p <= _LEVEL).mean()) for name, p in rises.items()},
        "fdr": float(np.mean([one for found in families.values() for one in found])),
        "fdr_by_test": {name: float(np.mean(found)) for name, found in families.items()},
        "seconds": time.perf_counter() - start,
    }


def _distance(name: str, p: np.ndarray) -> float:
    """Return how far the p-values are from a uniform distribution: the largest difference of the
    two distribution functions. For tests that are known to be conservative only an excess of small
    p counts."""
    if name.removesuffix(_SHUFFLED) not in _LEANING:
        return float(kstest(p, "uniform").statistic)
    levels = np.linspace(0.01, 0.49, 49)
    return float(((p[:, None] <= levels).mean(0) - levels).max())


def _subjects(models: int, seed: int) -> Iterator[tuple[int, SequenceTransformer, bool]]:
    """Yield the number of each model, the model, and whether it was trained on random targets."""
    numbers = range(seed, seed + models)
    for number in numbers:
        yield number, SequenceTransformer(_SPEC, seed=number), False
    for first in range(0, models, _TOGETHER):
        some = numbers[first : first + _TOGETHER]
        training = (Training(steps=_STEPS, rows=_LEARNED, batch=_LEARNED, seed=one) for one in some)
        runs = [TrainingRun(f"seed-{one.seed}", RandomTargets(), _SPEC, one) for one in training]
        ensemble = Ensemble(runs)
        for _ in ensemble.run():
            pass
        for number, model in zip(some, ensemble.models(), strict=True):
            yield number, model, True


@torch.no_grad()
def _tests(
    number: int, model: SequenceTransformer, *, trained: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each test, with the p-values of all components."""
    told = _SHUFFLED if trained else ""
    batch = RandomTargets().sample(_ROWS, seed=10**6 + number)
    if not trained:
        table = weight_table(model, list(_WEIGHTS.values()))
        for name, metric in _WEIGHTS.items():
            for _, rows in table[table["metric"] == metric].groupby("circuit"):
                yield name, rows["p"].to_numpy()
    _, cache = model.run_with_cache(batch.inputs)
    latent = np.random.default_rng(number).normal(size=(_ROWS, _SPEC.n_ctx))
    p = []
    for layer in range(_SPEC.n_layers):
        written = cache[f"blocks.{layer}.attn.hook_z"].double().numpy()
        for head in range(written.shape[2]):
            read = decode(written[:, :, head], latent)
            p.append(decodability_null(read.predicted, latent).p)
    yield f"decodability{told}", np.array(p)
    yield f"patterns{told}", _pattern_p(model, batch.inputs, batch.targets)
    for how in ("mean", "resample"):
        lost = ablate(model, batch, how=how)
        yield f"ablation{told}", lost["p"].to_numpy()
        rises = (lost["score"] / lost["null_std"]).to_numpy()
        yield f"rise{told}", student.sf(rises, _ROWS - 1)


def _pattern_p(
    model: SequenceTransformer, tokens: torch.Tensor, others: torch.Tensor
) -> np.ndarray:
    """Return the p-values of attention on one set of rows to the positions of equal tokens of
    another set."""
    _, cache = model.run_with_cache(tokens)
    found = AttentionMass(resamples=0)
    patterns = {n: cache[f"blocks.{n}.attn.hook_pattern"] for n in range(_SPEC.n_layers)}
    found.add(patterns, {}, token_key_sets(others), torch.ones(others.shape, dtype=torch.bool))
    table = found.table()
    rows = table[(table["target"] == "same") & (table["null"] == "tokens")]
    return rows["p"].to_numpy()


def main() -> None:
    """Run the benchmark, print its JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of p and q under true nulls.")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_result(calibration(options.models), options.out)
