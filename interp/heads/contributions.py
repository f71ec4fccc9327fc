"""What each head and FFN writes directly along a direction: of the output, or of a latent.

The residual stream is a sum of what the parts write (TransformerLens' ``ActivationCache`` takes it
apart), so along a direction w the stream's value y = ⟨w, stream⟩ is the sum of the parts' c.

    direct_share  Cov(c, y) / Var(y) over scored positions; the shares of all parts sum to 1, one
                  may be negative (it works against the others) or exceed 1
    direct_logit  mean of ⟨W_U[token] − mean of W_U, c⟩ for the target token, the final norm's
                  scale frozen: what the part adds to the logit of the right answer

The null pairs a part's writes of a row with another row's y (or target), with exact mean and
variance; intervals are a Poisson bootstrap over rows. Rows are seen once, a batch at a time.

A direct contribution leaves out what later parts make of it; a large share along a direction does
not show that anything reads the direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.special import ndtr
from torch import Tensor

from interp.errors import HookError, Problems
from interp.heads.ablate import head_hooks
from interp.heads.effects import components
from interp.heads.nulls import Null, others_moments
from interp.heads.reading import as_batch, scored_mask
from interp.heads.table import head_table, score_row
from interp.store import ActivationStore
from interp.store.plan import model_device

__all__ = ["Direction", "direct_contributions"]

RESAMPLES = 1000
_WEIGHTS = ("blocks", "W_U", "ln_final")
_SUMMANDS = (
    "hook_embed",
    "hook_pos_embed",
    "hook_mlp_out",
    "ln_final.hook_scale",
    "hook_resid_post",
)


@dataclass(frozen=True)
class Direction:
    """A direction of the residual stream at some place.

    Attributes:
        vector: ``[d_model]``.
        layer: The stream that enters this layer; ``n_layers`` is the one before the final norm.
        between: The stream between this layer's attention and FFN instead.
    """

    vector: Float[Tensor, "d_model"]
    layer: int
    between: bool = False


def direct_contributions(
    model: Any,
    source: Any,
    directions: Mapping[str, Direction] | None = None,
    *,
    batch: int = 16,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Direct contributions of every head, FFN and embedding.

    Args:
        model: A hooked model; its weights are needed for a store, too.
        source: A :class:`~interp.tasks.base.Batch`, inputs, or a store that holds the embedding,
            ``hook_z`` (or ``hook_result``), ``hook_mlp_out`` and, with a norm, its scale.
        directions: Name → direction, e.g. a latent's readout from
            :func:`probes.linear.direction`. None for the output: one direction for each output
            channel, or the target token's logit for token targets.
        batch: Rows at a time, at least 2.
        seed, resamples: Of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: components ``head``, ``ffn`` and ``embed`` (layer
        −1); metric ``direct_share`` or ``direct_logit``, target = the direction's name or
        ``output``.

    Raises:
        ArgumentError: for a batch of one row, or a direction of another width.
        HookError: for a model without TransformerLens' weight names, as a wrapped module is.
    """
    lacking = [name for name in _WEIGHTS if not hasattr(model, name)]
    if lacking:
        raise HookError(
            f"{type(model).__name__} has no {', '.join(lacking)}: what a head writes is told "
            "by W_O, which our models and bridges have; ablation (loss_increases) does without"
        )
    problems = Problems("direct_contributions")
    problems.need(batch >= 2, "batch", "must be at least 2", batch, "the null exchanges rows")
    for name, direction in (directions or {}).items():
        width, rule = tuple(direction.vector.shape), f"must be [{model.cfg.d_model}]"
        problems.need(width == (model.cfg.d_model,), f"direction {name}", rule, width, "reshape it")
    problems.raise_if_any()
    sums: dict[tuple[str, str], _Sums] = {}
    rng = np.random.default_rng(seed)
    for cache, targets, mask in _caches(model, source, batch):
        counts = torch.from_numpy(rng.poisson(1.0, (resamples, len(mask))).astype(np.float64))
        for key, labels, paired, sizes in _measured(model, cache, targets, mask, directions):
            if key not in sums:
                sums[key] = _Sums(labels, resamples)
            sums[key].add(paired, sizes, counts)
    return head_table(line for key, found in sums.items() for line in found.lines(*key))


