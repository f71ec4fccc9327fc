"""How well roles are found where they are known: every construction, hidden, and decoys.

    python -m analyses.benchmarks.roles [--out FILE.json] [--workers N] [--tune] [--only WORD]

Each construction is measured as it was written and hidden (rotated basis, permuted heads and
neurons). A detector gets the model, rows of inputs with where they are scored, and, where a role
speaks of latents, those. A pair (component, role, target) is a true positive when it is confirmed
and the mechanism says so; only confirmed roles count. Components whose job is none of these
(fixed positions, snaps, kernels of Task III, the FFNs of compiled formulas) are not scored, nor
FFNs that write a template's source for the next layer: few templates make it linear in what the
heads bring, so that the FFN's input decodes it already, which is not §5's readout.
``memory-correction``, which is ours, counts as ``memory-location``, since mechanisms do not tell
them apart; the head of a coupling counts as ``dense``: it attends in no way that has a name.

JSON keys: ``f1`` (micro), ``min_role_f1`` (a role with fewer than five positives counts 0),
``decoy_rate`` (share of decoy models with any confirmed role), ``cases`` (models with a mechanism),
``roles`` (positives, precision, recall, F1 of each), ``confusion`` (what true components were
confirmed as), ``detect_head`` (TransformerLens' on the same models, for its three roles, at the
threshold 0.4), ``wrong`` (every miss and false alarm), ``seconds`` and ``slowest``.

``--tune`` runs the cases that rules and floors were tuned on instead: other tasks, sizes, seeds and
rows than the scored ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses.benchmarks.cases import Case, cases, decoys
from analyses.benchmarks.pool import measured
from analyses.benchmarks.result import write_result
from interp.proofs.mechanism import Construction
from probes.roles import answers_of, find_roles, memories_of

__all__ = ["ROLES", "Outcome", "main", "measure", "score"]

ROLES = (
    "memory-location", "readout", "nested-round", "symbol-equality", "copying", "previous-token",
    "duplicate-token", "induction", "sink", "counter", "local", "dense",
)  # fmt: skip
_ATTENDING = ("previous-token", "sink", "local", "dense")
"""Roles that say where a head looks whatever the tokens are."""
_FEWEST = 5
_PEERS = {
    "previous-token": "previous_token_head",
    "duplicate-token": "duplicate_token_head",
    "induction": "induction_head",
}
_PEER_THRESHOLD = 0.4
_SAME = {
    "memory-correction": "memory-location",
    "coupling": "dense",
}
"""Roles of ours, and what they count as."""

Claim = tuple[str, int, int, str, str]
"""Component, layer, head, role, target."""


class Outcome(dict[str, Any]):
    """What was found in one model: ``name``, ``truth``, ``found``, ``unscored``, ``peers``."""


def truth_of(construction: Construction) -> tuple[set[Claim], set[tuple[str, int, int]]]:
    """What a mechanism says, and the components whose job is none of ours."""
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


def measure(case: Case) -> Outcome:
    """Find the roles of one case."""
    torch.set_num_threads(1)
    construction, batch = case.build()
    truth, unscored = truth_of(construction)
    start = time.perf_counter()
    roles = find_roles(
        construction.model,
        batch,
        memories=memories_of(construction.task),
        answers=answers_of(construction.task),
        targets=False,
        seed=case.seed,
    )
    found = {_claim(row) for row in roles[roles["status"] == "confirmed"].itertuples()}
    peers = _peers(construction, batch.inputs) if case.peer else None
    return Outcome(
        name=case.name, decoy=case.decoy, truth=truth, found=found, unscored=unscored, peers=peers,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def _claim(row: Any) -> Claim:
    return row.component, int(row.layer), int(row.head), _SAME.get(row.role, row.role), row.target


def _peers(construction: Construction, inputs: torch.Tensor) -> set[Claim]:
    """What TransformerLens' detector says of one row that repeats."""
    from interp.lens import detect_head
    from probes.roles.attention import repeated_rows

    repeated = repeated_rows(inputs)
    if repeated is None:
        return set()
    row = repeated[:1, : construction.model.cfg.n_ctx - 1]  # it asks for less than the context
    found: set[Claim] = set()
    for role, name in _PEERS.items():
        scores = detect_head(construction.model, row, name)
        for layer, head in (scores >= _PEER_THRESHOLD).nonzero().tolist():
            found.add(("head", layer, head, role, ""))
    return found


