"""The ledger of claims: each with its source and the rule for its verdict.

``analyses/papers/claims.toml`` holds one table a claim. The rule is text for people; what ties a
verdict to it is its SHA-256, stored with the result. ``refuted_by`` names the outcome that would
speak against the claim itself: a rule that nothing could fail tests nothing. A rule or a setting
may be changed after a look at results, with the reason written first and judged on fresh seeds: the
one before, its settings and what they said stay as the claim's ``before``, which the report shows;
those before that are in the repository's history.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from analyses.papers.base import Setting, Status, Verdict
from prooflens.errors import ArgumentError, Problems
from prooflens.files import FileTable, check_shape, fits, rule_error

__all__ = ["PAPERS", "PROFILES", "Before", "Claim", "read_ledger", "select_claims"]

PAPERS = ("memory", "template", "depth", "coupling", "decompile", "training")
PROFILES = ("zoo", "quick", "full")

_WORDS = ("paper", "source", "statement", "rule", "refuted_by", "run")
_BEFORE = ("rule", "profile", "status", "key", "reason")
_Words = Annotated[str, fits(r"(?s:.*\S.*)", "given as text")]


class _LedgerBefore(FileTable, extra="forbid"):
    rule: _Words
    profile: Literal["zoo", "quick", "full"]
    status: Status
    key: _Words
    reason: _Words
    settings: Annotated[dict[str, Any], Field(min_length=1)]


class _SeededProfile(FileTable, extra="allow"):
    seeds: Annotated[list[int], Field(min_length=1)]


class _ZooProfile(FileTable, extra="allow"):
    models: Annotated[list[str], Field(min_length=1)]


class _LedgerEntry(FileTable, extra="forbid"):
    paper: Literal["memory", "template", "depth", "coupling", "decompile", "training"]
    source: _Words
    statement: _Words
    rule: _Words
    refuted_by: _Words
    run: Annotated[str, fits(r"[a-z_][\w.]*:[a-z_]\w*", "module:function")]
    zoo: _ZooProfile | None = None
    quick: _SeededProfile | None = None
    full: _SeededProfile | None = None
    yours: list[str] = Field([])
    seconds: dict[Literal["zoo", "quick", "full"], Annotated[float, Field(gt=0)]] = Field({})
    before: _LedgerBefore | None = None
    fragile: _Words = "nothing was seen"

    @model_validator(mode="after")
    def _has_profiles(self) -> _LedgerEntry:
        found = {profile for profile in PROFILES if getattr(self, profile) is not None}
        if not found:
            raise rule_error("must have a profile")
        if set(self.seconds) - found:
            raise rule_error("must give seconds for profiles that it has alone")
        return self


@dataclass(frozen=True)
class Before:
    """A claim's rule and settings before they were changed, with the verdict that they gave.

    Attributes:
        rule: The rule as it was.
        profile: The profile that was run.
        status: The status of the verdict.
        key: The number that was quoted.
        settings: The profile's seeds and options as they were.
        reason: Why the rule or the settings were changed; written before the next run.
    """

    rule: str
    profile: str
    status: str
    key: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def settings_text(self) -> str:
        """The settings as text."""
        return json.dumps(dict(self.settings), ensure_ascii=False)[1:-1]


@dataclass(frozen=True)
class Claim:
    """One claim of the ledger.

    Attributes:
        id: The claim's id, ``paper-slug``.
        paper: The paper's key, one of :data:`PAPERS`.
        source: The place in the paper where it is stated.
        statement: The statement that is claimed.
        rule: The rule that decides the verdict.
        refuted_by: The outcome that would have spoken against the claim itself.
        run: The function that runs it, as ``module:function``.
        profiles: Profile → its options; one that is missing cannot answer the claim.
        yours: Options that no profile gives: the user's text, model or images.
        seconds: Profile → about how long it takes on two cores, by which claims are ordered.
        before: The rule and settings before the last change, if there was one.
        fragile: Why rounding alone may move the verdict, with what was seen; empty if nothing was.
    """

    id: str
    paper: str
    source: str
    statement: str
    rule: str
    refuted_by: str
    run: str
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    yours: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    before: Before | None = None
    fragile: str = ""

    @property
    def options(self) -> set[str]:
        """All options that the claim knows in any profile."""
        return {name for table in self.profiles.values() for name in table} | set(self.yours)

    def examples(self, option: str) -> list[Any]:
        """The values that the claim's profiles give to an option."""
        return [table[option] for table in self.profiles.values() if option in table]

    @property
    def rule_sha256(self) -> str:
        """The SHA-256 of the rule's text, in which line breaks do not matter."""
        return hashlib.sha256(" ".join(self.rule.split()).encode()).hexdigest()

    @property
    def function(self) -> Callable[[Setting], Verdict]:
        """Import the function that runs the claim.

        Raises:
            ArgumentError: if the module or the function does not exist.
        """
        module, _, name = self.run.partition(":")
        try:
            function: Callable[[Setting], Verdict] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ArgumentError(f"claim {self.id}: run = {self.run!r}: {error}") from error
        return function

    @property
    def check(self) -> Callable[[Setting], None]:
        """Return the function that refuses unsuitable options before any work is done: ``check`` of
        the claim's module, if it has one."""
        module = importlib.import_module(self.run.partition(":")[0])
        found: Callable[[Setting], None] = getattr(module, "check", lambda setting: None)
        return found


