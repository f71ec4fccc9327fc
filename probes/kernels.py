"""Which lag do the heads of a layer select *together*, for a given memory?

A linear probe gives the residual direction w that holds x_{t−T} after the layer. Along w each head
has a signed kernel over lags (:class:`interp.attention.patterns.KernelSums`); their sum is what
the layer puts there. ``kernel_concentration`` is the share of the summed kernel at lag T,
``kernel_share`` a head's share of the absolute weight Σ_h Σ_s |kernel_h(s)|, ``kernel_part`` its
own kernel at lag T relative to the sum there. The heads with enough of both are the memory's
*group*; a head that only cancels what another one leaks at other lags has a share and no part. One
head that attends to T alone is a group of one; the T + 1 heads of the construction (`memory` §1.4)
select T only as a group.

A location that depends on content is named by the latent that holds its lags: the kernel is then
over s − t_i (:func:`~interp.attention.patterns.kernel_by_offset`), and its place is 0.

Rows come from a live model or from an activation store, where only the model's W_O is needed and
nothing is run. They are read batch by batch, once for the directions, once for the moments of what
heads write along them, once for the kernels; all that is kept are sums over rows.

The null is the same measurement, probe included, on re-initialised models of the same shapes;
intervals are of a bootstrap over rows, the direction as it is. A concentrated kernel shows what the
layer writes along w; whether later layers read it is for ablation to say.

Fit the direction that holds a latent, batch by batch.

The ridge regression of :func:`probes.linear.direction`, its standardisation included, is a function
of Σx, Σxxᵀ, Σxy and Σy: these are kept, and no row is. A direction that predicts a latent shows
that it is present, not that anything reads it.

One layer's attention and the residual stream after it, for several passes over the same rows.

Rows come from a model that is run, or from a store of its activations; then the model gives its
weights alone. One batch is in memory at a time, and where there is only one it is kept between
passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.linalg import solve
from torch import Tensor

from interp.attention.by_lag import LagMass
from interp.attention.patterns import KernelSums, RegressionSums, Signal, ValueSums, concentration
from interp.errors import ArgumentError, Problems
from interp.models.transformer import SequenceTransformer
from interp.stats.bootstrap import interval_of
from interp.stats.head_table import ANY_TARGET, head_table, score_row
from interp.stats.nulls import DRAWS
from interp.stats.p_values import from_draws
from interp.store import ActivationStore
from interp.store.attention_mask import AttentionMask, attention_mask_of
from interp.store.plan import weights_sha256
from interp.store.rows import Rows, check_finite, read_batches, scored_mask
from interp.tasks.base import Batch
from probes.activations import sampled_positions
from probes.fresh_models import stacked_runs
from probes.linear import PENALTY, Features, Latent

_ROUNDING = float(np.finfo(np.float64).eps)


class DirectionSums:
    """Running moments of activations and a latent, from which its direction follows."""

    def __init__(self) -> None:
        self._shift: NDArray[np.float64] | None = None

    def add(self, features: Features, latent: Latent) -> None:
        """Add some rows at their sampled positions."""
        flat = features.reshape(-1, features.shape[-1]).astype(np.float64)
        known = np.concatenate([flat, latent.reshape(-1, 1)], axis=1)
        if self._shift is None:  # large means then cost no digits
            self._shift = known.mean(0)
            self._count, self._total = 0, np.zeros_like(self._shift)
            self._products = np.zeros((len(self._shift),) * 2)
        known = known - self._shift
        self._count += len(known)
        self._total += known.sum(0)
        self._products += known.T @ known

    @property
    def size(self) -> int:
        """How many numbers the sums take in memory; it does not grow with rows."""
        return 0 if self._shift is None else self._products.size + 2 * self._total.size

    def direction(self) -> Float[np.ndarray, " feature"]:
        """The vector w for which ⟨w, activation⟩ + constant predicts the latent on all rows."""
        if self._shift is None:
            return np.zeros(0)
        off = self._total / self._count
        centred = self._products - self._count * np.outer(off, off)
        variance = np.maximum(np.diagonal(centred)[:-1] / self._count, 0.0)
        doubt = self._count * _ROUNDING * (self._shift + off)[:-1]
        scale = np.where(variance > doubt**2, np.sqrt(variance), 1.0)  # 1 for a constant
        gram = centred[:-1, :-1] / np.outer(scale, scale)
        gram[np.diag_indices(len(gram))] += PENALTY * self._count
        found: NDArray[np.float64] = solve(gram, centred[:-1, -1] / scale, assume_a="pos") / scale
        return found


Scored = Bool[np.ndarray, " pos"]


@dataclass(frozen=True)
class LayerPart:
    """Some rows of one layer's activations.

    Attributes:
        rows: The rows as they were read; patterns are under :attr:`LayerRows.pattern`.
        pattern: The attention pattern.
        v: Values, of each head or of each group of heads that share them.
        stream: The residual stream after the attention.
        x: What enters the attention, where heads write a multiple of it; else None.
        mask: True for the positions that are scored.
        contents: The first input channel; None for tokens.
    """

    rows: Rows
    pattern: Float[np.ndarray, "row head query key"]
    v: Float[np.ndarray, "row key group d_head"]
    stream: Float[np.ndarray, "row pos d_model"]
    x: Float[np.ndarray, "row pos d_model"] | None
    mask: Bool[np.ndarray, "row pos"]
    contents: Float[np.ndarray, "row pos"] | None

    def latent(self, name: str) -> Float[np.ndarray, "row pos"]:
        """The values of a latent that is one number per position."""
        return _array(self.rows.latent(name))


class LayerRows:
    """Reads what a layer's heads attend to and would write, a few rows at a time.

    Args:
        model: A hooked model with ``W_O``, such as ours or a bridge, whose attention is causal.
        rows: A batch, or a store of this model's activations with ``attn.hook_pattern``,
            ``attn.hook_v`` and ``hook_resid_mid`` of the layer (and ``ln1.hook_normalized`` with
            ``identity_ov``).
        layer: The layer, counted from 0.
        batch: How many rows are run at a time.

    Attributes:
        positions: A few positions that are scored in every row.
        first: The first position that is scored in any row.
        length: Positions of a row.

    Raises:
        ArgumentError: for a model, rows or a layer that do not fit.
    """

    def __init__(
        self, model: Any, rows: Batch | ActivationStore, layer: int, *, batch: int
    ) -> None:
        _check(model, rows, layer, batch)
        self.model, self.layer = model, layer
        spec, w_o = getattr(model, "spec", None), _array(model.W_O[layer])
        self.heads = len(w_o) if spec is None else spec.heads[layer]
        at = f"blocks.{layer}."
        self.pattern, self._v = at + "attn.hook_pattern", at + "attn.hook_v"
        self._stream, self._x = at + "hook_resid_mid", at + "ln1.hook_normalized"
        self._rows, self._batch = rows, batch
        self._w_o = w_o[: self.heads]
        identity = spec is not None and spec.identity_ov
        self._b = _array(model.blocks[layer].attn.effective_b)[: self.heads] if identity else None
        everywhere, anywhere = self._scored()
        self.positions: Int[np.ndarray, " sample"] = sampled_positions(everywhere[None])
        self.first, self.length = int(anywhere.argmax()), len(anywhere)
        self._kept: list[LayerPart] = []

    def __iter__(self) -> Iterator[LayerPart]:
        """Iterate over the rows, batch by batch."""
        if self._kept:
            yield from self._kept
            return
        stored = isinstance(self._rows, ActivationStore)
        source, inputs = (self._rows, None) if stored else (self.model, self._rows)
        count = self._rows.rows if isinstance(self._rows, ActivationStore) else len(self._rows)
        for rows in read_batches(source, inputs, self.hooks, batch=self._batch):
            check_finite(rows)
            part = self._part(rows)
            if count <= self._batch:
                self._kept = [part]
            yield part

    def values(
        self, part: LayerPart, w: Float[np.ndarray, " d_model"]
    ) -> Float[np.ndarray, "row key head"]:
        """What each head would write along w if it attended to each key alone."""
        v = np.repeat(part.v, self.heads // part.v.shape[2], axis=2)  # heads may share values
        found: Float[np.ndarray, "row key head"] = np.einsum("rkhd,hd->rkh", v, self._w_o @ w)
        if part.x is not None and self._b is not None:
            found = found + (part.x @ w)[..., None] * self._b
        return found

    @property
    def hooks(self) -> list[str]:
        """The hooks that are read."""
        return [self.pattern, self._v, self._stream, *([self._x] if self._b is not None else [])]

    def of_model(
        self, activations: Mapping[str, Tensor], w_o: Float[np.ndarray, "head d_head d_model"]
    ) -> LayerRows:
        """The same rows in another model with this spec, which was run already.

        Args:
            activations: Hook → what it gave on a batch of rows, for all :attr:`hooks`.
            w_o: The other model's W_O of the layer. Its identity scalars must be this one's.

        Raises:
            ArgumentError: for activations that are not finite.
        """
        other, batch = copy(self), self._rows
        if not isinstance(batch, Batch):
            raise ArgumentError("rows must be a batch, got a store: give the rows themselves")
        kept = dict(activations)
        kept[self.pattern] = kept[self.pattern][:, : self.heads]
        kept[self._v] = kept[self._v][:, :, : self.heads]
        rows = Rows(batch.inputs, batch.mask, batch.latents, kept)
        check_finite(rows)
        other._w_o = w_o[: self.heads]
        other._kept = [other._part(rows)]
        return other

    def _part(self, rows: Rows) -> LayerPart:
        kept = rows.activations
        return LayerPart(
            rows,
            _array(kept[self.pattern]),
            _array(kept[self._v]),
            _array(kept[self._stream]),
            _array(kept[self._x]) if self._x in kept else None,
            rows.mask.numpy(),
            _array(rows.inputs[..., 0]) if rows.inputs.ndim == 3 else None,
        )

    def _scored(self) -> tuple[Scored, Scored]:
        """The positions that are scored in every row, and those scored in any row."""
        if isinstance(self._rows, Batch):
            mask = self._rows.mask.cpu().numpy()
            return np.logical_and.reduce(mask), np.logical_or.reduce(mask)
        length = next(iter(self._rows.lengths))
        everywhere: Scored = np.ones(length, dtype=bool)
        anywhere: Scored = np.zeros(length, dtype=bool)
        for some in self._rows.batches(self._batch):
            mask = scored_mask(self._rows, some.rows)
            np.logical_and(everywhere, mask.all(0), out=everywhere)
            np.logical_or(anywhere, mask.any(0), out=anywhere)
        return everywhere, anywhere


def _array(values: Tensor) -> np.ndarray:
    found: np.ndarray = values.detach().double().cpu().numpy()
    return found


def _check(model: Any, rows: Batch | ActivationStore, layer: int, batch: int) -> None:
    problems, seen = Problems("layer_kernels"), attention_mask_of(model)
    need = problems.need
    readable = hasattr(model, "W_O")
    need(readable, "model", "must have W_O", type(model).__name__, "give ours, or a bridge")
    causal = seen is None or seen.causal
    need(causal, "model", "must have causal attention", "causal=False", "lags are of the past")
    spec = getattr(model, "spec", None)
    heads = spec.heads if spec is not None else [len(w) for w in model.W_O] if readable else ()
    there = not readable or (0 <= layer < len(heads) and heads[layer] > 0)
    need(there, "layer", "must be one that has heads", layer, f"0 to {len(heads) - 1}")
    need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    if isinstance(rows, ActivationStore):
        plan = rows.manifest["plan"]
        same = (plan.get("model") or {}).get("weights_sha256") == weights_sha256(model)
        need(same, "rows", "must be of this model's activations", str(rows.path), "give its store")
        whole, lengths = plan.get("heads") is None, sorted(rows.lengths)
        need(whole, "rows", "must hold all heads of the layer", plan.get("heads"), "extract them")
        need(len(lengths) == 1, "rows", "must be of one length", lengths, "store them apart")
    else:
        need(len(rows) > 0, "rows", "must not be empty", 0, "give some")
    problems.raise_if_any()


_NULL_ROWS = 48
_AT_ONCE = 2**20
"""The most numbers held in memory for the fresh models that run in one pass."""

KernelNull = Mapping[tuple[str, str], Float[np.ndarray, " draw"]]
"""(metric, memory) → the scores of re-initialised models."""


AttentionKernel = Float[np.ndarray, "head _"]
Direction = Float[np.ndarray, " d_model"]
Scores = Float[np.ndarray, " head"]


@dataclass(frozen=True)
class LayerKernels:
    """What the heads of one layer write along each memory's direction, by lag.

    Attributes:
        layer: The layer, counted from 0.
        mass: The mean share of attention at each lag, ``[head, lag]``.
        kernels: Memory → ``[head, lag]`` signed kernels along the direction that holds it; for one
            whose lags a latent holds ``[head, offset]``, offsets from −(n − 1) on.
        origins: Memory → the column that is lag (or offset) 0.
        coefficients: Memory → how much of what the heads have in common along the direction each
            of them writes ``[head]``, with its sign: what the tables of attention mass take as
            ``combinations``.
        draws: Memory → ``[resample, head, lag]`` kernels of rows drawn anew, with any sign; of no
            rows where none were asked for.
    """

    layer: int
    mass: Float[np.ndarray, "head lag"]
    kernels: Mapping[str, AttentionKernel]
    origins: Mapping[str, int] = field(default_factory=dict)
    coefficients: Mapping[str, Scores] = field(default_factory=dict)
    draws: Mapping[str, Float[np.ndarray, "resample head _"]] = field(default_factory=dict)

    def concentration(self, memory: str, lag: int) -> float:
        """The share of the heads' summed kernel that lies at a lag."""
        return concentration(self.kernels[memory].sum(0), self._column(memory, lag))

    def shares(self, memory: str) -> Scores:
        """Each head's share of the kernels' absolute weight."""
        return _shares(self.kernels[memory])

    def parts(self, memory: str, lag: int) -> Scores:
        """Each head's own kernel at the lag, relative to the sum there.

        It is 0 for a head that only cancels what another one leaks at other lags.
        """
        return _parts(self.kernels[memory], self._column(memory, lag))

    def group(self, memory: str, lag: int, *, share: float, part: float) -> tuple[int, ...]:
        """The heads that make the memory's kernel: enough of its weight, and a part at its lag."""
        enough = (self.shares(memory) >= share) & (self.parts(memory, lag) >= part)
        return tuple(np.flatnonzero(enough).tolist())

    def intervals(self, memory: str, lag: int) -> dict[str, Float[np.ndarray, "2 score"]]:
        """The 95 % intervals over rows of ``kernel_concentration``, ``kernel_share`` and
        ``kernel_part``.

        The first is one score, the others one per head; NaN without resamples.
        """
        at, drawn = self._column(memory, lag), self.draws.get(memory, ())
        measured: dict[str, Callable[[AttentionKernel], Any]] = {
            "kernel_concentration": lambda kernel: [concentration(kernel.sum(0), at)],
            "kernel_share": _shares,
            "kernel_part": lambda kernel: _parts(kernel, at),
        }
        return {
            name: interval_of(np.array([score(kernel) for kernel in drawn]))
            if len(drawn)
            else np.full((2, len(score(self.kernels[memory]))), np.nan)
            for name, score in measured.items()
        }

    def _column(self, memory: str, lag: int) -> int:
        return self.origins.get(memory, 0) + lag


