"""The page of an inspection, made from its tables alone: what the components do together, what to
doubt, the confirmed roles, every head with the rows it reads, and, folded, all evidence.

Nothing is measured here, and no model is needed, so whoever has the tables has the page. The same
tables give the same page, byte for byte.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from interp.figures.style import save
from probes.roles.decision import STATUSES
from probes.roles.profile import PROFILES
from prooflens.pages.behaviour_figures import (
    Drawn,
    attention_kind,
    beside_nulls,
    mass,
    matching,
)
from prooflens.pages.certainty import TOLD, certainty, last_cause, with_certainty
from prooflens.pages.circuit import circuit_doubts, circuit_sentences
from prooflens.pages.findings import (
    STATUS_WORDS,
    in_words,
    loss_without,
    of_groups,
    part_names,
    role_findings,
    role_phrases,
    status_counts,
    without_groups,
)
from prooflens.pages.head_figures import ATTENTION, figures
from prooflens.pages.page import Page, PageTable, Picture, Section, page_name, render, render_page
from prooflens.pages.rounds import ROUNDS_CAPTION, rounds_in_words, rounds_side_by_side
from prooflens.pages.viewer_data import (
    columns_of,
    head_bytes,
    loss_unit,
    places_of,
    viewer_document,
)

_FEW, _SHOWN = 4, 6
_OF_GROUP = "effect of group"
_BESIDE = ("outcome", "stability", "same_answer", "by_position", "text_attention", "text_loss",
           "text_first")  # fmt: skip
_SOME = ("target", _OF_GROUP)
"""Columns of a role table that are left out if all their cells are empty."""
_GAP = 0.1  # nats below the control that count: random weights differ from it a little, too
_RIGHT = 0.05  # share of tokens; below it hardly any is predicted
_RESTS = 0.2  # share of attention on the first token that is worth a sentence
_LOST = {
    "variance": "without it the output changes by {:.2f} of its variance",
    "nats": "without it the loss rises by {:.2f} nats a token",
}
_PROFILE = {
    "language": "The targets are the next tokens of the rows, so effects are rises of the loss in "
    "nats a token (profile language).",
    "task": "The targets are not the rows' next tokens, so effects are changes of the output as a "
    "share of its variance (profile task).",
}
_NULLS = (
    "Orange is where a head with nothing to it would lie: attention with permuted positions, "
    "copying of other rows' tokens, rises of the loss with random signs. Nearly every trained head "
    "differs from some null: the roles above ask for an effect above a floor as well."
)
_OF_FEW = (
    "So few heads make a table and no maps (prooflens store --figures draws them). The null "
    "is attention with permuted positions, copying of other rows' tokens, rises of the loss with "
    "random signs, and circuits with their bases turned at random."
)
_STATIC = (
    "This is the static part. The interactive one (attention on rows, all heads as points) is in "
    "the page that save(\"folder\") writes, or here with pip install 'prooflens[notebook]' and a "
    "running kernel."
)

Tables = Mapping[str, pd.DataFrame]
About = Mapping[str, Any]


def inspection_findings(tables: Tables, about: About) -> list[str]:
    """Return the sentences with which a page begins: what the components do together, and how sure
    that is."""
    profile, roles = PROFILES[about["profile"]], tables["roles"]
    if about["profile"] == "language":
        said = [*circuit_sentences(roles, _induction(tables), profile=profile), *_on_text(tables)]
    else:
        said = _components(roles, str(about["unit"]))
    done, trials = _performances(tables, about)[:1], tables.get("trials", pd.DataFrame())
    unable = bool(done) and not trials["able"].iloc[0]  # then this is what to know first
    said = [*done, *said] if unable else [*said, *done]
    if not (roles["status"] == "confirmed").any():
        said += _costliest_parts(tables, about)
    return [*said, certainty(roles, float(about["level"]))]


def inspection_lines(tables: Tables, about: About) -> list[str]:
    """Return the lines that the command prints: the findings, how well the model does on each kind
    of rows, and a sentence for every role."""
    word = "loss" if about["unit"] == "nats" else "effect"
    lines = [*inspection_findings(tables, about), *_performances(tables, about)[1:]]
    lines += role_findings(tables["roles"], about["asked"], effect=word)
    return [*lines, *(rounds_in_words(tables["rounds"]) if "rounds" in tables else ())]


def inspection_page(tables: Tables, about: About, folder: Path) -> str:
    """Render the page as one self-contained HTML file.

    Args:
        tables: The tables of an inspection (:data:`probes.columns.TABLES`).
        about: The facts that were sealed with the tables.
        folder: The folder to which its figures are written, as PNG.
    """
    name = page_name(str(about["model"]))
    small = len(places_of(tables)) <= _FEW
    drawn = figures(tables, loss_unit(tables, about), maps=not small)
    pictures = {one.name: _save_picture(one, folder) for one in drawn}
    language, sections = about["profile"] == "language", [*_role_sections(tables, about)]
    lead = pictures.get("map-attention_mass-0" if language else "roles")
    lead = None if language and small else lead
    title = f"Heads of {name}"
    sections.insert(1, Section("Every head", html=_viewer(tables, about, title)))
    sections += _evidence(tables, about, pictures, lead, small=small)
    kept = [s for s in sections if s.words or s.pictures or s.tables or s.html]
    page = Page(
        title,
        inspection_findings(tables, about),
        kept,
        list(_facts(tables, about)),
        lead,
        _doubts(tables, about),
        about["environment"],
    )
    return render(page)


def _save_picture(drawn: Drawn, folder: Path) -> Picture:
    """Write a figure to a file, and a version for narrow screens with its panels below one
    another."""
    (wide,) = save(drawn.figure, folder / drawn.name, formats=("png",))
    narrow = None
    if drawn.narrow.get_size_inches().tolist() != drawn.figure.get_size_inches().tolist():
        (narrow,) = save(drawn.narrow, folder / f"{drawn.name}-narrow", formats=("png",))
    return Picture(wide, drawn.caption, narrow=narrow, told=drawn.told)


def _induction(tables: Tables) -> pd.Series | None:
    """Return the share of every head's attention that goes to what followed equal tokens; None if
    it was not measured."""
    heads = tables["heads"]
    rows = matching(heads, **mass("after_same", attention_kind(heads, "after_same")))
    if rows.empty:
        return None
    names = [f"L{r.layer}H{r.head}" for r in rows.itertuples()]
    return pd.Series(rows["score"].to_numpy(), index=names)


def _on_text(tables: Tables) -> Iterator[str]:
    """Yield the main caveat about induction heads: on text they may attend to the first token
    instead."""
    roles, heads = tables["roles"], tables["heads"]
    sure = roles[(roles["role"] == "induction") & (roles["status"] == "confirmed")]
    kind = next((k for k in ("text", "rows") if bool((heads["trial"] == k).any())), None)
    if kind is None or sure.empty or "text_first" not in sure:
        return
    sure = sure[sure["head"] >= 0]
    own, first = (float(sure[f"text_{what}"].mean()) for what in ("attention", "first"))
    if not first >= max(_RESTS, own):
        return
    where = "on the text" if kind == "text" else "on the rows given"
    yield (
        f"Most rows are not repeats: {where} {'these heads give' if len(sure) > 1 else 'it gives'} "
        f"{own:.0%} of {'their' if len(sure) > 1 else 'its'} attention to what followed equal "
        f"tokens, and {first:.0%} to the first token."
    )


def _costliest_parts(tables: Tables, about: About) -> Iterator[str]:
    """Yield a sentence about the components whose ablation costs most, for a model without a
    confirmed role."""
    heads, first = tables["heads"], str(about["trials"][0]["name"])
    lost = matching(heads, metric="loss_increase", method="mean", trial=first)
    lost = lost[(lost["q"] < float(about["level"])) & (lost["score"] > 0)].nlargest(3, "score")
    if len(lost):
        unit = "nats a token" if loss_unit(tables, about) == "nats" else "of the target's variance"
        named = zip(part_names(lost), lost["score"], strict=True)
        told = in_words([f"{name} {score:.2f}" for name, score in named])
        yield (
            f"The loss rises most with their means in place of {told} ({unit}): what these are "
            "needed for, no role here names."
        )


def _components(roles: pd.DataFrame, unit: str) -> list[str]:
    """Return a sentence for each component with a confirmed role, those with the largest effect
    first."""
    sure = roles[roles["status"] == "confirmed"]
    if sure.empty:
        return ["No role of any component is confirmed."]
    named = sure.assign(name=part_names(sure))
    lost = loss_without(sure).groupby(named["name"]).max()
    order = lost.sort_values(ascending=False, kind="stable").index
    said = [_sentence(name, named[named["name"] == name], _LOST[unit]) for name in order[:_SHOWN]]
    more = len(order) - len(said)
    rest = "1 more component has" if more == 1 else f"{more} more components have"
    return said + [f"{rest} confirmed roles: see the table."] * bool(more > 0)


def _sentence(name: str, rows: pd.DataFrame, lost: str) -> str:
    known: list[Any] = list(
        rows.assign(missed=loss_without(rows)).dropna(subset="missed").itertuples()
    )
    cause = f"; {_loss_in_words(max(known, key=attrgetter('missed')), lost)}" if known else ""
    return f"{name} plays {in_words(role_phrases(rows, 'strength '))}{cause}."


def _loss_in_words(row: Any, words: str) -> str:
    """Say what is lost without a component.

    For a role whose effect is neither a change of the output nor a rise of the loss (a share of r²,
    or of answers), and for a group, the words of its last causal test are used.
    """
    own = last_cause(row)
    if row.missed != row.effect:
        return own
    on_output = not own or any(what in own for what in ("output changes", "loss rises"))
    on_output &= "right answers" not in own
    return words.format(row.effect) if on_output else own


def _performances(tables: Tables, about: About) -> list[str]:
    """Return sentences about how well the model does on each kind of rows."""
    titles = {trial["name"]: trial["title"] for trial in about["trials"]}
    unit = "nats a token" if loss_unit(tables, about) == "nats" else "of the target's variance"
    trials = tables.get("trials", pd.DataFrame())
    return [_performance(p, titles[p.trial], unit) for p in trials.itertuples()]


def _performance(p: Any, title: str, unit: str) -> str:
    said = f"{title}: loss {p.loss:.2f} {unit}, {p.accuracy:.0%} right"
    if p.control == p.control:
        apart, sure = p.control - p.loss >= _GAP, p.p < 0.01
        used = "the model uses its context here"
        if p.accuracy < _RIGHT:
            used = "the context helps, yet hardly a token is right"
        few = "too few rows to be sure that it is better with the rule"
        verdict = (used if sure else few) if apart else "no better than without the rule"
        said += f"; on such tokens in an order without a rule {p.control:.2f}: {verdict}"
    elif not p.able:
        said += (
            f": no better than always the same answer (loss {p.chance:.2f}, {p.guess:.0%} right), "
            "so the model does not do these rows"
        )
    return said + "."


def _doubts(tables: Tables, about: About) -> list[str]:
    """Return sentences about reasons for doubt in the numbers."""
    settings, roles, said = about["settings"], tables["roles"], []
    if not about["ran"]:
        said.append("No model was run: what a head does is seen, and not what breaks without it.")
    elif about["profile"] == "language":
        said.append(
            f"Roles are decided on random tokens ({settings['rows']} rows of at most "
            f"{settings['length']}, one seed), not on text: what a head does on text may be "
            "something else."
        )
        said += _costly(tables, about)
    else:
        said.append(
            "Roles are decided on the rows of one seed: on other rows a component may do other "
            "things."
        )
    trials = tables.get("trials", pd.DataFrame())
    alike = [p.trial for p in trials.itertuples() if not p.able]
    if alike:
        titles = {trial["name"]: trial["title"] for trial in about["trials"]}
        said.append(
            f"{in_words([titles[name] for name in alike])}: the model is at chance there. What is "
            "lost on such rows without a component, or not lost, says little of what it is for."
        )
    return [*said, *circuit_doubts(roles)]


def _costly(tables: Tables, about: About) -> Iterator[str]:
    """Yield a sentence if random tokens cost the model more than a guess."""
    guess = math.log(about["vocabulary"]) if about["vocabulary"] else math.inf
    trials = tables.get("trials", pd.DataFrame())
    worst = float(trials["control"].max()) if len(trials) else 0.0
    if worst > guess + _GAP:
        yield (
            f"Random tokens without a rule cost the model {worst:.2f} nats each, more than a guess "
            f"(ln {about['vocabulary']} = {guess:.2f}): it expects something else there, and "
            "rises of the loss are large for that reason too."
        )


def wide_table(tables: Tables, about: About) -> pd.DataFrame:
    """Return a table with one row per head: its name, its roles (with ``?`` if not confirmed) and
    its main scores."""
    columns, roles = columns_of(tables["heads"], loss_unit(tables, about)), tables["roles"]
    lines = []
    for place in places_of(tables):
        own = roles[(roles["layer"] == place[0]) & (roles["head"] == place[1])]
        told = own[["role", "target", "status"]].itertuples(index=False, name=None)
        names = [
            f"{role}{' of ' * bool(of)}{of}" + "?" * (status != "confirmed")
            for role, of, status in told
        ]
        numbers = {c.label: c.values.get(place, float("nan")) for c in columns}
        lines.append({"head": f"L{place[0]}H{place[1]}", "roles": ", ".join(names), **numbers})
    return pd.DataFrame(lines)


def _viewer(tables: Tables, about: About, title: str) -> Markup:
    """Return the viewer of the page, as data, bytes, and the script that draws every head."""
    document = viewer_document(tables, about, title)
    caption = (
        f"All {len(places_of(tables))} heads as a table; click a heading, or reach it with Tab and "
        "press Enter, to sort. A question mark: not confirmed. heads.csv has every score with its "
        "null."
    )
    return Markup(  # noqa: S704  a template of ours, which escapes what is text
        render_page(
            "viewer.html.j2",
            scripted=False,
            environment={},
            data=_safe(json.dumps(document, ensure_ascii=False, allow_nan=False)),
            blobs=[(name, base64.b64encode(codes).decode()) for name, codes in head_bytes(tables)],
            table=PageTable(wide_table(tables, about), caption, sortable=True),
            viewer_css=Markup(viewer_file("viewer.css")),  # noqa: S704  our own file
            viewer_js=Markup(viewer_file("viewer.js")),  # noqa: S704  our own file
        )
    )


def viewer_file(name: str) -> str:
    """Return the text of a file of the interactive viewer, ``viewer.js`` or ``viewer.css``."""
    return (files("prooflens.pages") / "viewer" / name).read_text(encoding="utf-8")


def _safe(text: str) -> Markup:
    """Return JSON that can stand inside a script: nothing in it can end the script."""
    escaped = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Markup(escaped)  # noqa: S704  no markup is left in it


def static_view(tables: Tables, about: About) -> str:
    """Return the HTML that a notebook shows if it cannot run scripts: the findings and the table of
    all heads."""
    caption = f"All {len(places_of(tables))} heads as a table"
    return render_page(
        "view_static.html.j2",
        scripted=False,
        title=f"Heads of {page_name(str(about['model']))}",
        findings=inspection_findings(tables, about),
        tables=[PageTable(wide_table(tables, about), caption, sortable=True)],
        words=_STATIC,
    )


def _role_sections(tables: Tables, about: About) -> Iterator[Section]:
    """Yield the sections of the confirmed roles with their evidence; then, folded, of the
    others."""
    lost = (
        "What is lost is the rise of the loss without the head's attention for this role (of "
        "copying and positional heads: without the head); an induction head must also read earlier "
        "previous-token heads."
        if about["unit"] == "nats"
        else "What is lost is the change of the output without the component, or as its test says."
    )
    words = (
        f"{STATUS_WORDS} {lost} Strength is the behaviour's score, effect what is lost without the "
        "component alone, effect of group what is lost without its group, q the false-discovery "
        "rate over all tests of the role."
    )
    roles = _in_order(tables["roles"], about["asked"])
    roles = with_certainty(roles, float(about["level"])).assign(component=part_names(roles))
    roles = roles.assign(**{_OF_GROUP: of_groups(roles)})
    sure = roles["status"] == "confirmed"
    columns = ["component", "role", "target", "strength", "effect", _OF_GROUP, "q", *TOLD]

    def role_tables(rows: pd.DataFrame, *more: str) -> list[PageTable]:
        kept = [n for n in columns if n in rows and (n not in _SOME or _has_values(rows[n]))]
        shown = rows[[*more, *kept]]
        return [PageTable(shown, "By role and strength.", sortable=True)] if len(rows) else []

    yield Section(
        "Confirmed roles",
        [] if sure.any() else ["No role of any component is confirmed."],
        (),
        role_tables(roles[sure]),
    )
    if not sure.all():
        counts = without_groups(roles[~sure])["status"].value_counts()
        kinds = ", ".join(f"{counts[status]} {status}" for status in STATUSES if status in counts)
        rest = role_tables(roles[~sure], "status")
        yield Section(f"Not confirmed: {kinds}", (), (), rest, folded=True)
    beside = [name for name in _BESIDE if name in roles and _has_values(roles[name])]
    if beside:
        shown = roles[["component", "role", "status", *beside]]
        caption = "What decides nothing: outcome of a head, stability, the same answer, on text."
        table = PageTable(shown, caption, sortable=True)
        yield Section("Controls beside the tests", (), (), [table], folded=True)
    lacks = tables.get("lacks", pd.DataFrame())
    if len(lacks):
        table = PageTable(lacks, "Roles that could not be looked for, and why.")
        yield Section("Not looked for", (), (), [table], folded=True)
    yield Section("What the statuses say", [words], folded=True)


def _has_values(column: pd.Series) -> bool:
    """Return whether a column has any value."""
    return bool((column.notna() & (column != "")).any())


def _in_order(roles: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Return the role table sorted by role, in the registry's order, and by strength."""
    rank = [order.index(role) if role in order else len(order) for role in roles["role"]]
    keyed = roles.assign(_rank=rank, _size=-roles["strength"].abs())
    keyed = keyed.sort_values(["_rank", "_size", "layer", "head"], kind="stable")
    return keyed.drop(columns=["_rank", "_size"])


