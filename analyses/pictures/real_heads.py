"""Which head does what in language models that people use: the page, its picture, and what is kept.

    prooflens inspect smollm2-135m --out out/smollm2-135m
    python -m analyses real-heads out/smollm2-135m     keeps what the page needs of an inspection
    python -m analyses real-heads                      writes page and picture from what is kept

Who reads whom is measured by patching, pair by pair, when an inspection is kept, on rows that it
did not use: the fall of a head's attention when one earlier head loses its view of the token
before. The page is made from the kept tables alone, so that a test can write it again and compare.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as student
from torch import Tensor

import prooflens as pl
from analyses.benchmarks import heads_apart
from analyses.pictures.first_picture import write_drawing
from prooflens.errors import ArgumentError
from prooflens.files import output_file
from prooflens.plot import size, style
from prooflens.run import Array, DropKeys, Run, Site

__all__ = ["MODELS", "falls", "keep", "page", "picture", "picture_in_words", "read_tables", "write"]

MODELS = {"smollm2-135m": "SmolLM2-135M", "gemma3-270m": "Gemma-3-270M"}
"""Name of a model → its name on the page."""

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
    "effect_of_group",
    "stability",
    "percentile",
    "same_answer",
    "by_position",
)
_ROWS = re.compile(r"loss on (\w+) rises")
_FRESH, _SEED = 32, 1
"""Number of rows on which readers are measured, and their seed. An inspection uses seed 0, so that
these rows are new."""

_COLOURS = {"confirmed": "#0072B2", "other": "#999999"}
_NAMED = 4
"""Number of heads of a panel that are labelled with their names."""

_FIRST = """\
Inspected at default settings, on rows of random tokens that repeat. Every number of this page is
written from the tables that the laboratory keeps of the inspection:"""

_CAPTION = """\
*Each dot is a head that behaves as an induction head (it attends to what followed an earlier
occurrence of the present token) or as a previous-token head. Further right: more of its attention
goes there. Further up: the model loses more when that attention alone is taken away. A dot at the
bottom right looks the part and is not missed: it is not needed, or others do the same work.*"""

_TITLE = "nats lost without it (95 %)"
_LOST = """\
*Nats lost without it*: the rise of the loss when this head alone loses the attention that makes the
role (for *copying* and *positional*: when its mean stands for the head), on the kind of rows where
the loss rises most, with its 95 % interval over rows."""

_SAME = """\
*Same answer*: of what is lost when the head writes what it would write with another row there, the
share that is not lost when that row leads to the same next token by another route
([statistics](statistics.md)); empty for roles that are not about the answer."""

_READING = """\
Patching: one earlier head with the behaviour *previous-token* loses its attention to the token
before, and a head with the behaviour *induction* then gives less attention to what followed equal
tokens; the fall, with its 95 % interval, on 32 rows that the inspection did not use. Weights: how
much more the keys of the reader take from what the writer writes than from random directions
(K-composition), and the writer's rank among all earlier heads. Patching counts every way from the
writer to the reader, through heads and FFNs in between; weights know the direct one alone."""

_UNSURE = """\
## What is unsure

- Rows are random tokens; what a head does on text can differ, and an inspection with `--text` tells
  the share of its attention there.
- A head is *needed* on these rows if the loss rises when its attention is taken away, with every
  other head as it was. Where several do the same work none is missed alone, and the group is asked
  for instead.
- The weights are those of quantised files, brought back to 32 bits; heads that matter little may
  differ from the published ones.
- A head that is hardly missed alone may be confirmed as a member of a group: the group was tested.
- *Rejected* says that a head with the behaviour failed a test, which the table names. It does not
  say that the head does nothing."""

Kept = Mapping[str, Any]
Place = tuple[int, int]


def keep(folder: Path) -> Path:
    """Keep the part of an inspection's folder that the page needs; return the path of what was
    kept.

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
        "reading": [*_reading(name, about["roles"], heads)],
    }
    path = _TABLES / f"real-{name}.json"
    with output_file(path, overwrite=True) as draft:
        lines = json.dumps(found, ensure_ascii=False, allow_nan=False)
        draft.write_text(lines.replace('}, {"', '},\n{"') + "\n", encoding="utf-8")
    return path


def read_tables() -> dict[str, Kept]:
    """Return what was kept, by model."""
    paths = {name: _TABLES / f"real-{name}.json" for name in MODELS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }


