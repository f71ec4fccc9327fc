"""Figures of how training changes heads: circuits before and after, and the learned scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from analyses.figures.nngp import before_and_after, scalars_per_head
from analyses.papers.base import Drawing
from analyses.papers.experiment import Planned
from analyses.papers.template.diagonals import effective_circuits
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.trained import Fit

__all__ = ["circuit_drawing", "scalar_drawing"]

_SHOWN = 32


def circuit_drawing(
    planned: Sequence[Planned], fits: Sequence[Fit], kind: str, first: int
) -> Drawing:
    """The effective QK or OV circuit on symbols at the start and at the end of training.

    For every model the first run of its largest size is shown, in it the head of the last layer
    with the strongest diagonal after training.

    Args:
        planned, fits: The runs and their trained models.
        kind: ``QK`` or ``OV``.
        first: The first symbol that is shown.
    """
    symbols = slice(first, first + _SHOWN)
    order = sorted(range(len(fits)), key=lambda i: -_spec(planned[i]).d_model)
    shown: dict[str, int] = {}
    for i in order:
        shown.setdefault(str(planned[i][0]["model"]), i)
    pairs = {}
    for name, i in sorted(shown.items(), key=lambda item: item[1]):
        start = SequenceTransformer(_spec(planned[i]), seed=planned[i][1].training.seed)
        before, after = (_circuits(model, kind, symbols) for model in (start, fits[i].model))
        head = int(np.abs(after.trace(axis1=1, axis2=2)).argmax())
        pairs[name] = (before[head], after[head])
    figure = before_and_after(pairs, basis=f"symbol ({kind} circuit with its scalar)")
    return Drawing(figure, f"{kind} circuits on symbols, at the start and at the end of training.")


def scalar_drawing(planned: Sequence[Planned], fits: Sequence[Fit], scalar: str) -> Drawing:
    """Draw the learned a or b of every head, multiplied as it acts, with a colour for each model
    and size."""
    learned = []
    for (labels, run), fit in zip(planned, fits, strict=True):
        spec = cast("TransformerSpec", run.spec)
        if not (spec.identity_qk if scalar == "a" else spec.identity_ov):
            continue
        size = f"width {labels['width']}" if "width" in labels else f"seed {labels['seed']}"
        for layer, block in enumerate(fit.model.blocks):
            term = block.attn
            values = term.terms["identity"].a * spec.identity_multiplier if scalar == "a" else None
            values = term.effective_b if values is None else values
            learned += [
                {"scalar": scalar, "model": size, "layer": layer, "head": head, "value": value}
                for head, value in enumerate(values.tolist())
            ]
    seen = f"The learned scalar {scalar} of every head, a dot a run."
    return Drawing(scalars_per_head(pd.DataFrame(learned)), seen)


def _spec(planned: Planned) -> TransformerSpec:
    return cast("TransformerSpec", planned[1].spec)


def _circuits(model: Any, kind: str, symbols: slice) -> np.ndarray:
    """Return the last layer's circuits of a kind, with the identity scalar if there is one."""
    found = effective_circuits(model, model.spec.n_layers - 1, symbols=symbols)
    effective = f"{kind}+{'aI' if kind == 'QK' else 'bI'}"
    return found.get(effective, found[kind]).detach().numpy()
