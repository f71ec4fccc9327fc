"""Language-model head roles by construction: induction and its relatives (SCIENCE §5)."""

from interp.proofs.induction.catalogue import CASES, DECOYS
from interp.proofs.induction.relation import Wiring, construct_relation

__all__ = ["CASES", "DECOYS", "Wiring", "construct_relation"]
