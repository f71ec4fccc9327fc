"""The page of an inspection: what the heads do together and where they look, what to doubt, roles,
and, folded, maps, nulls, pairs and every head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from interp.figures.style import save
from interp.interventions.components import Component
from interp.output import output_file
from probes.inspection.crops import crop_table
from probes.inspection.heads import Inspected, write_tables
from probes.roles.decision import STATUSES
from probes.roles.profile import LANGUAGE
from probes.roles.registry import ROLES
from prooflens.pages.behaviour_figures import (
    CLASSES,
    COPYING,
    POSITIONAL,
    Drawn,
    behaviour_figures,
    beside_nulls,
    mass,
    matching,
    weight_maps,
)
from prooflens.pages.certainty import TOLD, with_certainty
from prooflens.pages.circuit import (
    circuit_doubts,
    circuit_sentences,
    crop_caption,
    crop_figure,
    reading_figure,
)
from prooflens.pages.findings import STATUS_WORDS, role_findings
from prooflens.pages.naming import page_name
from prooflens.pages.page import Page, Picture, Section, Table, render

__all__ = ["inspection_findings", "wide_table", "write_inspection"]

_FEW = 4
_GAP = 0.1  # nats below the control that count: random weights differ from it a little, too
_RIGHT = 0.05  # share of tokens; below it hardly any is predicted
_NULLS = (
    "Orange is where a head with nothing to it would lie: attention with permuted positions, "
    "copying of other rows' tokens, rises of the loss with random signs. Nearly every trained head "
    "differs from some null: the roles above ask for an effect above a floor as well."
)
_OF_FEW = (
    "So few heads make a table and no maps (prooflens plot draws them from the stores). The null "
    "is attention with permuted positions, copying of other rows' tokens, rises of the loss with "
    "random signs, and circuits with their bases turned at random."
)
Step = Callable[[str], None]


def inspection_findings(found: Inspected) -> list[str]:
    """The main findings of an inspection, as sentences with their numbers."""
    asked = [role.name for role in ROLES.values() if LANGUAGE.name in role.profiles]
    return [*_conclusion(found), *_performed(found)[1:], *role_findings(found.roles, asked)]


def write_inspection(found: Inspected, out: Path, step: Step = lambda words: None) -> list[str]:
    """Tables, figures and ``report.html`` into the inspection's folder; returns the findings.

    Raises:
        OutputError: if the folder cannot be written.
    """
    said = inspection_findings(found)
    write_tables(found, out, said)
    step("figures")
    picture, figures = _figure_sections(found, out / "figures")
    told = (
        "One row a head; click a heading, or reach it with Tab and press Enter, to sort. heads.csv "
        "has every score with its null."
    )
    wide = Table(wide_table(found), told, sortable=True)
    every = Section("All heads", (), (), [wide], folded=True)
    title, sections = f"Heads of {page_name(found.model.name)}", _role_sections(found)
    sections += [*figures, every]
    page = Page(title, _conclusion(found), sections, _facts(found), picture, _doubts(found))
    with output_file(out / "report.html", overwrite=True) as draft:
        draft.write_text(render(page), encoding="utf-8")
    return said


def _conclusion(found: Inspected) -> list[str]:
    """What the heads do together, and what the model makes of it on the first kind of rows."""
    attention = _by_head(matching(found.behaviour, **mass("after_same", "repeated")))
    attention.index = [_head(*place) for place in attention.index]
    return [*circuit_sentences(found.roles, attention), _performed(found)[0]]


def _doubts(found: Inspected) -> list[str]:
    """What the numbers give reason to doubt."""
    rows, guess = found.settings, math.log(found.model.vocabulary)
    said = [
        f"Roles are decided on random tokens ({rows['rows']} rows of at most {rows['length']}, one "
        "seed), not on text: what a head does on text may be something else."
    ]
    costly = [p.control for p in found.performances if p.control > guess + _GAP]
    worst = max(costly, default=None)
    if worst is not None:
        said.append(
            f"Random tokens without a rule cost the model {worst:.2f} nats each, more than a guess "
            f"(ln {found.model.vocabulary} = {guess:.2f}): it expects something else there, and "
            "rises of the loss are large for that reason too."
        )
    return [*said, *circuit_doubts(found.roles)]


def wide_table(found: Inspected) -> pd.DataFrame:
    """A table with one row per head, with its roles and main scores."""
    behaviour, losses = found.behaviour, found.losses
    wanted = {f"{c} (share)": mass(c, "repeated") for c in CLASSES}
    wanted["same, shuffled (share)"] = mass("same", "shuffled")
    wanted |= {"copying (logits)": COPYING, "positional (cosine)": POSITIONAL}
    columns = {name: _by_head(matching(behaviour, **key)) for name, key in wanted.items()}
    heads = losses[losses["component"] == "head"]
    for trial, part in heads.groupby("trial", sort=False):
        columns[f"{trial} loss (nats)"] = _by_head(part)
    for circuit in ("QK", "OV"):
        for metric in ("trace_share", "diag_ratio", "copying_score", "effective_rank"):
            rows = matching(found.weights, metric=metric, circuit=circuit)
            columns[f"{circuit} {metric.replace('_', ' ')}"] = _by_head(rows)
    wide = pd.DataFrame(columns)
    names = [_head(*place) for place in wide.index]
    roles = {
        place: ", ".join(r.role + "?" * (r.status != "confirmed") for r in _rows(part))
        for place, part in found.roles.groupby(["layer", "head"])
    }
    wide.insert(0, "roles", [roles.get(place, "") for place in wide.index])
    wide.insert(0, "head", names)
    return wide.reset_index(drop=True)


def _by_head(rows: pd.DataFrame) -> pd.Series[float]:
    return rows.set_index(["layer", "head"])["score"]


def _head(layer: int, head: int) -> str:
    """The name of a head, such as ``L0H5``."""
    return Component("head", int(layer), int(head)).name


def _performed(found: Inspected) -> list[str]:
    """How well the model does on each kind of rows, in sentences."""
    titles = {trial.name: trial.title for trial in found.trials}
    return [_performance(p, titles[p.trial]) for p in found.performances]


def _performance(p: Any, title: str) -> str:
    said = f"{title}: loss {p.loss:.2f} nats a token, {p.accuracy:.0%} right"
    if p.control == p.control:
        low = p.p < 0.01 and p.control - p.loss >= _GAP
        used = "the model uses its context here"
        if p.accuracy < _RIGHT:
            used = "the context helps, yet hardly a token is right"
        verdict = used if low else "no better than without the rule"
        said += f"; on such tokens in an order without a rule {p.control:.2f}: {verdict}"
    return said + "."


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    """Iterate over rows, with columns as attributes."""
    return iter(table.itertuples())


def _role_sections(found: Inspected) -> list[Section]:
    words = (
        f"{STATUS_WORDS} What is lost is the rise of the loss without the head's attention for "
        "this role (of copying and positional heads: without the head). An induction head must "
        "also read earlier previous-token heads. "
        "Strength is the behaviour's score, effect the rise of the loss in nats."
    )
    roles = _sorted(found.roles)
    roles = with_certainty(roles, LANGUAGE.level).assign(
        head=[r.group if r.head < 0 else _head(r.layer, r.head) for r in _rows(roles)]
    )
    sure = roles["status"] == "confirmed"
    columns = ["head", "role", "strength", "effect", "q", *TOLD, "by_position"]
    asked = ((sure, columns), (~sure, ["status", *columns]))
    tables = [
        [Table(roles[rows][shown], "By role and strength.", sortable=True)] if rows.any() else []
        for rows, shown in asked
    ]
    none = "No role of any head is confirmed."
    trials = pd.DataFrame([vars(p) for p in found.performances])
    about = {t.name: t.about for t in found.trials}
    trials["rows"] = [about[name] for name in trials["trial"]]
    told = Table(trials, "Loss in nats a token; the control has the same tokens without the rule.")
    said = _performed(found)
    sections = [
        Section("Confirmed roles", [words] if sure.any() else [none, words], (), tables[0]),
        Section("What the model does in context", said, (), [told], folded=True),
    ]
    sections += _explained_section(found)
    if not sure.all():
        counts = roles[~sure]["status"].value_counts()
        kinds = ", ".join(f"{counts[status]} {status}" for status in STATUSES if status in counts)
        title = f"Not confirmed: {kinds}"
        sections.insert(1, Section(title, (), (), tables[1], folded=True))
    return sections


def _explained_section(found: Inspected) -> list[Section]:
    """How much of what heads do on text their confirmed roles explain; none without text."""
    if found.explained.empty:
        return []
    words = (
        "A head may do more than its name. Attention: the share, on the text or rows given, that "
        "goes to the keys of its confirmed roles together. Loss: of the rise of the loss there "
        "without the head, the share that is not lost when it keeps that attention alone (none "
        "where nothing is lost without it). Rest: the tokens that get most of the other attention."
    )
    table = found.explained
    told = table.assign(head=[_head(r.layer, r.head) for r in _rows(table)]).drop(columns="layer")
    caption = "By head: what its confirmed roles explain of it."
    return [Section("On text", [words], (), [Table(told, caption, sortable=True)], folded=True)]


def _sorted(roles: pd.DataFrame) -> pd.DataFrame:
    """By role, in the registry's order, and strength."""
    order = list(ROLES)
    rank = [order.index(role) if role in order else len(order) for role in roles["role"]]
    keyed = roles.assign(_rank=rank, _size=-roles["strength"].abs())
    return keyed.sort_values(["_rank", "_size", "layer", "head"]).drop(columns=["_rank", "_size"])


