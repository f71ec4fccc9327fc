"""Heads with known language-model roles, by construction: induction and its relatives."""

from interp.proofs.induction.catalogue import CASES, DECOYS, TUNED, TUNED_DECOYS
from interp.proofs.induction.relation import Wiring, construct_relation

__all__ = ["CASES", "DECOYS", "TUNED", "TUNED_DECOYS", "Wiring", "construct_relation"]
