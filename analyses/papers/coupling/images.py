"""Does the spectrum of trained scores settle on images as heads widen, and does the error fall?

Of images nobody knows σ_k, so the widest head's spectrum is what the others are compared with.
Single layers restore noisy images (:class:`~analyses.papers.coupling.image_set.NoisyImages`); the
spectrum is that of the scores between all places, rows centred, on images that were not trained on.
By default the images are the handwritten digits that come with scikit-learn; ``--option
images=FILE`` names the user's own, which :func:`check` refuses before any work where they cannot
serve.

A spectrum that settles says that wider heads find no other scores in this training, not that the
best scores have that rank. The noise leaves an error that no head removes, so that slopes of the
error on m_h say less than their size suggests; the paper's −0.27 is a classifier's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.figures.spectra import spectra_by_input, spectra_by_width
from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.image_set import NoisyImages
from analyses.papers.coupling.models import single_layer
from analyses.papers.coupling.score_spectra import convergence, head_spectra
from analyses.papers.experiment import Experiment, by_seed, interval, medians, spread, status_of
from prooflens.errors import Problems
from prooflens.weights import effective_rank

__all__ = ["check", "on_images"]

_ROWS, _SEED = 256, 2**62 + 5
_SHARE, _NEAR = 0.5, 0.2


def check(setting: Setting) -> None:
    """Refuse images from which nothing can be learned.

    Raises:
        ArgumentError: if they cannot be read, are no images, too few or all of one grey; for fewer
            than two widths.
    """
    problems, images = Problems("claims run"), setting.options.get("images", "")
    rule = "must name a .npy or .npz file or a folder of PNGs"
    problems.need(isinstance(images, str), "--option images", rule, images, "write images=FILE")
    widths = setting.options["widths"]
    good = isinstance(widths, list) and len(set(widths)) > 1
    problems.need(good, "--option widths", "must be two at least", widths, "e.g. widths=[1,4]")
    problems.raise_if_any()
    NoisyImages(images)


def on_images(setting: Setting) -> Verdict:
    """Measure spectra and errors against m_h on images (ledger: ``coupling-images``)."""
    options, task = setting.options, NoisyImages(setting.options.get("images", ""))
    batch = task.testing().sample(_ROWS, seed=_SEED)
    experiment = Experiment(setting, test=NoisyImages.testing)
    for m_h in sorted(set(options["widths"])):
        experiment.add({"m_h": m_h}, task, single_layer(task, m_h, options["width"]))
    table, fits = experiment.run()
    metric: dict[int, list[np.ndarray]] = defaultdict(list)
    inputs: dict[int, list[np.ndarray]] = defaultdict(list)
    for m_h, fit in zip(table["m_h"], fits, strict=True):
        found = head_spectra(fit.model, torch.split(batch.inputs, 64))
        metric[int(m_h)].append(found.metric[0][0])
        inputs[int(m_h)].append(found.per_input[0][:, 0])
    table = table.assign(error=table["loss"])
    numbers = _numbers(table, metric, inputs)
    (narrow, *_), (*_, last, wide) = metric, metric
    ranks, slopes = numbers["effective_rank"], numbers["slopes"]
    judged = {
        "falls fast": float(np.median(ranks)) <= _SHARE * wide,
        "settles": float(np.median(numbers["distance"][str(last)])) <= _NEAR,
        "error falls": interval(slopes)[1] < 0 if len(slopes) > 1 else slopes[0] < 0,
    }
    error = medians(table, ["m_h"])
    failed = [name for name, holds in judged.items() if not holds]
    words = (
        f"On {task.count} images ({task.name}) the widest head's scores have an effective rank of "
        f"{spread(ranks)} of {wide}; the error goes from {error[narrow]:.3g} at m_h = {narrow} to "
        f"{error[wide]:.3g} at {wide}, of a variance of 1, with slope {spread(slopes)}."
        + (f" Not: {', '.join(failed)}." if failed else "")
    )
    return Verdict(
        status_of(judged),
        words,
        f"slope {spread(slopes)}; effective rank {spread(ranks)} of {wide}",
        numbers | {"judged": judged},
        {"errors": table[["m_h", "seed", "error", "train_loss"]]},
        _drawings(table, metric, inputs),
    )


def _numbers(
    table: pd.DataFrame, metric: dict[int, list[np.ndarray]], inputs: dict[int, list[np.ndarray]]
) -> dict[str, Any]:
    wide = max(metric)
    distances: dict[int, list[float]] = defaultdict(list)
    for i in range(len(metric[wide])):
        one = convergence({m_h: spectra[i] for m_h, spectra in metric.items()})
        for m_h, distance in zip(one["m_h"], one["distance"], strict=True):
            distances[int(m_h)].append(float(distance))
    slopes = [
        float(np.polyfit(np.log(g["m_h"]), np.log(g["error"]), 1)[0])
        for _, g in table.groupby("seed", sort=False)
    ]
    values = [found[:, :wide] for found in inputs[wide]]
    return {
        "slopes": slopes,
        "effective_rank": [float(effective_rank(spectrum)) for spectrum in metric[wide]],
        "distance": {str(m_h): found for m_h, found in distances.items()},
        "spectra": {str(m_h): np.stack(found).tolist() for m_h, found in metric.items()},
        "spread_over_inputs": [(v.std(0) / v.mean(0).clip(1e-12)).tolist() for v in values],
        "errors": by_seed(table.assign(m_h="m_h " + table["m_h"].astype(str)), ["m_h"]),
    }


def _drawings(
    table: pd.DataFrame, metric: dict[int, list[np.ndarray]], inputs: dict[int, list[np.ndarray]]
) -> dict[str, Drawing]:
    wide = max(metric)
    errors = sweep(
        table.assign(model="trained"),
        x="m_h",
        across="width of the head, m_h",
        by="model",
        label="mean square error on images\nheld out (÷ variance)",
        log_y=False,
    )
    violins = {f"m_h = {m}": inputs[m][0][:, :m] for m in (sorted(inputs)[-2], wide)}
    by_width = spectra_by_width({m: np.stack(found) for m, found in metric.items()})
    return {
        "spectrum-by-width": Drawing(by_width, "Singular values of scores by width of the head."),
        "error-by-width": Drawing(errors, "Error on held-out images by width of the head."),
        "spectrum-over-inputs": Drawing(
            spectra_by_input(violins), "The spread of each singular value over images."
        ),
    }
