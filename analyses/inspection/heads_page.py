"""The page of an inspection: what stands out in words, roles, maps, nulls, pairs, every head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.inspection.heads import Inspected, write_tables
from analyses.inspection.roles import ROLES, head_name
from analyses.report.page import Page, Picture, Section, Table, render
from interp.figures.diagonals import circuit_crops, head_maps, null_histograms
from interp.figures.pairs import Pair, pair_lines
from interp.figures.style import save
from interp.heads.weights import circuit_crop
from interp.output import output_file

__all__ = ["inspection_findings", "wide_table", "write_inspection"]

_CLASSES = ("previous", "same", "after_same", "first")
_SHOWN, _PAIRS = 8, 24
_GAP = 0.1  # nats below the control that count: random weights differ from it a little, too
_TITLES = {
    "attention_mass": "share of attention",
    "copying": "logits of attended tokens",
    "positional": "cosine between rows",
    "loss_increase": "rise of the loss (nats)",
}
_NULLS = (
    "Orange is where a head with nothing to it would lie: attention with permuted positions, "
    "copying of other rows' tokens, rises of the loss with random signs. Nearly every trained head "
    "differs from some null: the roles above ask for an effect above a floor as well."
)
Step = Callable[[str], None]


def inspection_findings(found: Inspected) -> list[str]:
    """What stands out, in sentences with their numbers."""
    said = [_performed(p) for p in found.performances]
    confirmed = found.roles[found.roles["status"] == "confirmed"]
    for role in ROLES:
        mine = found.roles[found.roles["role"] == role]
        if len(mine):
            sure = confirmed[confirmed["role"] == role]
            maybe = mine[mine["status"] == "candidate"]
            parts = [f"confirmed {_listed(sure)}"] * bool(len(sure))
            parts += [f"candidates (behaviour without the cause) {_listed(maybe)}"] * bool(
                len(maybe)
            )
            said.append(f"{role}: {'; '.join(parts)}.")
    if found.roles.empty:
        said.append("No head has the behaviour of any role above its null and floor.")
    return said


def write_inspection(found: Inspected, out: Path, step: Step = lambda words: None) -> list[str]:
    """Tables, figures and ``report.html`` into the inspection's folder; returns the findings.

    Raises:
        OutputError: if the folder cannot be written.
    """
    said = inspection_findings(found)
    write_tables(found, out, said)
    step("figures")
    sections = [*_role_sections(found), *_figure_sections(found, out / "figures")]
    wide = Table(
        wide_table(found),
        "One row a head; click a heading, or reach it with Tab and "
        "press Enter, to sort. heads.csv has every score with its null.",
        sortable=True,
    )
    sections.append(Section("All heads", (), (), [wide]))
    page = Page(f"Heads of {Path(found.model.name).name}", said, sections, _facts(found))
    with output_file(out / "report.html", overwrite=True) as draft:
        draft.write_text(render(page), encoding="utf-8")
    return said


def wide_table(found: Inspected) -> pd.DataFrame:
    """One row a head with its roles and main scores."""
    behaviour, losses = found.behaviour, found.losses
    wanted = [(f"{c} (share)", "attention_mass", "positions", f"{c}@repeated") for c in _CLASSES]
    wanted += [("same, shuffled (share)", "attention_mass", "positions", "same@shuffled"),
               ("copying (logits)", "copying", "tokens", "@repeated"),
               ("positional (cosine)", "positional", "positions", "@shuffled")]  # fmt: skip
    columns = {name: _column(behaviour, metric, null, target)
               for name, metric, null, target in wanted}  # fmt: skip
    heads = losses[losses["component"] == "head"]
    for target in heads["target"].unique():
        name = f"{target.partition('@')[2]} loss (nats)"
        columns[name] = _column(heads, "loss_increase", "", target)
    for circuit in ("QK", "OV"):
        for metric in ("trace_share", "diag_ratio", "copying_score", "effective_rank"):
            columns[f"{circuit} {metric.replace('_', ' ')}"] = _column(
                found.weights, metric, circuit, ""
            )
    wide = pd.DataFrame(columns)
    names = [head_name(*place) for place in wide.index]
    roles = {
        place: ", ".join(r.role + "?" * (r.status != "confirmed") for r in _rows(part))
        for place, part in found.roles.groupby(["layer", "head"])
    }
    wide.insert(0, "roles", [roles.get(place, "") for place in wide.index])
    wide.insert(0, "head", names)
    return wide.reset_index(drop=True)


def _column(table: pd.DataFrame, metric: str, circuit: str, target: str) -> pd.Series[float]:
    chosen = table[(table["metric"] == metric) & (table["circuit"] == circuit)
                   & (table["target"] == target)]  # fmt: skip
    return chosen.set_index(["layer", "head"])["score"]


def _performed(p: Any) -> str:
    words = {"repeated": "Repeated random tokens", "aba": "Template aba", "same": "Template same",
             "text": "Text"}  # fmt: skip
    said = f"{words[p.trial]}: loss {p.loss:.2f} nats a token, {p.accuracy:.0%} right"
    if p.control == p.control:
        low = p.p < 0.01 and p.control - p.loss >= _GAP
        verdict = "the model uses its context here" if low else "no better than without the rule"
        said += f"; without the rule {p.control:.2f}: {verdict}"
    return said + "."


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    """Rows with their columns as attributes."""
    return iter(table.itertuples())


def _listed(rows: pd.DataFrame) -> str:
    named = [f"{head_name(r.layer, r.head)} ({r.strength:+.2f}, loss {r.effect:+.2f})"
             for r in _rows(rows.head(_SHOWN))]  # fmt: skip
    more = len(rows) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _role_sections(found: Inspected) -> list[Section]:
    words = (
        "A head is confirmed when it behaves so on random tokens and the loss rises without it "
        "(an induction head must also read a previous-token head). With the behaviour alone it is "
        "a candidate. Strength is the behaviour's score, effect the rise of the loss in nats."
    )
    roles = found.roles.assign(head=[head_name(r.layer, r.head) for r in _rows(found.roles)])[
        ["head", "role", "status", "strength", "effect", "q", "evidence"]
    ]
    trials = pd.DataFrame([vars(p) for p in found.performances])
    about = {t.name: t.about for t in found.trials}
    trials["rows"] = [about[name] for name in trials["trial"]]
    told = "Loss in nats a token; the control has the same tokens without the rule."
    return [
        Section("Roles", [words], (), [Table(roles, "By role and strength.", sortable=True)]),
        Section("What the model does in context", (), (), [Table(trials, told)]),
    ]


def _figure_sections(found: Inspected, folder: Path) -> list[Section]:
    pairs = _pairs_picture(found, folder)
    section = []
    if pairs is not None:
        words = (
            "K-composition of weights: the reader's key could be made of what the writer wrote. "
            "Marked are heads by their roles."
        )
        section = [Section("Who reads whom", [words], [pairs])]
    return [
        Section("Every head", (), _maps(found, folder)),
        *section,
        Section("Against the nulls", [_NULLS], _histograms(found, folder)),
        Section("Strongest diagonals", ["First 100 × 100 entries of the circuits; the number is "
                "the trace share."], _diagonals(found, folder)),
    ]  # fmt: skip


def _panels(found: Inspected) -> list[tuple[str, str, pd.DataFrame]]:
    """(name, title, rows) of every behaviour that is drawn."""
    b, losses = found.behaviour, found.losses[found.losses["component"] == "head"]
    targets = [f"{c}@repeated" for c in _CLASSES] + ["same@shuffled"]
    wanted = [("attention_mass", "positions", target) for target in targets]
    wanted += [("copying", "tokens", "@repeated"), ("positional", "positions", "@shuffled")]
    panels = [(f"{metric}-{target}", f"{_said(target)}",
               b[(b["metric"] == metric) & (b["circuit"] == null) & (b["target"] == target)])
              for metric, null, target in wanted]  # fmt: skip
    return panels + [
        (f"loss-{target!s}", f"without the head: {str(target).partition('@')[2]}", part)
        for target, part in losses.groupby("target", sort=False)
    ]


def _said(target: str) -> str:
    name, _, rows = target.partition("@")
    return f"{name.replace('_', ' ')} on {rows}" if name else f"on {rows}"


def _maps(found: Inspected, folder: Path) -> list[Picture]:
    pictures = []
    for group in _by_metric(found):
        grids = [part.pivot(index="layer", columns="head", values="score").to_numpy()
                 for _, _, part in group]  # fmt: skip
        metric = str(group[0][2]["metric"].iloc[0])
        labels = [_TITLES[metric]] * len(grids)
        for start in range(0, len(grids), 3):
            part = slice(start, start + 3)
            figure = head_maps(grids[part], labels[part], titles=[t for _, t, _ in group[part]],
                               strongest=6)  # fmt: skip
            pictures.append(_saved(figure, folder / f"map-{metric}-{start}", f"{metric}: "
                            f"{', '.join(t for _, t, _ in group[part])}"))  # fmt: skip
    for metric in ("trace_share", "diag_ratio"):
        parts = {c: _grid(found.weights, metric, c) for c in ("QK", "OV")}
        figure = head_maps([g for g in parts.values() if g is not None],
                           [metric.replace("_", " ")] * sum(g is not None for g in parts.values()),
                           titles=[c for c, g in parts.items() if g is not None],
                           strongest=6)  # fmt: skip
        pictures.append(_saved(figure, folder / f"map-{metric}", f"weights: {metric}"))
    return pictures


def _by_metric(found: Inspected) -> list[list[tuple[str, str, pd.DataFrame]]]:
    groups: dict[str, list[tuple[str, str, pd.DataFrame]]] = {}
    for panel in _panels(found):
        if len(panel[2]):
            groups.setdefault(str(panel[2]["metric"].iloc[0]), []).append(panel)
    return list(groups.values())


def _grid(table: pd.DataFrame, metric: str, circuit: str) -> Any:
    rows = table[(table["metric"] == metric) & (table["circuit"] == circuit)]
    if rows.empty:
        return None
    return rows.pivot(index="layer", columns="head", values="score").to_numpy()


def _histograms(found: Inspected, folder: Path) -> list[Picture]:
    pictures = []
    for group in _by_metric(found):
        metric = str(group[0][2]["metric"].iloc[0])
        for start in range(0, len(group), 3):
            some = group[start : start + 3]
            triples = [(p["score"].to_numpy(), p["null_mean"].to_numpy(), p["null_std"].to_numpy())
                       for _, _, p in some]  # fmt: skip
            figure = null_histograms(triples, _TITLES[metric], titles=[t for _, t, _ in some])
            path = folder / f"histogram-{metric}-{start}"
            pictures.append(_saved(figure, path, f"{metric} of all heads and their nulls"))
    return pictures


def _pairs_picture(found: Inspected, folder: Path) -> Picture | None:
    table = found.weights[found.weights["metric"] == "k_composition"]
    named = {
        role: [(r.layer, r.head) for r in _rows(found.roles[found.roles["role"] == role])]
        for role in ("previous-token", "induction", "duplicate-token")
    }
    writers = {head_name(*place) for place in named["previous-token"]}
    readers = set(named["induction"])
    told = "K-composition of induction heads with previous-token heads"
    chosen = table[table["target"].isin(writers)]
    chosen = chosen[[(r.layer, r.head) in readers for r in _rows(chosen)]]
    if chosen.empty:
        chosen, told = table, "the strongest K-compositions of all pairs"
    if chosen.empty:
        return None
    pairs: list[Pair] = [(_place(r.target), (r.layer, r.head), r.score)
                         for r in _rows(chosen.nlargest(_PAIRS, "effect"))]  # fmt: skip
    heads = [found.factors.n_heads] * found.factors.n_layers
    figure = pair_lines(heads, pairs, "K-composition", named=named)
    return _saved(figure, folder / "pairs", told)


def _place(name: str) -> tuple[int, int]:
    layer, _, head = name[1:].partition("H")
    return int(layer), int(head)


def _diagonals(found: Inspected, folder: Path) -> list[Picture]:
    pictures = []
    for circuit in ("QK", "OV"):
        rows = found.weights[(found.weights["metric"] == "trace_share")
                             & (found.weights["circuit"] == circuit)]  # fmt: skip
        top = rows.assign(size=rows["score"].abs()).nlargest(_SHOWN, "size")
        if len(top):
            crops = [circuit_crop(found.factors, int(r.layer), int(r.head), circuit)
                     for r in _rows(top)]  # fmt: skip
            titles = [f"{head_name(r.layer, r.head)}: {r.score:+.3f}" for r in _rows(top)]
            figure = circuit_crops(crops, titles, title=f"{circuit}: largest |trace share|")
            pictures.append(_saved(figure, folder / f"diagonals-{circuit}", f"{circuit} circuits"))
    return pictures


def _saved(figure: Any, path: Path, caption: str) -> Picture:
    (png,) = save(figure, path, formats=("png",))
    return Picture(png, caption)


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
