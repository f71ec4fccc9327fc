"""Which head does what in language models that people use: the page, its picture, and what is kept.

    prooflens inspect smollm2-135m --out out/smollm2-135m
    python -m analyses real-heads out/smollm2-135m     keeps what the page needs of an inspection
    python -m analyses real-heads                      writes page and picture from what is kept

The page is made from the kept tables alone, so that a test can write it again and compare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analyses.pictures.first_picture import write_drawing
from prooflens.errors import ArgumentError
from prooflens.files import output_file
from prooflens.plot import size, style

__all__ = ["MODELS", "keep", "kept", "page", "picture", "picture_in_words", "write"]

MODELS = {"smollm2-135m": "SmolLM2-135M", "gemma3-270m": "Gemma-3-270M"}
"""Name of a model → as the page calls it."""

_TABLES = Path(__file__).parents[1] / "tables"
_PAIRS = {"induction": "after_same", "previous-token": "previous"}
_FIELDS = (
    "component",
    "layer",
    "head",
    "group",
    "role",
    "target",
    "status",
    "outcome",
    "strength",
    "effect",
    "stability",
    "percentile",
    "by_position",
)
_FALLS = "see of the token before that share falls by"
_COLOURS = {"confirmed": "#0072B2", "other": "#999999"}
_NAMED = 4
"""How many heads of a panel are named."""

_FIRST = """\
Inspected at default settings, on rows of random tokens that
repeat. Every number of this page is written from the tables that the laboratory keeps of these
inspections:"""

_CAPTION = """\
*Each dot is a head that behaves as an induction head (it attends to what followed an earlier
occurrence of the present token) or as a previous-token head. Further right: more of its attention
goes there. Further up: the model loses more when that attention alone is taken away. A dot at the
bottom right looks the part and is not missed: it is not needed, or others do the same work.*"""

_READING = """\
Of each induction head: by how much its attention falls when the earlier heads that look at the
token before lose that view (patching), and which of these heads its keys read most by the weights
alone: K-composition beyond what random directions give, and its rank among all earlier heads."""

_UNSURE = """\
## What is unsure

- Rows are random tokens; what a head does on text can differ, and an inspection with `--text` tells
  the share of its attention there.
- A head is *needed* on these rows if the loss rises when its attention is taken away, with every
  other head as it was. Where several do the same work none is missed alone, and the group is asked
  for instead.
- The weights are those of quantised files, brought back to 32 bits; heads that matter little may
  differ from the published ones.
- The statuses were decided before resamples of the rows were asked (`stability`): one that just
  passes, such as an induction head whose attention is near the floor, may be a candidate today.
- *Rejected* says that a head with the behaviour failed a test, which the table names. It does not
  say that the head does nothing.

The same heads are measured by transformers and hooks alone, with no code of prooflens
(`python -m analyses benchmark heads_apart`, [benchmarks](laboratory/benchmarks.md))."""

Kept = Mapping[str, Any]


def keep(folder: Path) -> Path:
    """Keep what the page needs of an inspection's folder; returns where.

    Raises:
        ArgumentError: for a folder of another model, or without an inspection.
    """
    if not (folder / "inspection.json").is_file():
        raise ArgumentError(f"FOLDER must hold an inspection, got {folder}: run prooflens inspect")
    about = json.loads((folder / "inspection.json").read_text(encoding="utf-8"))
    name = about["model"]
    if name not in MODELS:
        raise ArgumentError(f"FOLDER must be of {' or '.join(MODELS)}, got {name}: inspect one")
    heads = pd.read_csv(
        folder / "heads.csv", keep_default_na=False, na_values=[""], low_memory=False
    )
    found = {
        "model": name,
        "settings": about["settings"],
        "notes": about["notes"],
        "findings": about["findings"],
        "trials": about["trials"],
        "roles": [_compact(row) for row in about["roles"]],
        "shares": _shares(heads),
        "reading": [*_reading(about["roles"], heads)],
    }
    path = _TABLES / f"real-{name}.json"
    with output_file(path, overwrite=True) as draft:
        lines = json.dumps(found, ensure_ascii=False, allow_nan=False)
        draft.write_text(lines.replace('}, {"', '},\n{"') + "\n", encoding="utf-8")
    return path


def kept() -> dict[str, Kept]:
    """What is kept, by model."""
    paths = {name: _TABLES / f"real-{name}.json" for name in MODELS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }


def _compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """A role's row with the numbers that the page tells, and the tests that failed."""
    found = {name: row.get(name) for name in _FIELDS if row.get(name) not in (None, "")}
    numbers = {k: round(v, 4) for k, v in found.items() if isinstance(v, float)}
    failed = [
        test["name"]
        for test in row["tests"]
        if test["score"] is not None and test["floor"] is not None and test["score"] < test["floor"]
    ]
    return {**found, **numbers, "alone": round(_alone(row), 4), "failed": failed[:1]}


