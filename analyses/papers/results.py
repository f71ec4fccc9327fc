"""What is kept of a claim that was run: a folder with its verdict, tables and figures.

    OUT/ID/result.json          verdict, numbers, rule and its SHA-256, setting, seconds, versions
    OUT/ID/NAME.csv             tables
    OUT/ID/NAME.png, NAME.svg   figures
    OUT/ID/thumbnail.png        the first figure, small
    OUT/.work/ID/stopped.txt    why a claim that was last run has no result

A folder appears whole or not at all. Where one is replaced whose rule was another, or that was run
with the settings that the ledger had then, the new result keeps that rule and those settings with
what they said, for the report to show: one step back, no more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from analyses.papers.base import Setting, Verdict
from analyses.papers.ledger import Claim
from prooflens.errors import OutputError, ProoflensError
from prooflens.files import (
    FileTable,
    Positive,
    Text,
    Whole,
    fits,
    output_folder,
    read_json,
    read_text,
)
from prooflens.machine import environment
from prooflens.plot import save

__all__ = [
    "RESULT",
    "STOPPED",
    "THUMBNAIL",
    "WORK",
    "Result",
    "plain",
    "read_failure",
    "read_result",
    "read_results",
    "write_result",
]

RESULT, THUMBNAIL = "result.json", "thumbnail.png"
WORK, STOPPED = ".work", "stopped.txt"
_THUMBNAIL_WIDTH = 360
_FORMAT = 1


class _StoredBefore(FileTable):
    rule: Text
    rule_sha256: Text
    status: Text
    key: Text
    profile: Text
    settings: dict[str, Any] = Field({})


class _FormattedResult(FileTable):
    format: Positive


class _StoredResult(_FormattedResult):
    claim: Text
    status: Text
    words: Text
    key: Text
    rule: Text
    rule_sha256: Text
    profile: Text
    numbers: dict[str, Any]
    models: list[Text]
    seeds: list[Whole]
    options: dict[str, Any]
    seconds: float
    versions: dict[str, Text]
    figures: dict[str, Text]
    tables: list[Annotated[str, fits(r"[\w.+=-]+", "a plain name")]]
    changed: dict[str, Any] = Field({})
    before: _StoredBefore = _StoredBefore.model_construct()
    earlier: list[_StoredBefore] = Field([])


@dataclass(frozen=True)
class Result:
    """A verdict as it is stored.

    Attributes:
        claim: The claim's id.
        status: The verdict.
        words: The reason for the verdict.
        key: The one number to quote.
        numbers: The numbers that the rule looked at.
        models: The models that the claim speaks about.
        rule: The rule as it was when the claim was run.
        rule_sha256: The SHA-256 of the rule.
        profile: The profile of the ledger that was run.
        seeds: The seeds that were run.
        options: The profile's other options.
        seconds: Wall-clock time.
        versions: Package → version; threads and BLAS.
        figures: Figure name → alternative text, in order.
        tables: The names of the tables.
        changed: Options (and ``seeds``) that are not the ledger's, with the ledger's values; the
            user's own data is none of them.
        before: The verdict by another rule, or with other settings of the ledger, that was replaced
            last, with its rule and settings; empty if there is none.
        folder: The folder that it is stored in.
    """

    claim: str
    status: str
    words: str
    key: str
    numbers: Mapping[str, Any]
    models: tuple[str, ...]
    rule: str
    rule_sha256: str
    profile: str
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str]
    figures: Mapping[str, str]
    tables: tuple[str, ...]
    changed: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = field(default=Path(), compare=False)

    @property
    def verdict(self) -> str:
        """The status, marked if it was reached with other options than the ledger's."""
        return f"{self.status}, with other options" if self.changed else self.status

    @property
    def settings(self) -> dict[str, Any]:
        """The seeds and options with which the claim was run."""
        return {"seeds": list(self.seeds), **self.options}

    def is_outdated(self, claim: Claim) -> bool:
        """Return whether the ledger's rule has changed since the claim was run, or its settings for
        this profile, if it was run with these."""
        if self.rule_sha256 != claim.rule_sha256:
            return True
        listed = plain(claim.profiles.get(self.profile, {}))
        moved = any(self.settings.get(name) != value for name, value in listed.items())
        return moved and not self.changed and self.status != "not run"

    def table(self, name: str) -> pd.DataFrame:
        """One of the result's tables."""
        return pd.read_csv(self.folder / f"{name}.csv")


