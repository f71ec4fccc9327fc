"""A certificate: a file that says what was proved of which weights, and that can be checked again.

It is JSON: the model's spec and the SHA-256 of its safetensors file, the domain, what is bounded,
and for every strategy its bound, its lemmas, and what is needed to make its cover again.
``prooflens certify --check`` checks it with :mod:`probes.certify.check`, which knows no strategy.
Without prooflens, it is checked by :mod:`probes.certify.check_certificate`, a single file that is
written beside it together with the weights.

Bounds are rounded by a relative 2^-30 to the safe side, so that a check that adds in another order
agrees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from safetensors.torch import save

from interp.environment import environment
from interp.errors import CheckpointError
from interp.reading import read_json
from interp.schema import FileTable, faults
from probes.certify import check_certificate
from probes.certify.check_certificate import digest
from probes.certify.cover import Proof

FORMAT_VERSION = 1
_SAFE = 2.0**-30


@dataclass(frozen=True)
class TheoremFile:
    """What was proved of a model on a domain.

    Attributes:
        model: The model's name.
        spec: The model's sizes and options as JSON data.
        weights: The model's weights as a safetensors file.
        domain: The domain as JSON data.
        statement: The domain in words.
        kind: What is bounded: ``error`` or ``accuracy``.
        trivial: The error or accuracy of the best constant answer.
        proofs: The proofs by all strategies, the best first.
        measured: The largest error (or the accuracy) that was measured.
        measured_on: The inputs it was measured on: ``every input``, ``random inputs``, or ``inputs
            that a search found``.
        skipped: Strategy → why it was not tried.
    """

    model: str
    spec: Mapping[str, Any]
    weights: bytes = field(repr=False)
    domain: Mapping[str, Any]
    statement: str
    kind: str
    trivial: float
    proofs: tuple[Proof, ...]
    measured: float
    measured_on: str
    skipped: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the weights' file, in hexadecimal."""
        return hashlib.sha256(self.weights).hexdigest()

    @property
    def checker(self) -> bytes:
        """The source code of the Python program that checks a certificate without prooflens."""
        return Path(str(check_certificate.__file__)).read_bytes()

    @property
    def best(self) -> Proof:
        """The proof with the best bound; of equal ones the one with the fewest multiplications."""
        return self.proofs[0]

    def safe(self, proof: Proof) -> float:
        """Return the proved bound, rounded to the safe side as it is written to the certificate.

        A bound on the error is raised, one on the accuracy lowered, by a relative 2^-30. A bound of
        exactly 0 or 1 is kept.
        """
        worse = 1 + _SAFE if self.kind == "error" else 1 - _SAFE
        return proof.bound if proof.bound in (0.0, 1.0) else proof.bound * worse

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON data, with its digest; numbers that are not finite become
        None."""
        written = [asdict(p) | {"bound": self.safe(p)} for p in self.proofs]
        found = {
            "format": {"name": "prooflens-certificate", "version": FORMAT_VERSION},
            "prooflens": environment()["prooflens"],
            "model": {"name": self.model, "sha256": self.sha256, "spec": dict(self.spec)},
            "domain": dict(self.domain),
            "statement": self.statement,
            "kind": self.kind,
            "trivial": self.trivial,
            "measured": self.measured,
            "measured_on": self.measured_on,
            "strategies": written,
            "skipped": dict(self.skipped),
        }
        finite = dict(_finite(found))
        return finite | {"digest": digest(finite)}

    def result(self) -> dict[str, Any]:
        """Return the numbers as JSON data: those of the best strategy, and a list of all."""

        def row(proof: Proof) -> dict[str, Any]:
            return {
                "kind": self.kind,
                "bound": self.safe(proof),
                "measured": self.measured,
                "strategy": proof.strategy,
                "multiplications": proof.multiplications,
                "seconds": round(proof.seconds, 4),
                "cells": proof.cells,
                "arithmetic": proof.arithmetic,
                "vacuous": proof.vacuous,
                "parts": proof.parts,
            }

        found = row(self.best) | {
            "measured_on": self.measured_on,
            "domain": self.statement,
            "strategies": [row(p) for p in self.proofs],
            "skipped": dict(self.skipped),
        }
        return dict(_finite(found))


def weights_of(model: Any) -> bytes:
    """Return a model's weights as the bytes of the file that ``save_checkpoint`` writes."""
    return save({name: weight.contiguous().cpu() for name, weight in model.state_dict().items()})


def sha256_of(model: Any) -> str:
    """Return the SHA-256 of the file that ``save_checkpoint`` writes for a model's weights."""
    return hashlib.sha256(weights_of(model)).hexdigest()


class _CertifiedModel(FileTable):
    name: str


class _CertificateFile(FileTable):
    model: _CertifiedModel
    domain: dict[str, Any]
    strategies: list[dict[str, Any]]
    kind: str
    statement: str


def read_certificate(file: str | Path) -> dict[str, Any]:
    """Read a certificate from its file, as JSON data.

    Raises:
        CheckpointError: if the file cannot be read, or is of another format or of a newer version.
    """
    data = read_json(file, "certificate", CheckpointError)
    form = data.get("format") if isinstance(data, dict) else None
    if not isinstance(form, dict) or form.get("name") != "prooflens-certificate":
        raise CheckpointError(f"{file} is no certificate of 'prooflens certify'")
    if not isinstance(form.get("version"), int) or form["version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {form.get('version')}, this prooflens reads up to "
            f"{FORMAT_VERSION}: upgrade prooflens"
        )
    if wrong := faults(_CertificateFile, data, "it"):
        raise CheckpointError(f"{file} is damaged: {'; '.join(wrong)}")
    return data


def _finite(value: Any) -> Any:
    """Return JSON data in which numbers that are infinite or NaN are None."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
