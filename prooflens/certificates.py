"""Proved bounds: domains, strategies, and the check of a certificate."""

from interp.bounds.passed_on import not_orderless
from interp.bounds.three_paths import rank_one_tables, tables_of
from probes.certify.certificate import TheoremFile, sha256_of
from probes.certify.check import check
from probes.certify.cover import Proof
from probes.certify.domains.base import Domain
from probes.certify.domains.reals import Addressed, Averages
from probes.certify.domains.signs import Signs
from probes.certify.domains.strings import Strings
from probes.certify.domains.templates import Templates
from probes.certify.maximum import brute_force, by_cubes, caps_of
from probes.certify.run import certify, domain_of
from probes.certify.search import worst_error, wrong_rows

__all__ = [
    "Addressed",
    "Averages",
    "Domain",
    "Proof",
    "Signs",
    "Strings",
    "Templates",
    "TheoremFile",
    "brute_force",
    "by_cubes",
    "caps_of",
    "certify",
    "check",
    "domain_of",
    "not_orderless",
    "rank_one_tables",
    "sha256_of",
    "tables_of",
    "worst_error",
    "wrong_rows",
]