def _compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a role's row with only the numbers that the page shows, and the name of the first test
    that failed."""
    found = {name: row.get(name) for name in _FIELDS if row.get(name) not in (None, "")}
    numbers = {k: round(v, 4) for k, v in found.items() if isinstance(v, float)}
    failed = [
        test["name"]
        for test in row["tests"]
        if test["score"] is not None and test["floor"] is not None and test["score"] < test["floor"]
    ]
    test = _alone(row)
    alone = {k: test.get(k) for k in ("score", "low", "high")}
    rows = _ROWS.search(str(test.get("name")))
    about = {"alone": {k: None if v is None else round(v, 4) for k, v in alone.items()}}
    return {**found, **numbers, **about, "rows": rows[1] if rows else "", "failed": failed[:1]}


def _alone(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the test of what is lost without a component by itself, or an empty mapping if it was
    not measured.

    It is the last test of the role's cause. For a member of a group it is the test of the member
    alone, which is reported beside the group's.
    """
    member = row["group"] and row["component"] == "head"
    kind = "sufficiency" if member else "cause"
    own = [test for test in row["tests"] if test["kind"] == kind]
    own = [t for t in own if t["name"].startswith("without")] if member else own[-1:]
    return own[0] if own else {}


def _shares(heads: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each head's share of attention, on repeated rows, for the key sets that the page
    shows."""
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


def _reading(
    name: str, roles: Sequence[Mapping[str, Any]], heads: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield each pair of an induction head and an earlier previous-token head, with two numbers.

    One is how much the first head's attention falls if the other can no longer see the token
    before. The other is how strongly the first head's keys read what the other writes, by the
    weights.
    """
    of = {
        role: [r for r in roles if r["role"] == role and r["component"] == "head"]
        for role in _PAIRS
    }
    readers = {(r["layer"], r["head"]): r["status"] for r in of["induction"]}
    weights = heads[heads["metric"] == "k_composition"]
    weights = weights.assign(excess=weights["score"] / weights["null_mean"] - 1)
    of_reader = weights.groupby(["layer", "head"])["excess"]
    ranks = of_reader.rank(ascending=False, method="first").astype(int)
    weights = weights.assign(rank=ranks, of=of_reader.transform("size"))
    pairs: dict[Any, Any] = {
        (pair["layer"], pair["head"], pair["target"]): pair for pair in weights.to_dict("records")
    }
    for (writer, reader), fall in falls(name, [*readers], of["previous-token"]).items():
        pair = pairs[(*reader, f"L{writer[0]}H{writer[1]}")]
        yield {
            "layer": reader[0],
            "head": reader[1],
            "status": readers[reader],
            "writer": f"L{writer[0]}H{writer[1]}",
            **fall,
            "excess": round(float(pair["excess"]), 4),
            "rank": int(pair["rank"]),
            "of": int(pair["of"]),
        }


def falls(
    name: str, readers: Sequence[Place], writers: Sequence[Mapping[str, Any]]
) -> dict[tuple[Place, Place], dict[str, float]]:
    """Measure how much each reader's attention to the tokens after equal ones falls when a writer
    cannot attend to the token before.

    Returns:
        (writer, reader) → the fall and its 95 % t-interval over rows.
    """
    model = pl.load(name)
    card: Any = model.card
    bos = int(card.bos) if card.bos is not None and card.bos >= 0 else None
    vocabulary = int(model.cfg.d_vocab)
    tokens = pl.repeated_tokens(_FRESH, 64, vocabulary, seed=_SEED, bos=bos)
    run = Run(model, tokens)
    same = (tokens[:, :, None] == tokens[:, None]).tril(-1)
    after = torch.nn.functional.pad(same, (1, 0))[..., :-1]
    previous = Array(torch.eye(64, dtype=torch.bool).roll(1, 0).tril()[None], "the token before")
    sites = [Site(layer, "pattern", head) for layer, head in readers]

    def shares(run: Run, some: Sequence[Site]) -> dict[Site, Tensor]:
        weight = after.any(-1).double()
        return {
            site: ((pattern.double() * after).sum(-1) * weight).sum(1) / weight.sum(1)
            for site, pattern in run.at(some).items()
        }

    whole, found = shares(run, sites), dict[tuple[Place, Place], dict[str, float]]()
    for one in writers:
        place = int(one["layer"]), int(one["head"])
        later = [site for site in sites if site.layer > place[0]]
        edit = DropKeys(Site(place[0], "pattern", place[1]), previous)
        for site, left in shares(run.with_(edit), later).items():
            fall = whole[site] - left
            half = float(student.isf(0.025, len(fall) - 1) * fall.std() / len(fall) ** 0.5)
            mean = float(fall.mean())
            numbers = {"fall": mean, "low": mean - half, "high": mean + half}
            reader = site.layer, int(site.head or 0)
            found[place, reader] = {k: round(v, 4) for k, v in numbers.items()}
    return found


def picture(tables: Mapping[str, Kept]) -> Figure:
    """Draw a panel for each model: for every head with a role's behaviour, what is lost without it
    against its attention."""
    with style():
        figure = Figure(figsize=size(1.15, 1.15 * len(tables)), layout="constrained")
        panels = figure.subplots(1, len(tables), squeeze=False)[0]
        for axes, (name, one) in zip(panels, tables.items(), strict=True):
            _panel(axes, MODELS[name], _behaving(one))
        panels[0].set_ylabel("loss without that attention (nats)")
        panels[-1].legend(loc="upper left", fontsize="small")
    return figure


def _behaving(one: Kept) -> pd.DataFrame:
    """Return the heads of a panel, with their attention, what is lost without them, and whether the
    role is confirmed."""
    rows = [
        {
            "name": f"L{row['layer']}H{row['head']}",
            "role": row["role"],
            "attention": row["strength"],
            "lost": row["alone"]["score"],
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
    """Describe what the picture shows, from the numbers."""
    return "; ".join(_in_words(MODELS[name], _behaving(one)) for name, one in tables.items())


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
    roles = pd.DataFrame(one["roles"]).reindex(columns=[*_FIELDS, "alone", "rows", "failed"])
    heads = roles[roles["component"] == "head"]
    trials = {trial["trial"]: trial for trial in one["trials"]}
    trial = trials["repeated"]
    yield f"## {MODELS[name]}"
    yield (
        f"{len(one['shares'])} heads; {one['settings']['rows']} rows of each kind. On tokens that "
        f"came before in the row the model loses {trial['loss']:.2f} nats, on shuffled ones "
        f"{trial['control']:.2f}."
    )
    yield _counts(heads)
    yield _doubt(heads[heads["status"] == "confirmed"], trials)
    sure = heads[(heads["status"] == "confirmed") & (heads["role"] != "sink")]
    yield "### Confirmed"
    yield f"All roles but sinks. {_LOST}\n{_SAME}"
    yield _table(
        (
            "head",
            "role",
            "strength",
            _TITLE,
            "on rows",
            "same answer",
            "without its group",
            "group",
        ),
        [
            (
                f"L{r.layer}H{r.head}",
                r.role,
                f"{r.strength:.2f}",
                _interval(r.alone),
                r.rows,
                _number(r.same_answer),
                _number(r.effect_of_group),
                r.group if isinstance(r.group, str) else "",
            )
            for r in _rows(sure.sort_values(["role", "strength"], ascending=[True, False]))
        ],
    )
    behaving = heads[(heads["role"].isin(_PAIRS)) & (heads["status"] != "confirmed")]
    yield "### The behaviour, and no confirmed role"
    yield _table(
        ("head", "role", "status", "strength", _TITLE, "on rows", "test below its floor"),
        [
            (
                f"L{r.layer}H{r.head}",
                r.role,
                r.status,
                f"{r.strength:.2f}",
                _interval(r.alone),
                r.rows,
                next(iter(r.failed), "none: some test is not sure"),
            )
            for r in _rows(behaving.sort_values("strength", ascending=False))
        ],
    )
    yield from _apart_lines(name, one["roles"])
    yield "### Who reads whom: weights beside patching"
    yield _READING
    yield from _read(pd.DataFrame(one["reading"]))


def _apart_lines(name: str, inspected: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a script with transformers and hooks alone measures for the same heads, on rows of
    its own, beside what prooflens finds on these rows, or else in the inspection."""
    apart, same_rows = heads_apart.apart_and_roles(name)
    roles = same_rows or [*map(dict, inspected)]
    if not apart["heads"]:
        return
    found = "`find_roles` on the same rows" if same_rows else "The inspection, on rows of its own,"
    share, loss = heads_apart.LEAST_SHARE, heads_apart.LEAST_LOSS
    behaving = [one for one in apart["heads"] if max(one["previous"], one["followed"]) >= share]
    alone = sum(heads_apart.is_needed(one) for one in behaving)
    wrong = heads_apart.disagreements(apart, roles)
    said = "; ".join(
        f"{one['head']} ({one['role']}, {one['status']}; alone {one['loss']:.2f} nats, in an "
        f"interval from {one['low']:.2f})"
        for one in wrong
    )
    agreed = (
        f"{found} disagrees on {said}."
        if wrong
        else f"{found} confirms no head that is not needed, alone or in its group, and rejects or "
        "leaves out none that is needed alone; a candidate says neither."
    )
    yield "### The same heads without prooflens"
    yield (
        "Transformers and hooks alone (`python -m analyses benchmark heads_apart`), "
        f"{apart['rows']} rows of {apart['length']} tokens, 32 of 64 for heads that these leave "
        f"undecided: {len(behaving)} heads give {share} or "
        "more of their attention to the token before or to what followed earlier equal tokens; "
        f"without {alone} of them alone the loss rises by {loss} nats or more. {agreed} Taken away "
        "together:"
    )
    rows = [
        (
            one["group"] if "+" in one["group"] else f"all that do {one['group']}",
            f"{one['loss']:.2f} ({one['low']:.2f} to {one['high']:.2f})",
            f"{max(one['random']):.2f}",
        )
        for one in apart["groups"]
    ]
    titles = ("heads", "nats lost without them (95 %)", "without the costliest of ten random sets")
    yield _table(titles, rows)


def _doubt(sure: pd.DataFrame, trials: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how many confirmed roles rest on rows that the model cannot do."""
    weak = [name for name, trial in trials.items() if not trial["able"]]
    alone = sure[sure["group"].isna()] if "group" in sure else sure
    some = alone[alone["rows"].isin(weak)]
    if not len(some):
        return "Every confirmed role rests on rows that the model can do."
    roles = ", ".join(f"{len(of)} {role}" for role, of in some.groupby("role"))
    names = sorted(set(some["rows"]))
    losses = ", ".join(
        f"{trials[one]['loss']:.2f} nats on *{one}*, {trials[one]['control']:.2f} without its rule"
        for one in names
    )
    return (
        f"**Doubtful**: for {len(some)} of the {len(sure)} confirmed ({roles}) the loss rises most "
        f"on rows *{' and '.join(names)}*, and their cause is taken from there. The model uses its "
        f"context on them ({losses}), and does no better than always the same answer all the same: "
        "a rise says that the head lowers the loss, and little of what it is for."
    )


def _read(pairs: pd.DataFrame) -> Iterator[str]:
    """Yield, for each reading head, the writing head that patching names, beside the one that the
    weights name."""
    if not len(pairs):
        yield "None."
        return
    best = pairs.loc[pairs.groupby(["layer", "head"])["fall"].idxmax()]
    named = pairs.loc[pairs.groupby(["layer", "head"])["excess"].idxmax()]
    both = best.merge(named, on=["layer", "head"], suffixes=("", "_by_weights"))
    same = int((both["writer"] == both["writer_by_weights"]).sum())
    rank = pairs["fall"].corr(pairs["excess"], method="spearman")
    yield (
        f"Both name the same head for {same} of {len(both)} readers; over all {len(pairs)} pairs "
        f"the rank correlation of the two numbers is {rank:.2f}."
    )
    yield _table(
        (
            "reader",
            "status",
            "patching names",
            "its attention falls by",
            "weights name",
            "K-composition",
            "rank",
        ),
        [
            (
                f"L{r.layer}H{r.head}",
                r.status,
                r.writer,
                _interval({"score": r.fall, "low": r.low, "high": r.high}),
                r.writer_by_weights,
                f"{100 * r.excess_by_weights:+.0f} %",
                f"{r.rank_by_weights} of {r.of_by_weights}",
            )
            for r in _rows(both)
        ],
    )


def _interval(test: Mapping[str, Any]) -> str:
    if test["score"] is None:
        return ""
    if test["low"] is None:
        return f"{test['score']:.2f}"
    return f"{test['score']:.2f} ({test['low']:.2f} to {test['high']:.2f})"


def _number(number: float) -> str:
    return f"{number:.2f}" if number == number else ""


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
    tables = read_tables()
    if not tables:
        raise ArgumentError("nothing is kept: give the folder of an inspection first")
    image, text = docs / "images" / "heads-of-real-models.png", docs / "real-heads.md"
    write_drawing(picture(tables), {name: _behaving(one) for name, one in tables.items()}, image)
    with output_file(text, overwrite=True) as draft:
        draft.write_text(page(tables), encoding="utf-8")
    return [image, text]