def read_ledger(path: Path | None = None) -> dict[str, Claim]:
    """Read all claims: id → claim, in the file's order.

    Args:
        path: A ledger file other than the shipped one.

    Raises:
        ArgumentError: naming everything in it that is unknown, missing or of the wrong kind.
    """
    source = path if path is not None else files("analyses.papers") / "claims.toml"
    try:
        tables = tomllib.loads(source.read_text()).get("claims", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"ledger {source} cannot be read: {error}") from error
    problems = Problems(f"ledger {source}")
    for name, entry in tables.items():
        check_shape(_LedgerEntry, entry, problems, name)
        start = f"{entry.get('paper')}-" if isinstance(entry, dict) else ""
        problems.need(name.startswith(start), name, f"must start with {start}", name, "rename it")
    problems.raise_if_any()
    return {
        name: Claim(
            name,
            **{word: " ".join(table[word].split()) for word in _WORDS},
            profiles={profile: table[profile] for profile in PROFILES if profile in table},
            yours=tuple(table.get("yours", ())),
            seconds=table.get("seconds", {}),
            before=_before(table["before"]) if "before" in table else None,
            fragile=" ".join(table.get("fragile", "").split()),
        )
        for name, table in tables.items()
    }


def _before(table: Mapping[str, Any]) -> Before:
    words = {word: " ".join(table[word].split()) for word in _BEFORE}
    return Before(**words, settings=table["settings"])


def select_claims(
    ledger: Mapping[str, Claim], ids: Iterable[str], papers: Iterable[str], every: bool
) -> list[Claim]:
    """Return the claims that the user asked for, in the ledger's order.

    Raises:
        ArgumentError: naming every id and paper that does not exist, or if nothing is asked for.
    """
    ids, papers = list(ids), list(papers)
    problems = Problems("claims")
    for name in ids:
        known = name in ledger
        problems.need(
            known, "ID", "must be in the ledger", name, "see 'python -m analyses claims list'"
        )
    for paper in papers:
        rule = f"must be one of {', '.join(PAPERS)}"
        problems.need(paper in PAPERS, "--paper", rule, paper, "choose one")
    one = bool(ids) + bool(papers) + every == 1
    problems.need(one, "claims", "must be named in one way", None, "give IDs, --paper or --all")
    problems.raise_if_any()
    return [c for c in ledger.values() if every or c.id in ids or c.paper in papers]
