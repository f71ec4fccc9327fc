"""Every figure that can be drawn from named tables: those of an inspection, and those of
``prooflens probe``.

roles               the role table                                → component × role
attention-ROLE      mean attention of its heads, query × key      → one map per head
heads               every score of every head                     → layer × head, nulls, pairs
decodability        latent × site, for scalar latents             → latent × site
rounds-*            nested memories, in the model and the proof   → latent × place, kernels
probes              the results of ``prooflens probe``            → hook × latent
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.figures.maps import (
    Panel,
    attention_grid,
    attention_in_words,
    attention_maps,
    share_maps,
)
from interp.figures.style import save
from probes.roles.decision import STATUSES, by_status
from prooflens.pages.behaviour_figures import Drawn, behaviour_figures, weight_maps
from prooflens.pages.circuit import reading_figure
from prooflens.pages.findings import part_name, part_names, role_phrases, status_counts
from prooflens.pages.rounds import rounds_again, rounds_in_words

ATTENTION = "attention-"
_PATTERNS = 160
"""Number of heads up to which a grid of attention patterns is drawn. With more none is drawn,
because single patterns would be too small to see."""
_COMPONENTS = 40
"""Number of rows (components) of a map of roles. If there are more, the strongest are shown."""
_READ = "What can be read where: held-out r², of classes balanced accuracy."
_ROUNDS = (
    "Above, what a linear probe reads at each place of the residual stream; below, what the heads "
    "of each layer put together from each lag, counted from the location of the round."
)

Tables = Mapping[str, pd.DataFrame]


def draw(tables: Tables, folder: Path, unit: str = "nats") -> list[Path]:
    """Write every figure that can be drawn from some tables to a folder, as PNG and SVG.

    Args:
        tables: Name → table.
        folder: The folder.
        unit: Unit of losses: ``nats`` or ``variance``.

    Returns:
        The paths of the files.
    """
    written: list[Path] = []
    for drawn in figures(tables, unit):
        written += save(drawn.figure, folder / drawn.name)
    return written


def figures(tables: Tables, unit: str = "nats", *, maps: bool = True) -> Iterator[Drawn]:
    """Yield every figure with its caption; the first shows the main result.

    Args:
        tables: Name → table.
        unit: Unit of losses: ``nats`` or ``variance``.
        maps: Whether to draw maps of every score; for few heads a table shows them better.
    """
    roles = tables.get("roles", pd.DataFrame())
    if "heads" in tables and maps:
        yield from behaviour_figures(tables["heads"], unit, nulls=False)
    if len(roles):
        yield _roles(roles)
    for name in tables:
        if name.startswith(ATTENTION):
            yield _attention(name, tables[name])
    if "shown-heads" in tables:
        yield from _every_pattern(tables)
    if "heads" in tables:
        heads = tables["heads"]
        if maps:
            yield from weight_maps(heads)
            yield from behaviour_figures(heads, unit, nulls=True)
        reading = reading_figure(heads, roles)
        if reading is not None:
            yield Drawn("pairs", *reading, reading[0])
    if "decodability" in tables:
        yield _decodability(tables["decodability"])
    if {"rounds-readable", "rounds-kernels"} <= set(tables):
        figure = rounds_again(tables["rounds-readable"], tables["rounds-kernels"])
        told = "; ".join(rounds_in_words(tables["rounds"])) if "rounds" in tables else ""
        yield Drawn("rounds", figure, _ROUNDS, figure, told)
    if "probes" in tables:
        figure = latent_maps(tables["probes"])
        yield Drawn("probes", figure, "Scores of probes by hook and latent.", figure)


def _roles(roles: pd.DataFrame) -> Drawn:
    ordered = roles.assign(size=-roles["strength"].abs(), place=by_status(roles["status"]))
    order = ordered.sort_values(["place", "size"], kind="stable")
    columns = part_names(order), role_phrases(order), order["status"]
    told = [f"{name} {words}, {status}" for name, words, status in zip(*columns, strict=True)]
    groups = ", those of groups among them" * bool((roles["component"] == "group").any())
    caption = f"Strength of roles{groups}: {status_counts(roles)}. First: {told[0]}."
    wide, narrow = (roles_figure(roles, narrow=narrow) for narrow in (False, True))
    return Drawn("roles", wide, caption, narrow, f"{'; '.join(told)}.")


def _attention(name: str, table: pd.DataFrame) -> Drawn:
    maps = patterns_of(table)
    figure = attention_maps({name.replace(" ", "\n", 1): maps[name] for name in maps})
    caption = f"Mean attention of heads with the role {name.removeprefix(ATTENTION)}"
    told = f"Most: {attention_in_words(maps)}."
    return Drawn(name, figure, f"{caption}, strongest first.", figure, told)


def _every_pattern(tables: Tables) -> Iterator[Drawn]:
    """Yield the attention patterns of all heads on one row: a prompt, else the first row that is
    shown."""
    codes, rows = tables["shown-heads"], tables["shown-rows"]
    group = int(rows.loc[rows["kind"] == "prompt", "group"].min()) if _has_prompt(rows) else 0
    own = codes[(codes["group"] == group) & (codes["part"] == "pattern")]
    row = rows[(rows["group"] == group) & (rows["row"] == 0)]
    n, count = len(row), int(rows.loc[rows["group"] == group, "row"].max()) + 1
    if len(own) > _PATTERNS:
        return
    lines: list[Any] = list(own.itertuples())
    patterns = {
        f"L{one.layer}H{one.head}": one.low + one.step * _first_row(one.codes, n, count)
        for one in lines
    }
    figure = attention_grid(patterns, list(row["token"]))
    caption = f"Attention of every head on one of the {row['kind'].iloc[0]} rows, query down, key "
    told = f"Most: {attention_in_words(patterns)}."
    yield Drawn("patterns", figure, f"{caption}across; each on its own scale.", figure, told)


def _has_prompt(rows: pd.DataFrame) -> bool:
    return bool((rows["kind"] == "prompt").any())


def _first_row(codes: str, length: int, rows: int) -> np.ndarray:
    """Return the codes of a head's first row, ``[query, key]``; those of a causal model are stored
    as a triangle."""
    whole = np.frombuffer(base64.b64decode(codes), dtype=np.uint8).reshape(rows, -1)
    flat = whole[0].astype(float)
    if len(flat) == length * length:
        square: np.ndarray = flat.reshape(length, length)
        return square
    square = np.zeros((length, length))
    square[np.tril_indices(length)] = flat
    return square


def _decodability(table: pd.DataFrame) -> Drawn:
    wide = table.pivot(index="site", columns="latent", values="score")
    sites, latents = (list(dict.fromkeys(table[name])) for name in ("site", "latent"))
    panel = Panel("residual stream", wide.loc[sites, latents].to_numpy(), sites)
    figure = share_maps(
        [panel], latents, label="held-out r², of classes balanced accuracy", across="latent"
    )
    figure.axes[0].tick_params(axis="x", rotation=45)
    best = table.loc[table.groupby("latent", sort=False)["score"].idxmax()]
    told = [f"{row.latent} {row.score:.2f} at {row.site}" for row in best.itertuples()]
    return Drawn("decodability", figure, _READ, figure, f"Best: {', '.join(told)}.")


def patterns_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the name of each head → its mean attention ``[query, key]``, from a table
    ``attention-ROLE``."""
    keys = [column for column in table.columns if column.startswith("key ")]
    heads = table.groupby("head", sort=False)
    return {str(name): rows[keys].to_numpy() for name, rows in heads}


