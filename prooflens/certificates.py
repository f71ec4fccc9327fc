"""Proved bounds: domains, strategies, and the check of a certificate."""

from interp.bounds.affine import UP, Arithmetic, add, share
from interp.bounds.passed_on import not_orderless
from interp.bounds.three_paths import LEAST, Tables, queries_and_keys, tables_of
from probes.certify.certificate import TheoremFile, sha256_of
from probes.certify.check import check
from probes.certify.cover import Proof
from probes.certify.domains import Addressed, Averages, Domain, Signs, Strings, Templates
from probes.certify.maximum import (
    brute_force,
    by_cubes,
    caps_of,
    largest_others,
    rows_below,
    subsets,
)
from probes.certify.run import certify, domain_of
from probes.certify.search import worst_error

__all__ = [
    "LEAST",
    "UP",
    "Addressed",
    "Arithmetic",
    "Averages",
    "Domain",
    "Proof",
    "Signs",
    "Strings",
    "Tables",
    "Templates",
    "TheoremFile",
    "add",
    "brute_force",
    "by_cubes",
    "caps_of",
    "certify",
    "check",
    "domain_of",
    "largest_others",
    "not_orderless",
    "queries_and_keys",
    "rows_below",
    "sha256_of",
    "share",
    "subsets",
    "tables_of",
    "worst_error",
]
