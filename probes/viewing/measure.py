"""What every head does on the rows that are shown, token by token.

    pattern    attention of each query to each key, as the model computes it
    written    ‖v_j W_O‖, how large what would be read from key j is: attention times this is the
               value-weighted attention (a head may attend to a token that has nothing to say)
    effect     rise of the loss at each position without the head: in nats, or as a share of the
               target's variance. The head's mean over rows stands in for it; in a row that is
               alone, zero

Patterns and norms are kept in a byte each (:mod:`probes.viewing.quantised`); scores of rows are of
the numbers as they are. A large effect at a position says that the model uses the head there as it
is now, not that no other head could do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.attention.attention_to_keys import masses_by_row
from interp.attention.by_lag import LagMass
from interp.attention.key_sets import positional_key_sets, token_key_sets
from interp.interventions.ablation_effects import effect_table, loss_unit
from interp.interventions.components import Component
from interp.run import Mean, Run, Site, Zero, written_by
from interp.store.attention_mask import AttentionMask, attention_shares, mask_from_patterns
from interp.store.rows import Rows, layer_hooks, read_batches
from probes.roles.examined import Watch as Over
from probes.viewing.quantised import Quantised, quantised
from probes.viewing.sequences import Sequences

__all__ = ["CLASSES", "Effects", "HeadOnRows", "Seen", "effects_on", "seen_on"]

CLASSES = ("previous", "own", "first", "same", "after_same")
"""Classes of keys by which rows are ordered."""
LAGS = 32
_BATCH = 8
_VALUES = "attn.hook_v"

Place = tuple[int, int]


@dataclass(frozen=True)
class HeadOnRows:
    """One head on rows of one kind.

    Attributes:
        pattern: ``[row, query, key]``.
        written: ‖v_j W_O‖ ``[row, key]``; None where the model does not show it.
        masses: Class of keys → the head's share of attention there in each row, NaN where no
            query has such a key.
        lags: Mean share of attention at each of the group's lags; NaN where no query has it.
    """

    pattern: Quantised
    written: Quantised | None
    masses: Mapping[str, NDArray[np.floating]]
    lags: NDArray[np.floating]


@dataclass(frozen=True)
class Seen:
    """All heads on rows of one kind.

    Attributes:
        heads: By layer and head.
        attention_mask: Which keys a query may attend to.
        lags: The lags of every head's ``lags``; below 0 are keys after the query.
    """

    heads: Mapping[Place, HeadOnRows]
    attention_mask: AttentionMask
    lags: tuple[int, ...]


@dataclass(frozen=True)
class Effects:
    """What is lost without each head on rows of one kind.

    Attributes:
        by_position: Head → rise of the loss ``[row, pos]``, 0 where nothing is scored.
        by_row: Head → the mean over scored positions of each row.
        table: The same over all rows, against no difference (a head table); empty for a single
            row.
        how: What stood in: ``mean`` or ``zero``.
        unit: Of the rises.
    """

    by_position: Mapping[Place, Quantised]
    by_row: Mapping[Place, NDArray[np.floating]]
    table: pd.DataFrame
    how: str
    unit: str


def seen_on(source: Any, shown: Sequences, model: Any = None) -> Seen:
    """Every head's patterns on some rows.

    Args:
        source: A hooked model; or a store that holds these rows with their patterns.
        shown: The rows.
        model: Whose W_O is read for the norms of values; None without them.

    Raises:
        ArgumentError: if attention is not finite.
        HookError: if no hook shows the patterns.
    """
    live = source is model
    hooks = layer_hooks(source, "attn.hook_pattern")
    layers = [Site.of(hook).layer for hook in hooks]
    outputs = _outputs(model, layers) if live else {}
    hooks += [f"blocks.{layer}.{_VALUES}" for layer in outputs]
    batches = read_batches(source, shown.batch if live else None, hooks, batch=_BATCH)
    whole = list(islice(batches, -(-len(shown.batch) // _BATCH)))
    first = {layer: whole[0].activations[_pattern(layer)] for layer in layers}
    seen = whole[0].attention_mask or mask_from_patterns(first.values())
    n = shown.batch.inputs.shape[1]
    least = 0 if seen.causal else 1 - min(LAGS, n)
    lags = tuple(range(least, min(LAGS, n)))
    keys = _keys(shown, seen)
    found: dict[Place, HeadOnRows] = {}
    for layer in layers:
        found |= _layer(layer, whole, shown, seen, lags, keys, outputs.get(layer))
    return Seen(found, seen, lags)


def _pattern(layer: int) -> str:
    return Site(layer, "pattern").name


def _layer(
    layer: int,
    whole: Sequence[Rows],
    shown: Sequences,
    seen: AttentionMask,
    lags: tuple[int, ...],
    keys: Mapping[str, Tensor],
    output: Tensor | None,
) -> dict[Place, HeadOnRows]:
    """A layer's heads."""
    pattern = torch.cat([rows.activations[_pattern(layer)].float() for rows in whole])
    pattern = pattern[: len(shown.batch)]
    heads = tuple(range(pattern.shape[1])) if whole[0].heads is None else whole[0].heads
    visible = seen.keys(pattern.shape[-1])
    counted = torch.ones(len(pattern), pattern.shape[-1], dtype=torch.bool)
    share = attention_shares(layer, pattern, visible, heads)
    masses = {name: masses_by_row(share, k, counted, visible).numpy() for name, k in keys.items()}
    by_lag = LagMass(lags, resamples=0, attention_mask=seen)
    by_lag.add({layer: pattern}, counted, heads)
    mean = by_lag.by_lag(layer)
    written = None
    if output is not None:
        values = torch.cat(
            [rows.activations[f"blocks.{layer}.{_VALUES}"].float() for rows in whole]
        )
        written = torch.einsum("rkhd,hdm->rkhm", values, output).norm(dim=-1)
    return {
        (layer, head): HeadOnRows(
            quantised(pattern[:, at].numpy(), shares=True),
            None if written is None else quantised(written[:, :, at].numpy()),
            {name: mass[:, at] for name, mass in masses.items()},
            mean[at],
        )
        for at, head in enumerate(heads)
    }


