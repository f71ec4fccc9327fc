"""The papers' constructive proofs, built as models with known mechanisms and error bounds."""

from interp.proofs import catalogue, coupling, induction, template
from interp.proofs.catalogue import cases, construct, constructions, has_proof
from interp.proofs.coupling import construct_pod, input_bound, mean_square_bound, sigma_tail
from interp.proofs.depth.compiler import (
    Precision,
    compile_program,
    token_ids,
    vocabulary_of,
)
from interp.proofs.induction import construct_relation
from interp.proofs.lagfits import (
    DIGITS,
    LEAST_SLOPE,
    Positions,
    basis,
    fit_lag,
    grid,
    phi_values,
    tail,
)
from interp.proofs.mechanism import Case, Certificate, Construction, Mechanism, Part
from interp.proofs.memory import (
    construct_adaptive_memory,
    construct_fixed_memory,
    construct_gated_memory,
    construct_kernel_memory,
)
from interp.proofs.random_basis import random_basis
from interp.proofs.template import construct_template, one_layer_suffices

__all__ = [
    "DIGITS",
    "LEAST_SLOPE",
    "Case",
    "Certificate",
    "Construction",
    "Mechanism",
    "Part",
    "Positions",
    "Precision",
    "basis",
    "cases",
    "catalogue",
    "compile_program",
    "construct",
    "construct_adaptive_memory",
    "construct_fixed_memory",
    "construct_gated_memory",
    "construct_kernel_memory",
    "construct_pod",
    "construct_relation",
    "construct_template",
    "constructions",
    "coupling",
    "fit_lag",
    "grid",
    "has_proof",
    "induction",
    "input_bound",
    "mean_square_bound",
    "one_layer_suffices",
    "phi_values",
    "random_basis",
    "sigma_tail",
    "tail",
    "template",
    "token_ids",
    "vocabulary_of",
]
