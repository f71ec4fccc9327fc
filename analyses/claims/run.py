"""Running claims one after another, each result kept as soon as it is there.

A claim that fails with an error does not stop the others: it is told at the end, and nothing of it
is kept but its working folder. With ``resume``, a claim whose result has the same rule, profile,
seeds and options is not run again, and one that was interrupted goes on in its working folder.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyses.claims.base import Setting, Verdict
from analyses.claims.ledger import PROFILES, Claim
from analyses.claims.results import RESULT, Result, plain, read_result, write_result
from interp.errors import Problems, ProoflensError

__all__ = ["Failure", "Order", "run_claims"]

_WORK = ".work"


@dataclass(frozen=True)
class Order:
    """How claims are to be run.

    Attributes:
        profile: Of the ledger.
        seeds: How many of the profile's seeds; None for all. More than it lists continue upwards.
        resume: Keep what is there.
        backend: ``local`` or ``ray``.
        device: Where to compute.
        options: Given by the user, in place of the profile's (a text file, a model's folder …).
        progress: Show bars.
    """

    profile: str = "quick"
    seeds: int | None = None
    resume: bool = False
    backend: str = "local"
    device: str = "cpu"
    options: tuple[tuple[str, Any], ...] = ()
    progress: bool = False

    def __post_init__(self) -> None:
        problems = Problems("claims run")
        rule = f"must be one of {', '.join(PROFILES)}"
        problems.need(self.profile in PROFILES, "--profile", rule, self.profile, "choose one")
        good = self.seeds is None or self.seeds >= 1
        problems.need(good, "--seeds", "must be at least 1", self.seeds, "raise it")
        good = self.backend in ("local", "ray")
        problems.need(good, "--backend", "must be local or ray", self.backend, "choose one")
        problems.raise_if_any()

    def setting(self, claim: Claim, folder: Path) -> Setting:
        """What the claim's function is given."""
        table = dict(claim.profiles.get(self.profile, {})) | dict(self.options)
        listed = [int(seed) for seed in table.pop("seeds", [])]
        wanted = len(listed) if self.seeds is None else self.seeds
        after = range(max(listed, default=-1) + 1, max(listed, default=-1) + 1 + wanted)
        seeds = tuple([*listed, *after][:wanted])
        return Setting(
            self.profile, seeds, table, folder,
            self.resume, self.device, self.backend, self.progress,
        )  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A claim that stopped with an error."""

    claim: str
    words: str


def run_claims(
    claims: Sequence[Claim],
    out: Path,
    order: Order,
    *,
    told: Callable[[Claim, Result | Failure, bool], None],
) -> tuple[list[Result], list[Failure]]:
    """Run ``claims`` and keep their results under ``out``.

    Args:
        claims: Which, in this order.
        out: Folder of the results.
        order: How.
        told: Called with each claim, what came of it, and whether it was there already.

    Returns:
        The results and the failures.

    Raises:
        ArgumentError: before any work, if a claim's function does not exist.
    """
    functions = {claim.id: claim.function for claim in claims}
    results: list[Result] = []
    failures: list[Failure] = []
    for claim in claims:
        setting = order.setting(claim, out / _WORK / claim.id)
        kept = _kept(claim, setting, out) if order.resume else None
        came: Result | Failure
        try:
            came = kept or _run(claim, functions[claim.id], setting, out)
        except ProoflensError as error:
            came = Failure(claim.id, str(error))
        if isinstance(came, Failure):
            failures.append(came)
        else:
            results.append(came)
        told(claim, came, kept is not None)
    return results, failures


def _kept(claim: Claim, setting: Setting, out: Path) -> Result | None:
    """The result of the same rule and setting, if it is there."""
    if not (out / claim.id / RESULT).exists():
        return None
    old = read_result(out / claim.id)
    same = (old.rule_sha256, old.profile, old.seeds, dict(old.options)) == (
        claim.rule_sha256,
        setting.profile,
        setting.seeds,
        plain(setting.options),
    )
    return old if same else None


def _run(
    claim: Claim, function: Callable[[Setting], Verdict], setting: Setting, out: Path
) -> Result:
    if not setting.resume:
        shutil.rmtree(setting.folder, ignore_errors=True)
    setting.folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    if setting.profile in claim.profiles:
        verdict = function(setting)
    else:
        verdict = Verdict("not run", _unanswered(setting.profile))
    result = write_result(claim, setting, verdict, time.perf_counter() - started, out)
    shutil.rmtree(setting.folder, ignore_errors=True)
    return result


def _unanswered(profile: str) -> str:
    if profile == "zoo":
        return "The shipped models alone cannot answer this claim: it trains models of its own."
    return f"There is no {profile} profile of this claim."
