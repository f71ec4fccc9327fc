"""What each head and FFN contributes directly to logits, or along a direction such as a latent's.

The residual stream is the sum of the components' outputs
(:mod:`interp.attribution.residual_decomposition`). So along a direction w the stream's value y =
⟨w, stream⟩ is the sum of the components' values c.

    direct_share  Cov(c, y) / Var(y) over all scored positions; the shares of all components sum to
                  1, one may be negative (it works against the others) or exceed 1. Its effect is
                  the covariance within positions
    direct_logit  mean over rows of the mean over scored positions of ⟨R[token], c / scale⟩ for the
                  target token: what the component adds to its logit, minus the mean logit. R is the
                  unembedding with the final norm's gain
                  (:mod:`interp.attribution.unembedding`), and the norm's scale is held fixed. With
                  ``offset``, the norm's bias and b_U, which no component writes, the scores of all
                  components sum to the logit

The null pairs a component's outputs on a row with another row's y or targets: for shares over all
rows, for logits within blocks of rows. Its mean and variance are exact. Intervals are a Poisson
bootstrap over rows. Results do not depend on how rows are split into batches, and memory does not
grow with rows. Rows in which nothing is scored are left out.

A direct contribution leaves out what later components make of it. A large share along a direction
does not show that anything reads the direction.

*Logits, and their null:*

    score_r   mean over the scored positions t of row r of ⟨R[token_rt], c_rt / scale_rt⟩
    null      the same with the targets of another row s of its block. Rows are split into
              consecutive blocks of about 16, whatever the batches; mean and variance over random
              pairings within blocks are exact

Targets of other rows are known before their activations, so a row's outputs are paired with its
block's targets at once and no activation is kept.

*Shares, and their null*, in one pass over batches of rows. Let c be a component's value and y the
stream's value, both minus their means over all scored positions, and zero at other positions. Then

    share   Σ c·y / Σ y²            over rows r and positions t: Cov(c, y) / Var(y)
    null    y of row r is that of row π(r), π a random permutation of all rows. With the position
            means c̄_t, ȳ_t over the n rows,
                mean of Σ c·y      n Σ_t c̄_t ȳ_t
                variance           Σ_{r,s} (Σ_t (c_rt − c̄_t)(y_st − ȳ_t))² / (n − 1)
    effect  share − null mean: the covariance within positions, so what depends on the position
            alone, the same in every row, does not count

All of these are functions of sums over rows of values ``[part, pos]`` and of their products
``[part, pos, pos]``, which determine the memory used. Values are measured from the means of the
first batch, so that large means cost no precision. For rows of different lengths, products are
summed over the positions that are scored in both. A bootstrap resample is centred by its own means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attribution.residual_decomposition import (
    OUTPUT,
    Ids,
    ResidualDecomposition,
    StreamPlace,
    decomposition_of,
)
from interp.attribution.unembedding import (
    logit_offset,
    off_by,
    tolerance,
    uncap_logits,
    unembedding,
)
from interp.errors import HookError, Problems
from interp.hooks.site import Site
from interp.stats.bootstrap import RESAMPLES, RowCounts, RowMeans, interval_of
from interp.stats.head_table import head_table, score_row
from interp.stats.nulls import others_moments
from interp.stats.p_values import Null, from_moments

_BLOCK = 16
_LOOKED_AT = 8
"""About how many positions of a batch are used to check that the logits can be computed from the
last residual stream. The check only has to notice a readout that is not linear."""
_ROUNDING = 1e-24
"""A variance below this share of the sum of squares counts as zero: it is no more than float64
rounding."""


class TargetLogits:
    """Running means of what every component adds to the target token's logit.

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
        rows.need([(model.cfg.n_layers, False)], scale=True)
        self._need_logits(rows.sample())

    def add(self, group: Ids, start: int, stop: int) -> None:
        """Add the rows ``group[start:stop]``; products of an unfinished block are kept until it is
        complete."""
        cache = self._rows.cache(group[start:stop])
        self._labels, stack = self._rows.parts(cache, (self._rows.model.cfg.n_layers, False))
        stack = stack / self._rows.scale(cache)
        self._need_logits(cache)
        for low, high in _blocks(len(group), start, stop):
            first, last = max(low, start), min(high, stop)
            if first < last:
                written = stack[:, first - start : last - start]
                self._block.append(self._pair_logits(written, group[low:high]))
            if first < last == high:
                self._close(torch.cat(self._block))
                self._block = []

    def results(self) -> Iterator[tuple[str, float, Null, tuple[float, float]]]:
        """Yield each component's label, score, null (two-sided p) and interval of the effect;
        offset last."""
        if self._sums is None:
            return
        scores, (low, high) = self._sums.scores().tolist(), self._sums.intervals().tolist()
        for i, label in enumerate((*self._labels, "offset")):
            null = self._sums.null((i,), "targets", "two-sided")
            yield label, scores[i], null, (low[i], high[i])

    def _need_logits(self, cache: Any) -> None:
        """Refuse a model whose logits are not the readout of its last stream, plus the offset.

        This is checked at some places of the rows that were run.

        Raises:
            HookError: with the relative error.
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
        true = uncap_logits(self._rows.model, output)
        found = (stream.double() / scale) @ self._readout + self._offset
        off = off_by(found, true - true.mean(-1, keepdim=True))
        if off > tolerance(output.dtype):
            raise HookError(
                f"what {type(self._rows.model).__name__} reads from its last stream is off by "
                f"{off:.2g} of its logits: its unembedding does something that is not known here; "
                "ablate instead"
            )

    def _pair_logits(
        self, written: Float[Tensor, "part row pos d_model"], block: Ids
    ) -> Float[Tensor, "row id score"]:
        """Return what some rows' component outputs, and the offset, add to the targets of a block's
        rows."""
        targets, mask = self._rows.aims(block)
        targets = _known_tokens(targets, mask, len(self._offset))
        share = mask.double() / mask.sum(1, keepdim=True)
        wanted = self._readout.T[targets] * share[..., None]
        paired = torch.einsum("crtd,std->rsc", written, wanted)
        constant = (self._offset[targets] * share).sum(1).expand(len(paired), -1)
        return torch.cat((paired, constant[..., None]), dim=2)

    def _close(self, paired: Float[Tensor, "row row part"]) -> None:
        """Add a complete block of rows, each of which has been paired with every other."""
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
    """Yield the blocks that overlap the rows from start to stop; blocks have about the same size,
    and never a single row."""
    count = max(1, round(rows / _BLOCK))
    for block in range(start * count // rows, count):
        low, high = rows * block // count, rows * (block + 1) // count
        if low >= stop:
            return
        yield low, high


def _known_tokens(targets: Tensor, mask: Tensor, vocabulary: int) -> Tensor:
    """Return the targets as token ids; the id is 0 where nothing is scored."""
    targets = targets.long().where(mask, 0)
    problems = Problems("direct_logit_attribution")
    low, high = int(targets.min()), int(targets.max())
    rule = f"must be tokens from 0 to {vocabulary - 1}, which the unembedding has"
    advice = "give a Batch with targets of the model's output"
    problems.need(low >= 0 and high < vocabulary, "targets", rule, (low, high), advice)
    problems.raise_if_any()
    return targets


_WEIGHTS = ("blocks", "W_U", "ln_final")

_Result = tuple[str, float, Null, tuple[float, float]]
"""A component's label, its score, its null, and the 95 % interval of its effect."""


