"""A language model whose heads are known: with its truth, and as anybody's would be loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prooflens.architectures import Pretrained, SequenceTransformer, export_gpt2, load_pretrained
from prooflens.tasks import Batch

__all__ = ["Built", "Claim", "LanguageSubject", "load_back"]

Claim = tuple[str, int, int, str, str]
"""A role of a component: component, layer, head, role, target."""


@dataclass(frozen=True)
class Built:
    """A language model whose heads' roles are known.

    Attributes:
        model: A model of our own, which will be exported in GPT-2's format, or one of
            transformers'.
        truth: The roles that its heads have.
        exempt: Roles that count neither as right nor as wrong if they are found.
        bos: The token that begins its rows; −1 for none.
    """

    model: Any
    truth: frozenset[Claim]
    exempt: frozenset[Claim]
    bos: int


@dataclass(frozen=True)
class LanguageSubject:
    """A language model to be measured, with the way it is measured.

    Attributes:
        name: A description of the model.
        make: A function that builds or trains it.
        seed: Seed of the rows and of the nulls.
        decoy: Whether it is a decoy, in which no role should be found.
        needed: For some decoys the role that one head seems to have: the loss depends on this head,
            but not through the role. Empty otherwise.
        rows: A function that draws rows of the model's own; these are used beside random ones.
    """

    name: str
    make: Callable[[], Built]
    seed: int
    decoy: bool = False
    needed: str = ""
    rows: Callable[[], Batch] | None = None


def load_back(built: Built, name: str) -> Pretrained:
    """Export a model to a folder, in GPT-2's format or its own, and return it as it is loaded from
    there."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        if isinstance(built.model, SequenceTransformer):
            export_gpt2(built.model, place, bos=built.bos)
        else:
            built.model.save_pretrained(place)
        return replace(load_pretrained(place), name=name)
