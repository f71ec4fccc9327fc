"""The report of the claims: verdicts first, then a section a paper, then the models.

    OUT/ID/…             results of claims (analyses.claims.results)
    OUT/models/NAME/…    what ``prooflens heads NAME`` wrote: roles.csv and figures, if it was run
    OUT/report.html      one file, nothing fetched

Claims of the ledger without a result are listed as not run, so that none is missing in silence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from analyses.claims.base import Status
from analyses.claims.ledger import PAPERS, Claim
from analyses.claims.results import THUMBNAIL, Result, read_results
from analyses.report.page import Picture, Table
from interp.errors import OutputError
from interp.output import output_file

__all__ = ["LARGEST", "MODELS", "REPORT", "write_report"]

REPORT, MODELS = "report.html", "models"
LARGEST = 15_000_000
"""Bytes of a report."""

_ROWS = 40
_TITLES = {
    "memory": "memory: long but sparse memories",
    "template": "template: abstract symbols",
    "depth": "depth: counting, layer by layer",
    "coupling": "coupling: rank, and transformers against recurrent networks",
}


@dataclass(frozen=True)
class _Entry:
    """One claim as it is shown."""

    claim: Claim
    result: Result | None

    @property
    def status(self) -> str:
        return self.result.status if self.result else "not run"

    @property
    def kind(self) -> str:
        return self.status.replace(" ", "-")

    @property
    def key(self) -> str:
        return self.result.key if self.result else ""

    @property
    def words(self) -> str:
        return self.result.words if self.result else "Not run yet."

    @property
    def rule(self) -> str:
        return self.result.rule if self.result else self.claim.rule

    @property
    def stale(self) -> bool:
        return self.result is not None and self.result.rule_sha256 != self.claim.rule_sha256

    @property
    def earlier(self) -> tuple[Mapping[str, str], ...]:
        return self.result.earlier if self.result else ()

    @property
    def models(self) -> tuple[str, ...]:
        return self.result.models if self.result else ()

    @property
    def setting(self) -> str:
        if self.result is None or self.result.status == "not run":
            return ""
        seeds = ", ".join(map(str, self.result.seeds)) or "none"
        used = ", ".join(f"{name} {number}" for name, number in self.result.versions.items())
        return f"Profile {self.result.profile}, seeds {seeds}, {self.result.seconds:.0f} s; {used}."

    @property
    def numbers(self) -> str:
        data = {} if self.result is None else {**self.result.numbers}
        options = {} if self.result is None else dict(self.result.options)
        return json.dumps({"options": options, **data}, indent=1)

    @property
    def pictures(self) -> list[Picture]:
        figures = self.result.figures if self.result else {}
        folder = self.result.folder if self.result else Path()
        return [Picture(folder / f"{name}.png", words) for name, words in figures.items()]

    @property
    def thumbnail(self) -> Picture | None:
        if not self.pictures or self.result is None:
            return None
        return Picture(self.result.folder / THUMBNAIL, self.pictures[0].caption)

    @property
    def tables(self) -> list[Table]:
        names = self.result.tables if self.result else ()
        return [_table(self.result.folder / f"{name}.csv") for name in names if self.result]


@dataclass(frozen=True)
class _Model:
    """One model as it is shown."""

    name: str
    words: list[str]
    claims: list[str]
    pictures: list[Picture]
    tables: list[Table]


def write_report(ledger: Mapping[str, Claim], out: Path) -> Path:
    """Write ``out / report.html`` from the results under ``out``.

    Returns:
        The file.

    Raises:
        OutputError: if a result cannot be read, or the report would be too large.
    """
    results = read_results(out)
    entries = [_Entry(claim, results.get(claim.id)) for claim in ledger.values()]
    papers = [
        {"key": paper, "title": _TITLES[paper], "entries": mine}
        for paper in PAPERS
        if (mine := [entry for entry in entries if entry.claim.paper == paper])
    ]
    models = _models(entries, out / MODELS)
    text = _render(
        title="Claims and verdicts",
        summary=_summary(entries),
        papers=papers,
        statuses=get_args(Status),
        models=models,
        model_names={model.name for model in models},
        facts=[f"prooflens {version('prooflens')}"],
    )
    if len(text.encode()) > LARGEST:
        raise OutputError(f"the report would have {len(text) / 1e6:.0f} MB: run fewer claims")
    with output_file(out / REPORT, overwrite=True) as draft:
        draft.write_text(text)
    return out / REPORT


def _render(**values: Any) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)  # fmt: skip
    here = files("analyses.report")
    parts = {
        "css": Markup((here / "style.css").read_text()),  # noqa: S704  our own file
        "script": Markup((here / "tables.js").read_text()),  # noqa: S704  our own file
    }
    template = (here / "claims.html.j2").read_text()
    return environment.from_string(template).render(**values, **parts)


def _summary(entries: list[_Entry]) -> list[str]:
    counts = Counter(entry.status for entry in entries)
    words = ", ".join(f"{counts[status]} {status}" for status in get_args(Status))
    return [
        f"{len(entries)} claims: {words}.",
        "A verdict follows a rule that was written before the runs and is shown with it. It is "
        "about the stated setting: small models, the seeds and lengths given.",
    ]


def _models(entries: list[_Entry], folder: Path) -> list[_Model]:
    """Models that claims speak of or that were measured; those the zoo knows have numbers."""
    from trained import zoo

    shipped = zoo.names()
    named = {name for entry in entries for name in entry.models}
    measured = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return [
        _Model(
            name,
            _described(name) if name in shipped else [],
            [entry.claim.id for entry in entries if name in entry.models],
            [Picture(p, f"{name}: {p.stem}") for p in sorted((folder / name).glob("*.png"))],
            [_table(p) for p in sorted((folder / name).glob("roles.csv"))],
        )
        for name in sorted((named & set(shipped)) | measured)
    ]


def _described(name: str) -> list[str]:
    from trained import zoo

    model = zoo.load(name)
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in model.metrics.items())
    return [f"{model.about}.", f"Metrics on fresh rows: {metrics}."]


def _table(path: Path) -> Table:
    frame = pd.read_csv(path)
    more = f", first {_ROWS} of {len(frame)} rows" if len(frame) > _ROWS else ""
    return Table(frame.head(_ROWS), f"{path.stem.replace('_', ' ')}{more}", sortable=True)
