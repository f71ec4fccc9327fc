"""The part of the report about models, read from the folders of :mod:`analyses.papers.model_pages`.

A shipped model that a claim speaks of and that was not measured is listed with its words alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from prooflens.errors import OutputError
from prooflens.interventions import Component
from prooflens.pages import PageTable, Picture, in_words

__all__ = ["MODEL", "ModelPage", "comparison", "model_pages", "short_table"]

MODEL = "model.json"
_ROWS = 40
_PICTURES = {
    "attention": "Where each head of {} looks: mean attention over rows, query by key.",
    "latents": "What a linear probe reads of each latent along the residual stream of {}: score, "
    "and how much it exceeds a control task's (selectivity).",
}
_ROLES = ("role", "target", "status", "strength", "effect", "q", "evidence")
_PROBES = ("hook", "latent", "kind", "score", "q", "control", "input", "untrained")


@dataclass(frozen=True)
class ModelPage:
    """One model as the report shows it.

    Attributes:
        name: The name of the model.
        paper: The paper that it belongs to; may be empty.
        words: What it is and what it reaches, in words.
        claims: The ids of the claims that speak of it.
        pictures: The figures of its heads and its layers.
        tables: The tables of its roles and probes.
        statements: Columns ``theory``, ``constructed``, ``trained``; empty without a proof.
        proof: The page of its task's construction; may be empty.
    """

    name: str
    paper: str
    words: Sequence[str]
    claims: Sequence[str]
    pictures: Sequence[Picture]
    tables: Sequence[PageTable]
    statements: pd.DataFrame
    proof: str


def model_pages(claims: Mapping[str, Sequence[str]], folder: Path) -> list[ModelPage]:
    """A page for every measured model, then for shipped ones that only a claim names.

    Args:
        claims: Model → ids of the claims that speak of it.
        folder: The folder of the measured models' folders; it need not exist.

    Raises:
        OutputError: if a folder cannot be read.
    """
    from prooflens.trained import zoo

    measured = sorted(path.parent.name for path in folder.glob(f"*/{MODEL}"))
    pages = [_measure(folder / name, claims.get(name, ())) for name in measured]
    named = sorted(set(claims) & set(zoo.names()) - set(measured))
    return pages + [_page_of(name, claims[name]) for name in named]


def comparison(pages: Sequence[ModelPage], paper: str) -> PageTable | None:
    """Return a table that compares theory, construction and trained model for the statements of a
    paper; None if there are none."""
    mine = [page for page in pages if page.paper == paper and len(page.statements)]
    if not mine:
        return None
    tables = [page.statements.assign(model=page.name) for page in mine]
    table = pd.concat(tables, ignore_index=True)[["model", "theory", "constructed", "trained"]]
    return PageTable(
        table,
        "What the proofs say (theory), and what holds of it in the construction "
        "and in the trained model of the same task.",
        sortable=True,
    )


def short_table(path: Path, caption: str) -> PageTable:
    """The first rows of a CSV file as a sortable table."""
    return _short(pd.read_csv(path), caption)


def _short(frame: pd.DataFrame, caption: str) -> PageTable:
    more = f"; the first {_ROWS} of {len(frame)} rows" if len(frame) > _ROWS else ""
    return PageTable(frame.head(_ROWS), f"{caption}{more}.", sortable=True)


def _roles(folder: Path) -> PageTable:
    frame = pd.read_csv(folder / "roles.csv")
    places = frame[["component", "layer", "head"]].itertuples(index=False, name=None)
    names = [Component(kind, int(layer), int(head)).name for kind, layer, head in places]
    frame = frame[list(_ROLES)]
    frame.insert(0, "component", names)
    words = "what a component does and what is lost without it"
    return _short(frame, f"Roles of {folder.name}: {words}")


def _confirmed_sentence(roles: pd.DataFrame) -> str:
    """Say in a sentence which component has which confirmed role."""
    sure = roles[roles["status"] == "confirmed"]
    said = [
        f"{role} {in_words(list(dict.fromkeys(rows['component'])))}"
        for role, rows in sure.groupby("role", sort=False)
    ]
    return f"Confirmed: {'; '.join(said)}." if said else "No role of any component is confirmed."


def _probes(folder: Path) -> PageTable:
    frame = pd.read_csv(folder / "probes.csv")[list(_PROBES)]
    words = "every latent at every hook, beside a control task, the raw input and random weights"
    return _short(frame, f"Probes of {folder.name}: {words}")


def _measure(folder: Path, claims: Sequence[str]) -> ModelPage:
    name = folder.name
    try:
        about = json.loads((folder / MODEL).read_text())
        statements = folder / "statements.csv"
        told = about.get("told", {})
        pictures = [
            Picture(folder / f"{stem}.png", words.format(name), told=told.get(stem, ""))
            for stem, words in _PICTURES.items()
            if (folder / f"{stem}.png").exists()
        ]
        roles = _roles(folder)
        tables = [table for table in (roles, _probes(folder)) if len(table.frame)]
        return ModelPage(
            name,
            about["paper"],
            [_confirmed_sentence(roles.frame), *about["words"]],
            claims,
            pictures,
            tables,
            pd.read_csv(statements) if statements.exists() else pd.DataFrame(),
            about["proof"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{folder}: holds no measured model: {error}") from error


def _page_of(name: str, claims: Sequence[str]) -> ModelPage:
    from prooflens.trained import zoo

    shipped = zoo.load(name)
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in shipped.metrics.items())
    words = [
        f"{shipped.about}.",
        f"Metrics on fresh rows: {metrics}.",
        "Not measured for this report: run 'python -m analyses claims report --models'.",
    ]
    return ModelPage(name, "", words, claims, (), (), pd.DataFrame(), "")
