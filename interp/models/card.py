"""What is known about a loaded model besides its weights: ``model.card``.

A loaded model is a plain model, so every function that takes a model takes it however it was
loaded. Properties that only some functions need (its task, tokenizer, metrics) are on the card. A
field that is not stated anywhere is empty; it is never guessed. The card's contents were read
beside the weights and not checked against them: run the model on rows of ``task`` to check its
metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """What is known about a model besides its weights.

    Attributes:
        name: The name under which it was loaded.
        family: ``prooflens`` for ours, otherwise the ``model_type`` of its configuration.
        task: The task that it was trained on; None if it is not stated.
        test: The task that ``metrics`` were measured on, such as longer rows; None if it is
            ``task``.
        metrics: Its results on fresh rows: metric name → value.
        about: A description in words.
        claim: The id of the claim that it is evidence for, or empty.
        tokenizer: Its tokenizer; None if it has none.
        vocabulary: Number of token ids; 0 for a model of real-valued inputs.
        n_ctx: Length of the longest row that it takes, in positions.
        bos: Id of the token that a row begins with; −1 if none is stated.
        notes: Sentences that a reader of results should know.
        analysed: One line that describes the model that is run: class, number format, tied or not,
            norm, scales, and what was left out.
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
    analysed: str = ""
