"""What probes found in one model or store, as sentences and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.figures.style import save
from interp.output import output_folder
from prooflens.pages.probe_figures import curve_figure, latent_maps
from prooflens.pages.probing_page import probing_page

if TYPE_CHECKING:
    from probes.probing import Probing

__all__ = ["MARKER", "findings", "write_probing"]

MARKER = ".prooflens-probes"
_FLOOR = 0.9
_LEVEL = 0.01
_LEADS = 0.5
"""The share of the way to the other row's output, beyond random directions, that leads it."""
_STILL = 0.01
"""Changes below this share of the distance between two rows' outputs count as no change."""
_CLEAR = 0.05
"""By how much a score must exceed a baseline for the difference to be mentioned."""
_BASELINES = {
    "over_input": "the raw input",
    "selectivity": "the control task",
    "over_untrained": "random weights",
}


def findings(found: Probing) -> list[str]:
    """One line a latent: where it first is decodable and what that is worth, or why nowhere; one
    for hooks that were left out, and one if no model with random weights was there to compare
    with. One more a latent that was exchanged: how far the output moved."""
    lines = []
    for latent, hook, _ in found.first.itertuples(index=False):
        rows = found.table[found.table["latent"] == latent]
        where = rows["hook"] == hook if hook else rows["score"] == rows["score"].max()
        row = rows[where].iloc[0]
        lines.append(f"{latent}: {_found(row) if hook else _not_found(row)}")
    if left := found.about.get("left_out"):
        lines.append(f"not probed, since they have no position axis: {', '.join(left)}")
    if found.table["untrained"].isna().all():
        lines.append(
            "random weights: not compared with (only our own models make a fresh one; "
            "probes.probe_table.probe_table takes yours as untrained=)"
        )
    if found.interchange is not None:
        lines += [_exchanged(row) for _, row in found.interchange.iterrows()]
    return lines


def _exchanged(row: pd.Series[Any]) -> str:
    start = f"{row['latent']} exchanged at {row['hook']}"
    if np.isnan(row["moved"]):
        return f"{start}: cannot be told, only {row['pairs']} pairs of rows differ in it and answer"
    if row["changed"] < _STILL:
        verdict = "does not change"
    elif row["q"] > _LEVEL or row["low"] <= 0:
        verdict = "is not seen to be used for"
    else:
        alone = row["moved"] - row["placebo"] >= _LEADS
        verdict = "leads" if alone else "has a part in"
    return (
        f"{start} {verdict} the output, which moves {row['moved']:.2f} of the way to the other "
        f"row's, in random directions {row['placebo']:.2f} (difference {row['low']:.2f} to "
        f"{row['high']:.2f}, q {row['q']:.2g}, {row['pairs']} pairs), and changes by "
        f"{row['changed']:.2f}, in random directions {row['placebo_changed']:.2f}"
    )


def _found(row: pd.Series[Any]) -> str:
    absent = np.isnan(row["untrained"])
    untrained = "" if absent else f", random weights {row['untrained']:.2f}"
    return (
        f"first decodable at {row['hook']} (score {row['score']:.2f}, q {row['q']:.2g}; control "
        f"task {row['control']:.2f}, raw input {row['input']:.2f}{untrained}){_no_more(row)}"
    )


def _not_found(row: pd.Series[Any]) -> str:
    if row["kind"] == "constant":
        return "nothing to decode, it has one value at all sampled positions"
    if row["kind"] == "rare":
        return "nothing to decode, fewer than two of its classes are in enough rows"
    best = f"best score {row['score']:.2f}, at {row['hook']}"
    if row["score"] < _FLOOR:
        return f"nowhere clearly decodable ({best}, below {_FLOOR}){_no_more(row)}"
    same = row["null_std"] < 1e-9 and abs(row["score"] - row["null_mean"]) < 1e-9
    why = "it is the same in every row, so its position tells it" if same else "rows are too few"
    null = f"{row['null_mean']:.2f} with rows exchanged, q {row['q']:.2g}"
    return f"nowhere more decodable than by chance ({best}; {null}): {why}{_no_more(row)}"


def _no_more(row: pd.Series[Any]) -> str:
    """The baselines that read something too and that the score is not clearly above."""
    scores = {name: row["score"] - row[over] for over, name in _BASELINES.items()}
    names = [
        f"{name} ({score:.2f})"
        for name, score in scores.items()
        if max(_CLEAR, row["score"] - _CLEAR) <= score
    ]
    return f"; not above {', '.join(names)}" if names else ""


def write_probing(found: Probing, out: Path, *, overwrite: bool) -> None:
    """``report.html``, ``probes.csv``, ``probes.json`` and the layer × latent map; if asked for,
    ``curves.csv`` with its figure and ``interchange.csv``. Complete or not at all."""
    with output_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        for name, table in found.tables().items():
            table.to_csv(folder / f"{name}.csv", index=False)
        rows = json.loads(found.table.to_json(orient="records", double_precision=15))
        first = json.loads(found.first.to_json(orient="records"))
        text = json.dumps({**found.about, "probes": rows, "first": first}, indent=1)
        (folder / "probes.json").write_text(text + "\n", encoding="utf-8")
        save(latent_maps(found.table), folder / "layers")
        if found.curves is not None and len(found.curves):
            save(curve_figure(found.curves), folder / "curves")
        narrow = latent_maps(found.table, narrow=True)
        save(narrow, folder / "layers-narrow", formats=("png",))
        page = probing_page(
            folder,
            found.table,
            found.first,
            findings(found),
            about=found.about,
            curves=found.curves,
            exchanged=found.interchange is not None,
            clear=_CLEAR,
        )
        (folder / "report.html").write_text(page, encoding="utf-8")