def _evidence(
    tables: Tables,
    about: About,
    pictures: Mapping[str, Picture],
    lead: Picture | None,
    *,
    small: bool,
) -> Iterator[Section]:
    """Yield the folded sections with everything that backs up a finding."""

    def pictures_of(*starts: str) -> list[Picture]:
        named = [one for name, one in pictures.items() if name.startswith(starts)]
        return [one for one in named if one is not lead]

    trials = tables.get("trials", pd.DataFrame())
    if len(trials):
        abouts = {trial["name"]: trial["about"] for trial in about["trials"]}
        told = trials.assign(rows=[abouts[name] for name in trials["trial"]])
        nats = loss_unit(tables, about) == "nats"
        unit = "nats a token" if nats else "shares of the target's variance"
        caption = f"Losses in {unit}; chance and guess: of the best answer that is always the same."
        said = _performances(tables, about)
        title = "How well the model does on these rows"
        yield Section(title, said, (), [PageTable(told, caption)], folded=True)
    yield from _text_section(tables)
    yield Section("Every head's attention on one row", (), pictures_of("patterns"), folded=True)
    yield Section("Where heads with roles look", (), pictures_of(ATTENTION), folded=True)
    if "rounds" in tables:
        rounds = PageTable(rounds_side_by_side(tables["rounds"]), ROUNDS_CAPTION)
        title = "Which layer holds which round"
        yield Section(title, (), pictures_of("rounds"), [rounds], folded=True)
    yield Section("What can be read where", (), pictures_of("decodability"), folded=True)
    if small:
        scores = beside_nulls(tables["heads"], loss_unit(tables, about))
        every = (
            [PageTable(scores, "Every score with its null.", sortable=True)] if len(scores) else []
        )
        yield Section("Where heads look", [_OF_FEW] if every else [], (), every, folded=True)
    else:
        maps = pictures_of("map-", *["roles"] * (about["profile"] == "task"))
        yield Section("Every other score of every head", (), maps, folded=True)
        nulls = pictures_of("histogram-")
        yield Section("Against the nulls", [_NULLS] if nulls else [], nulls, folded=True)
    words = (
        "K-composition of weights: the reader's key could be made of what the writer wrote. Marked "
        "are heads by their roles."
    )
    pairs = pictures_of("pairs")
    yield Section("Who reads whom", [words] if pairs else [], pairs, folded=True)


