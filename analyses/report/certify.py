"""The page of a theorem: what holds for every input, by which strategy, and at what cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.report.page import Page, Picture, Section, Table, render
from interp.figures.bounds import bound_parts_figure, bounds_figure
from interp.figures.style import save
from interp.output import output_folder

__all__ = ["write_theorem"]

_MEANING = (
    "A strategy splits the domain into cells and bounds the model on each: brute force takes every "
    "input by itself, the black box takes as much as possible at once, the others use what the "
    "model's parts do. Open circles say no more than a constant answer. Cost is counted in "
    "multiplications, so it does not depend on the machine."
)
_PARTS = (
    "At the worst cell: how far the answer is off with everything that is open at its middle, what "
    "inputs that are open add (what heads pass on from elsewhere, the largest by name), what "
    "nonlinear parts add, and the rest: attention that is not pinned down, products, rounding, and "
    "right answers that differ inside a cell."
)
_SHARES = (
    "The share of the domain that a strategy proves right, what it leaves open although the model "
    "was right on as large a share of what was run, and the share on which the model is wrong."
)
_HOLDS = (
    "'float32' (or 'float64') under arithmetic: the bound holds for every evaluation of the model "
    "in this type or a wider one, in any order of summation, and for the model as a function of "
    "real numbers. 'real': for the function of real numbers alone; an evaluation may differ by its "
    "rounding."
)


def write_theorem(found: Any, out: Path, *, overwrite: bool) -> None:
    """Write ``certificate.json``, ``result.json``, the figures and ``index.html`` to a folder.

    Raises:
        OutputError: if the folder may not be written.
    """
    with output_folder(out, overwrite=overwrite, marker="certificate.json") as draft:
        (draft / "certificate.json").write_text(_json(found.to_dict(), indent=None))
        (draft / "result.json").write_text(_json(found.result(), indent=2))
        (draft / "index.html").write_text(_page(found, draft), encoding="utf-8")


def _json(data: Any, indent: int | None) -> str:
    return json.dumps(data, indent=indent, allow_nan=False) + "\n"


def _page(found: Any, folder: Path) -> str:
    ordered = sorted(found.proofs, key=lambda p: p.multiplications)
    table = pd.DataFrame(
        {
            "strategy": [p.strategy for p in ordered],
            "multiplications": [p.multiplications for p in ordered],
            "bound": [found.safe(p) for p in ordered],
            "cells": [p.cells for p in ordered],
            "seconds": [p.seconds for p in ordered],
            "arithmetic": [p.arithmetic for p in ordered],
            "says nothing because": [p.vacuous for p in ordered],
        }
    )
    drawn = table[table["bound"].map(math.isfinite)]
    drawn = drawn.assign(vacuous=drawn["says nothing because"] != "")
    pictures = []
    if len(drawn):
        figure = bounds_figure(
            drawn, kind=found.kind, measured=found.measured, trivial=found.trivial
        )
        save(figure, folder / "bounds.png")
        pictures = [Picture(folder / "bounds.png", _cost_caption(found, ordered))]
    shown = table.assign(bound=table["bound"].map("{:.6g}".format))
    if not any(table["says nothing because"]):
        shown = shown.drop(columns="says nothing because")
    told = f"{len(shown)} strategies, cheapest first"
    meaning = [_MEANING, _HOLDS]
    sections = [Section("Bound against cost", meaning, pictures, [Table(shown, told)])]
    sections += _parts(found, folder)
    lemmas = [
        {
            "strategy": p.strategy,
            "component": m.component,
            "role": m.role,
            "says": m.statement,
            "number": f"{m.number:.4g}",
        }
        for p in ordered
        for m in p.lemmas
    ]
    if lemmas:
        words = "Numbers are computed from the weights. A wrong role makes its number large and "
        words += "the bound wide; it cannot make the bound false."
        caption = f"{len(lemmas)} lemmas, cheapest strategy first"
        sections.append(Section("Lemmas", [words], (), [Table(pd.DataFrame(lemmas), caption)]))
    if found.skipped:
        rows = pd.DataFrame(list(found.skipped.items()), columns=["strategy", "why"])
        caption = f"Strategies that do not fit: {len(rows)}"
        sections.append(Section("Not tried", (), (), [Table(rows, caption)]))
    facts = [f"model {found.model}, weights SHA-256 {found.sha256}", f"domain: {found.statement}"]
    title = f"What is proved of {Path(found.model).name}"
    return render(Page(title, _findings(found), sections, facts))


def _cost_caption(found: Any, ordered: list[Any]) -> str:
    """What the figure shows, from its numbers."""
    useful = [p for p in ordered if not p.vacuous]
    if not useful:
        return f"All {len(ordered)} bounds say no more than a constant answer (open circles)."
    first, best = useful[0], found.best
    words = (
        f"{len(ordered)} strategies, {len(useful)} of which say something. {first.strategy} is the "
        f"cheapest of these: {found.safe(first):.6g} for {first.multiplications:.2g} "
        "multiplications"
    )
    if best.strategy == first.strategy:
        return words + ", and none is better."
    times = best.multiplications / max(first.multiplications, 1)
    return f"{words}; {best.strategy} proves {found.safe(best):.6g} for {times:.2g} times as many."


def _findings(found: Any) -> list[str]:
    best = found.best
    side = "is off by at most" if found.kind == "error" else "is right on at least a share of"
    words = [
        f"On {found.statement} the model {side} {found.safe(best):.6g}: proved by {best.strategy} "
        f"with {best.cells} cells and {best.multiplications:.3g} multiplications in "
        f"{best.seconds:.3g} seconds.",
        f"Seen on {found.measured_on}: {found.measured:.6g}. The best constant answer reaches "
        f"{found.trivial:.4g}.",
    ]
    if best.vacuous:
        words.append(f"No bound says anything: {best.vacuous}.")
    return words


def _parts(found: Any, folder: Path) -> list[Section]:
    if found.kind == "error":
        rows = {p.strategy: p.parts for p in found.proofs if p.parts and not p.vacuous}
        words, label = _PARTS, "part of the bound on the error"
    else:
        rows = {p.strategy: _shares(found, p) for p in found.proofs if not p.vacuous}
        words, label = _SHARES, "share of the domain"
    if not rows:
        return []
    parts = pd.DataFrame(rows).T.fillna(0.0)
    save(bound_parts_figure(parts, label=label), folder / "parts.png")
    pictures = [Picture(folder / "parts.png", _parts_caption(found.kind, parts))]
    frame = parts.T.map("{:.4g}".format).reset_index(names="part")
    caption = "The same in numbers"
    return [Section("What is left unexplained", [words], pictures, [Table(frame, caption)])]


def _shares(found: Any, proof: Any) -> dict[str, float]:
    """Of an accuracy: what is proved, what is right besides as far as was seen, and the rest."""
    proved, seen = found.safe(proof), max(found.measured, found.safe(proof))
    return {"proved right": proved, "right, not proved": seen - proved, "wrong": 1 - seen}


def _parts_caption(kind: str, parts: pd.DataFrame) -> str:
    """The largest remainder of each strategy, from its numbers."""
    if kind == "accuracy":
        told = [
            f"{name} leaves {1 - row.iloc[0]:.3g} of the domain open"
            for name, row in parts.iterrows()
        ]
        return "; ".join(told) + "."
    told = [
        f"{name}: {row.max() / row.sum():.0%} of the bound is {row.idxmax()}"
        for name, row in parts.iterrows()
    ]
    return "; ".join(told) + "."
