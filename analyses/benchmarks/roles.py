"""How well roles are found where they are known, for each profile, and whether the doors agree.

    python -m analyses benchmark roles [--out FILE.json] [--workers N] [--tune] [--only WORD]
                                        [--profile task|language|trained|all] [--doors]

*Task*: every construction, as it was written and hidden (rotated basis, permuted heads and
neurons), on rows of its task (:mod:`analyses.benchmarks.cases`). Components whose job is none of
the roles (fixed positions, snaps, kernels of Task III, the FFNs of compiled formulas) are not
scored, nor FFNs that write a template's source for the next layer: few templates make it linear in
what the heads bring, so that the FFN's input decodes it already, which is not §5's readout.
``memory-correction``, which is ours, counts as ``memory-location``, since mechanisms do not tell
them apart; the head of a coupling counts as ``dense``: it attends in no way that has a name.

*Language*: models in GPT-2's format with LayerNorm, loaded from their folders and tried on random
tokens (:mod:`analyses.benchmarks.language`, :mod:`analyses.benchmarks.by_content`,
:mod:`analyses.benchmarks.composed`).

*Trained* (``--profile trained``): trained models, judged against exchange, see
:mod:`analyses.benchmarks.trained_roles`.

*Doors* (``--doors``, and with ``--profile all``): the same models through every door, see
:mod:`analyses.benchmarks.doors`.

JSON keys: ``f1`` (micro), ``min_role_f1`` (a role with fewer than five positives counts 0),
``decoy_rate`` (share of decoy models with any confirmed role), ``needed`` and ``needed_named``
(decoys whose head is needed for everything, and the share of them called *necessary, not
specific*), ``cases`` (models with a mechanism),
``roles`` (positives, precision, recall, F1 of each), ``confusion`` (what true components were
confirmed as), ``detect_head`` (TransformerLens' on the same models, for its three roles, at the
threshold 0.4), ``wrong`` (every miss and false alarm), ``seconds`` and ``slowest``: all of the task
profile. ``language`` holds the same keys for the language profile; ``doors`` is the number of pairs
of a model and a door, ``doors_agree`` the share of them that agree, ``doors_differ`` what does not.

``--tune`` runs the cases that rules and floors were tuned on instead: other tasks, sizes, seeds and
rows than the scored ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses.benchmarks import by_content, cases, composed, language
from analyses.benchmarks.cases import Subject
from analyses.benchmarks.doors import measure_doors
from analyses.benchmarks.known import LanguageSubject, load_back
from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.result import write_result
from analyses.benchmarks.scoring import LANGUAGE_ROLES, PEERS, ROLES, Claim, Outcome, score
from analyses.benchmarks.trained_models import SCORED
from analyses.benchmarks.trained_roles import trained_block
from prooflens.errors import Problems
from prooflens.proofs import Construction
from prooflens.roles import LANGUAGE, find_roles, rows_of, token_trials
from prooflens.tasks import answers_of, memories_of, role_variables

__all__ = ["main", "measure", "measure_language", "truth_of"]

_PEER_THRESHOLD = 0.4
_SAME = {
    "memory-correction": "memory-location",
    "coupling": "dense",
}
"""Role in a mechanism → the role that counts as the same in scoring."""

_BY_RULE = ("fixed-position", "token-comparison", "positional-periodic", "bos-gated")
"""Roles whose target is a rule in words. Mechanisms do not name it, so that it is not compared."""


def truth_of(construction: Construction) -> tuple[set[Claim], set[tuple[str, int, int]]]:
    """Return the true roles in a mechanism, and the components whose job is none of the roles."""
    claims: set[Claim] = set()
    unscored: set[tuple[str, int, int]] = set()
    for part in construction.mechanism.parts:
        where = (part.component, part.layer, -1 if part.head is None else part.head)
        role = _SAME.get(part.role, part.role)
        if role not in ROLES or (role, part.target) == ("readout", "source"):
            unscored.add(where)
            continue
        target = part.target if role in ("memory-location", "readout") else ""
        claims.add((*where, role, target))
        if part.round is not None and role == "memory-location":
            claims.add(("layer", part.layer, -1, "nested-round", part.target))
    return claims, unscored


def measure(subject: Subject) -> Outcome:
    """Find the roles of one task model."""
    torch.set_num_threads(1)
    construction, batch = subject.build()
    truth, unscored = truth_of(construction)
    start = time.perf_counter()
    roles = find_roles(
        construction.model,
        batch,
        memories=memories_of(construction.task),
        answers=answers_of(construction.task),
        sought=[latent for latent in role_variables(construction.task) if latent.role in ROLES],
        targets=False,
        seed=subject.seed,
    )
    found = _claims(roles)
    peers = _peers(construction, batch.inputs) if subject.peer else None
    return Outcome(
        name=subject.name,
        decoy=subject.decoy,
        truth=truth,
        found=found,
        unscored=unscored,
        exempt=set(),
        peers=peers,
        seconds=time.perf_counter() - start,
    )


def measure_language(subject: LanguageSubject) -> Outcome:
    """Find the roles of one language model."""
    torch.set_num_threads(1)
    built = subject.make()
    model = load_back(built, subject.name)
    start = time.perf_counter()
    trials, _ = token_trials(model, seed=subject.seed)
    rows = rows_of(trials) | ({} if subject.rows is None else {"rows": subject.rows()})
    roles = find_roles(model.model, rows, profile=LANGUAGE, seed=subject.seed)
    return Outcome(
        name=subject.name,
        decoy=subject.decoy,
        truth=set(built.truth),
        found=_claims(roles),
        unscored=set(),
        exempt=set(built.exempt),
        peers=None,
        named=_is_named(roles, built.exempt, subject.needed) if subject.needed else None,
        seconds=time.perf_counter() - start,
    )


def _is_named(roles: pd.DataFrame, exempt: Set[Claim], role: str) -> bool:
    """Return whether the one head that is needed for everything has the status ``necessary, not
    specific`` for the role."""
    mine = roles[(roles["component"] == "head") & (roles["role"] == role)]
    mine = mine[[("head", r.layer, r.head, role, "") not in exempt for r in mine.itertuples()]]
    return mine["status"].tolist() == ["necessary, not specific"]


def _claims(roles: pd.DataFrame) -> set[Claim]:
    """Return the confirmed roles of single components. Rows of groups are left out: their members
    have rows of their own."""
    sure = roles[(roles["status"] == "confirmed") & (roles["component"] != "group")]
    return {_claim(row) for row in sure.itertuples()}


def _claim(row: Any) -> Claim:
    target = "" if row.role in _BY_RULE else row.target
    return row.component, int(row.layer), int(row.head), _SAME.get(row.role, row.role), target


def _peers(construction: Construction, inputs: torch.Tensor) -> set[Claim]:
    """The roles that TransformerLens' detector finds on one row that repeats."""
    from prooflens.hooks import detect_head
    from prooflens.roles import repeated_rows

    repeated = repeated_rows(inputs)
    if repeated is None:
        return set()
    row = repeated[:1, : construction.model.cfg.n_ctx - 1]  # it asks for less than the context
    found: set[Claim] = set()
    for role, name in PEERS.items():
        scores = detect_head(construction.model, row, name)
        for layer, head in (scores >= _PEER_THRESHOLD).nonzero().tolist():
            found.add(("head", layer, head, role, ""))
    return found


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of role detection.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--only", default="", help="Models whose name has this in it.")
    parser.add_argument("--profile", choices=("task", "language", "trained", "all"), default="all")
    parser.add_argument("--folder", type=Path, help="Where trained models are kept.")
    parser.add_argument("--seeds", type=int, default=5, help="Trained models a family.")
    parser.add_argument("--doors", action="store_true", help="Compare the doors.")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.profile in ("task", "all"):
        found |= _score_profile((cases,), measure, ROLES, options)
    if options.profile in ("language", "all"):
        models = (language, by_content, composed)
        found["language"] = _score_profile(models, measure_language, LANGUAGE_ROLES, options)
    if options.profile == "trained":
        found["trained"] = _score_trained(options)
    if options.doors or (options.profile == "all" and not options.tune):
        found |= measure_doors(options.workers, options.only)
    write_result(found, options.out)