def _figure_sections(found: Inspected, folder: Path) -> tuple[Picture | None, list[Section]]:
    """The figure that shows what was found, and the sections of all others."""
    pairs = _pairs_picture(found, folder)
    section = []
    if pairs is not None:
        words = (
            "K-composition of weights: the reader's key could be made of what the writer wrote. "
            "Marked are heads by their roles."
        )
        section = [Section("Who reads whom", [words], [pairs], folded=True)]
    diagonals = Section(
        "Strongest diagonals",
        ["First 100 × 100 entries of the circuits; the number is the trace share."],
        _diagonals(found, folder),
        folded=True,
    )
    if found.factors.n_layers * found.factors.n_heads <= _FEW:
        scores = beside_nulls(found.behaviour, found.losses, found.weights)
        told = Table(scores, "Every score with its null.", sortable=True)
        return None, [Section("Where heads look", [_OF_FEW], (), [told]), *section, diagonals]
    maps = _maps(found, folder)
    return maps[0], [
        Section("Every other score of every head", (), maps[1:], folded=True),
        *section,
        _against_nulls(found, folder),
        diagonals,
    ]


def _maps(found: Inspected, folder: Path) -> list[Picture]:
    drawn = [
        *behaviour_figures(found.behaviour, found.losses, nulls=False),
        *weight_maps(found.weights),
    ]
    return [_both(one, folder) for one in drawn]