def _keys(shown: Sequences, seen: AttentionMask) -> dict[str, Tensor]:
    """Class → ``[row, query, key]``."""
    rows, n = shown.batch.inputs.shape[:2]
    found = positional_key_sets(rows, n, 1, causal=seen.causal)
    if shown.batch.inputs.ndim == 2:
        found |= token_key_sets(shown.batch.inputs, causal=seen.causal)
    return {name: found[name] for name in CLASSES if name in found}


def _outputs(model: Any, layers: Sequence[int]) -> dict[int, Float[Tensor, "head d_head d_model"]]:
    """Layer → W_O, of models whose values have its shape and that write nothing besides."""
    spec, known = getattr(model, "spec", None), getattr(model, "hook_dict", {})
    if not hasattr(model, "W_O") or (spec is not None and spec.identity_ov):
        return {}
    heads = [model.cfg.n_heads] * len(layers) if spec is None else spec.heads
    shared = getattr(model.cfg, "n_key_value_heads", None) not in (None, model.cfg.n_heads)
    if shared or len(set(heads)) > 1:
        return {}
    wide = model.W_O.detach().float().cpu()
    return {layer: wide[layer] for layer in layers if f"blocks.{layer}.{_VALUES}" in known}


@torch.no_grad()
def effects_on(
    model: Any, shown: Sequences, heads: Sequence[Place], *, seed: int = 0, over: Over = iter
) -> Effects:
    """What is lost without each head, position by position.

    Args:
        model: Ours, a bridge, or a wrapped module.
        shown: Rows with targets.
        heads: Which.
        seed: Of the table's intervals.
        over: Wraps the loop over layers, for a progress bar.
    """
    batch, run = shown.batch, Run(model, shown.batch)
    how = "mean" if len(batch) > 1 else "zero"
    made = Mean if how == "mean" else Zero
    unit, whole, by_row = loss_unit(batch), dict[Place, Tensor](), dict[Place, Tensor]()
    layers = sorted({layer for layer, _ in heads})
    for layer in over(layers):
        some = [place for place in heads if place[0] == layer]
        rises = run.rises([made(written_by(model, *place)) for place in some])
        for place, rise in zip(some, rises, strict=True):
            whole[place], by_row[place] = rise / unit, run.by_row(rise)
    table = pd.DataFrame()
    if len(batch) > 1:
        found = {Component("head", *place): rows.numpy() for place, rows in by_row.items()}
        table = effect_table(found, batch, how, seed)
    real = batch.targets.is_floating_point()
    return Effects(
        {place: quantised(rises.numpy()) for place, rises in whole.items()},
        {place: rows.numpy() / unit for place, rows in by_row.items()},
        table,
        how,
        "share of the target's variance" if real else "nats",
    )
