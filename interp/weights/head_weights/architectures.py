"""Architectures that installed packages add, by the ``model_type`` in a ``config.json``.

    [project.entry-points."prooflens.models"]
    toy = "package.module:TOY"          # TOY = Architecture(load=…, mapping=…)

``mapping`` says where the heads' weights are stored (:mod:`interp.weights.head_weights.mapping`);
``prooflens weights`` needs nothing else. ``load`` builds a model with hooks, which everything else
needs. The package is responsible for the two describing the same model. As for any model, it is
checked that the hooks agree with one another (:mod:`interp.hooks.conformance`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.plugins import Registry
from interp.weights.head_weights.layouts import FAMILIES


@dataclass(frozen=True)
class Architecture:
    """How models of an architecture are read.

    Attributes:
        load: A function from the folder with ``config.json`` and the weights to a hooked model of
            tokens, as ``pl.wrap`` makes one; None if only the weights can be read.
        mapping: A function from the contents of ``config.json`` to a mapping of the heads' weights;
            None if they cannot be read.
    """

    load: Callable[[Path], Any] | None = None
    mapping: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


def _problem(name: str, value: object) -> str:
    if name in FAMILIES:
        return "the name is taken"
    if isinstance(value, Architecture):
        return ""
    return f"it must be an Architecture, got {type(value).__name__}"


ARCHITECTURES: Registry[Architecture] = Registry({}, "prooflens.models", _problem)
"""``model_type`` → the architecture that an installed package adds."""
