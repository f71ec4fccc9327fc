"""Run claims, keeping each result as soon as it is there.

One after another the cheapest is first. Several can run at once, each in a process of its own: what
a claim does between its trainings fills one core and no more. Then the longest is first, so that no
long one is left to run alone at the end.

A claim that fails with an error does not stop the others: it is told at the end, and nothing of it
is kept but its working folder, with the reason and the traceback. With ``resume``, a claim whose
result has the same rule, profile, seeds and options is not run again, and one that was interrupted
with the same seeds and options goes on in its working folder. A result by today's rule and settings
is replaced only with ``overwrite``; a verdict that was reached is not replaced by "not run".
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from analyses.papers.base import Setting, Verdict
from analyses.papers.ledger import PROFILES, Claim
from analyses.papers.results import (
    RESULT,
    STOPPED,
    WORK,
    Result,
    plain,
    read_result,
    write_result,
)
from prooflens.errors import OutputError, Problems, ProoflensError
from prooflens.files import alone, drop, need_name, replace_text
from prooflens.machine import check_device, cores, need_backend

__all__ = ["Failure", "Order", "run_claims"]

_SETTING = "setting.json"
"""Name of the file in a claim's working folder with the seeds and options of the run."""


@dataclass(frozen=True)
class Order:
    """The user's choices of how claims are run.

    Attributes:
        profile: The profile of the ledger.
        seeds: How many of the profile's seeds; None for all. More than it lists continue upwards.
        resume: Whether results that are there are kept.
        overwrite: Whether results by the same rule are replaced.
        workers: How many claims run at once.
        backend: Where models are trained, ``local`` or ``ray``.
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
        options: Given by the user, in place of the profile's (a text file, a model's folder …).
        progress: Whether to show progress bars; of several claims at once none are shown.
    """

    profile: str = "quick"
    seeds: int | None = None
    resume: bool = False
    backend: str = "local"
    device: str = "cpu"
    options: tuple[tuple[str, Any], ...] = ()
    progress: bool = False
    overwrite: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        problems = Problems("claims run")
        rule = f"must be one of {', '.join(PROFILES)}"
        problems.need(self.profile in PROFILES, "--profile", rule, self.profile, "choose one")
        good = self.seeds is None or self.seeds >= 1
        problems.need(good, "--seeds", "must be at least 1", self.seeds, "raise it")
        rule = "must be at least 1"
        problems.need(self.workers >= 1, "--workers", rule, self.workers, "raise it")
        need_backend(problems, self.backend, "--backend")
        given = dict(self.options).get("seeds", [])
        good = isinstance(given, list) and all(type(seed) is int for seed in given)
        rule = "must be a list of whole numbers"
        problems.need(good, "--option seeds", rule, given, "write [1, 2], or use --seeds")
        check_device(self.device, problems, "--device")
        problems.raise_if_any()

    def setting(self, claim: Claim, folder: Path) -> Setting:
        """The setting that the claim's function is given."""
        table = dict(claim.profiles.get(self.profile, {})) | dict(self.options)
        listed = [int(seed) for seed in table.pop("seeds", [])]
        wanted = len(listed) if self.seeds is None else self.seeds
        after = range(max(listed, default=-1) + 1, max(listed, default=-1) + 1 + wanted)
        seeds = tuple([*listed, *after][:wanted])
        return Setting(
            self.profile,
            seeds,
            table,
            folder,
            self.resume,
            self.device,
            self.backend,
            self.progress and self.workers == 1,
            None if self.workers == 1 else max(1, cores() // self.workers),
        )


@dataclass(frozen=True)
class Failure:
    """A claim that stopped with an error."""

    claim: str
    words: str


def _check_options(claims: Sequence[Claim], order: Order) -> None:
    known = set().union(*(claim.options for claim in claims))
    problems = Problems("claims run")
    for name, value in order.options:
        near = get_close_matches(name, sorted(known), 1)
        advice = f"did you mean {near[0]}?" if near else f"choose from {', '.join(sorted(known))}"
        rule = "must be an option of a claim that is run"
        problems.need(name in known, f"--option {name}", rule, value, advice)
        for claim in claims:
            examples = claim.examples(name)
            good = not examples or any(_alike(value, example) for example in examples)
            rule = f"must be like the ledger's {examples[0]!r} for {claim.id}" if examples else ""
            problems.need(good, f"--option {name}", rule, value, "write it as in TOML")
    problems.raise_if_any()


def _alike(value: Any, example: Any) -> bool:
    """Whether two values have the same type, item by item and name by name, and the second's sign
    if it has one."""
    if isinstance(example, dict):
        same = isinstance(value, dict) and value.keys() == example.keys()
        return same and all(_alike(value[name], one) for name, one in example.items())
    if isinstance(example, list):
        return (
            isinstance(value, list)
            and bool(value or not example)
            and all(any(_alike(item, one) for one in example) or not example for item in value)
        )
    kinds = (int, float) if isinstance(example, float) else (type(example),)
    if type(value) not in kinds:
        return False
    return isinstance(value, bool | str) or value >= 0 or example < 0


def _check_kept(claims: Sequence[Claim], order: Order, out: Path) -> None:
    """Refuse to run claims that have a result by today's rule and settings, unless the user asked
    to keep or to replace results.

    Raises:
        OutputError: naming the first of these claims.
    """
    if order.overwrite:
        return
    there = []
    for claim in claims:
        old = _stored_answer(claim, out)
        answers = order.profile in claim.profiles  # otherwise nothing would be replaced
        if old is None or not answers or old.is_outdated(claim):
            continue
        if not order.resume or _kept_result(claim, order.setting(claim, out), out) is None:
            there.append(f"{claim.id} ({old.profile}: {old.status})")
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise OutputError(
            f"{out} holds results already: {', '.join(there[:3])}{more}: name another --out, "
            "keep them with --resume (same profile, seeds and options), or replace them with "
            "--overwrite"
        )


def run_claims(
    claims: Sequence[Claim],
    out: Path,
    order: Order,
    *,
    told: Callable[[Claim, Result | Failure, bool], None],
) -> tuple[list[Result], list[Failure]]:
    """Run ``claims`` and store their results under ``out``.

    Args:
        claims: The claims; by the ledger's seconds the cheapest is run first, or the longest
            where several run at once.
        out: The folder for the results.
        order: How the claims are run.
        told: Called with each claim, what came of it, and whether it was there already.

    Returns:
        The results and the failures.

    Raises:
        ArgumentError: before any work, if a claim's function does not exist, no claim knows an
            option, or a claim's ``check`` refuses one.
        OutputError: likewise, if ``out`` is no folder and cannot be made, another process runs
            claims there, or it holds results by the
            same rules that are neither to be kept nor to be replaced.
    """
    claims = sorted(
        claims,
        key=lambda claim: claim.seconds.get(order.profile, 0),
        reverse=order.workers > 1,
    )
    functions = {claim.id: claim.function for claim in claims}
    _check_options(claims, order)
    for claim in (claim for claim in claims if order.profile in claim.profiles):
        claim.check(order.setting(claim, out / WORK / claim.id))
    need_name(out)
    _check_kept(claims, order, out)
    try:
        (out / WORK).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out} cannot be a folder: {error.strerror}: name another") from error
    try:
        with alone(out / WORK, "running claims in this folder", keep=False):
            return _run_all(claims, functions, out, order, told)
    finally:
        with suppress(OSError):  # of claims that stopped, or of another process
            (out / WORK).rmdir()


