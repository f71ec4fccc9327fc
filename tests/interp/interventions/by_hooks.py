"""Ablation the slow way, as an oracle: one forward pass from the start, hooks replaced."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interp.interventions.components import Component, hook_of


@torch.no_grad()
def mean_outputs(model: Any, inputs: Tensor, parts: Sequence[Component]) -> dict[str, Tensor]:
    """Hook → mean over rows of what is there."""
    hooks = sorted({hook_of(model, part) for part in parts})
    _, cache = model.run_with_cache(inputs, names_filter=hooks)
    return {hook: cache[hook].mean(dim=0) for hook in hooks}


@torch.no_grad()
def run_without(
    model: Any, inputs: Tensor, parts: Sequence[Component], means: Mapping[str, Tensor]
) -> Tensor:
    """The output with parts replaced by their means."""
    places = [(hook_of(model, part), part) for part in parts]
    edits = [
        (place, partial(replace_part, part=part, instead=means[place])) for place, part in places
    ]
    return model.run_with_hooks(inputs, fwd_hooks=edits)


def replace_part(value: Tensor, hook: Any, part: Component, instead: Tensor) -> Tensor:
    """The value of a hook with the component's part of it replaced."""
    instead = instead.expand_as(value)
    if part.kind in ("ffn", "layer"):
        return instead
    value = value.clone()
    if part.kind == "head":
        value[:, :, part.head] = instead[:, :, part.head]
    else:
        value[:, part.position] = instead[:, part.position]
    return value
