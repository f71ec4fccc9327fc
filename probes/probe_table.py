"""Where is each latent linearly decodable, and what is that worth? Every hook × every latent.

    score          held-out score of the linear probe (:mod:`probes.linear`)
    selectivity    score − score of the control task (:mod:`probes.controls`)
    over_input     score − score of the same probe on the raw input at the position
    over_untrained score − score at the same hook of a model with random weights

The null of ``score`` permutes the latent's rows against held-out predictions. A latent is worth
calling decodable when the score is high *and* all three differences are clearly positive; used it
is only if an intervention says so (:mod:`probes.interchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import Problems
from interp.models.transformer import SequenceTransformer
from interp.stats.head_table import adjust
from interp.stats.nulls import accuracy_null, decodability_null
from interp.stats.p_values import Null
from interp.store.rows import scored_mask
from probes.activations import Samples, collect
from probes.controls import control_latent, raw_input
from probes.linear import FOLDS, Decoding, decode, folds_of, probe_for
from probes.sites import chosen_hooks, hook_sites

COLUMNS = (
    "hook",
    "latent",
    "kind",
    "score",
    "null_mean",
    "null_std",
    "p",
    "q",
    "control",
    "selectivity",
    "input",
    "over_input",
    "untrained",
    "over_untrained",
    "dropped",
)


def probe_table(
    source: Any,
    inputs: Any,
    hooks: Sequence[str] | str,
    latents: Sequence[str] | str | None = None,
    *,
    untrained: Any = None,
    positions: np.ndarray | None = None,
    seed: int = 0,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> pd.DataFrame:
    """Probe every latent at every hook, with controls and baselines.

    Args:
        source: A hooked model, or a store.
        inputs: A :class:`~interp.tasks.base.Batch` with latents, for a model; None for a store.
        hooks: The names of hooks that have a position axis, or globs.
        latents: The latents to probe; all by default. ``NAME[i]`` means channel i of a latent with
            several.
        untrained: A model of the same hooks with random weights, run on the same inputs; one is
            made of our own models (:func:`untrained_like`). Without, its columns are NaN.
        positions: The sampled positions. By default 8 of the scored ones: the same for all rows
            where possible, and no prefix in two folds (:mod:`probes.activations`).
        seed: Seed of the sampled positions, the control labels and the random weights.
        watch: A wrapper of the iteration over hooks, such as a progress bar.

    Returns:
        One row a hook and latent, columns :data:`COLUMNS`; q is over all rows. ``kind`` is
        ``real`` or ``categorical`` (:func:`probes.linear.kind_of`), ``constant`` where the samples
        hold one value, or ``rare`` where fewer than two classes are in enough rows to be learned:
        then there is nothing to decode, the score is 0 and p is 1. ``dropped`` is how many classes
        the score leaves out as too rare.

    Raises:
        ArgumentError: if a latent is not there, or not finite where it is sampled; if none is; for
            positions that rows do not have, and fewer distinct rows than folds.
        HookError: for a hook that is not there or has no position axis after the rows.
    """
    hooks = [hooks] if isinstance(hooks, str) else list(hooks)
    if any(set(hook) & set("*?[") for hook in hooks):
        hooks = chosen_hooks(source, hook_sites(source, inputs), hooks)
    samples = collect(source, inputs, hooks, positions=positions, seed=seed)
    names = _chosen(samples, latents)
    if untrained is None and isinstance(source, SequenceTransformer):
        untrained = untrained_like(source, seed=seed + 1)
    random = None
    if untrained is not None:
        rows = samples_inputs(source, inputs)
        random = collect(untrained, rows, hooks, positions=samples.places)
    raw = raw_input(samples.inputs, positions=samples.positions)
    from_input = {name: _decoded(raw, samples, name).score for name in names}
    table = [
        _row(samples, random, hook, name, from_input[name], seed)
        for hook in watch(hooks)
        for name in names
    ]
    frame = pd.DataFrame(table, columns=[c for c in COLUMNS if c != "q"])
    frame["q"] = adjust(frame["p"].to_numpy())
    return frame[list(COLUMNS)]


def layer_map(table: pd.DataFrame, value: str = "score") -> pd.DataFrame:
    """The table as a map: latents as rows, hooks as columns in the table's order."""
    wide = table.pivot(index="latent", columns="hook", values=value)
    return wide.loc[table["latent"].drop_duplicates(), table["hook"].drop_duplicates()]