def _run_all(
    claims: Sequence[Claim],
    functions: Mapping[str, Callable[[Setting], Verdict]],
    out: Path,
    order: Order,
    told: Callable[[Claim, Result | Failure, bool], None],
) -> tuple[list[Result], list[Failure]]:
    results: list[Result] = []
    failures: list[Failure] = []
    todo = [
        (claim, functions[claim.id], order.setting(claim, out / WORK / claim.id), out)
        for claim in claims
    ]
    for claim, came, kept in _attempts(todo, min(order.workers, len(todo))):
        if isinstance(came, Failure):
            failures.append(came)
        else:
            results.append(came)
        told(claim, came, kept)
    return results, failures


_Job = tuple[Claim, Callable[[Setting], Verdict], Setting, Path]


def _attempts(todo: Sequence[_Job], workers: int) -> Iterable[tuple[Claim, Result | Failure, bool]]:
    """Yield each claim as soon as it is done, with its result or failure, and whether the result
    was there already."""
    if workers == 1:
        return (_attempt(*job) for job in todo)
    from joblib import Parallel, delayed

    parallel = Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1)
    found: Iterable[tuple[Claim, Result | Failure, bool]]
    found = parallel(delayed(_attempt)(*job) for job in todo)
    return found


def _attempt(
    claim: Claim, function: Callable[[Setting], Verdict], setting: Setting, out: Path
) -> tuple[Claim, Result | Failure, bool]:
    kept = False
    came: Result | Failure
    try:
        came, kept = _result(claim, function, setting, out)
    except ProoflensError as error:
        came = Failure(claim.id, str(error))
        setting.folder.mkdir(parents=True, exist_ok=True)
    except Exception as error:  # a mistake in one claim must not cost the others
        came = Failure(claim.id, _describe_error(error, setting.folder))
    if isinstance(came, Failure):
        replace_text(setting.folder / STOPPED, came.words + "\n")
    return claim, came, kept