def layer_kernels(
    model: Any,
    rows: Batch | ActivationStore,
    layer: int,
    memories: Mapping[str, int | str],
    *,
    directions: Mapping[str, Direction] | None = None,
    batch: int = 64,
    seed: int = 0,
    resamples: int = 0,
) -> LayerKernels:
    """The kernels over lags of one layer's heads, for each memory.

    Args:
        model: A hooked model with ``W_O``, such as ours or a bridge, whose attention is causal.
        rows: Rows with the memories among their latents, whose contents are the first input
            channel; or a store of the model's activations on such rows, with ``attn.hook_pattern``,
            ``attn.hook_v`` and ``hook_resid_mid`` of the layer (and ``ln1.hook_normalized`` with
            ``identity_ov``). On a store nothing is run.
        layer: The layer. Behind the first layer, kernels of memories at a fixed lag are regressions
            on contents.
        memories: Latent → its lag, or the latent that holds its lags.
        directions: Name → a direction of the residual stream after the attention. Memories with
            one need not be latents; a probe finds the others'.
        batch: How many rows are run at a time; results do not depend on it.
        seed, resamples: Seed and number of resamples of the bootstrap over rows; 0 resamples for no
        intervals.

    Raises:
        ArgumentError: for arguments that do not fit, a latent that is not there, or activations
            that are not finite.
        HookError: for a hook that is not stored.
    """
    read = LayerRows(model, rows, layer, batch=batch)
    mass = LagMass(range(read.length), resamples=0, attention_mask=attention_mask_of(model))
    kernels = _measured(read, memories, directions or {}, mass, seed=seed, resamples=resamples)
    _check_causal(mass.attention_mask)
    return replace(kernels, mass=mass.by_lag(layer))


