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
    "At the worst cell: how far the answer is off with everything that is free at its middle, what "
    "the inputs that are free add (what heads pass on from elsewhere), what nonlinear parts add, "
    "and the rest: attention that is not pinned down, products, rounding, and right answers that "
    "differ inside a cell."
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
    table = pd.DataFrame(
        {
            "strategy": [p.strategy for p in found.proofs],
            "bound": [found.safe(p) for p in found.proofs],
            "cells": [p.cells for p in found.proofs],
            "multiplications": [p.multiplications for p in found.proofs],
            "seconds": [p.seconds for p in found.proofs],
            "arithmetic": [p.arithmetic for p in found.proofs],
            "vacuous": [p.vacuous for p in found.proofs],
        }
    )
    drawn = table[table["bound"].map(math.isfinite)].assign(vacuous=lambda t: t["vacuous"] != "")
    pictures = []
    if len(drawn):
        figure = bounds_figure(
            drawn, kind=found.kind, measured=found.measured, trivial=found.trivial
        )
        save(figure, folder / "bounds.png")
        pictures = [Picture(folder / "bounds.png", "Bound against cost, a point a strategy.")]
    sections = [Section("Bound against cost", [_MEANING], pictures, [Table(table, _HOLDS)])]
    sections += _parts(found, folder)
    lemmas = [
        {
            "strategy": p.strategy,
            "role": m.role,
            "component": m.component,
            "number": m.number,
            "statement": m.statement,
        }
        for p in found.proofs
        for m in p.lemmas
    ]
    if lemmas:
        words = "Numbers are computed from the weights. A wrong role makes its number large and "
        words += "the bound wide; it cannot make the bound false."
        sections.append(Section("Lemmas", [words], (), [Table(pd.DataFrame(lemmas), "All lemmas")]))
    if found.skipped:
        rows = pd.DataFrame(list(found.skipped.items()), columns=["strategy", "why"])
        sections.append(Section("Not tried", (), (), [Table(rows, "And why")]))
    facts = [f"model {found.model}, weights SHA-256 {found.sha256}", f"domain: {found.statement}"]
    return render(Page(f"What is proved of {found.model}", _findings(found), sections, facts))


def _findings(found: Any) -> list[str]:
    best = found.best
    side = "is off by at most" if found.kind == "error" else "is right on at least a share of"
    words = [
        f"On {found.statement} the model {side} {found.safe(best):.6g}: proved by {best.strategy} "
        f"with {best.cells} cells and {best.multiplications:.3g} multiplications in "
        f"{best.seconds:.2g} seconds.",
        f"Seen on {found.measured_on}: {found.measured:.6g}. The best constant answer reaches "
        f"{found.trivial:.4g}.",
    ]
    if best.vacuous:
        words.append(f"No bound says anything: {best.vacuous}.")
    return words


def _parts(found: Any, folder: Path) -> list[Section]:
    rows = {p.strategy: p.parts for p in found.proofs if p.parts and not p.vacuous}
    if found.kind != "error" or not rows:
        return []
    parts = pd.DataFrame(rows).T
    save(bound_parts_figure(parts), folder / "parts.png")
    pictures = [Picture(folder / "parts.png", "What each bound is made of, at its worst cell.")]
    frame = parts.reset_index(names="strategy")
    return [Section("What is left unexplained", [_PARTS], pictures, [Table(frame, "In numbers")])]
