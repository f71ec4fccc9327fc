"""The report of the claims: verdicts first, then a section per paper, then the models.

    OUT/ID/…             results of claims (analyses.papers.results)
    OUT/models/NAME/…    measured models (analyses.papers.model_pages), if there are any
    OUT/report.html      one file, nothing fetched

Claims of the ledger without a result are listed as not run, so that none is missing in silence.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from analyses.papers.base import Status
from analyses.papers.ledger import PAPERS, Before, Claim
from analyses.papers.models import ModelPage, comparison, model_pages, short_table
from analyses.papers.results import THUMBNAIL, Result, read_failure, read_results
from prooflens.errors import OutputError
from prooflens.files import output_file
from prooflens.pages import PageTable, Picture, in_words, render_page

__all__ = ["LARGEST", "MODELS", "REPORT", "write_report"]

REPORT, MODELS = "report.html", "models"
LARGEST = 15_000_000
"""Largest size of a report in bytes (15 MB). A larger one is refused."""

_FLAT = re.compile(r"[\[{][^\[\]{}]*[\]}]")
"""Matches a JSON list or object without another one inside; it is shown on one line."""
_STATUSES = (*get_args(Status), "stopped")
_SEEDS = 3  # fewer tell nothing of how results spread
_ENOUGH = 7
"""Least number of seeds with which a verdict counts as decided if rounding alone may change it."""
_TITLES = {
    "memory": "memory: long but sparse memories",
    "template": "template: abstract symbols",
    "depth": "depth: counting, layer by layer",
    "coupling": "coupling: rank, and transformers against recurrent networks",
    "decompile": "decompile: programs in models that others trained",
    "training": "training: does it find the proof?",
}


@dataclass(frozen=True)
class _Entry:
    """One claim as the report shows it."""

    claim: Claim
    result: Result | None
    failure: str = ""

    @property
    def status(self) -> str:
        if self.result:
            return self.result.status
        return "stopped" if self.failure else "not run"

    @property
    def verdict(self) -> str:
        told = self.result.verdict if self.result else self.status
        return f"{told}, undecided" if self.undecided else told

    @property
    def undecided(self) -> bool:
        """Whether rounding alone may move the verdict, and few seeds were taken."""
        if self.result is None or self.status == "not run":
            return False
        return bool(self.claim.fragile) and len(self.result.seeds) < _ENOUGH

    @property
    def kind(self) -> str:
        return self.status.replace(" ", "-")

    @property
    def key(self) -> str:
        return self.result.key if self.result else ""

    @property
    def words(self) -> str:
        if self.result:
            return self.result.words
        return f"Stopped with an error: {self.failure}" if self.failure else "Not run yet."

    @property
    def certainty(self) -> str:
        """In sentences, how sure the verdict is: the number of seeds, and whether options differ
        from the ledger's. Empty if the claim was not run."""
        if self.result is None or self.status == "not run":
            return ""
        seeds, changed = len(self.result.seeds), json.dumps(dict(self.result.changed))[1:-1]
        said = [
            f"{seeds} seed{'s' * (seeds > 1)}, profile {self.result.profile}."
            if seeds
            else f"No seeds: models as they are shipped, profile {self.result.profile}."
        ]
        if 0 < seeds < _SEEDS:
            said.append(f"Fewer than {_SEEDS} seeds tell nothing of how results spread.")
        if self.claim.fragile:
            kind = "Undecided" if self.undecided else f"Fragile, and decided by {seeds} seeds"
            said.append(f"{kind}: {self.claim.fragile}")
        if changed:
            said.append(
                "Run with other options than the ledger's, which the rule was written for. "
                f"The ledger has {changed}."
            )
        if self.stale:
            said.append(
                "The ledger's rule or settings have changed since this was run: this verdict "
                "follows those below."
            )
        return " ".join(said)

    @property
    def rule(self) -> str:
        return self.result.rule if self.result else self.claim.rule

    @property
    def stale(self) -> bool:
        return self.result is not None and self.result.is_outdated(self.claim)

    @property
    def before(self) -> Before | None:
        """The previous rule and verdict that the report shows: those of this folder's result, or
        those of the ledger, which also give a reason."""
        names = ("rule", "profile", "status", "key", "settings")
        found = self.result.before if self.result else {}
        mine = Before(**{name: found[name] for name in names}) if found else None
        listed = self.claim.before
        if mine is None or (listed and mine == replace(listed, reason="")):
            return listed
        return mine

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
        text = json.dumps({"options": options, **data}, indent=1)
        return _FLAT.sub(lambda found: " ".join(found[0].split()), text)

    @property
    def pictures(self) -> list[Picture]:
        figures = self.result.figures if self.result else {}
        folder = self.result.folder if self.result else Path()
        told = self.result.words if self.result else ""
        return [Picture(folder / f"{n}.png", words, told=told) for n, words in figures.items()]

    @property
    def thumbnail(self) -> Picture | None:
        if not self.pictures or self.result is None:
            return None
        return Picture(self.result.folder / THUMBNAIL, self.pictures[0].caption, told=self.key)

    @property
    def tables(self) -> list[PageTable]:
        names = self.result.tables if self.result else ()
        return [
            short_table(self.result.folder / f"{name}.csv", name.replace("_", " "))
            for name in names
            if self.result
        ]


