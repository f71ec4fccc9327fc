"""Judge the roles of installed packages as ours are judged: F1 on their cases, alarms on decoys.

    python -m analyses benchmark plugin_roles [--role NAME] [--out FILE]

Each role is looked for in the models that its package gives (:class:`probes.roles.RoleCase`), where
it is known what plays it, and in the decoys among these and among our own
(:mod:`analyses.benchmarks.cases`), where nothing does. The rule is the engine's
(:mod:`probes.roles.decision`): only what is confirmed counts. The last line is one JSON object:
role → ``f1``, ``decoy_rate``, ``cases``, ``decoys``, ``wrong``.

A good score says that the detector finds what its author planted. Whether it finds the role in
models that somebody else trained, the cases must show.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from analyses.benchmarks import cases
from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.result import write_result
from analyses.benchmarks.scoring import Claim, Outcome, score
from prooflens.errors import ArgumentError
from prooflens.roles import ROLES, find_roles
from prooflens.tasks import Batch

__all__ = ["main", "score_role"]


def score_role(name: str, *, decoys: int | None = None) -> dict[str, Any]:
    """Return the F1 score of one role on its own cases, and how often it is found in decoys.

    Args:
        name: A role of an installed package, with ``cases``.
        decoys: The number of our decoys that it is also tried on; all by default.

    Raises:
        ArgumentError: for a role without cases, or without a case in which some component has it.
    """
    role = ROLES[name]
    own = list(role.cases()) if role.cases is not None else []
    if not any(case.plays for case in own):
        raise ArgumentError(f"role {name} must give cases in which something plays it: add it")
    outcomes = [_outcome(name, case.name, case.model, case.rows, set(case.plays)) for case in own]
    for subject in cases.decoys()[:decoys]:
        built, batch = subject.build()
        outcomes.append(_outcome(name, subject.name, built.model, batch, set()))
    found = score(outcomes, [name])
    return {key: found[key] for key in ("f1", "decoy_rate", "cases", "decoys", "wrong")}


def _outcome(
    role: str, name: str, model: Any, rows: Batch, plays: set[tuple[str, int, int]]
) -> Outcome:
    table = find_roles(model, rows, targets=False)
    confirmed = table[(table["role"] == role) & (table["status"] == "confirmed")]
    columns = (confirmed[name].tolist() for name in ("component", "layer", "head"))
    found: set[Claim] = {(*place, role, "") for place in zip(*columns, strict=True)}
    return Outcome(
        name=name,
        decoy=not plays,
        truth={(*place, role, "") for place in plays},
        found=found,
        unscored=set(),
        exempt=set(),
        peers=None,
    )


def main() -> None:
    """Judge the roles, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of installed packages' roles.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--role", help="One role; all that packages add by default.")
    options = parser.parse_args()
    added = [name for name in ROLES if name not in ROLES.shipped]
    asked = [name for name in added if options.role in (None, name)]
    if not asked:
        known = ", ".join(added) or "none"
        raise SystemExit(f"no such role of an installed package (there are: {known})")
    found = measure_all(score_role, asked, options.workers)
    write_result(dict(zip(asked, found, strict=True)), options.out)
