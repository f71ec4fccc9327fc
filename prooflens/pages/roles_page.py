"""The page of a role table: what each component is shown to do, one figure, and what to doubt.

Then the evidence of every confirmed role and where its heads look; candidates, what can be read
where and the meaning of the words are folded. The page says what the table says and measures
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from interp.figures.maps import attention_in_words
from interp.figures.style import save
from probes.roles.decision import by_status
from probes.roles.profile import LANGUAGE, Profile
from prooflens.pages.certainty import TOLD, last_cause, with_certainty
from prooflens.pages.circuit import circuit_doubts, circuit_sentences
from prooflens.pages.findings import (
    STATUS_WORDS,
    in_words,
    part_names,
    status_counts,
    told_facts,
)
from prooflens.pages.head_figures import ATTENTION, patterns_of, roles_figure
from prooflens.pages.naming import page_name
from prooflens.pages.page import Page, Picture, Section, Table, render
from prooflens.pages.rounds import ROUNDS_CAPTION, rounds_in_words, rounds_side_by_side

__all__ = ["roles_page"]

_SHOWN = 6
_LOST = {
    "variance": "without it the output changes by {:.2f} of its variance",
    "nats": "without it the loss rises by {:.2f} nats a token",
}
_MEANING = (
    f"{STATUS_WORDS} Every number stands beside its null and its floor. Strength is the "
    "behaviour's score, effect what is lost, q the false-discovery rate over all tests of the role."
)
_COLUMNS = ("component", "role", "of", "status", "strength", "effect", "q", *TOLD)
_READ = "What can be read where: held-out r², of classes balanced accuracy."
_ROUNDS = (
    "Above, what a linear probe reads at each place of the residual stream; below, what the heads "
    "of each layer put together from each lag, counted from the location of the round."
)

Tables = Mapping[str, pd.DataFrame]


def roles_page(sealed: Tables, folder: Path, about: dict[str, Any], profile: Profile) -> str:
    """Render the page as one self-contained HTML file.

    Args:
        sealed: The store's tables, ``roles`` among them.
        folder: Where its figures are; the map of roles for a narrow screen is drawn beside it.
        about: The provenance of the table: model, rows, seed.
        profile: By which the roles were decided.
    """
    title = f"Heads of {page_name(str(about.get('model', 'a store')))}"
    roles = sealed["roles"]
    sure = roles["status"] == "confirmed"
    left = _tables(roles[~sure], profile)
    sections = [
        Section("Confirmed roles", (), (), _tables(roles[sure], profile, leave="status")),
        Section("Where their heads look", (), list(_attention(folder, sealed)), folded=True),
        *_rounds(folder, sealed),
        Section("Roles that are not confirmed", (), (), left, folded=True),
        Section("What can be read where", (), list(_decodability(folder, sealed)), folded=True),
        Section("How to read this", [_MEANING], folded=True),
    ]
    kept = [s for s in sections if s.words or s.pictures or s.tables]
    said, picture = _findings(roles, profile), _map(roles, folder)
    return render(Page(title, said, kept, told_facts(about), picture, _doubts(roles)))


def _findings(roles: pd.DataFrame, profile: Profile) -> list[str]:
    """A sentence a component, those with the largest effect first."""
    sure = roles[roles["status"] == "confirmed"]
    if profile == LANGUAGE:
        return circuit_sentences(roles)
    if sure.empty:
        return ["No role of any component is confirmed."]
    named = sure.assign(name=part_names(sure))
    order = named.groupby("name")["effect"].max().sort_values(ascending=False, kind="stable").index
    lost = _LOST[profile.unit]
    said = [_sentence(name, named[named["name"] == name], lost) for name in order[:_SHOWN]]
    more = len(order) - len(said)
    return said + [f"{more} more components have confirmed roles: see the table."] * bool(more > 0)


def _sentence(name: str, rows: pd.DataFrame, lost: str) -> str:
    known: list[Any] = list(rows[rows["effect"].notna()].itertuples())
    cause = f"; {_lost(max(known, key=attrgetter('effect')), lost)}" if known else ""
    return f"{name} plays {in_words(_played(rows, 'strength '))}{cause}."


def _lost(row: Any, words: str) -> str:
    """What is lost without a component; of a role whose effect is no change of the output and no
    rise of the loss (a share of r², or of answers), as its test says."""
    own = last_cause(row)
    on_output = not own or any(what in own for what in ("output changes", "loss rises"))
    return words.format(row.effect) if on_output else own


def _played(rows: pd.DataFrame, word: str = "") -> list[str]:
    """Each role with its target and strength."""
    columns = rows["role"], rows["target"], rows["strength"]
    return [
        f"{role}{' of ' if target else ''}{target} ({word}{strength:.2f})"
        for role, target, strength in zip(*columns, strict=True)
    ]


def _doubts(roles: pd.DataFrame) -> list[str]:
    said = circuit_doubts(roles)
    return [
        *said,
        "Roles are decided on the rows of one seed: on other rows a component may do other things.",
    ]


def _tables(rows: pd.DataFrame, profile: Profile, *, leave: str = "") -> list[Table]:
    if rows.empty:
        return []
    told = with_certainty(rows, profile.level)
    shown = told.assign(component=part_names(rows), of=rows["target"]).sort_values(
        ["layer", "head", "role"], kind="stable"
    )
    caption = f"{len(rows)} roles of {shown['component'].nunique()} components"
    columns = [name for name in _COLUMNS if name != leave]
    return [Table(shown[columns].reset_index(drop=True), caption, sortable=True)]


def _map(roles: pd.DataFrame, folder: Path) -> Picture | None:
    path = folder / "roles.png"
    if not path.is_file():
        return None
    narrow = folder.parent / "roles-narrow.png"
    save(roles_figure(roles, narrow=True), narrow.with_suffix(""), formats=("png",))
    ordered = roles.assign(size=-roles["strength"].abs(), place=by_status(roles["status"]))
    order = ordered.sort_values(["place", "size"], kind="stable")
    columns = part_names(order), _played(order), order["status"]
    told = [f"{name} {played}, {status}" for name, played, status in zip(*columns, strict=True)]
    caption = f"Strength of roles: {status_counts(roles)}. First: {told[0]}."
    return Picture(path, caption, narrow=narrow, told=f"{'; '.join(told)}.")


def _attention(folder: Path, sealed: Tables) -> Iterator[Picture]:
    for path in sorted(folder.glob(f"{ATTENTION}*.png")):
        caption = f"Mean attention of heads with the role {path.stem.removeprefix(ATTENTION)}"
        told = attention_in_words(patterns_of(sealed[path.stem]))
        yield Picture(path, f"{caption}, strongest first.", told=f"Most: {told}.")


def _rounds(folder: Path, sealed: Tables) -> Iterator[Section]:
    path = folder / "rounds.png"
    if path.is_file():
        picture = Picture(path, _ROUNDS, told=f"{'; '.join(rounds_in_words(sealed['rounds']))}.")
        table = Table(rounds_side_by_side(sealed["rounds"]), ROUNDS_CAPTION)
        yield Section("Which layer holds which round", (), [picture], [table], folded=True)


def _decodability(folder: Path, sealed: Tables) -> Iterator[Picture]:
    path = folder / "decodability.png"
    if path.is_file():
        table = sealed["decodability"]
        best = table.loc[table.groupby("latent", sort=False)["score"].idxmax()]
        told = [f"{row.latent} {row.score:.2f} at {row.site}" for row in best.itertuples()]
        yield Picture(path, _READ, told=f"Best: {', '.join(told)}.")