def score(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Precision, recall and F1 over cases, and what decoys were taken for."""
    real = [o for o in outcomes if not o["decoy"]]
    fakes = [o for o in outcomes if o["decoy"]]
    hits, alarms, misses = Counter[str](), Counter[str](), Counter[str]()
    wrong = []
    for one in real:
        found = _scored(one)
        hits.update(c[3] for c in found & one["truth"])
        alarms.update(c[3] for c in found - one["truth"])
        misses.update(c[3] for c in one["truth"] - found)
        wrong += [f"{one['name']}: false {c}" for c in sorted(found - one["truth"])]
        wrong += [f"{one['name']}: missed {c}" for c in sorted(one["truth"] - found)]
    wrong += [f"{o['name']}: decoy {c}" for o in fakes for c in sorted(o["found"])]
    roles = {role: _rates(hits[role], alarms[role], misses[role]) for role in ROLES}
    known = [r["f1"] if r["positives"] >= _FEWEST else 0.0 for r in roles.values()]
    return {
        "f1": _rates(hits.total(), alarms.total(), misses.total())["f1"],
        "min_role_f1": min(known),
        "decoy_rate": sum(bool(o["found"]) for o in fakes) / max(len(fakes), 1),
        "cases": len(real),
        "decoys": len(fakes),
        "roles": roles,
        "confusion": _confusion(real).to_dict(),
        "detect_head": _peer_rates(real),
        "wrong": wrong,
    }


def _scored(one: Outcome) -> set[Claim]:
    """What was confirmed, less what a mechanism is silent about: components with a job of another
    kind, and how a head attends of which it says only that it copies."""
    told: dict[tuple[str, int, int], set[str]] = {}
    for claim in one["truth"]:
        told.setdefault(claim[:3], set()).add(claim[3])
    return {
        claim
        for claim in one["found"]
        if claim[:3] not in one["unscored"]
        and not (claim[3] in _ATTENDING and told.get(claim[:3]) == {"copying"})
    }


def _rates(hits: int, alarms: int, misses: int) -> dict[str, float]:
    return {
        "positives": hits + misses,
        "precision": hits / (hits + alarms) if hits + alarms else 0.0,
        "recall": hits / (hits + misses) if hits + misses else 0.0,
        "f1": 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else 0.0,
    }


def _confusion(real: Sequence[Outcome]) -> pd.DataFrame:
    """True role (rows as columns of the JSON) → how often its component was confirmed as what."""
    pairs = Counter[tuple[str, str]]()
    for one in real:
        for claim in one["truth"]:
            taken = {c[3] for c in one["found"] if c[:3] == claim[:3]} or {"none"}
            others = taken - {c[3] for c in one["truth"] if c[:3] == claim[:3]}
            said = {claim[3]} if claim in one["found"] else others or {"none"}
            pairs.update((claim[3], role) for role in said)
    table = pd.DataFrame(0, index=[*ROLES, "none"], columns=list(ROLES))
    for (true, confirmed), count in pairs.items():
        table.loc[confirmed, true] = count
    return table


def _peer_rates(real: Sequence[Outcome]) -> dict[str, Any]:
    rates = {}
    for role in _PEERS:
        mine = [o for o in real if o["peers"] is not None]
        truth = [{c for c in o["truth"] if c[3] == role} for o in mine]
        found = [{c for c in o["peers"] if c[3] == role} for o in mine]
        hits = sum(len(t & f) for t, f in zip(truth, found, strict=True))
        alarms = sum(len(f - t) for t, f in zip(truth, found, strict=True))
        misses = sum(len(t - f) for t, f in zip(truth, found, strict=True))
        rates[role] = _rates(hits, alarms, misses)
    return rates


def main() -> None:
    """Measure, print the JSON and write it where asked."""
    parser = argparse.ArgumentParser(description="Benchmark of role detection.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--only", default="", help="Cases whose name has this in it.")
    options = parser.parse_args()
    start = time.perf_counter()
    chosen = [*cases(tuning=options.tune), *decoys(tuning=options.tune)]
    chosen = [case for case in chosen if options.only in case.name]
    outcomes = list(measured(measure, chosen, options.workers))
    slowest = sorted(((one["seconds"], one["name"]) for one in outcomes), reverse=True)[:10]
    found = score(outcomes) | {"seconds": time.perf_counter() - start, "slowest": slowest}
    for role, row in found["roles"].items():
        sys.stdout.write(
            f"{role:<16} {row['positives']:4d} positives, precision {row['precision']:.2f}, "
            f"recall {row['recall']:.2f}, F1 {row['f1']:.2f}\n"
        )
    write_result(found, options.out)


if __name__ == "__main__":
    main()