@dataclass(frozen=True)
class Direction:
    """A direction in the residual stream at one place of the model.

    Attributes:
        vector: The direction, ``[d_model]``.
        layer: The layer whose incoming stream is read; ``n_layers`` means the stream before the
            final norm.
        between: Whether to read the stream between this layer's attention and FFN instead.
    """

    vector: Float[Tensor, " d_model"]
    layer: int
    between: bool = False


def direct_logit_attribution(
    model: Any,
    source: Any,
    directions: Mapping[str, Direction] | None = None,
    *,
    batch: int = 16,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Measure the direct contributions of every head, FFN and embedding to logits or along
    directions.

    Args:
        model: A hooked model; its weights are needed for a store, too.
        source: A :class:`~interp.tasks.base.Batch`, inputs, or a store that holds all positions and
            heads, with the embedding, ``hook_z`` (or ``hook_result``), ``hook_mlp_out`` and, if
            there is a final norm, its scale.
        directions: Name → direction, e.g. a latent's readout from :func:`probes.linear.direction`.
            None for the output: one direction for each output channel, or the target token's logit
            for token targets.
        batch: How many rows are run at a time.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: components ``head``, ``ffn`` and, with layer −1,
        ``embed``, ``pos_embed``, ``bias`` (what output biases add to the stream) and ``offset``
        (for logits only); metric ``direct_share`` or ``direct_logit``, target = the direction's
        name or ``output``; p is two-sided. Scores are NaN along a direction in which the stream
        does not vary.

    Raises:
        ArgumentError: if fewer than two rows have a scored position, a direction does not fit, the
            model has no residual stream, a store lacks positions or heads, or activations are not
            finite.
        HookError: if the model lacks TransformerLens' weight names, as a wrapped module does, or a
            store lacks a hook.
    """
    rows = _check_inputs(model, source, directions, batch)
    counts = RowCounts(seed, resamples)
    found: TargetLogits | _SharesByDirection
    if directions is None and not rows.real:
        found = TargetLogits(rows, counts)
    else:
        found = _SharesByDirection(rows, _along(model, directions), counts)
    for group in rows.groups:
        for start in range(0, len(group), batch):
            found.add(group, start, min(start + batch, len(group)))
    if isinstance(found, TargetLogits):
        return head_table(_line("direct_logit", "output", one) for one in found.results())
    return head_table(_line("direct_share", name, one) for name, one in found.results())


def _check_inputs(
    model: Any, source: Any, directions: Mapping[str, Direction] | None, batch: int
) -> ResidualDecomposition:
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
    for name, direction in (directions or {}).items():
        _check_direction(problems, name, direction, model.cfg)
    problems.raise_if_any()
    rows = decomposition_of(model, source)
    scored, advice = sum(map(len, rows.groups)), "the null and the interval compare rows"
    rule = "must have at least 2 rows in which something is scored"
    problems.need(scored >= 2, "source", rule, scored, advice)
    problems.raise_if_any()
    return rows


def _check_direction(problems: Problems, name: str, direction: Direction, cfg: Any) -> None:
    width, what = tuple(direction.vector.shape), f"direction {name}"
    problems.need(width == (cfg.d_model,), what, f"must be [{cfg.d_model}]", width, "reshape it")
    finite = bool(direction.vector.isfinite().all())
    problems.need(finite, what, "must be finite", "NaN or infinity", "fit it anew")
    last = cfg.n_layers - direction.between
    rule = f"must be at a layer from 0 to {last}"
    problems.need(0 <= direction.layer <= last, what, rule, direction.layer, "name another layer")


@dataclass(frozen=True)
class _Along:
    """A vector along which shares are computed: a direction of the stream, or an output channel."""

    name: str
    vector: Tensor
    place: StreamPlace
    output: bool = False


def _along(model: Any, directions: Mapping[str, Direction] | None) -> list[_Along]:
    if directions is not None:
        return [
            _Along(name, one.vector, (one.layer, one.between)) for name, one in directions.items()
        ]
    vectors, place = unembedding(model, centred=False).cpu().T, (model.cfg.n_layers, False)
    names = [f"output[{i}]" for i in range(len(vectors))] if len(vectors) > 1 else ["output"]
    return [_Along(name, vector, place, True) for name, vector in zip(names, vectors, strict=True)]


class _SharesByDirection:
    """The variance shares of every component along some directions."""

    def __init__(
        self, rows: ResidualDecomposition, along: Sequence[_Along], counts: RowCounts
    ) -> None:
        self._rows, self._along, self._counts = rows, along, counts
        self._sums: dict[str, VarianceExplained] = {}
        rows.need([one.place for one in along], scale=any(o.output for o in along))

    def add(self, group: Ids, start: int, stop: int) -> None:
        """Add the rows ``group[start:stop]``."""
        ids, counts = group[start:stop], self._counts.draw(stop - start)
        cache, (_, mask) = self._rows.cache(ids), self._rows.aims(ids)
        for place in dict.fromkeys(one.place for one in self._along):
            labels, stack = self._rows.parts(cache, place)
            stream = stack.sum(0)
            for one in (one for one in self._along if one.place == place):
                scale = self._rows.scale(cache)[..., 0] if one.output else 1.0
                vector = one.vector.detach().to(stack)
                if one.name not in self._sums:
                    empty = VarianceExplained(labels, self._rows.length, self._counts.resamples)
                    self._sums[one.name] = empty
                self._sums[one.name].add(
                    stack @ vector / scale, stream @ vector / scale, mask, counts
                )

    def results(self) -> Iterator[tuple[str, _Result]]:
        """Yield the name of each direction with each component's result from
        :class:`VarianceExplained`."""
        for one in self._along:
            yield from ((one.name, found) for found in self._sums[one.name].results())


def _line(metric: str, target: str, found: _Result) -> dict[str, Any]:
    label, score, null, interval = found
    return score_row(metric, score, null, **_place(label), target=target, interval=interval)


def _place(label: str) -> dict[str, Any]:
    if found := re.fullmatch(r"L(\d+)H(\d+)", label):
        return {"component": "head", "layer": int(found[1]), "head": int(found[2])}
    if found := re.fullmatch(r"(\d+)_mlp_out", label):
        return {"component": "ffn", "layer": int(found[1])}
    return {"component": label, "layer": -1}


_CONSTANT = 1e-24
"""A component's write counts as constant if its variance is at most this share of its mean square.
Such a variance is float64 rounding."""

_FIXED = 1e-12
"""A component's write counts as a function of the position alone if what varies between rows at the
same position is at most this share of its sum of squares."""


class VarianceExplained:
    """Running sums of the products of components' values and of the value that they add up to.

    Args:
        labels: The components' labels.
        length: Positions of the longest row.
        resamples: Number of bootstrap resamples.
    """

    def __init__(self, labels: Sequence[str], length: int, resamples: int) -> None:
        self.labels, count = tuple(labels), len(labels) + 1
        self._shift: Tensor | None = None
        self._rows, self._scored = 0, 0.0
        self._first, self._counted = _zeros(count, length), _zeros(length)
        self._second, self._crossed = _zeros(2, count, length, length)
        self._both = _zeros(length, length)
        self._products, self._squares, self._energy = _zeros(3, count)
        self._drawn_first, self._drawn_products = _zeros(2, resamples, count)
        self._drawn_scored = _zeros(resamples, 1)

    def add(
        self,
        parts: Float[Tensor, "part row pos"],
        value: Float[Tensor, "row pos"],
        mask: Bool[Tensor, "row pos"],
        counts: Float[Tensor, "resample row"],
    ) -> None:
        """Add some rows of one length, each with at least one scored position.

        Args:
            parts: The components' values.
            value: The sum of the components' values.
            mask: The scored positions.
            counts: How often each bootstrap resample draws each row.
        """
        every, scored = torch.cat((parts, value[None])).double(), mask.double()
        if self._shift is None:
            self._shift = (every * scored).sum((1, 2), keepdim=True) / scored.sum()
        values = (every - self._shift) * scored
        products = (values * values[-1]).sum(2)
        n = mask.shape[1]
        self._rows += len(mask)
        self._scored += float(scored.sum())
        self._first[:, :n] += values.sum(1)
        self._counted[:n] += scored.sum(0)
        self._second[:, :n, :n] += torch.einsum("prt,pru->ptu", values, values)
        self._crossed[:, :n, :n] += torch.einsum("prt,ru->ptu", values, scored)
        self._both[:n, :n] += scored.T @ scored
        self._products += products.sum(1)
        self._squares += values.square().sum((1, 2))
        self._energy += (every * scored).square().sum((1, 2))
        self._drawn_first += counts @ values.sum(2).T
        self._drawn_products += counts @ products.T
        self._drawn_scored += counts @ scored.sum(1, keepdim=True)

    def results(self) -> Iterator[tuple[str, float, Null, tuple[float, float]]]:
        """Yield each component's label, share, null (two-sided p) and interval of the effect.

        Numbers are NaN if the value is constant.
        """
        mean = self._first.sum(1) / self._scored
        constant = self._squares - self._scored * mean**2 <= _CONSTANT * self._energy
        size = self._products[-1] - self._scored * mean[-1] ** 2
        if constant[-1]:
            size = torch.full_like(size, torch.nan)
        varying = (~constant[:-1]).double()
        product = (self._products - self._scored * mean * mean[-1])[:-1] * varying
        expected, variance = self._moments(mean)
        found = torch.stack((product, expected * varying, variance.clamp_min(0).sqrt() * varying))
        low, high = interval_of((self._draws() * varying).numpy())
        for index, (score, null, std) in enumerate((found / size).T.tolist()):
            against = from_moments(score, null, std, name="rows", tail="two-sided")
            interval = float(low[index]) - null, float(high[index]) - null
            yield self.labels[index], score, against, interval

    def _moments(self, mean: Float[Tensor, " part"]) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each component's product with the value of a randomly
        permuted row."""
        by_position = self._first - mean[:, None] * self._counted
        expected = by_position[:-1] @ by_position[-1] / self._rows
        value = self._inside(-1, mean, by_position)
        products = [
            (self._inside(part, mean, by_position) * value).sum()
            for part in range(len(self.labels))
        ]
        return expected, torch.stack(products) / (self._rows - 1)

    def _inside(
        self, part: int, mean: Float[Tensor, " part"], by_position: Float[Tensor, "part pos"]
    ) -> Float[Tensor, "pos pos"]:
        """Return the sum of products of a component with itself, position means removed; zero if
        all rows are alike."""
        crossed = self._crossed[part] + self._crossed[part].T
        found = self._second[part] - mean[part] * crossed + mean[part] ** 2 * self._both
        found = found - torch.outer(by_position[part], by_position[part]) / self._rows
        same = bool(found.trace() <= _FIXED * self._squares[part])
        return torch.zeros_like(found) if same else found

    def _draws(self) -> Float[Tensor, "resample part"]:
        """Return the shares on the resamples; NaN for a resample in which nothing varies."""
        first, scored = self._drawn_first, self._drawn_scored
        product = self._drawn_products - first * first[:, -1:] / scored
        size = product[:, -1:]
        flat = ~(size > _CONSTANT * self._energy[-1])
        return product[:, :-1] / torch.where(flat, torch.nan, size)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)