def _against_nulls(found: Inspected, folder: Path) -> Section:
    drawn = behaviour_figures(found.behaviour, found.losses, nulls=True)
    pictures = [_both(one, folder) for one in drawn]
    return Section("Against the nulls", [_NULLS], pictures, folded=True)


def _pairs_picture(found: Inspected, folder: Path) -> Picture | None:
    drawn = reading_figure(found.weights, found.roles)
    return None if drawn is None else _saved(drawn[0], folder / "pairs", drawn[1])


def _diagonals(found: Inspected, folder: Path) -> list[Picture]:
    pictures = []
    for circuit in ("QK", "OV"):
        crops = crop_table(found.factors, found.weights, circuit)
        if len(crops):
            figure, told = crop_figure(crops, circuit), crop_caption(crops, circuit)
            pictures.append(_saved(figure, folder / f"diagonals-{circuit}", told))
    return pictures


def _saved(figure: Any, path: Path, caption: str) -> Picture:
    (png,) = save(figure, path, formats=("png",))
    return Picture(png, caption)


def _both(drawn: Drawn, folder: Path) -> Picture:
    """A figure, and its panels below one another for narrow screens."""
    wide = _saved(drawn.figure, folder / drawn.name, drawn.caption)
    narrow = _saved(drawn.narrow, folder / f"{drawn.name}-narrow", drawn.caption)
    return replace(wide, narrow=narrow.path)


def _facts(found: Inspected) -> Sequence[str]:
    model, settings = found.model, found.settings
    return (
        f"{model.name}: {model.family}, {found.factors.n_layers} layers of {found.factors.n_heads} "
        f"heads, vocabulary {model.vocabulary}, context {model.n_ctx}. {settings['rows']} rows of "
        f"at most {settings['length']} tokens a trial, seed {settings['seed']}.",
        *found.notes,
        "Beside this page: roles.csv, heads.csv, trials.csv, inspection.json, findings.txt, "
        "figures/ and the activation stores under stores/, with the tables sealed into them.",
    )
