"""A theorem on paper: what was proved of which weights, in a file that can be checked again.

JSON: the model's spec and SHA-256 (of its safetensors file), the domain, what is bounded, and for
every strategy its bound, lemmas and what its cover is made of. ``prooflens certify --check`` reads
it with :mod:`probes.certify.check`, which knows no strategy; whoever has no prooflens, with
:mod:`probes.certify.check_certificate`, one file that lies beside it with the weights.

Bounds are written a 2^-30th part to the safe side, so that a check which adds in another order
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
        spec: Its sizes and options as JSON data.
        weights: Its weights as a safetensors file.
        domain: The domain as JSON data.
        statement: The domain in words.
        kind: ``error`` or ``accuracy``.
        trivial: What the best constant answer reaches.
        proofs: All strategies, best first.
        measured: The worst error (or the accuracy) that was seen.
        measured_on: Where: ``every input``, or random ones.
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
        """SHA-256 of the weights."""
        return hashlib.sha256(self.weights).hexdigest()

    @property
    def checker(self) -> bytes:
        """The source code of the Python program that checks a certificate without prooflens."""
        return Path(str(check_certificate.__file__)).read_bytes()

    @property
    def best(self) -> Proof:
        """The strategy with the best bound; of equal ones the cheapest."""
        return self.proofs[0]

    def safe(self, proof: Proof) -> float:
        """The proved bound, rounded to the safe side as it is written to the certificate.

        A bound on the error is raised, one on the accuracy lowered, by a relative 2^-30. A bound of
        exactly 0 or 1 is kept.
        """
        worse = 1 + _SAFE if self.kind == "error" else 1 - _SAFE
        return proof.bound if proof.bound in (0.0, 1.0) else proof.bound * worse

    def to_dict(self) -> dict[str, Any]:
        """The theorem as JSON data with a digest of it; an infinite bound is null."""
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
        """The numbers alone: the best strategy's, and a list of all."""

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
    """The file that ``save_checkpoint`` writes for a model's weights."""
    return save({name: weight.contiguous().cpu() for name, weight in model.state_dict().items()})


def sha256_of(model: Any) -> str:
    """SHA-256 of the file that ``save_checkpoint`` writes for a model's weights."""
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
    """The JSON of a certificate.

    Raises:
        CheckpointError: if it cannot be read, is of another format, or of a newer version.
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
    """JSON data with null for numbers that are infinite or not numbers."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