def roles_figure(roles: pd.DataFrame, *, narrow: bool = False) -> Figure:
    """Draw a map of components (rows) by roles (columns) for each status, coloured by strength.

    Args:
        roles: A role table (:func:`probes.roles.find.find_roles`). For a status with more than 40
            components the 40 with the strongest roles are drawn.
        narrow: Whether the figure is for a narrow page, such as on a telephone.
    """
    names, sizes = roles.apply(part_name, axis=1), roles["strength"].abs()
    shown: list[tuple[str, pd.DataFrame]] = []
    for status in [title for title in STATUSES if (roles["status"] == title).any()]:
        own = roles.assign(name=names, size=sizes)[roles["status"] == status]
        strongest = own.groupby("name")["size"].max().nlargest(_COMPONENTS).index
        every = own["name"].nunique()
        title = f"{status} ({_COMPONENTS} of {every})" if every > _COMPONENTS else status
        shown.append((title, own[own["name"].isin(strongest)]))
    played_here = pd.concat([own["role"] for _, own in shown])
    kinds = [kind for kind in dict.fromkeys(roles["role"]) if kind in set(played_here)]
    panels = []
    for title, own in shown:
        wide = own.pivot_table(index="name", columns="role", values="size", aggfunc="max")
        parts = list(dict.fromkeys(own["name"]))
        values = wide.reindex(index=parts, columns=kinds).to_numpy()
        panels.append(Panel(title, values, [_in_short(name) for name in parts]))
    return share_maps(
        panels,
        [kind.replace("-", "\n") for kind in kinds],
        label="strength of the role",
        across="role",
        narrow=narrow,
    )


def _in_short(name: str) -> str:
    """Return a short name for a group of many heads: the first, and how many more there are."""
    first, *others = name.split("+")
    return name if len(others) < 2 else f"{first} + {len(others)}"


_KINDS = ("score", "selectivity")
_UNMEASURED = ("constant", "rare")
_STACKS = ("blocks", "layers", "hidden")


def latent_maps(table: pd.DataFrame, *, narrow: bool = False) -> Figure:
    """Draw maps of score and selectivity, latent × hook, from a table of
    :func:`probes.probe_table.probe_table`.

    Cells of a latent with one value, for which there is nothing to measure, are blank.

    Args:
        table: The table.
        narrow: Whether to draw the maps below one another instead of side by side.
    """
    measured = ~table["kind"].isin(_UNMEASURED)
    maps = [_map(table.assign(**{kind: table[kind].where(measured)}), kind) for kind in _KINDS]
    panels = [
        Panel(kind, wide.to_numpy(), list(wide.index))
        for kind, wide in zip(_KINDS, maps, strict=True)
    ]
    columns = [_short_name(hook) for hook in maps[0].columns]
    across = "hook" if measured.all() else "hook (–: nothing to measure)"
    label = "0 chance, 1 perfect"
    figure = share_maps(panels, columns, label=label, across=across, narrow=narrow)
    for axes in figure.axes[: len(panels)]:
        axes.tick_params(axis="x", rotation=45)
    return figure


def _map(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return a column of the table as latents × hooks, with hooks in the table's order."""
    wide = table.pivot(index="latent", columns="hook", values=value)
    return wide.loc[table["latent"].drop_duplicates(), table["hook"].drop_duplicates()]


def _short_name(hook: str) -> str:
    """Return a short name of a hook, such as ``L0 mid`` for ``blocks.0.hook_resid_mid``."""
    parts = hook.split(".")
    name = parts[-1].removeprefix("hook_").removeprefix("resid_")
    if len(parts) > 2 and parts[0] in _STACKS:
        return " ".join((f"L{parts[1]}", *parts[2:-1], name))
    return name
