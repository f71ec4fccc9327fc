"""A head score: how much of a head's attention stays on the query itself."""

from __future__ import annotations

from typing import Any

import torch

import prooflens as pl


def own_share(model: Any, rows: pl.Batch) -> torch.Tensor:
    """The share of attention on the query's own position: ``[layer, head]``."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    _, cache = model.run_with_cache(rows.inputs, names_filter=names)
    own = [torch.diagonal(cache[name], dim1=-2, dim2=-1) for name in names]
    return torch.stack([share.mean((0, 2)) for share in own])
