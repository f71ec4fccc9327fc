"""The page of a theorem: what holds for every input, one figure of what the proofs cost, and what
to doubt.

Then the evidence: the lemmas of each proof with their numbers, what each bound is made of, all
strategies in a table; last and folded, how to read them and what was not tried.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from interp.figures.lines import bound_parts_figure, bounds_figure
from interp.figures.style import save
from interp.output import output_folder
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render

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


def write_theorem(found: Any, out: Path, *, overwrite: bool, analysed: str = "") -> None:
    """Write a certificate, its numbers and its page to a folder.

    The files are ``certificate.json``, ``result.json``, the figures and ``index.html``, and what is
    needed to check the certificate without prooflens: ``check_certificate.py`` and
    ``model.safetensors``.

    Args:
        found: The theorem, from :func:`probes.certify.run.certify`.
        out: The folder.
        overwrite: Whether to replace an earlier one.
        analysed: One line that says what model it is, for the page.

    Raises:
        OutputError: if the folder may not be written.
    """
    with output_folder(out, overwrite=overwrite, marker="certificate.json") as draft:
        (draft / "certificate.json").write_text(_json(found.to_dict(), indent=None))
        (draft / "model.safetensors").write_bytes(found.weights)
        (draft / "check_certificate.py").write_bytes(found.checker)
        (draft / "result.json").write_text(_json(found.result(), indent=2))
        (draft / "index.html").write_text(_page(found, draft, analysed), encoding="utf-8")


def _json(data: Any, indent: int | None) -> str:
    return json.dumps(data, indent=indent, allow_nan=False) + "\n"


def _page(found: Any, folder: Path, analysed: str) -> str:
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
    picture = _picture(found, table, ordered, folder)
    shown = table.assign(bound=table["bound"].map("{:.6g}".format))
    if not any(table["says nothing because"]):
        shown = shown.drop(columns="says nothing because")
    told = f"{len(shown)} strategies, cheapest first"
    sections = [*_lemmas(ordered), *_parts(found, folder)]
    sections.append(Section("All strategies", (), (), [PageTable(shown, told)]))
    if found.skipped:
        rows = pd.DataFrame(list(found.skipped.items()), columns=["strategy", "why"])
        caption = f"Strategies that do not fit: {len(rows)}"
        sections.append(Section("Not tried", (), (), [PageTable(rows, caption)], folded=True))
    sections.append(Section("How to read this", [_MEANING, _HOLDS], folded=True))
    facts = [f"model {found.model}, weights SHA-256 {found.sha256}", f"domain: {found.statement}"]
    facts += [f"What is analysed: {analysed}."] if analysed else []
    title = f"What is proved of {page_name(found.model)}"
    return render(Page(title, _findings(found), sections, facts, picture, _doubts(found)))


def _picture(found: Any, table: pd.DataFrame, ordered: list[Any], folder: Path) -> Picture | None:
    """Draw bound against cost, for the bounds that are finite; None if there are none."""
    drawn = table[table["bound"].map(math.isfinite)]
    drawn = drawn.assign(vacuous=drawn["says nothing because"] != "")
    if not len(drawn):
        return None
    figure = bounds_figure(drawn, kind=found.kind, measured=found.measured, trivial=found.trivial)
    save(figure, folder / "bounds.png")
    told = [
        f"{row.strategy}: {row.bound:.6g} for {row.multiplications:.3g} multiplications"
        for row in drawn.itertuples()
    ]
    caption = _cost_caption(found, ordered)
    return Picture(folder / "bounds.png", caption, told=f"{'; '.join(told)}.")


def _lemmas(ordered: list[Any]) -> list[Section]:
    """Return the section of the proofs' lemmas about parts of the model; none if there are no
    lemmas."""
    rows = [
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
    if not rows:
        return []
    words = "Numbers are computed from the weights. A wrong role makes its number large and the "
    words += "bound wide; it cannot make the bound false."
    caption = f"{len(rows)} {'lemma' if len(rows) == 1 else 'lemmas'}, cheapest strategy first"
    return [Section("Lemmas", [words], (), [PageTable(pd.DataFrame(rows), caption)])]


def _cost_caption(found: Any, ordered: list[Any]) -> str:
    """Return the caption of the figure of costs, with its numbers."""
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
    """Return sentences about what is proved, by which strategy, and how much of the bound is not
    explained."""
    best, error = found.best, found.kind == "error"
    if best.vacuous:
        return [
            f"Nothing is proved of the model on {found.statement}: {best.vacuous}.",
            f"Seen on {found.measured_on}: {_number(found.measured)}; the best constant answer "
            f"reaches {found.trivial:.4g}.",
        ]
    bound = _number(found.safe(best))
    side = (
        f"On {found.statement} the model is off by at most {bound}, whichever it is given"
        if error
        else f"The model is right on a share of at least {bound} of {found.statement}"
    )
    words = [
        f"{side}: proved by {best.strategy} from the weights. Seen on {found.measured_on}: "
        f"{_number(found.measured)}; the best constant answer reaches {found.trivial:.4g}."
    ]
    if best.lemmas:
        told = "; ".join(map(_sentence, best.lemmas))
        words.append(f"What the proof's cases are made of, lemma by lemma: {told}.")
    return [*words, *_comparison(found)]


def _sentence(lemma: Any) -> str:
    """Return a lemma as a sentence with its number."""
    number, words = f"{lemma.number:.3g}", lemma.statement
    told = words.replace("this", number) if "at most this" in words else f"{words}: {number}"
    return f"{lemma.component}: {told}"


def _comparison(found: Any) -> list[str]:
    """Compare the best proof with the black box and with brute force, in at most one sentence
    each."""
    told, proofs = [], {p.strategy: p for p in found.proofs}
    cheap = [p for p in found.proofs if not p.vacuous]
    least = min(cheap, key=lambda p: p.multiplications)
    box, every = proofs.get("black box"), proofs.get("brute force")
    if box is not None and box.strategy != found.best.strategy:
        said = "nothing" if box.vacuous else f"a bound of {_number(found.safe(box))}"
        told.append(f"Without any insight the black box proves {said}.")
    if every is not None and least.strategy not in ("brute force", "black box"):
        share = least.multiplications / every.multiplications
        told.append(
            f"{least.strategy.capitalize()} proves {_number(found.safe(least))} for {share:.2g} of "
            "the multiplications that every input one by one takes."
        )
    return [" ".join(told)] if told else []


def _doubts(found: Any) -> list[str]:
    """Return sentences about what the theorem does not say."""
    best = found.best
    gap = abs(found.safe(best) - found.measured)
    said = [
        f"Nothing is said of other inputs: longer rows, other tokens or larger values than "
        f"{found.statement}."
    ]
    if not best.vacuous and gap > 0:
        said.append(
            f"The truth lies between what was seen and what is proved, {_number(found.measured)} "
            f"and {_number(found.safe(best))}: {gap:.2g} is not explained."
        )
    real = "the model as a function of real numbers alone; a run in floating point may differ"
    run = (
        f"every evaluation in {best.arithmetic} or a wider type, without TF32 or bfloat16 products"
    )
    said.append(f"The bound is about {real if best.arithmetic == 'real' else run}.")
    said.append(
        "The proof trusts interp/bounds and the machine's arithmetic; 'prooflens certify --check' "
        "finds bound and lemmas again without the code that made them. check_certificate.py beside "
        "this page trusts neither: it runs the model on every input, or says why it cannot."
    )
    return said


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "no finite number"


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
    return [Section("What is left unexplained", [words], pictures, [PageTable(frame, caption)])]


def _shares(found: Any, proof: Any) -> dict[str, float]:
    """Return the shares of an accuracy: proved right, measured right but not proved, and the
    rest."""
    proved, seen = found.safe(proof), max(found.measured, found.safe(proof))
    return {"proved right": proved, "right, not proved": seen - proved, "wrong": 1 - seen}


def _parts_caption(kind: str, parts: pd.DataFrame) -> str:
    """Return the largest remainder of each strategy, in words."""
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
