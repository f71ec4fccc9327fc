"""The outputs of a model when a receiver alone sees a sender replaced, sender by sender."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from interp.interventions.components import Component
from interp.interventions.patching import Receiver, paths_to
from interp.interventions.replacement import outputs_with


def path_patched(
    model: Any,
    inputs: Tensor,
    receiver: Receiver,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    reference: Tensor | None = None,
    seed: int = 0,
    tokens: int = 1024,
) -> Iterator[tuple[Component, Tensor]]:
    paths = paths_to(model, inputs, receiver, parts, how, reference, seed, tokens)
    return zip(paths, outputs_with(model, inputs, [*paths.values()], tokens), strict=True)
