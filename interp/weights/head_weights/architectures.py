"""Architectures that installed packages add, by the ``model_type`` in a ``config.json``.

    [project.entry-points."prooflens.models"]
    toy = "package.module:TOY"          # TOY = Architecture(load=…, mapping=…)

``mapping`` tells where the heads' weights lie (:mod:`interp.weights.head_weights.mapping`), which
is all that ``prooflens weights`` needs; ``load`` builds a model with hooks, which everything else
needs. A package says for itself that both describe the same model: what is checked here is that
hooks agree with one another (:mod:`interp.hooks.conformance`), as for any model.
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
        load: The folder with ``config.json`` and the weights → a hooked model of tokens, as
            ``pl.wrap`` makes one; None where weights alone can be read.
        mapping: The contents of ``config.json`` → a mapping to the heads' weights; None where they
            cannot be read.
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