def _alone(row: Mapping[str, Any]) -> float:
    """What is lost without a component by itself; of a member of a group it is told beside."""
    own = [
        float(test["score"])
        for test in row["tests"]
        if test["kind"] == "sufficiency" and test["name"].startswith("without")
    ]
    return own[0] if row["group"] and row["component"] == "head" and own else float(row["effect"])


def _shares(heads: pd.DataFrame) -> list[dict[str, Any]]:
    """Every head's share of attention on the keys that the page tells of, on repeated rows."""
    mine = heads[(heads["metric"] == "attention_mass") & (heads["trial"] == "repeated")]
    mine = mine[mine["target"].isin([*_PAIRS.values(), "first"])]
    wide = mine.drop_duplicates(["layer", "head", "target"]).pivot(
        index=["layer", "head"], columns="target", values="score"
    )
    named = ("layer", "head", *wide.columns)
    return [
        dict(zip(named, (*row[:2], *(round(v, 4) for v in row[2:])), strict=True))
        for row in wide.reset_index().itertuples(index=False, name=None)
    ]


def _reading(roles: Sequence[Mapping[str, Any]], heads: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """For every induction head, by how much its attention falls without what earlier heads see of
    the token before, and which of the heads that look there its keys read most by the weights."""
    lookers = {f"L{row['layer']}H{row['head']}" for row in roles if row["role"] == "previous-token"}
    weights = heads[heads["metric"] == "k_composition"]
    weights = weights.assign(excess=weights["score"] / weights["null_mean"] - 1)
    for row in roles:
        falls = [test["score"] for test in row["tests"] if _FALLS in test["name"]]
        if row["role"] != "induction" or row["component"] != "head" or not falls:
            continue
        mine = weights[(weights["layer"] == row["layer"]) & (weights["head"] == row["head"])]
        order = mine.sort_values("excess", ascending=False).reset_index(drop=True)
        best = order[order["target"].isin(lookers)].head(1)
        for pair in best.itertuples():
            yield {
                "layer": row["layer"],
                "head": row["head"],
                "status": row["status"],
                "fall": round(falls[0], 4),
                "writer": pair.target,
                "rank": int(pair.Index) + 1,
                "of": len(order),
                "excess": round(pair.excess, 4),
            }


def picture(tables: Mapping[str, Kept]) -> Figure:
    """A panel a model: what is lost without each head with a behaviour, over its attention."""
    with style():
        figure = Figure(figsize=size(1.15, 1.15 * len(tables)), layout="constrained")
        panels = figure.subplots(1, len(tables), squeeze=False)[0]
        for axes, (name, one) in zip(panels, tables.items(), strict=True):
            _panel(axes, MODELS[name], _drawn(one))
        panels[0].set_ylabel("loss without that attention (nats)")
        panels[-1].legend(loc="upper left", fontsize="small")
    return figure


def _drawn(one: Kept) -> pd.DataFrame:
    """The heads of a panel: attention, what is lost, and whether the role is confirmed."""
    rows = [
        {
            "name": f"L{row['layer']}H{row['head']}",
            "role": row["role"],
            "attention": row["strength"],
            "lost": row["alone"],
            "confirmed": row["status"] == "confirmed",
        }
        for row in one["roles"]
        if row["role"] in _PAIRS and row["component"] == "head"
    ]
    return pd.DataFrame(rows, columns=["name", "role", "attention", "lost", "confirmed"])


def _panel(axes: Axes, title: str, heads: pd.DataFrame) -> None:
    for role, marker in (("induction", "o"), ("previous-token", "s")):
        for sure, colour in ((True, _COLOURS["confirmed"]), (False, _COLOURS["other"])):
            some = heads[(heads["role"] == role) & (heads["confirmed"] == sure)]
            label = f"{role}, {'confirmed' if sure else 'not confirmed'}"
            axes.scatter(
                some["attention"], some["lost"], marker=marker, s=22, color=colour, label=label
            )
    for one in _rows(heads.nlargest(_NAMED, "lost")):
        axes.annotate(
            one.name,
            (one.attention, one.lost),
            xytext=(-4, 4),
            fontsize="small",
            ha="right",
            textcoords="offset points",
        )
    axes.axhline(0, lw=0.6, color="#bbbbbb", zorder=0)
    axes.set(title=title, xlabel="share of attention on the role's tokens", xlim=(0, 1.02))


def picture_in_words(tables: Mapping[str, Kept]) -> str:
    """What the picture shows, made from the numbers."""
    return "; ".join(_in_words(MODELS[name], _drawn(one)) for name, one in tables.items())


def _in_words(title: str, heads: pd.DataFrame) -> str:
    told = []
    for role in _PAIRS:
        some = heads[heads["role"] == role]
        sure = some[some["confirmed"]].sort_values("lost", ascending=False)
        best = ", ".join(f"{one.name} ({one.lost:.2f} nats)" for one in sure[:2].itertuples())
        heading = f"{len(sure)} of {len(some)} heads that do {role} are confirmed"
        told.append(f"{heading}, most needed {best}" if best else heading)
    return f"{title}: {'; '.join(told)}"


def page(tables: Mapping[str, Kept]) -> str:
    """The page, as Markdown."""
    names = " and ".join(MODELS[name] for name in tables)
    commands = "\n".join(f"prooflens inspect {name} --out out/{name}" for name in tables)
    image = f"![{picture_in_words(tables)}](images/heads-of-real-models.png)"
    parts = [f"# Which head does what in {names}", _FIRST, f"```\n{commands}\n```", image, _CAPTION]
    for name, one in tables.items():
        parts += _section(name, one)
    return "\n\n".join([*parts, _UNSURE]) + "\n"


def _section(name: str, one: Kept) -> Iterator[str]:
    roles = pd.DataFrame(one["roles"])
    heads = roles[roles["component"] == "head"]
    trial = next(t for t in one["trials"] if t["trial"] == "repeated")
    yield f"## {MODELS[name]}"
    yield (
        f"{len(one['shares'])} heads; {one['settings']['rows']} rows of each kind. On tokens that "
        f"came before in the row the model loses {trial['loss']:.2f} nats, on shuffled ones "
        f"{trial['control']:.2f}."
    )
    yield _counts(heads)
    sure = heads[(heads["status"] == "confirmed") & (heads["role"] != "sink")]
    yield "### Confirmed"
    yield _table(
        ("head", "role", "strength", "lost without it, nats", "without its group", "group"),
        [
            (
                f"L{r.layer}H{r.head}",
                r.role,
                f"{r.strength:.2f}",
                f"{r.alone:.2f}",
                *((f"{r.effect:.2f}", r.group) if isinstance(r.group, str) else ("", "")),
            )
            for r in _rows(sure.sort_values(["role", "alone"], ascending=[True, False]))
        ],
    )
    behaving = heads[(heads["role"].isin(_PAIRS)) & (heads["status"] != "confirmed")]
    yield "### The behaviour, and no confirmed role"
    yield _table(
        ("head", "role", "status", "strength", "nats lost without it", "test below its floor"),
        [
            (
                f"L{r.layer}H{r.head}",
                r.role,
                r.status,
                f"{r.strength:.2f}",
                f"{r.alone:.2f}",
                next(iter(r.failed), "none: undecided, or only part of a group"),
            )
            for r in _rows(behaving.sort_values("strength", ascending=False))
        ],
    )
    yield "### Who reads whom: weights beside what is lost"
    yield _READING
    yield _table(
        ("induction head", "status", "falls by", "its keys read most", "K-composition", "rank"),
        [
            (
                f"L{r['layer']}H{r['head']}",
                r["status"],
                f"{r['fall']:.2f}",
                r["writer"],
                f"{100 * r['excess']:+.0f} %",
                f"{r['rank']} of {r['of']}",
            )
            for r in one["reading"]
        ],
    )


def _rows(table: pd.DataFrame) -> list[Any]:
    return [*table.itertuples()]


def _counts(heads: pd.DataFrame) -> str:
    rows = []
    for role, some in heads.groupby("role", sort=True):
        count = Counter(some["status"])
        rest = len(some) - count["confirmed"] - count["candidate"] - count["rejected"]
        numbers = (len(some), count["confirmed"], count["candidate"], rest, count["rejected"])
        rows.append((str(role), *map(str, numbers)))
    titles = (
        "role",
        "heads that behave so",
        "confirmed",
        "candidates",
        "needed, not specific, or undecided",
        "rejected",
    )
    return _table(titles, rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "None."
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(docs: Path) -> list[Path]:
    """Write page and picture from what is kept; returns where."""
    tables = kept()
    if not tables:
        raise ArgumentError("nothing is kept: give the folder of an inspection first")
    image, text = docs / "images" / "heads-of-real-models.png", docs / "real-heads.md"
    write_drawing(picture(tables), {name: _drawn(one) for name, one in tables.items()}, image)
    with output_file(text, overwrite=True) as draft:
        draft.write_text(page(tables), encoding="utf-8")
    return [image, text]