def write_result(
    claim: Claim, setting: Setting, verdict: Verdict, seconds: float, out: Path
) -> Result:
    """Store a verdict in ``out / claim.id`` and return it as stored.

    Raises:
        OutputError: if the folder holds something else, or the disk refuses.
    """
    place = out / claim.id
    data = {
        "format": _FORMAT,
        "claim": claim.id,
        "status": verdict.status,
        "words": verdict.words,
        "key": verdict.key,
        "numbers": plain(verdict.numbers),
        "models": list(verdict.models),
        "rule": claim.rule,
        "rule_sha256": claim.rule_sha256,
        "profile": setting.profile,
        "seeds": list(setting.seeds),
        "options": plain(setting.options),
        "changed": {} if verdict.status == "not run" else _changed_options(claim, setting),
        "seconds": round(seconds, 1),
        "versions": environment(),
        "figures": {name: drawing.alternative for name, drawing in verdict.drawings.items()},
        "tables": list(verdict.tables),
        **_before(place, claim),
    }
    with output_folder(place, overwrite=True, marker=RESULT) as draft:
        for name, table in verdict.tables.items():
            table.to_csv(draft / f"{name}.csv", index=False)
        for name, drawing in verdict.drawings.items():
            save(drawing.figure, draft / name)
        for drawing in list(verdict.drawings.values())[:1]:
            dots = _THUMBNAIL_WIDTH / drawing.figure.get_size_inches()[0]
            drawing.figure.savefig(draft / THUMBNAIL, dpi=dots)
        (draft / RESULT).write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    return read_result(place)


def _changed_options(claim: Claim, setting: Setting) -> dict[str, Any]:
    """The ledger's values of the options that the user changed."""
    table: dict[str, Any] = plain(claim.profiles.get(setting.profile, {}))
    now = {**plain(setting.options), "seeds": list(setting.seeds)}
    return {name: table[name] for name in table if now.get(name) != table[name]}


def _before(place: Path, claim: Claim) -> dict[str, Any]:
    """Return what a new result keeps of the one that it replaces: its rule, settings and verdict,
    if the ledger has changed since; otherwise what that one kept itself."""
    if not (place / RESULT).exists():
        return {}
    old = read_result(place)
    if not old.is_outdated(claim):
        return {"before": dict(old.before)} if old.before else {}
    names = ("rule", "rule_sha256", "status", "key", "profile", "settings")
    return {"before": {name: getattr(old, name) for name in names}}


def read_result(folder: Path) -> Result:
    """Read a stored verdict.

    Raises:
        OutputError: if it is not there, cannot be read or is of a newer format.
    """
    try:
        told = read_json(folder / RESULT, "result", OutputError, _FormattedResult)
        if told["format"] > _FORMAT:
            raise OutputError(f"{folder}: is of a newer format: use a newer prooflens")
        data = read_json(folder / RESULT, "result", OutputError, _StoredResult)
        del data["format"]
        for earlier in data.pop("earlier", ()):  # a list in results before 0.1.0
            data["before"] = earlier
        for name in ("models", "seeds", "tables"):
            data[name] = tuple(data[name])
        return Result(**data, folder=folder)
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{folder}: holds no result of a claim: {error}") from error


def read_results(out: Path) -> dict[str, Result]:
    """Read every stored verdict under ``out``: claim id → result."""
    found = sorted(path.parent for path in out.glob(f"*/{RESULT}"))
    return {result.claim: result for result in map(read_result, found)}


def read_failure(out: Path, claim: str) -> str:
    """The reason why the claim stopped when it was last run; empty if it did not."""
    try:
        return read_text(out / WORK / claim / STOPPED).strip()
    except ProoflensError:
        return ""


def plain(value: Any) -> Any:
    """Convert a value to numbers, lists and texts that JSON can hold; NaN and infinities become
    text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