def _text_section(tables: Tables) -> Iterator[Section]:
    """Yield the section on how much of what heads do on text their confirmed roles explain; none
    without text."""
    table = tables.get("explained", pd.DataFrame())
    if table.empty:
        return
    words = (
        "A head may do more than its name. Attention: the share, on the text or rows given, that "
        "goes to the keys of its confirmed roles together. Loss: of the rise of the loss there "
        "without the head, the share that is not lost when it keeps that attention alone (none "
        "where nothing is lost without it). Rest: the tokens that get most of the other attention."
    )
    names = [f"L{r.layer}H{r.head}" for r in table.itertuples()]
    told = table.assign(head=names).drop(columns="layer")
    caption = "By head: what its confirmed roles explain of it."
    yield Section("On text", [words], (), [PageTable(told, caption, sortable=True)], folded=True)


def _facts(tables: Tables, about: About) -> Iterator[str]:
    settings, places = about["settings"], places_of(tables)
    size = f"{len({layer for layer, _ in places})} layers with {len(places)} heads"
    known = [about["family"], size]
    known += [f"vocabulary {about['vocabulary']}"] if about["vocabulary"] else []
    known += [f"context {about['context']}"] if about["context"] else []
    yield (
        f"{about['model']}: {', '.join(filter(None, known))}. {settings['rows']} rows of at most "
        f"{settings['length']} positions, seed {about['seed']}. {_PROFILE[about['profile']]}"
    )
    if about.get("analysed"):
        yield f"What is analysed: {about['analysed']}."
    yield f"Of the roles, {status_counts(without_groups(tables['roles']))}."
    shown = tables["shown-heads"]
    off = shown.loc[shown["part"] == "pattern", "error"].max()
    yield (
        f"Attention on the rows that are shown is kept in a byte a number and is off by {off:.2g} "
        "at most. Every other number is exact."
    )
    if about.get("task"):
        yield f"task: {json.dumps(about['task'], ensure_ascii=False)}"
    yield from about["notes"]
