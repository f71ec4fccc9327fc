"""Where is each latent linearly decodable, and what does that show? Every hook × every latent.

    score          held-out score of the linear probe (:mod:`probes.linear`)
    selectivity    score − score of the control task (:mod:`probes.controls`)
    over_input     score − score of the same probe on the raw input at the position
    over_untrained score − score at the same hook of a model with random weights

The null of ``score`` permutes the latent's rows against held-out predictions. A latent should be
called decodable only if the score is high *and* all three differences are clearly positive; it is
used only if an intervention shows it (:mod:`probes.interchange`).

The results are a table of scores, the hook at which each latent first is decodable, and, if
requested, whether the model uses there what the probe reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import HookError, Problems
from interp.models.baselines import Baseline
from interp.models.kinds import build
from interp.models.transformer import SequenceTransformer
from interp.stats.head_table import adjust
from interp.stats.nulls import accuracy_null, decodability_null
from interp.stats.p_values import Null
from interp.store.rows import scored_mask
from probes.activations import Samples, collect
from probes.controls import control_latent, raw_input
from probes.interchange import interchange_table
from probes.linear import FOLDS, Decoding, decode, folds_of, probe_for
from probes.positions import at_positions, chosen_hooks, hook_sites, positions_in_words, usual_hooks

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
        untrained: A model with the same hooks and random weights, run on the same inputs. For a
            SequenceTransformer one is made by default (:func:`untrained_copy`); for others its
            columns are NaN.
        positions: The sampled positions. By default 8 of the scored ones: the same for all rows if
            possible, and no prefix in two folds (:mod:`probes.activations`).
        seed: Seed of the sampled positions, the control labels and the random weights.
        watch: A wrapper around the loop over hooks, for a progress bar.

    Returns:
        One row per hook and latent, columns :data:`COLUMNS`; q is over all rows. ``kind`` is
        ``real`` or ``categorical`` (:func:`probes.linear.kind_of`), ``constant`` if the samples
        have one value, or ``rare`` if fewer than two classes are in enough rows to be learned: then
        there is nothing to decode, the score is 0 and p is 1. ``dropped`` is the number of classes
        that the score leaves out as too rare.

    Raises:
        ArgumentError: if a latent does not exist, or is not finite where it is sampled; if there
            are no latents; for positions that rows do not have; for fewer distinct rows than folds.
        HookError: for a hook that does not exist or has no position axis after the row axis.
    """
    hooks = [hooks] if isinstance(hooks, str) else list(hooks)
    if any(set(hook) & set("*?[") for hook in hooks):
        hooks = chosen_hooks(source, hook_sites(source, inputs), hooks)
    samples = collect(source, inputs, hooks, positions=positions, seed=seed)
    names = _latents_of(samples, latents)
    if untrained is None and isinstance(source, SequenceTransformer):
        untrained = untrained_copy(source, seed=seed + 1)
    random = None
    if untrained is not None:
        rows = _store_batch(source) if inputs is None else inputs
        random = collect(untrained, rows, hooks, positions=samples.places)
    raw = raw_input(samples.inputs, positions=samples.positions)
    from_input = {name: _decode(raw, samples, name).score for name in names}
    table = [
        _row(samples, random, hook, name, from_input[name], seed)
        for hook in watch(hooks)
        for name in names
    ]
    frame = pd.DataFrame(table, columns=[c for c in COLUMNS if c != "q"])
    frame["q"] = adjust(frame["p"].to_numpy())
    return frame[list(COLUMNS)]


def layer_map(table: pd.DataFrame, value: str = "score") -> pd.DataFrame:
    """Return one column of the table as a map: latents as rows, hooks as columns in the table's
    order."""
    wide = table.pivot(index="latent", columns="hook", values=value)
    return wide.loc[table["latent"].drop_duplicates(), table["hook"].drop_duplicates()]


def untrained_copy(model: SequenceTransformer, *, seed: int) -> SequenceTransformer:
    """Return a model of the same spec with freshly drawn weights."""
    return SequenceTransformer(model.spec, seed=seed)


def _store_batch(store: Any) -> Any:
    """Return a store's own inputs as a batch, for a second model that is run on them."""
    import torch

    from interp.tasks.base import Batch

    inputs = torch.from_numpy(store.inputs())
    return Batch(inputs, inputs, torch.from_numpy(scored_mask(store)))


def _latents_of(samples: Samples, latents: Sequence[str] | None) -> list[str]:
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
    found = _decode(features, samples, name)
    null = _null(found, latent)
    labels = control_latent(samples.inputs, latent, positions=samples.positions, seed=seed)
    told = _kind(samples, name, found)
    labelled = np.ptp(labels) > 0 and told != "rare"
    control = _decode(features, samples, name, labels).score if labelled else 0.0
    untrained = float("nan")
    if random is not None:
        untrained = _decode(random.features[hook], samples, name).score
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


def _kind(samples: Samples, name: str, found: Decoding) -> str:
    if not np.ptp(samples.latents[name]):
        return "constant"
    return "rare" if found.classes is not None and len(found.classes) < 2 else samples.kinds[name]