def write_report(ledger: Mapping[str, Claim], out: Path) -> Path:
    """Write ``out / report.html`` from the results that are under ``out``.

    Returns:
        The file.

    Raises:
        OutputError: if a result cannot be read, or the report would be too large.
    """
    results = read_results(out)
    entries = [
        _Entry(claim, results.get(claim.id), read_failure(out, claim.id))
        for claim in ledger.values()
    ]
    models = model_pages(_claims_by_model(entries), out / MODELS)
    text = render_page(
        files("analyses.papers") / "claims.html.j2",
        scripted=True,
        title="Claims and verdicts",
        summary=_summary(entries),
        doubts=_doubts(entries),
        verdicts=sorted(
            (entry for entry in entries if entry.status != "not run"),
            key=lambda entry: PAPERS.index(entry.claim.paper),
        ),
        papers=_papers(entries, models),
        statuses=_STATUSES,
        models=models,
        model_names={model.name for model in models},
        facts=[],
    )
    size = len(text.encode())
    if size > LARGEST:
        raise OutputError(f"the report would have {size / 1e6:.0f} MB: run fewer claims")
    with output_file(out / REPORT, overwrite=True) as draft:
        draft.write_text(text, encoding="utf-8")
    return out / REPORT


def _papers(entries: list[_Entry], models: list[ModelPage]) -> list[dict[str, Any]]:
    """Return the report's sections: one for each paper that has claims."""
    found = []
    for paper in PAPERS:
        mine = [entry for entry in entries if entry.claim.paper == paper]
        if mine:
            table = comparison(models, paper)
            found.append(
                {
                    "key": paper,
                    "title": _TITLES[paper],
                    "entries": mine,
                    "words": [_count(mine)],
                    "tables": [] if table is None else [table],
                    "unanswered": [entry for entry in mine if entry.status == "not run"],
                    "models": [model.name for model in models if model.paper == paper],
                }
            )
    return found


def _claims_by_model(entries: list[_Entry]) -> dict[str, list[str]]:
    """Return model → ids of the claims that are about it."""
    names = {name for entry in entries for name in entry.models}
    return {name: [e.claim.id for e in entries if name in e.models] for name in names}


def _count(entries: list[_Entry]) -> str:
    counts = Counter(entry.status for entry in entries)
    words = ", ".join(f"{counts[status]} {status}" for status in _STATUSES if counts[status])
    changed = sum(bool(entry.result and entry.result.changed) for entry in entries)
    undecided = sum(entry.undecided for entry in entries)
    other = f" Of these, {changed} with other options than the ledger's." if changed else ""
    other += f" Of these, {undecided} undecided." if undecided else ""
    return f"{len(entries)} claim{'s' * (len(entries) > 1)}: {words}.{other}"


def _summary(entries: list[_Entry]) -> list[str]:
    """Return sentences that count the claims by verdict and name them."""
    said = [_count(entries)]
    for status in _STATUSES:
        mine = [entry.claim.id for entry in entries if entry.status == status]
        if mine and status != "not run":
            said.append(f"{status[0].upper()}{status[1:]}: {in_words(mine)}.")
    return said


def _doubts(entries: list[_Entry]) -> list[str]:
    """Return sentences on what a reader should not conclude from the verdicts."""
    ran = [entry.result for entry in entries if entry.result and entry.status != "not run"]
    said = [
        "A verdict follows a rule that was written before the runs and is shown with it. It is "
        "about the stated setting: small models, the seeds and lengths given."
    ]
    few = [result.claim for result in ran if 0 < len(result.seeds) < _SEEDS]
    if few:
        said.append(f"Fewer than {_SEEDS} seeds: {in_words(few)}.")
    undecided = [entry.claim.id for entry in entries if entry.undecided]
    if undecided:
        said.append(f"Undecided, since rounding alone may move the verdict: {in_words(undecided)}.")
    quick = [result.claim for result in ran if result.profile != "full"]
    if quick:
        said.append(f"Run smaller than the ledger's full profile: {in_words(quick)}.")
    changed = [result.claim for result in ran if result.changed]
    if changed:
        said.append(f"Run with other options than the ledger's: {in_words(changed)}.")
    stale = [entry.claim.id for entry in entries if entry.stale]
    if stale:
        said.append(f"Judged by an earlier rule or settings than the ledger's: {in_words(stale)}.")
    return said
