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
"""What is claimed of a component: component, layer, head, role, target."""


@dataclass(frozen=True)
class Built:
    """A model, with what is known about its heads.

    Attributes:
        model: One of ours, which will be exported in GPT-2's format; or one of transformers'.
        truth: Which head plays which role.
        exempt: Roles that a head may be found to have or not.
        bos: The token that begins its rows; −1 for none.
    """

    model: Any
    truth: frozenset[Claim]
    exempt: frozenset[Claim]
    bos: int


@dataclass(frozen=True)
class LanguageSubject:
    """A language model, and how it is measured.

    Attributes:
        name: A description of the model.
        make: A function that builds or trains it.
        seed: Seed of the rows and of the nulls.
        decoy: Whether it is a decoy, in which nothing is to be found.
        needed: The role that a head of a decoy is necessary, and not specific, for.
        rows: What draws rows of the model's own, beside the random ones.
    """

    name: str
    make: Callable[[], Built]
    seed: int
    decoy: bool = False
    needed: str = ""
    rows: Callable[[], Batch] | None = None


def load_back(built: Built, name: str) -> Pretrained:
    """The model as it is when loaded back from its folder: GPT-2's format, or its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        if isinstance(built.model, SequenceTransformer):
            export_gpt2(built.model, place, bos=built.bos)
        else:
            built.model.save_pretrained(place)
        return replace(load_pretrained(place), name=name)
