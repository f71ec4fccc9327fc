"""What LayerNorms cost: the decisions that are left when their scales are frozen.

A LayerNorm divides by a number that depends on everything in the stream, so that what follows is no
sum of sources. Frozen, its scale is one number for all positions (then it can be folded into the
weights), or one for each current token. The gain that is left says how much of what the model
decides needs the norm's own scale; programs are fitted to the decisions and need neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.rasp.evaluation import NONE
from interp.run import Array, Replace, Site
from probes.decompile.decisions import TokenTable, activations, decided, outputs_of
from probes.decompile.rows import Rows

__all__ = ["Frozen", "frozen_norms"]


@dataclass(frozen=True)
class Frozen:
    """Gain that is left with frozen norms; NaN where the model has none.

    Attributes:
        folded: With one scale for each norm.
        per_token: With one for each norm and current token.
    """

    folded: float
    per_token: float


def frozen_norms(model: Any, fit: Rows, judged: Rows, table: TokenTable) -> Frozen:
    """Freeze all norms at once, with means over some rows, and judge the decisions on others."""
    sites = [
        Site(at, f"{n}.hook_scale") for at in range(model.cfg.n_layers) for n in ("ln1", "ln2")
    ]
    sites = [s for s in (*sites, Site.of("ln_final.hook_scale")) if s.name in model.hook_dict]
    if not sites:
        return Frozen(float("nan"), float("nan"))
    cache = activations(model, fit, sites)
    truth = decided(outputs_of(model, judged), judged)

    def gain(by_token: bool) -> float:
        scales = {site: _mean(cache[site], fit, judged, by_token) for site in sites}
        edits = [Replace(site, Array(scale, "a frozen scale")) for site, scale in scales.items()]
        found = decided(outputs_of(model, judged, *edits), judged)
        return table.fidelity(judged, truth, found).or_match

    return Frozen(gain(False), gain(True))


def _mean(scale: Tensor, fit: Rows, judged: Rows, by_token: bool) -> Tensor:
    """``[row, pos, 1]`` for the judged rows: the mean over the others, of its token if asked."""
    values = scale[..., 0].double().numpy()
    there = fit.tokens != NONE
    found = np.full(judged.tokens.shape, values[there].mean())
    if by_token:
        for code in np.unique(fit.tokens[there]):
            found[judged.tokens == code] = values[fit.tokens == code].mean()
    return torch.from_numpy(found)[..., None]
