"""What the figures of a role table are drawn from, as tables of the store, and the figures.

    roles               the role table                                → component × role
    attention-ROLE      mean attention of its heads, query × key      → one map a head
    decodability        latent × site, where latents are scalar       → latent × site
    probes              what ``prooflens probe`` found                → hook × latent
    curves              what ``prooflens probe --curves`` found       → score against rows
    rounds-*            of nested memories, of a model and its proof  → latent × place, kernels
    attention, loss-*   what ``prooflens inspect`` found              → layer × head, and nulls
    weights             likewise                                      → layer × head, who reads whom
    crops-*             likewise                                      → corners of circuits

A table that another run sealed than the one that sealed the roles (its provenance tells) is not
about these roles: attention is drawn only beside the roles it was taken for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.figures.maps import Panel, attention_maps, share_maps
from interp.figures.style import save
from interp.store import ActivationStore
from interp.store.rows import scored_mask
from probes.inspection.crops import CROPS
from probes.roles.decision import STATUSES, by_status
from prooflens.pages.behaviour_figures import behaviour_figures, weight_maps
from prooflens.pages.circuit import crop_figure, reading_figure
from prooflens.pages.findings import part_name
from prooflens.pages.probing import curve_figure, latent_maps
from prooflens.pages.rounds import KERNELS, READABLE, rounds_again

__all__ = [
    "ATTENTION",
    "attention_tables",
    "draw",
    "draw_inspection",
    "patterns_of",
    "roles_figure",
]

ATTENTION = "attention-"
_LOSS = "loss-"
_MOST = 12
_COMPONENTS = 160
"""A map of roles has a row for each of so many; a longer one is no picture any more."""
"""Heads of a role that are shown: the strongest, confirmed ones first."""


def attention_tables(
    store: ActivationStore, roles: pd.DataFrame
) -> Iterator[tuple[str, pd.DataFrame]]:
    """(name, table) of each role of heads: mean attention, a line a head and query.

    Columns ``head`` (with the role's targets), ``query`` and ``key 0`` …. Queries behind a row's
    last scored position are not counted.

    Args:
        store: With the patterns; heads that it has not are left out.
        roles: The role table.
    """
    heads = roles[roles["component"] == "head"]
    for role, rows in heads.groupby("role", sort=False):
        order = rows.assign(size=rows["strength"].abs()).sort_values(
            ["status", "size"], ascending=[False, False], kind="stable"
        )
        maps: list[pd.DataFrame] = []
        for _, own in order.groupby(["layer", "head"], sort=False):
            place = int(own["layer"].iloc[0]), int(own["head"].iloc[0])
            pattern = _mean_attention(store, *place) if len(maps) < _MOST else None
            if pattern is not None:
                maps.append(_lines(_head_name(own), pattern))
        if maps:
            yield f"{ATTENTION}{role}", pd.concat(maps, ignore_index=True)


def _head_name(rows: pd.DataFrame) -> str:
    """``L0H1 x[t-1]``, and its best status if that is not confirmed."""
    first = rows.iloc[0]
    targets = list(dict.fromkeys(target for target in rows["target"] if target))
    told = [part_name(first), *targets]
    best = min(rows["status"], key=STATUSES.index)
    if best != "confirmed":
        told.append(f"({best})")
    return " ".join(told)


def _lines(name: str, pattern: np.ndarray) -> pd.DataFrame:
    keys = pd.DataFrame(pattern, columns=[f"key {key}" for key in range(pattern.shape[1])])
    keys.insert(0, "query", range(len(keys)))
    keys.insert(0, "head", name)
    return keys


def _mean_attention(store: ActivationStore, layer: int, head: int) -> np.ndarray | None:
    """``[query, key]``; None for a head or layer whose patterns are not stored."""
    hook, kept = f"blocks.{layer}.attn.hook_pattern", store.manifest["plan"].get("heads")
    if not {hook} & {*store.hooks, *store.aliases} or (kept is not None and head not in kept):
        return None
    place = head if kept is None else list(kept).index(head)
    share = _shares(store.activation(hook, heads=[place])[:, 0].astype(np.float64))
    mask = scored_mask(store)
    counted = np.flip(np.logical_or.accumulate(np.flip(mask, 1), axis=1), 1)[..., None]
    mean: np.ndarray = (share * counted).sum(0) / np.maximum(counted.sum(0), 1)
    return mean


def _shares(pattern: np.ndarray) -> np.ndarray:
    """Attention as shares, also of heads whose weights do not add up to 1."""
    total = pattern.sum(axis=-1, keepdims=True)
    shares: np.ndarray = np.divide(pattern, total, out=np.zeros_like(pattern), where=total > 0)
    return shares


def draw(store: ActivationStore, folder: Path, *, this_run: bool = False) -> list[Path]:
    """Every figure that a store's tables allow, written to a folder.

    Args:
        store: With sealed tables.
        folder: Where to.
        this_run: Only what was sealed together with the role table.
    """
    written: list[Path] = []
    for name, figure in _figures(store, this_run):
        written += save(figure, folder / name)
    return written


def _figures(store: ActivationStore, this_run: bool) -> Iterator[tuple[str, Figure]]:
    names = store.measurements
    beside = {
        name
        for name in names
        if "roles" in names and store.provenance(name) == store.provenance("roles")
    }
    for name in sorted(beside):
        if name.startswith(ATTENTION):
            yield name, _attention(store.measurement(name))
    if "roles" in names:
        roles = store.measurement("roles")
        if len(roles):
            yield "roles", roles_figure(roles)
    if "decodability" in (beside if this_run else names):
        table = store.measurement("decodability")
        wide = table.pivot(index="site", columns="latent", values="score")
        sites = list(dict.fromkeys(table["site"]))
        latents = list(dict.fromkeys(table["latent"]))
        panel = Panel("residual stream", wide.loc[sites, latents].to_numpy(), sites)
        figure = share_maps(
            [panel], latents, label="held-out r², of classes balanced accuracy", across="latent"
        )
        figure.axes[0].tick_params(axis="x", rotation=45)
        yield "decodability", figure
    if {READABLE, KERNELS} <= (beside if this_run else set(names)):
        yield "rounds", rounds_again(store.measurement(READABLE), store.measurement(KERNELS))
    if "probes" in names and not this_run:
        yield "probes", latent_maps(store.measurement("probes"))
    if {"probes", "curves"} <= set(names) and not this_run:
        table, probed = store.measurement("curves"), store.provenance("probes")
        if len(table) and store.provenance("curves") == probed:
            yield "curves", curve_figure(table)
    if not this_run:
        yield from _inspected([store])


def draw_inspection(stores: Sequence[ActivationStore], folder: Path) -> list[Path]:
    """Every figure of an inspection, from the tables that it sealed into its stores together: some
    of them show rows of more than one store."""
    written: list[Path] = []
    for name, figure in _inspected(stores):
        written += save(figure, folder / name)
    return written


def _inspected(stores: Sequence[ActivationStore]) -> Iterator[tuple[str, Figure]]:
    """What ``prooflens inspect`` drew of the tables that it sealed into these stores."""
    sealed = {name: store for store in stores for name in store.measurements}
    nothing = [pd.DataFrame()]
    behaviour = [
        store.measurement("attention").assign(trial=store.provenance("attention")["rows"])
        for store in stores
        if "attention" in store.measurements and "rows" in store.provenance("attention")
    ]
    kept = [sealed[name].measurement(name) for name in sealed if name.startswith(_LOSS)]
    told, losses = (pd.concat(some or nothing, ignore_index=True) for some in (behaviour, kept))
    for nulls in (False, True):
        for drawn in behaviour_figures(told, losses, nulls=nulls):
            yield drawn.name, drawn.figure
    if "weights" in sealed:
        weights = sealed["weights"].measurement("weights")
        for drawn in weight_maps(weights):
            yield drawn.name, drawn.figure
        roles = sealed["roles"].measurement("roles") if "roles" in sealed else None
        reading = None if roles is None else reading_figure(weights, roles)
        if reading is not None:
            yield "pairs", reading[0]
    for name in sealed:
        if name.startswith(CROPS):
            circuit = name.removeprefix(CROPS)
            yield f"diagonals-{circuit}", crop_figure(sealed[name].measurement(name), circuit)


def _attention(table: pd.DataFrame) -> Figure:
    maps = patterns_of(table)
    return attention_maps({name.replace(" ", "\n", 1): maps[name] for name in maps})


def patterns_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Name of the head → ``[query, key]``, of a table that :func:`attention_tables` gave."""
    keys = [column for column in table.columns if column.startswith("key ")]
    heads = table.groupby("head", sort=False)
    return {str(name): rows[keys].to_numpy() for name, rows in heads}


def roles_figure(roles: pd.DataFrame, *, narrow: bool = False) -> Figure:
    """Component × role: the strength of what has each status; of very many components those whose
    roles are most certain and strongest."""
    whole = roles.apply(part_name, axis=1)
    order = roles.assign(name=whole, size=roles["strength"].abs(), at=by_status(roles["status"]))
    order = order.sort_values(["at", "size"], ascending=[True, False], kind="stable")
    kept = set(list(dict.fromkeys(order["name"]))[:_COMPONENTS])
    roles, names = roles[whole.isin(kept)], whole[whole.isin(kept)]
    left = len(set(whole)) - len(kept)
    panels = []
    kinds = list(dict.fromkeys(roles["role"]))
    parts = list(dict.fromkeys(names))
    for title in STATUSES:
        chosen = roles["status"] == title
        if not chosen.any():
            continue
        values = np.full((len(parts), len(kinds)), np.nan)
        for name, (_, row) in zip(names[chosen], roles[chosen].iterrows(), strict=True):
            place = parts.index(name), kinds.index(row["role"])
            values[place] = np.fmax(values[place], abs(row["strength"]))
        words = f"{title} ({left} components left out)" if left else title
        panels.append(Panel(words, values, parts))
    return share_maps(
        panels,
        [kind.replace("-", "\n") for kind in kinds],
        label="strength of the role",
        across="role",
        narrow=narrow,
    )
