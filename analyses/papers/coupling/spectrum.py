"""Does the spectrum of a trained model's scores become the target's σ_k as its heads widen?

The spectrum is taken in the input metric, with each row's mean removed (a softmax does not see it),
and per input, where its spread over inputs is compared with the spread that the target's own score
matrices have on the same inputs. The paper reads the rank of real couplings off such spectra; here
the truth is known, so that this reading can be checked. Agreement on this family does not carry
over to targets whose output hardly depends on some σ_k.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.figures.spectra import spectra_by_input, spectra_by_width
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.models import add_pods
from analyses.papers.coupling.score_spectra import (
    convergence,
    decay_constant,
    fit_decay,
    head_spectra,
    score_spectra,
)
from analyses.papers.experiment import Experiment, decide
from prooflens.tasks import PodCoupling
from prooflens.weights import effective_rank

__all__ = ["converges"]

_ROWS = 512
_NEAR, _SPREAD = 0.15, 2.0
_DEAD = 1e-6


def converges(setting: Setting) -> Verdict:
    """Test that the trained spectrum tends to σ_k (ledger: ``coupling-spectrum``)."""
    rank, widths = setting.options["rank"], sorted(setting.options["widths"])
    task = PodCoupling(rank, features=setting.options["features"])
    batch = task.sample(_ROWS, seed=2**62 + 2)
    sigma = task.sigma(rank).numpy()
    metric: dict[int, list[np.ndarray]] = defaultdict(list)
    inputs: dict[int, list[np.ndarray]] = defaultdict(list)
    experiment = Experiment(setting)
    add_pods(experiment, task.name, task, widths)
    for (labels, _), fit in zip(experiment.planned, experiment.run()[1], strict=True):
        found = head_spectra(fit.model, torch.split(batch.inputs, 128))
        metric[labels["m_h"]].append(found.metric[0][0])
        inputs[labels["m_h"]].append(found.per_input[0][:, 0])
    own = score_spectra(batch.latents["coupling"][:, None])[:, 0]
    table = _distances(metric, sigma, setting.seeds)
    numbers = _numbers(metric, inputs, own, table, sigma) | {"dead": _dead(metric, setting.seeds)}
    settled = numbers["distance"][str(widths[-1])] <= _NEAR
    falls = numbers["distance"][str(widths[-1])] < 0.5 * numbers["distance"][str(widths[0])]
    narrow = numbers["spread_ratio"] <= _SPREAD
    passed = sum((settled, falls, narrow))
    last = numbers["distance"][str(widths[-1])]
    words = (
        f"At m_h = {widths[-1]} the trained spectrum is {last:.0%} away from σ_k (median over "
        f"seeds; {numbers['distance'][str(widths[0])]:.0%} at m_h = {widths[0]}); each value's "
        f"spread over inputs is {numbers['spread_ratio']:.1f} times the target's own."
    )
    if numbers["dead"]:
        words += f" Scores died in training (m_h: seeds): {numbers['dead']}."
    spread = numbers["distances_at_widest"]
    key = f"distance {last:.2f} ({min(spread):.2f} … {max(spread):.2f} over seeds)"
    return Verdict(
        decide(passed == 3, settled or falls),
        words,
        key,
        numbers,
        {"distances": table},
        _drawings(metric, inputs, own, sigma),
    )


def _distances(
    metric: dict[int, list[np.ndarray]], sigma: np.ndarray, seeds: tuple[int, ...]
) -> pd.DataFrame:
    """Return for every seed the distance of the trained spectrum from the target's, and from that
    of the next smaller width."""
    tables = []
    for i, seed in enumerate(seeds):
        one = {m_h: spectra[i] for m_h, spectra in metric.items()}
        tables.append(convergence(one, sigma).assign(seed=seed))
    return pd.concat(tables, ignore_index=True)


def _numbers(
    metric: dict[int, list[np.ndarray]],
    inputs: dict[int, list[np.ndarray]],
    own: np.ndarray,
    table: pd.DataFrame,
    sigma: np.ndarray,
) -> dict[str, Any]:
    widest = max(metric)
    alive = [i for i, values in enumerate(metric[widest]) if _alive(values)]
    spectra = [metric[widest][i][: len(sigma)] for i in alive]
    full = [values for values in spectra if values.min() > _DEAD]
    decay = fit_decay(np.stack(full)) if full else None
    spread = [_variation(inputs[widest][i][:, : len(sigma)]) for i in alive]
    usual = _variation(own[:, : len(sigma)])
    medians = table.groupby("m_h")["distance"].median()
    steps = table.groupby("m_h")["step"].median()
    return {
        "distance": {str(m): float(v) for m, v in medians.items()},
        "distances_at_widest": table[table["m_h"] == widest]["distance"].tolist(),
        "steps": {str(m): float(v) for m, v in steps.items()},
        "spectra": {str(m): np.stack(s).tolist() for m, s in metric.items()},
        "spread_over_inputs": [s.tolist() for s in spread],
        "targets_spread_over_inputs": usual.tolist(),
        "spread_ratio": float(np.median(np.stack(spread) / usual)) if alive else float("inf"),
        "decay": [decay.alpha, decay.low, decay.high] if decay else None,
        "effective_rank": [float(effective_rank(values)) for values in spectra],
        "C_1": [decay_constant(s, 1.0) for s in spectra],
    }


def _alive(spectrum: np.ndarray) -> bool:
    """Return whether scores differ between keys at all."""
    return bool(spectrum[0] > _DEAD)


def _dead(metric: dict[int, list[np.ndarray]], seeds: tuple[int, ...]) -> dict[str, list[int]]:
    """Return head width m_h → the seeds whose scores became constant during training."""
    found = {
        str(m_h): [s for s, values in zip(seeds, spectra, strict=True) if not _alive(values)]
        for m_h, spectra in metric.items()
    }
    return {m_h: lost for m_h, lost in found.items() if lost}


def _variation(values: np.ndarray) -> np.ndarray:
    """Return, for every singular value, its standard deviation over inputs divided by its mean."""
    variation: np.ndarray = values.std(axis=0) / values.mean(axis=0)
    return variation


def _drawings(
    metric: dict[int, list[np.ndarray]],
    inputs: dict[int, list[np.ndarray]],
    own: np.ndarray,
    sigma: np.ndarray,
) -> dict[str, Drawing]:
    widest = max(metric)
    by_width = spectra_by_width({m: np.stack(s) for m, s in metric.items()}, reference=sigma)
    by_input = spectra_by_input({"target": own, f"trained, m_h = {widest}": inputs[widest][0]})
    return {
        "spectrum-by-width": Drawing(
            by_width, "Singular values by width of the heads, beside the target's."
        ),
        "spectrum-over-inputs": Drawing(
            by_input, "The spread of each singular value over inputs, target and trained model."
        ),
    }