def _measured(
    read: LayerRows,
    memories: Mapping[str, int | str],
    directions: Mapping[str, Direction],
    mass: LagMass | None,
    **options: int,
) -> LayerKernels:
    """The kernels of a layer's heads, without their masses, which are added to ``mass``."""
    found = _directions(read, memories, directions)
    signals = _signals(read, found)
    sums = _sums(read, memories, signals, **options)
    for part in read:
        if mass is not None:
            mass.add({read.layer: part.rows.activations[read.pattern]}, part.rows.mask)
        for name, kernel in sums.items():
            values = read.values(part, found[name])
            if isinstance(kernel, RegressionSums):
                written = np.einsum("rhqk,rkh->rqh", part.pattern, values)
                kernel.add(written, _contents(part.contents), part.mask)
            else:
                place = memories[name]
                lags = part.latent(place) if isinstance(place, str) else None
                kernel.add(part.pattern, values, part.mask, lags)
    kernels = _kernels(read, memories, sums)
    return replace(kernels, coefficients={n: s.coefficients for n, s in signals.items()})


def _check_causal(seen: AttentionMask | None) -> None:
    """Refuse attention that looks both ways; in a model without a spec its patterns show it."""
    problems = Problems("layer_kernels")
    causal, advice = seen is None or seen.causal, "lags are of the past"
    problems.need(causal, "model", "must have causal attention", "patterns that have not", advice)
    problems.raise_if_any()


