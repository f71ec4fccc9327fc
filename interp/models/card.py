"""What is known about a loaded model besides its weights: ``model.card``.

A model is handed around as itself, so that everything which takes a model takes it from any door;
what only some ask for (the task it learned, its tokenizer, which numbers it reached) stands on the
card. A field that nothing says is empty; it is never guessed. What a card says was read beside the
weights and not checked against them: run the model on rows of ``task`` to see what it reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelCard"]


@dataclass(frozen=True)
class ModelCard:
    """What is known about a model.

    Attributes:
        name: As it was asked for.
        family: ``prooflens`` for ours, otherwise the ``model_type`` of its configuration.
        task: What it was trained on; None where nothing says.
        test: Another task that ``metrics`` are of, such as longer rows; None for ``task`` itself.
        metrics: What it reaches on fresh rows, by name.
        about: What it is, in words.
        claim: The id of the claim it serves, or empty.
        tokenizer: From text to ids; None where there is none.
        vocabulary: Token ids are below this; 0 for a model of real values.
        n_ctx: The longest row it takes.
        bos: Id of the token that a row begins with; −1 where nothing names one.
        notes: What a reader of results should know.
    """

    name: str
    family: str = "prooflens"
    task: Any = None
    test: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    about: str = ""
    claim: str = ""
    tokenizer: Any = None
    vocabulary: int = 0
    n_ctx: int = 0
    bos: int = -1
    notes: tuple[str, ...] = ()
