"""Check that a model can take inputs: how many positions, and which token ids.

    ids        whole numbers from 0 to the vocabulary's size − 1
    lengths    at most as many positions as the model has

This is checked before a model is run, so that unfit rows are refused with a one-line error instead
of failing inside an embedding. A model that does not say its limits is not checked.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from interp.errors import Problems, refuse_unless
from interp.hooks.transformer_lens_adapter import vocabulary_of


def need_hooks(model: Any) -> None:
    """Check that an argument is a hooked model.

    Raises:
        ArgumentError: if it is anything else, such as a model's name or a plain module.
    """
    advice = "pl.load(name) gives one, pl.wrap(module, example=inputs) makes one (docs/howto-wrap)"
    refuse_unless(hasattr(model, "hook_dict"), "model", "must have hooks", model, advice)


def need_within(problems: Problems, model: Any, inputs: Tensor) -> None:
    """Record a problem for too many positions, and one for ids that the model does not have.

    Args:
        problems: The collection that the problems are added to.
        model: The model whose limits are read.
        inputs: The inputs, ``[row, pos(, channel)]``.
    """
    if inputs.ndim < 2 or not inputs.numel():
        return
    longest = getattr(getattr(model, "cfg", None), "n_ctx", None)
    if isinstance(longest, int) and longest > 0:
        rule = f"must have at most {longest} positions, as the model"
        problems.need(
            inputs.shape[1] <= longest, "inputs", rule, inputs.shape[1], "shorten the rows"
        )
    vocabulary = vocabulary_of(model)
    if vocabulary is None or inputs.is_floating_point() or inputs.ndim != 2:
        return
    ends = int(inputs.min()), int(inputs.max())
    rule = f"must be ids from 0 to {vocabulary - 1}"
    known = ends[0] >= 0 and ends[1] < vocabulary
    problems.need(known, "inputs", rule, ends, "use the model's own tokenizer")