def _directions(
    read: LayerRows, memories: Mapping[str, int | str], given: Mapping[str, Direction]
) -> dict[str, Direction]:
    """Each memory's direction: the given one, or one fitted by a probe."""
    probed = {name: DirectionSums() for name in memories if name not in given}
    for part in read if probed else ():
        for name, sums in probed.items():
            sums.add(part.stream[:, read.positions], part.latent(name)[:, read.positions])
    return {n: probed[n].direction() if n in probed else given[n] for n in memories}


def _signals(read: LayerRows, directions: Mapping[str, Direction]) -> dict[str, Signal]:
    """The signal that heads write in common along each direction."""
    moments = {name: ValueSums() for name in directions}
    for part in read:
        for name, sums in moments.items():
            sums.add(read.values(part, directions[name]))
    return {name: sums.signal() for name, sums in moments.items()}


def _sums(
    read: LayerRows,
    memories: Mapping[str, int | str],
    signals: Mapping[str, Signal],
    **options: int,
) -> dict[str, KernelSums | RegressionSums]:
    """The running sums in which each memory's kernel is added up."""
    behind = [
        name for name, place in memories.items() if read.layer > 0 and not isinstance(place, str)
    ]
    found: dict[str, KernelSums | RegressionSums] = {}
    for name in memories:  # behind the first layer a key holds more than its own token
        if name in behind:
            found[name] = RegressionSums(read.first + 1, read.heads, **options)
        else:
            found[name] = KernelSums(signals[name], read.length, **options)
    return found