def _decode(
    features: np.ndarray, samples: Samples, name: str, labels: np.ndarray | None = None
) -> Decoding:
    """Decode a latent (or labels in its place) with the probe for its kind."""
    latent = samples.latents[name] if labels is None else labels
    return decode(features, latent, probe=probe_for(samples.kinds[name]), groups=samples.groups)


def _null(found: Decoding, latent: np.ndarray) -> Null:
    if found.classes is not None:
        return accuracy_null(found.predicted, latent, classes=found.classes)
    return decodability_null(found.predicted, latent)


def first_decodable(
    table: pd.DataFrame, *, floor: float = 0.9, level: float = 0.01
) -> pd.DataFrame:
    """Find the first hook at which each latent is decodable, with hooks in the table's order.

    Args:
        table: A table from :func:`probe_table`, over the residual stream's hooks in order.
        floor: The least score that counts.
        level: The largest q that counts.

    Returns:
        Columns ``latent``, ``hook`` (empty if nowhere) and ``score`` (there, or the best anywhere).
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


DECODABLE = 0.9
"""Score (held-out r², or balanced accuracy with chance at 0) from which a latent is called
decodable."""


@dataclass(frozen=True)
class Probing:
    """The results of probing a model or store.

    Attributes:
        table: The table of :func:`probes.probe_table.probe_table`, with a column ``positions`` that
            says which positions were sampled.
        first: The first hook at which each latent is decodable
            (:func:`probes.probe_table.first_decodable`).
        about: What was probed, as JSON data.
        interchange: The table of :func:`probes.interchange.interchange_table`, if requested.
    """

    table: pd.DataFrame
    first: pd.DataFrame
    about: dict[str, Any]
    interchange: pd.DataFrame | None = None

    def hooks(self) -> dict[str, str]:
        """Return latent → the hook at which it first is decodable, for the latents that are
        decodable."""
        return {latent: hook for latent, hook, _ in self.first.itertuples(index=False) if hook}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables to store, by name: ``probes``, and ``interchange`` if it was
        requested."""
        named = {"probes": self.table, "interchange": self.interchange}
        return {name: table for name, table in named.items() if table is not None}


def probe_source(
    source: Any,
    inputs: Any,
    *,
    hooks: list[str] | None = None,
    latents: list[str] | None = None,
    untrained: Any = None,
    positions: str | None = None,
    seed: int = 0,
    about: dict[str, Any] | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Probe a model on a batch, or a store.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: A :class:`~interp.tasks.base.Batch` with latents for a model, None for a store.
        hooks: Names or globs; by default the residual stream between sublayers of a transformer,
            and for other models and stores every hook with a position axis. They are probed in the
            order in which they fire.
        latents: The latents to probe; all by default.
        untrained: A model with the same hooks and random weights, to compare with. Models of this
            package get one by default; others and stores have none unless it is given.
        positions: ``5``, ``last`` or ``START:STOP[:STEP]``: only these positions are sampled; by
            default all that are scored (and stored).
        seed: Seed of sampled positions, controls, nulls and random weights.
        about: Further JSON data that is added to the result's.
        watch: A wrapper around the loop over hooks, for a progress bar.

    Raises:
        HookError: if a glob matches nothing, or matches a hook without a position axis.
        ArgumentError: if nothing is scored at the positions.
    """
    source, inputs = at_positions(source, inputs, positions)
    sites = hook_sites(source, inputs)
    chosen = usual_hooks(source, sites) if hooks is None else chosen_hooks(source, sites, hooks)
    if untrained is None and isinstance(source, Baseline):
        untrained = build(source.spec, seed=seed + 1)
    table = probe_table(
        source, inputs, chosen, latents, untrained=untrained, seed=seed, watch=watch
    )
    pooled = positions_in_words(collect(source, inputs, chosen[:1], seed=seed))
    table = table.assign(positions=pooled)
    about = {**(about or {}), "seed": seed, "hooks": chosen, "positions": pooled}
    if hooks is None and set(chosen) == {site.name for site in sites if site.probed}:
        about["left_out"] = [site.name for site in sites if not site.probed]
    return Probing(table, first_decodable(table, floor=DECODABLE), about)


def add_interchange(
    found: Probing,
    model: Any,
    batch: Any,
    *,
    positions: str | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Measure what exchanging each latent, at its first decodable hook, does to the model's output.

    Args:
        found: The results of :func:`probe_source`.
        model: The hooked model; for a store, the model that it was made from.
        batch: The model's rows with latents; for a store, the store's own rows.
        positions: The positions, as for :func:`probe_source`.
        watch: A wrapper around the loop over latents, for a progress bar.

    Returns:
        The results with the table of the interchange.

    Raises:
        HookError: for hooks that are not ``[row, pos, feature]``.
    """
    model, batch = at_positions(model, batch, positions)
    axes = {site.name: site.shape for site in hook_sites(model, batch)}
    wrong = sorted({hook for hook in found.hooks().values() if len(axes.get(hook, (0, 0))) != 2})
    if wrong:
        raise HookError(
            f"--interchange needs hooks [row, pos, feature], got {', '.join(wrong)}: name the "
            "residual stream or hook_mlp_out with --hooks"
        )
    seed = int(found.about["seed"])
    table = interchange_table(model, batch, found.hooks(), seed=seed, watch=watch)
    return replace(found, interchange=table)