def untrained_like(model: SequenceTransformer, *, seed: int) -> SequenceTransformer:
    """A model of the same spec with freshly drawn weights."""
    return SequenceTransformer(model.spec, seed=seed)


def samples_inputs(source: Any, inputs: Any) -> Any:
    """The inputs that a second model is run on: the batch, or the store's own inputs."""
    return inputs if inputs is not None else _store_batch(source)


def _store_batch(store: Any) -> Any:
    import torch

    from interp.tasks.base import Batch

    inputs = torch.from_numpy(store.inputs())
    return Batch(inputs, inputs, torch.from_numpy(scored_mask(store)))


def _chosen(samples: Samples, latents: Sequence[str] | None) -> list[str]:
    known = list(samples.latents)
    latents = [latents] if isinstance(latents, str) else latents
    chosen = known if latents is None else list(latents)
    problems = Problems("probe_table")
    absent = [name for name in chosen if name not in samples.latents]
    problems.need(not absent, "latents", f"must be among {', '.join(known)}", absent, "drop them")
    advice = "give labels of your own (prooflens probe --labels FILE), or rows of a task"
    problems.need(bool(chosen), "latents", "must not be empty", chosen, advice)
    wrong = [name for name in chosen if not np.isfinite(samples.latents.get(name, 0.0)).all()]
    rule = "must be finite at the sampled positions"
    problems.need(not wrong, "latents", rule, wrong, "drop them, or mask what they do not say")
    distinct = len(np.unique(folds_of(samples.groups)))
    rule = f"must hold distinct ones for {FOLDS} folds"
    problems.need(distinct == FOLDS, "rows", rule, distinct, "give more rows")
    problems.raise_if_any()
    return chosen


def _row(
    samples: Samples, random: Samples | None, hook: str, name: str, from_input: float, seed: int
) -> dict[str, Any]:
    features, latent = samples.features[hook], samples.latents[name]
    found = _decoded(features, samples, name)
    null = _null(found, latent)
    labels = control_latent(samples.inputs, latent, positions=samples.positions, seed=seed)
    told = _told(samples, name, found)
    labelled = np.ptp(labels) > 0 and told != "rare"
    control = _decoded(features, samples, name, labels).score if labelled else 0.0
    untrained = float("nan")
    if random is not None:
        untrained = _decoded(random.features[hook], samples, name).score
    return {
        "hook": hook,
        "latent": name,
        "kind": told,
        "score": found.score,
        "null_mean": null.mean,
        "null_std": null.std,
        "p": null.p,
        "control": control,
        "selectivity": found.score - control,
        "input": from_input,
        "over_input": found.score - from_input,
        "untrained": untrained,
        "over_untrained": found.score - untrained,
        "dropped": found.dropped,
    }


def _told(samples: Samples, name: str, found: Decoding) -> str:
    if not np.ptp(samples.latents[name]):
        return "constant"
    return "rare" if found.classes is not None and len(found.classes) < 2 else samples.kinds[name]


def _decoded(
    features: np.ndarray, samples: Samples, name: str, labels: np.ndarray | None = None
) -> Decoding:
    """Decode a latent (or labels in its place) with the probe that fits its kind."""
    latent = samples.latents[name] if labels is None else labels
    return decode(features, latent, probe=probe_for(samples.kinds[name]), groups=samples.groups)


def _null(found: Decoding, latent: np.ndarray) -> Null:
    if found.classes is not None:
        return accuracy_null(found.predicted, latent, classes=found.classes)
    return decodability_null(found.predicted, latent)


def first_decodable(
    table: pd.DataFrame, *, floor: float = 0.9, level: float = 0.01
) -> pd.DataFrame:
    """The hook at which each latent first is decodable, with hooks in the table's order.

    Args:
        table: A table from :func:`probe_table`, over the residual stream's hooks
            in order.
        floor: The least score that counts.
        level: The largest q that counts.

    Returns:
        Columns ``latent``, ``hook`` (empty if nowhere) and ``score``.
    """
    rows = []
    for name, found in table.groupby("latent", sort=False):
        clear = found[(found["score"] >= floor) & (found["q"] <= level)]
        best = found["score"].max()
        rows.append(
            (name, clear["hook"].iloc[0], clear["score"].iloc[0])
            if len(clear)
            else (name, "", best)
        )
    return pd.DataFrame(rows, columns=["latent", "hook", "score"])
