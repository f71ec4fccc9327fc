"""What every part of the final residual stream adds to the target token's logit.

The residual stream is a sum of what the parts write
(:mod:`interp.attribution.residual_decomposition`). With c what a part writes and R the unembedding
with the final norm's gain (:mod:`interp.attribution.unembedding`), whose scale is held,

    score_r   mean over the scored positions t of row r of ⟨R[token_rt], c_rt / scale_rt⟩, less
              the mean logit; the table has the mean over rows
    null      the same with the targets of another row s of its block: rows are cut into blocks of
              about 16 that follow each other, whatever batches they come in; mean and variance
              over random pairings within blocks are exact

With ``offset``, the norm's bias and b_U, which no part writes, the scores of all parts sum to the
logit. Targets of other rows are known before their activations, so that a row's writes are paired
with its block's targets at once and no activation is kept. Intervals are a Poisson bootstrap over
rows. Nothing depends on how rows are cut into batches; memory does not grow with rows. Rows in
which nothing is scored are left out.

A direct contribution leaves out what later parts make of it. Along a direction of one's own, what
the parts write is :func:`~interp.attribution.residual_decomposition.residual_decomposition` times
that direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attribution.residual_decomposition import (
    OUTPUT,
    Ids,
    ResidualDecomposition,
    decomposed,
)
from interp.attribution.unembedding import logit_offset, off_by, tolerance, uncapped, unembedding
from interp.errors import HookError, Problems
from interp.hooks.site import Site
from interp.stats.bootstrap import RESAMPLES, RowCounts, RowMeans
from interp.stats.head_table import head_table, score_row
from interp.stats.nulls import others_moments
from interp.stats.p_values import Null

_BLOCK = 16
_LOOKED_AT = 8
"""About as many places of a batch whose logits are computed from the stream again."""
_ROUNDING = 1e-24
"""Variances below this share of the sum of squares are float64 rounding and count as zero."""


class TargetLogits:
    """Running means of what every part adds to the target token's logit.

    Args:
        rows: Rows whose targets are tokens.
        counts: The bootstrap's row counts.

    Raises:
        HookError: if the rows lack an activation that is needed.
    """

    def __init__(self, rows: ResidualDecomposition, counts: RowCounts) -> None:
        self._rows, self._counts = rows, counts
        model = rows.model
        self._readout, self._offset = unembedding(model).double().cpu(), logit_offset(model).cpu()
        self._labels: list[str] = []
        self._block: list[Tensor] = []
        self._sums: RowMeans | None = None
        rows.need(model.cfg.n_layers, scale=True)
        self._need_logits(rows.sample())

    def add(self, group: Ids, start: int, stop: int) -> None:
        """Add some rows of a group; the products of an unfinished block are kept until it is
        complete."""
        cache = self._rows.cache(group[start:stop])
        self._labels, stack = self._rows.parts(cache, self._rows.model.cfg.n_layers)
        stack = stack / self._rows.scale(cache)
        self._need_logits(cache)
        for low, high in _blocks(len(group), start, stop):
            first, last = max(low, start), min(high, stop)
            if first < last:
                written = stack[:, first - start : last - start]
                self._block.append(self._paired(written, group[low:high]))
            if first < last == high:
                self._close(torch.cat(self._block))
                self._block = []

    def results(self) -> Iterator[tuple[str, float, Null, tuple[float, float]]]:
        """Label, score, null and the effect's interval of each part, the offset last. The p of the
        null is two-sided."""
        if self._sums is None:
            return
        scores, (low, high) = self._sums.scores().tolist(), self._sums.intervals().tolist()
        for i, label in enumerate((*self._labels, "offset")):
            null = self._sums.null((i,), "targets", "two-sided")
            yield label, scores[i], null, (low[i], high[i])

    def _need_logits(self, cache: Any) -> None:
        """Refuse a model whose logits are not the readout of its last stream, plus the offset;
        looked at on some places of the rows that were run.

        Raises:
            HookError: with how far off they are.
        """
        last = Site(self._rows.model.cfg.n_layers - 1, "resid_post").name
        if cache is None or OUTPUT not in cache.cache_dict or last not in cache.cache_dict:
            return
        places = slice(None, None, max(1, cache[last][..., 0].numel() // _LOOKED_AT))
        stream, output = (
            values.flatten(0, 1)[places].detach().cpu() for values in (cache[last], cache[OUTPUT])
        )
        scale = self._rows.scale(cache).flatten(0, 1)[places]
        if not bool(stream.isfinite().all()):  # named by part elsewhere
            return
        true = uncapped(self._rows.model, output)
        found = (stream.double() / scale) @ self._readout + self._offset
        off = off_by(found, true - true.mean(-1, keepdim=True))
        if off > tolerance(output.dtype):
            raise HookError(
                f"what {type(self._rows.model).__name__} reads from its last stream is off by "
                f"{off:.2g} of its logits: its unembedding does something that is not known here; "
                "ablate instead"
            )

    def _paired(
        self, written: Float[Tensor, "part row pos d_model"], block: Ids
    ) -> Float[Tensor, "row id score"]:
        """What the writes of some rows, and the offset, add to the targets of a block's rows."""
        targets, mask = self._rows.aims(block)
        targets = _known_tokens(targets, mask, len(self._offset))
        share = mask.double() / mask.sum(1, keepdim=True)
        wanted = self._readout.T[targets] * share[..., None]
        paired = torch.einsum("crtd,std->rsc", written, wanted)
        constant = (self._offset[targets] * share).sum(1).expand(len(paired), -1)
        return torch.cat((paired, constant[..., None]), dim=2)

    def _close(self, paired: Float[Tensor, "row row part"]) -> None:
        """Add a block of rows, each of which has been paired with every other."""
        if self._sums is None:
            self._sums = RowMeans((paired.shape[2],), self._counts.resamples)
        rows, own = len(paired), torch.diagonal(paired, dim1=0, dim2=1).T
        mean = own
        if rows > 1:  # a row's writes with others' targets, and others' with its own
            mean = ((paired.sum(0) + paired.sum(1)) / 2 - own) / (rows - 1)
        variance = others_moments(paired)[1]
        rounding = _ROUNDING * paired.square().sum((0, 1))
        variance = variance.where(variance > rounding, 0.0)
        one = torch.ones(rows, 1, dtype=torch.float64)
        self._sums.add(own, one, self._counts.draw(rows), mean, variance)