def _kernels(
    read: LayerRows,
    memories: Mapping[str, int | str],
    sums: Mapping[str, KernelSums | RegressionSums],
) -> LayerKernels:
    kernels, draws, origins = {}, {}, {}
    for name, kernel in sums.items():
        fixed = isinstance(kernel, KernelSums) and not isinstance(memories[name], str)
        past = slice(read.length - 1 if fixed else 0, None)
        kernels[name], draws[name] = kernel.kernel()[:, past], kernel.draws()[..., past]
        origins[name] = read.length - 1 if isinstance(memories[name], str) else 0
    nothing = np.full((read.heads, read.length), np.nan)
    return LayerKernels(read.layer, nothing, kernels, origins, draws=draws)


def _contents(contents: Float[np.ndarray, "row pos"] | None) -> Float[np.ndarray, "row pos"]:
    if contents is None:
        raise ArgumentError(
            "rows must have real inputs where kernels are regressions on them, got tokens: "
            "measure the first layer, or name the latent that holds the lags"
        )
    return contents


def _shares(kernel: AttentionKernel) -> Scores:
    weight: Scores = np.abs(kernel).sum(1)
    return weight / (weight.sum() or 1.0)


def _parts(kernel: AttentionKernel, at: int) -> Scores:
    found: Scores = np.abs(kernel[:, at]) / (abs(kernel[:, at].sum()) or 1.0)
    return found