class _Sums:
    """Running sums ``[part]`` of each row's product, of what other rows' would be, and of size."""

    def __init__(self, labels: Sequence[str], resamples: int) -> None:
        self.labels, count = labels, len(labels)
        self.size = torch.zeros((), dtype=torch.float64)
        self.product, self.expected, self.variance = torch.zeros(3, count, dtype=torch.float64)
        self.drawn = torch.zeros(resamples, count, dtype=torch.float64)
        self.drawn_size = torch.zeros(resamples, dtype=torch.float64)

    def add(
        self,
        paired: Float[Tensor, "row other part"],
        sizes: Float[Tensor, "row"],
        counts: Float[Tensor, "resample row"],
    ) -> None:
        product = torch.diagonal(paired, dim1=0, dim2=1).T
        mean, variance = others_moments(paired)
        self.size += sizes.sum()
        self.product += product.sum(0)
        self.expected += mean
        self.variance += variance
        self.drawn += counts @ product
        self.drawn_size += counts @ sizes

    def lines(self, metric: str, target: str) -> Iterator[dict[str, Any]]:
        tiny = torch.finfo(torch.float64).tiny
        scores, means, stds = (
            (value / self.size.clamp_min(tiny)).tolist()
            for value in (self.product, self.expected, self.variance.sqrt())
        )
        draws = (self.drawn / self.drawn_size.clamp_min(tiny)[:, None]).numpy()
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
        for index, label in enumerate(self.labels):
            mean, std = means[index], stds[index]
            p = 2 * float(ndtr(-abs(scores[index] - mean) / std)) if std > 0 else 1.0
            interval = float(low[index]) - mean, float(high[index]) - mean
            yield score_row(
                metric, scores[index], Null(mean, std, p), **_place(label), target=target,
                interval=interval,
            )  # fmt: skip


def _measured(
    model: Any,
    cache: Any,
    targets: Tensor,
    mask: Bool[Tensor, "row pos"],
    directions: Mapping[str, Direction] | None,
) -> Iterator[tuple[tuple[str, str], list[str], Tensor, Tensor]]:
    """(metric, target), names of parts, products of rows with rows, sizes of rows."""
    if directions is not None:
        for name, at in directions.items():
            labels, stack = _decomposed(model, cache, at.layer, at.between)
            yield ("direct_share", name), labels, *_shares(stack @ at.vector.to(stack), mask)
        return
    labels, stack = _decomposed(model, cache, model.cfg.n_layers, False, norm=True)
    w_u = model.W_U.detach().to(stack)
    if targets.is_floating_point():
        for channel, vector in enumerate(w_u.T):
            name = "output" if w_u.shape[1] == 1 else f"output[{channel}]"
            yield ("direct_share", name), labels, *_shares(stack @ vector, mask)
        return
    wanted = (w_u - w_u.mean(1, keepdim=True)).T[targets.long()] * mask[..., None]
    paired = torch.einsum("crtd,std->rsc", stack, wanted) / mask.sum(1).clamp_min(1)[:, None]
    yield ("direct_logit", "output"), labels, paired, torch.ones(len(mask), dtype=torch.float64)


def _decomposed(
    model: Any, cache: Any, layer: int, between: bool, *, norm: bool = False
) -> tuple[list[str], Float[Tensor, "part row pos d_model"]]:
    stack, labels = cache.get_full_resid_decomposition(
        layer=layer, mlp_input=between, expand_neurons=False, apply_ln=norm, return_labels=True
    )
    known = {f"L{part.layer}H{part.head}" for part in components(model) if part.kind == "head"}
    real = [i for i, name in enumerate(labels) if name[0] != "L" or name in known]
    return [labels[i] for i in real], stack[real].detach().double().cpu()


def _shares(
    parts: Float[Tensor, "part row pos"], mask: Bool[Tensor, "row pos"]
) -> tuple[Tensor, Tensor]:
    """Products of parts with their sum, both less their mean over scored positions."""
    scored = mask.double()
    mean = (parts * scored).sum((1, 2), keepdim=True) / scored.sum().clamp_min(1)
    parts = (parts - mean) * scored
    along = parts.sum(0)
    return torch.einsum("crt,st->rsc", parts, along), along.square().sum(1)


def _place(label: str) -> dict[str, Any]:
    if found := re.fullmatch(r"L(\d+)H(\d+)", label):
        return {"component": "head", "layer": int(found[1]), "head": int(found[2])}
    if found := re.fullmatch(r"(\d+)_mlp_out", label):
        return {"component": "ffn", "layer": int(found[1])}
    return {"component": label, "layer": -1}


def _caches(model: Any, source: Any, batch: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """A TransformerLens cache, targets and mask of each batch."""
    if isinstance(source, ActivationStore):
        for rows in source.batches(batch):
            inputs = torch.from_numpy(source.inputs(rows.rows))
            mask = torch.from_numpy(scored_mask(source, rows.rows))
            aimed = all("targets" in part.shapes for part in source.parts)
            targets = torch.from_numpy(source.targets(rows.rows)) if aimed else inputs
            yield source.cache(rows.rows, model), targets, mask
        return
    whole = as_batch(source)
    wanted = [*head_hooks(model), *(n for n in model.hook_dict if n.endswith(_SUMMANDS))]
    for start in range(0, len(whole), batch):
        some = whole[start : start + batch]
        with torch.no_grad():
            _, cache = model.run_with_cache(
                some.inputs.to(model_device(model)), names_filter=lambda name: name in wanted
            )
        yield cache, some.targets, some.mask
