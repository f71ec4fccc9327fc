"""The ways in which a model can be run from its layers on: found and checked once a model."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from interp.hooks.capture import evaluating
from interp.run.layers import HookedLayers, Layers
from interp.run.plain import plain_layers

_CHECKED = 64
"""The most positions that replaying is checked on."""

_KNOWN: weakref.WeakKeyDictionary[Any, tuple[Any, list[Layers]]] = weakref.WeakKeyDictionary()


def runners_of(model: Any, inputs: Tensor) -> list[Layers]:
    """The ways in which a model can be run from its layers on, the quickest first; none where a
    replay does not give what the model gives.

    Args:
        model: A hooked model.
        inputs: Rows of which the first two are tried.
    """
    weights = [*model.parameters()] if hasattr(model, "parameters") else []
    watched = [name for name, point in model.hook_dict.items() if point.has_hooks()]
    mark = tuple((one.data_ptr(), one.dtype) for one in weights), tuple(watched)
    known = _KNOWN.get(model)
    if known is not None and known[0] == mark:
        return known[1]
    few, found = inputs[:2, :_CHECKED], list[Layers]()
    with evaluating(model):
        if all(hasattr(model, part) for part in ("blocks", "ln_final", "unembed")) and len(
            model.blocks
        ):
            output = model(few)
            ours = HookedLayers(model)
            plain = None
            if hasattr(model, "original_model") and not watched:  # a twin would pass them by
                plain = plain_layers(model, few, output)
            found = [one for one in (plain, ours) if one is not None and one.agrees(few, output)]
    _KNOWN[model] = mark, found
    return found