def _result(
    claim: Claim, function: Callable[[Setting], Verdict], setting: Setting, out: Path
) -> tuple[Result, bool]:
    """Return the result of a claim, and whether it was there already. If it was not, the claim is
    run. A stored answer is not replaced by ``not run``."""
    kept = _kept_result(claim, setting, out) if setting.resume else None
    if kept is not None:
        drop(setting.folder)  # of a run that was killed after its result was written
        return kept, True
    started = time.perf_counter()
    verdict = _refusal(claim, setting) or _run(function, setting)
    seconds = time.perf_counter() - started
    old = _stored_answer(claim, out) if verdict.status == "not run" else None
    result = old or write_result(claim, setting, verdict, seconds, out)
    drop(setting.folder)
    return result, old is not None


def _run(function: Callable[[Setting], Verdict], setting: Setting) -> Verdict:
    """Run a claim in its working folder. The folder is removed first, unless the run resumes one
    with the same seeds and options."""
    file = setting.folder / _SETTING
    wanted = json.dumps(plain({"seeds": setting.seeds, "options": setting.options}), sort_keys=True)
    other = file.exists() and file.read_text("utf-8") != wanted
    if other or not setting.resume:
        drop(setting.folder)
    setting.folder.mkdir(parents=True, exist_ok=True)
    replace_text(file, wanted)
    return function(setting)


def _kept_result(claim: Claim, setting: Setting, out: Path) -> Result | None:
    """Return the stored result if it has the same rule, profile, seeds and options; else None."""
    old = _stored_answer(claim, out)
    if old is None:
        return None
    same = (old.rule_sha256, old.profile, old.seeds, dict(old.options)) == (
        claim.rule_sha256,
        setting.profile,
        setting.seeds,
        plain(setting.options),
    )
    return old if same else None


def _stored_answer(claim: Claim, out: Path) -> Result | None:
    """Return the stored result if it answers the claim, which ``not run`` does not; else None."""
    if not (out / claim.id / RESULT).exists():
        return None
    old = read_result(out / claim.id)
    return old if old.status != "not run" else None


def _refusal(claim: Claim, setting: Setting) -> Verdict | None:
    """A verdict that says why the profile cannot answer the claim, or None where it can."""
    profile = setting.profile
    if profile not in claim.profiles and profile == "zoo":
        return Verdict(
            "not run", "Not one that shipped models alone can answer: use quick or full."
        )
    if profile not in claim.profiles:
        return Verdict("not run", f"There is no {profile} profile of this claim.")
    if profile != "zoo":
        return None
    from prooflens.trained import zoo

    absent = sorted(set(setting.options.get("models", [])) - set(zoo.names()))
    words = f"These models are not shipped with this version: {', '.join(absent)}."
    return Verdict("not run", words) if absent else None


def _describe_error(error: Exception, folder: Path) -> str:
    """Describe an error in one line; its traceback is written to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "traceback.txt"
    replace_text(place, "".join(traceback.format_exception(error)))
    if isinstance(error, MemoryError):
        return f"it takes more memory than is free (see {place})"
    reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {reason} (see {place})"
