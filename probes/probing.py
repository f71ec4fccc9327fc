"""All that probes find in one model or store, as tables.

A table of scores; where latents first appear; and of each there, if asked for, whether the model
uses what the probe reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from interp.errors import HookError
from interp.models.baselines import Baseline
from interp.models.kinds import build
from probes.activations import collect
from probes.interchange import interchange_table
from probes.positions import at_positions, positions_in_words
from probes.probe_table import first_decodable, probe_table
from probes.sites import chosen_hooks, hook_sites, usual_hooks

DECODABLE = 0.9
"""The score from which a latent is called decodable."""


@dataclass(frozen=True)
class Probing:
    """The results of probing a model or store.

    Attributes:
        table: The table of :func:`probes.probe_table.probe_table`, with a column ``positions`` that
            says which positions were pooled.
        first: Where each latent first is decodable
            (:func:`probes.probe_table.first_decodable`).
        about: What was probed, as JSON data.
        interchange: The table of :func:`probes.interchange.interchange_table`, if asked for.
    """

    table: pd.DataFrame
    first: pd.DataFrame
    about: dict[str, Any]
    interchange: pd.DataFrame | None = None

    def hooks(self) -> dict[str, str]:
        """Latent → the hook at which it first is decodable, for the latents that are decodable."""
        return {latent: hook for latent, hook, _ in self.first.itertuples(index=False) if hook}

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables that there are: the name under which a table is stored → the table."""
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
            of other models and stores every hook with a position axis. They are probed in the
            order in which they fire.
        latents: The latents to probe; all by default.
        untrained: A model of the same hooks with random weights, to compare with; our own models
            make theirs, for others and stores there is none unless given.
        positions: ``5``, ``last`` or ``START:STOP[:STEP]``: only these are sampled; all that are
            scored, and stored, by default.
        seed: Seed of sampled positions, controls, nulls and random weights.
        about: Further data that is written to the JSON.
        watch: A wrapper of the iteration over hooks, such as a progress bar.

    Raises:
        HookError: if a glob matches nothing, or a hook without a position axis.
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
    """Add what exchanging each latent at its first decodable hook does to the model's output.

    Args:
        found: The results of :func:`probe_source`.
        model: The hooked model; of a store, the one it was made of.
        batch: The model's rows with latents; for a store, the store's own rows.
        positions: The positions, as for :func:`probe_source`.
        watch: A wrapper of the iteration over latents, such as a progress bar.

    Raises:
        HookError: for hooks with axes behind the position's other than one.
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
