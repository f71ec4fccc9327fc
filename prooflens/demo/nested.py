"""The part of the demo's report about a model whose heads look where a token tells them to.

Two rounds of adaptive memory: a token names a location, the token there names the next. The shipped
model was trained; the proof stands beside it. All words are made from the numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from interp.figures.style import save
from probes.locate import holders, locate
from probes.nesting import nested_rounds
from prooflens.pages.page import Picture, Section, Table
from prooflens.pages.rounds import ROUNDS_CAPTION, rounds_again, rounds_side_by_side
from trained import zoo

NESTED = "nested-memory-2"
_ROWS, _PAIRS = 96, 64


def nested_section(folder: Path, *, seed: int = 0) -> Section:
    """Which layer holds which round, and which head holds which latent by exchange.

    Args:
        folder: The report's; a figure and two tables are written to it.
        seed: Seed of the rows.
    """
    shipped: Any = zoo.load(NESTED)
    task = shipped.task
    found = nested_rounds(shipped.model, task, rows=_ROWS, seed=seed)
    table = found["rounds"]
    figure = rounds_again(found["rounds-readable"], found["rounds-kernels"])
    fetched = [f"token[t-t_{i}]" for i in range(1, task.rounds)] + [f"x[t-t_{task.rounds}]"]
    wanted = [name for i, what in enumerate(fetched, start=1) for name in (f"t_{i}", what)]
    held = holders(locate(shipped.model, task, rows=_PAIRS, latents=wanted, seed=seed))
    table.to_csv(folder / "rounds.csv", index=False)
    held.to_csv(folder / "held.csv", index=False)
    (png,) = save(figure, folder / "figures" / "rounds", formats=("png",))
    return Section(
        "A location that a token names, round after round",
        (
            f"{NESTED} was trained on {task.rounds} rounds of adaptive memory over the lags "
            f"{', '.join(map(str, task.locations))}. Exchanged between rows, {_told(held)}.",
        ),
        (Picture(png, _caption(table)),),
        (
            Table(rounds_side_by_side(table), ROUNDS_CAPTION),
            Table(held, "Which component holds which latent when it alone is exchanged."),
        ),
        folded=True,
    )


def _told(held: pd.DataFrame) -> str:
    rows: list[Any] = list(held.itertuples())
    said = [
        f"{row.latent} is held by {row.where} (share {row.best:.2f})"
        if row.where
        else f"{row.latent} is held by no component (best {row.best:.2f})"
        for row in rows
    ]
    return "; ".join(said)


def _caption(table: pd.DataFrame) -> str:
    contents = table[table["latent"].str.startswith("x[")]
    said: dict[str, list[str]] = {}
    rows: list[Any] = list(contents.itertuples())
    for row in rows:
        place = f"in layer {row.layer}" if row.layer >= 0 else "nowhere"
        said.setdefault(row.model, []).append(f"{row.latent} {place}")
    told = "; ".join(f"{name}: {', '.join(places)}" for name, places in said.items())
    return f"First decodable (above) and lags looked at (below). {told}."