def kernel_table(
    measured: LayerKernels, memories: Mapping[str, int | str], null: KernelNull
) -> pd.DataFrame:
    """The concentrations, shares, parts and masses of a layer, compared with re-initialised models.

    ``low`` and ``high`` bound the effect of kernels that were measured with resamples; for those of
    masses see :func:`interp.attention.by_lag.lag_table`, and where lags are a latent's
    :func:`interp.attention.attention_to_keys.attention_table`, which has the masses, too.
    """
    return head_table(_rows(measured, memories, null), family=ANY_TARGET)


def _rows(
    measured: LayerKernels, memories: Mapping[str, int | str], null: KernelNull
) -> Iterator[dict[str, Any]]:
    for name, place in memories.items():
        intervals = measured.intervals(name, _lag(place))
        for metric, scores in _scores(measured, name, place).items():
            bounds = intervals.get(metric, np.full((2, len(scores)), np.nan))
            one = metric == "kernel_concentration"
            for head, score in enumerate(scores):
                against = from_draws(score, null[metric, name], name="reinitialised")
                low, high = (bounds[:, head] - against.mean).tolist()
                yield score_row(
                    metric,
                    score,
                    against,
                    component="group" if one else "head",
                    layer=measured.layer,
                    head=-1 if one else head,
                    group=name,
                    target=name,
                    interval=(low, high),
                )


def _scores(measured: LayerKernels, name: str, place: int | str) -> dict[str, list[float]]:
    """Metric → its score, or its scores, one per head."""
    lag = _lag(place)
    found = {
        "kernel_concentration": [measured.concentration(name, lag)],
        "kernel_share": measured.shares(name).tolist(),
        "kernel_part": measured.parts(name, lag).tolist(),
    }
    return (
        found if isinstance(place, str) else {**found, "lag_mass": measured.mass[:, lag].tolist()}
    )


def _lag(place: int | str) -> int:
    """Where a memory's kernel should be: its lag, or the offset 0 from its own lags."""
    return 0 if isinstance(place, str) else place


def kernel_null(
    model: Any,
    batch: Batch,
    layer: int,
    memories: Mapping[str, int | str],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> KernelNull:
    """The scores of ``draws`` re-initialised models of the same shapes, which are the null.

    Each memory has its own null, at its own lag; scores of single heads pool the heads. Fewer rows
    (48) than for a measurement make directions noisier and concentrations a little lower: the floor
    under the score matters more than p.

    Returns:
        (metric, memory) → draws.

    Raises:
        ArgumentError: for a model without a spec to draw fresh weights from.
    """
    problems, kind = Problems("kernel_null"), type(model).__name__
    ours = isinstance(model, SequenceTransformer)
    problems.need(ours, "model", "must have a spec", kind, "use one of our transformers")
    problems.raise_if_any()
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows, base = batch[:_NULL_ROWS], SequenceTransformer(model.spec)
    read, seen = LayerRows(base, rows, layer, batch=_NULL_ROWS), attention_mask_of(model)
    lags = sorted({p for p in memories.values() if not isinstance(p, str)}) or [0]
    held = len(rows) * read.length * (max(model.spec.heads) * read.length + model.spec.d_model)
    stacks = stacked_runs(
        model.spec,
        rows.inputs,
        read.hooks,
        seeds=range(seed, seed + draws),
        at_once=max(1, _AT_ONCE // held),
    )
    for weights, activations in stacks:
        mass = LagMass(lags, resamples=0, attention_mask=seen)
        patterns = activations[read.pattern][:, :, : read.heads].movedim(0, 1)
        mass.add({layer: patterns.flatten(1, 2)}, rows.mask)  # as heads of one layer
        by_lag = np.full((len(patterns[0]) * read.heads, read.length), np.nan)
        by_lag[:, lags] = mass.by_lag(layer)
        w_o = weights[f"blocks.{layer}.attn.W_O"].double().numpy()
        for number, own in enumerate(np.split(by_lag, len(patterns[0]))):
            one = read.of_model({k: v[number] for k, v in activations.items()}, w_o[number])
            kernels = replace(_measured(one, memories, {}, None), mass=own)
            for name, place in memories.items():
                for metric, scores in _scores(kernels, name, place).items():
                    found[metric, name] += scores
    return {key: np.array(values) for key, values in found.items()}
