"""What is known about a loaded model besides its weights: ``model.card``.

A loaded model is handed around as a plain model, so that every function which takes a model takes
it however it was loaded. What only some functions ask for (its task, tokenizer, metrics) is on the
card. A field that nothing says is empty; it is never guessed. What a card says was read beside the
weights and not checked against them: run the model on rows of ``task`` to see what it reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """What is known about a model.

    Attributes:
        name: The name under which it was loaded.
        family: ``prooflens`` for ours, otherwise the ``model_type`` of its configuration.
        task: What it was trained on; None where nothing says.
        test: The task that ``metrics`` were measured on, such as longer rows; None if it is
            ``task``.
        metrics: What it reaches on fresh rows: metric name → value.
        about: A description in words.
        claim: The id of the claim it serves, or empty.
        tokenizer: Its tokenizer; None where there is none.
        vocabulary: Number of token ids; 0 for a model of real-valued inputs.
        n_ctx: Length of the longest row it takes, in positions.
        bos: Id of the token that a row begins with; −1 where nothing names one.
        notes: What a reader of results should know.
        analysed: One line that says what is run: class, number format, tied or not, norm, scales,
            and what was left out.
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