def _blocks(rows: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The blocks of rows from start to stop; blocks have about the same size, and never a single
    row."""
    count = max(1, round(rows / _BLOCK))
    for block in range(start * count // rows, count):
        low, high = rows * block // count, rows * (block + 1) // count
        if low >= stop:
            return
        yield low, high


def _known_tokens(targets: Tensor, mask: Tensor, vocabulary: int) -> Tensor:
    """The targets as token ids; where nothing is scored the id is arbitrary."""
    targets = targets.long().where(mask, 0)
    problems = Problems("direct_logit_attribution")
    low, high = int(targets.min()), int(targets.max())
    rule = f"must be tokens from 0 to {vocabulary - 1}, which the unembedding has"
    advice = "give a Batch with targets of the model's output"
    problems.need(low >= 0 and high < vocabulary, "targets", rule, (low, high), advice)
    problems.raise_if_any()
    return targets


_WEIGHTS = ("blocks", "W_U", "ln_final")


def direct_logit_attribution(
    model: Any,
    source: Any,
    *,
    batch: int = 16,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """The direct contributions of every head, FFN and embedding to the target token's logit.

    Args:
        model: A hooked model; its weights are needed for a store, too.
        source: A :class:`~interp.tasks.base.Batch` with tokens as targets, inputs, or a store that
            holds the embedding, ``hook_z`` (or ``hook_result``) of all heads, ``hook_mlp_out`` and,
            with a norm, its scale.
        batch: How many rows are run at a time.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: components ``head``, ``ffn`` and, with layer −1,
        ``embed``, ``pos_embed``, ``bias`` (what output biases add to the stream) and ``offset``;
        metric ``direct_logit``, target ``output``; p is two-sided.

    Raises:
        ArgumentError: for fewer than two rows in which something is scored, targets that are no
            tokens, a model without a residual stream, or activations that are not finite.
        HookError: for a model without TransformerLens' weight names, as a wrapped module is; for a
            store that lacks a hook.
    """
    rows = _checked(model, source, batch)
    found = TargetLogits(rows, RowCounts(seed, resamples))
    for group in rows.groups:
        for start in range(0, len(group), batch):
            found.add(group, start, min(start + batch, len(group)))
    return head_table(
        score_row("direct_logit", score, null, **_place(label), target="output", interval=interval)
        for label, score, null, interval in found.results()
    )


def _checked(model: Any, source: Any, batch: int) -> ResidualDecomposition:
    lacking = [name for name in _WEIGHTS if not hasattr(model, name)]
    if lacking:
        raise HookError(
            f"{type(model).__name__} has no {', '.join(lacking)}: what a head writes is told "
            "by W_O, which our models and bridges have; ablation (ablate) does without"
        )
    problems = Problems("direct_logit_attribution")
    problems.need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    adds = getattr(getattr(model, "spec", None), "residual", True)
    advice = "nothing adds up where a block replaces the stream; ablate instead"
    problems.need(adds, "model", "must have a residual stream", "residual=False", advice)
    problems.raise_if_any()
    rows = decomposed(model, source)
    scored, advice = sum(map(len, rows.groups)), "the null and the interval compare rows"
    rule = "must have at least 2 rows in which something is scored"
    problems.need(scored >= 2, "source", rule, scored, advice)
    advice = "ablate, or take residual_decomposition along the output's direction"
    problems.need(not rows.real, "targets", "must be tokens", "real numbers", advice)
    problems.raise_if_any()
    return rows


def _place(label: str) -> dict[str, Any]:
    if found := re.fullmatch(r"L(\d+)H(\d+)", label):
        return {"component": "head", "layer": int(found[1]), "head": int(found[2])}
    if found := re.fullmatch(r"(\d+)_mlp_out", label):
        return {"component": "ffn", "layer": int(found[1])}
    return {"component": label, "layer": -1}
