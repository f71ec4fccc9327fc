"""The first picture of the README: attention by lag of three models that solve the same task.

    make picture        writes docs/images/attention-by-lag.png

The picture carries its numbers (PNG text ``Description``, CSV), so that a test can compare what is
shown with what the command gives today. Shares are means over the scored positions of rows that no
model was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from prooflens.attention import lag_table
from prooflens.files import output_file
from prooflens.plot import Panel, share_maps, style
from prooflens.proofs import construct
from prooflens.trained import load

__all__ = ["attention_by_lag", "picture_in_words", "write_drawing", "write_picture"]

_NAMES = {"trained": "fixed-memory-multiplexer", "mixed": "fixed-memory-multiplexer-mixed"}
_LAGS, _ROWS, _SEED = 6, 256, 1
_LOOKS = 0.1
"""Least share of attention at a lag that the description mentions."""


def attention_by_lag() -> dict[str, pd.DataFrame]:
    """Measure the attention by lag of the three models.

    Returns:
        Model → table of attention shares with a row for each head and a column for each lag.
    """
    models = {name: load(shipped) for name, shipped in _NAMES.items()}
    task = models["trained"].card.task
    rows = task.sample(_ROWS, seed=_SEED)
    models["constructed"] = construct(task).model
    return {name: _shares(model, rows) for name, model in models.items()}


def _shares(model: object, rows: object) -> pd.DataFrame:
    table = lag_table(model, rows, lags=range(_LAGS), resamples=0)
    heads = table.assign(name=[f"L{r.layer}H{r.head}" for r in table.itertuples()])
    lag = heads["target"].str.removeprefix("lag ").astype(int)
    wide = heads.assign(lag=lag).pivot(
        index=["layer", "head", "name"], columns="lag", values="score"
    )
    return wide.droplevel(["layer", "head"])


def picture_in_words(shares: Mapping[str, pd.DataFrame]) -> str:
    """Describe in a sentence, from the numbers, where each model's heads look."""
    return "; ".join(f"{name}: {_words(table)}" for name, table in shares.items())


def _words(table: pd.DataFrame) -> str:
    places = {
        head: ", ".join(f"{share:.2f} at lag {lag}" for lag, share in row.items() if share > _LOOKS)
        or "no lag"
        for head, row in table.iterrows()
    }
    if len(set(places.values())) == 1 and len(places) > 1:
        return f"all {len(places)} heads {next(iter(places.values()))}"
    return ", ".join(f"{head} {place}" for head, place in places.items())


def write_picture(path: Path) -> dict[str, pd.DataFrame]:
    """Draw the picture with its numbers inside the file, and return the numbers."""
    shares = attention_by_lag()
    panels = [Panel(name, table.to_numpy(), list(table.index)) for name, table in shares.items()]
    lags = [str(lag) for lag in range(_LAGS)]
    across = "lag (positions back)"
    figure = share_maps(panels, lags, label="share of attention", across=across)
    write_drawing(figure, shares, path)
    return shares


def write_drawing(figure: Figure, shares: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Write a figure as PNG, with the tables it was drawn from as CSV in its ``Description``."""
    numbers = pd.concat(shares, names=["model"]).round(4).to_csv()
    drawn = BytesIO()
    with style():
        about = {"Software": None, "Description": numbers}
        figure.savefig(drawn, format="png", metadata=about, dpi=150)
    with output_file(path, overwrite=True) as draft:
        draft.write_bytes(drawn.getvalue())
