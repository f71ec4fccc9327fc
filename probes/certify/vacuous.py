"""Whether a certificate that says nothing is right to: it may have been made to say nothing.

Its strategies are bounded again as if they claimed something. A bound is vacuous if it is no better
than the best constant answer, as it is written and as it is found. Of a black box over inputs that
the checker enumerates only what is written is looked at: it proves less than enumeration does.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from probes.certify.check import Verdict, check

_ENUMERATED = ("strings", "templates", "rows")


def check_vacuous(certificate: dict[str, Any], model: Any, sha256: str) -> list[Verdict]:
    """Every strategy bounded again on ``model``; those hold that say nothing then, too.

    Raises:
        CheckpointError: if the file lacks something, or what it says makes no sense.
    """
    error, trivial = certificate["kind"] == "error", float(certificate["trivial"])
    proofs = [
        proof | {"vacuous": "", "bound": inf if proof.get("bound") is None else proof["bound"]}
        for proof in certificate["strategies"]
    ]
    verdicts = check(certificate | {"strategies": proofs}, model, sha256)
    if len(verdicts) < len(proofs) or not all(verdict.holds for verdict in verdicts):
        return verdicts
    listed = certificate["domain"]["kind"] in _ENUMERATED
    found = []
    for proof, verdict in zip(proofs, verdicts, strict=True):
        box = listed and proof["data"]["cover"] == "boxes"
        bounds = [verdict.claimed, *([] if box else [verdict.found])]
        if any(bound < trivial if error else bound > trivial for bound in bounds):
            note = f"told as vacuous with {verdict.claimed:.9g}, it is {verdict.found:.9g} where a "
            note += f"constant answer reaches {trivial:.9g}"
            verdict = replace(verdict, holds=False, note=note)
        found.append(verdict)
    return found
