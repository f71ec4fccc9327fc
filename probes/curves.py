"""How many rows a probe needs: its score on held-out rows against the number of training rows.

A latent that is there in a form ready to be read is found from few rows; one that needs nearly all
of them may be pieced together by the probe. A curve that still rises at its end says that the
scores of :mod:`probes.probe_table` are bounded by the rows, not by the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import Problems
from probes.activations import Samples, collect
from probes.controls import learning_curve
from probes.linear import probe_for

CURVE_COLUMNS = ("latent", "hook", "rows", "seed", "score")


def curve_table(
    source: Any,
    inputs: Any,
    hooks: Mapping[str, str],
    *,
    repeats: int = 5,
    seed: int = 0,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> pd.DataFrame:
    """Learning curves of latents, each read at one hook.

    Args:
        source: A hooked model, or a store.
        inputs: A :class:`~interp.tasks.base.Batch` with latents, for a model; None for a store.
        hooks: Latent → the hook at which it is read.
        repeats: How often the held-out rows and the order of the others are drawn anew.
        seed: Seed of the sampled positions and of the first draw.
        watch: A wrapper of the iteration over latents, such as a progress bar.

    Returns:
        Columns :data:`CURVE_COLUMNS`; ``rows`` is how many were learned from, ``score`` as in
        :func:`probes.linear.decode`.

    Raises:
        ArgumentError: for latents that the rows do not have.
        HookError: for a hook that is not there or has no position axis.
    """
    if not hooks:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    samples = collect(source, inputs, list(dict.fromkeys(hooks.values())), seed=seed)
    need_latents("curve_table", samples, hooks)
    pieces = []
    for name in watch(list(hooks)):
        features, latent = samples.features[hooks[name]], samples.latents[name]
        if samples.kinds[name] == "categorical":  # classes, whatever numbers they are
            latent = np.unique(latent, return_inverse=True)[1].reshape(latent.shape).astype(float)
        for draw in range(seed, seed + repeats):
            probe = probe_for(samples.kinds[name])
            curve = learning_curve(features, latent, probe=probe, seed=draw, groups=samples.groups)
            pieces.append(curve.assign(latent=name, hook=hooks[name], seed=draw))
    return pd.concat(pieces, ignore_index=True)[list(CURVE_COLUMNS)]


def need_latents(subject: str, samples: Samples, hooks: Mapping[str, str]) -> None:
    """Raise an error for latents that the rows do not have."""
    problems, known = Problems(subject), ", ".join(samples.latents)
    absent = [name for name in hooks if name not in samples.latents]
    problems.need(not absent, "hooks", f"must name latents among {known}", absent, "drop them")
    problems.raise_if_any()