def _score_trained(options: argparse.Namespace) -> dict[str, Any]:
    problems = Problems("roles")
    rule = "must say where trained models are kept"
    problems.need(options.folder is not None, "--folder", rule, options.folder, "give one")
    good, rule = 1 <= options.seeds <= len(SCORED), f"must be from 1 to {len(SCORED)}"
    problems.need(good, "--seeds", rule, options.seeds, "give a number of models")
    problems.raise_if_any()
    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = {"seeds": options.seeds, "tuning": options.tune, "only": options.only}
    return trained_block(options.folder, workers=options.workers, **chosen)


def _score_profile(
    sources: Sequence[Any],
    one: Callable[[Any], Outcome],
    roles: Sequence[str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure the models of one profile and score how well their roles were found."""
    start = time.perf_counter()
    tried = [of(tuning=options.tune) for some in sources for of in (some.subjects, some.decoys)]
    chosen = [subject for some in tried for subject in some if options.only in subject.name]
    outcomes = list(measure_all(one, chosen, options.workers))
    slowest = sorted(((found["seconds"], found["name"]) for found in outcomes), reverse=True)[:10]
    result = score(outcomes, roles) | {"seconds": time.perf_counter() - start, "slowest": slowest}
    _say(result)
    return result


def _say(result: Mapping[str, Any]) -> None:
    """Print the scores of a profile, one line per role, as soon as they are known."""
    taken, decoys = result["decoy_rate"] * result["decoys"], result["decoys"]
    sys.stdout.write(
        f"F1 {result['f1']:.3f}, least of a role {result['min_role_f1']:.3f}, {taken:.0f} of "
        f"{decoys} decoys taken for something\n"
    )
    for role, row in result["roles"].items():
        sys.stdout.write(
            f"{role:<16} {row['positives']:4d} positives, precision {row['precision']:.2f}, "
            f"recall {row['recall']:.2f}, F1 {row['f1']:.2f}\n"
        )
    sys.stdout.write("".join(f"{line}\n" for line in result["wrong"]))
    sys.stdout.flush()
