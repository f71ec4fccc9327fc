"""The effect of giving components the values they have on other inputs, one table row each.

    patch        each component gets the values that it has on paired, corrupted inputs, and the
                 rest of the model responds
    patch_paths  one receiver alone sees a sender's replaced value, and everything between the two
                 stays as it was

Both give the increase of the loss on the batch, with its null and interval, as
:func:`interp.interventions.ablation_effects.ablate` does. Pair the rows so that they differ
in one thing: only then does an effect say what the component carries. An effect shows that the
model uses the component or path on these rows; none may mean that another makes up for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablation_effects import ablate, effect_table, row_losses
from interp.interventions.components import Component
from interp.interventions.paths import Receiver, path_patched
from interp.tasks.base import Batch

__all__ = ["patch", "patch_paths"]


def patch(
    model: HookedModel,
    batch: Batch,
    corrupted: Tensor,
    parts: Sequence[Component] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """The loss on a batch when each component is given what it writes on corrupted inputs.

    Args:
        model: Any hooked model; a wrapped module takes one forward pass a component.
        batch: Rows with targets.
        corrupted: Inputs of the same shape: row i of them is the pair of row i of the batch.
        parts: The components to patch; every head, FFN and layer by default.
        options: ``rows``, ``seed`` and ``tokens`` of
            :func:`interp.interventions.ablation_effects.ablate`.

    Returns:
        A head table, one row a component: ``score`` is the mean increase of the loss, with
        ``low`` and ``high``.

    Raises:
        ArgumentError: for inputs of another shape, components that the model does not have, and a
            loss that is not finite.
        HookError: for a wrapped module without a component's hooks.
    """
    return ablate(model, batch, parts, how="swap", corrupted=corrupted, **options)


@torch.no_grad()
def patch_paths(
    model: HookedModel,
    batch: Batch,
    receiver: Receiver,
    parts: Sequence[Component] | None = None,
    *,
    how: str = "mean",
    corrupted: Tensor | None = None,
    seed: int = 0,
    tokens: int = 1024,
) -> pd.DataFrame:
    """The loss on a batch when one receiver alone sees each sender's replaced value.

    Args:
        model: Ours, or a ``TransformerBridge``; a wrapped module cannot be run from its middle on.
        batch: Rows with targets.
        receiver: Where the path ends: a head's query, key or value input, an FFN's input, or the
            final norm.
        parts: The senders; every head, FFN and layer in front of the receiver by default.
        how: The replacement: ``mean`` over rows, ``zero``, ``resample`` (another row's value), or
            ``swap`` (what it is on ``corrupted``).
        corrupted: Inputs that ``swap`` takes its values from, paired row by row with the batch.
        seed: Seed of the resampled rows and of the intervals.
        tokens: At most this many positions per forward pass (at least one row); it bounds the
            memory.

    Returns:
        A table as from :func:`patch`, with one row per sender; ``site`` names the receiver.

    Raises:
        ArgumentError: for senders that are not in front of the receiver, a receiver that the model
            does not have, or ``swap`` without corrupted inputs.
        HookError: for a wrapped module.
    """
    problems = Problems("patch_paths")
    good = (how == "swap") == (corrupted is not None)
    rule = "goes with how='swap', and swap with it"
    shown = None if corrupted is None else f"inputs with how={how!r}"
    problems.need(good, "corrupted", rule, shown, "give both")
    problems.raise_if_any()
    with evaluating(model):
        clean = row_losses(model.run_with_hooks(batch.inputs), batch)
        found: dict[Component, np.ndarray] = {
            sender: (row_losses(output, batch) - clean).numpy()
            for sender, output in path_patched(
                model,
                batch.inputs,
                receiver,
                parts,
                how=how,
                reference=corrupted,
                seed=seed,
                tokens=tokens,
            )
        }
    return effect_table(found, batch, how, seed, site=receiver.site)
