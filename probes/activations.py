"""The activations that probes read: rows of a store or model at sampled, scored positions.

Also: which positions of which rows are sampled, and which rows must be in the same fold.

A causal model's activation at position p is a function of the tokens up to p. Two rows with a
common prefix therefore have *equal* activations there, and a probe fitted on one row has seen the
other: of 256 strings of two letters, the activations at position 4 are only 30 different points. So
that held-out activations are new:

    groups     equal rows are one group, and a group is in one fold
    prefixes   each prefix has one fold, drawn at random among those of its rows, and is sampled
               only in rows of that fold

(The second is for causal models and for those whose attention mask is unknown; models that see the
whole row have equal activations only in equal rows.) Then no activation is on both sides because
its prefix is, and all distinct prefixes can still be sampled. Not excluded are prefixes that differ
only in what the model ignores, and prefixes that differ by one letter. If few states are reached at
all, such as four states of two bits, held-out activations are close to seen ones, and the baselines
say what that is worth.

All rows are sampled at the same positions if these are nearly all that could be sampled (90 %).
Otherwise each row has its own: one position drawn at random from each of several equal stretches of
the row's positions. The number of stretches is one that three quarters of the rows, and some row of
each fold, have enough positions for; other rows are left out, because samples that count twice
would pass for evidence. (To a causal model the end of a short row is the middle of a long one.)
Whether probes can be fitted thus depends on the rows, not on the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import ArgumentError, HookError, need
from interp.store import ActivationStore
from interp.store.rows import Rows, as_batch, attention_mask_of, read_batches, scored_mask
from probes.linear import FOLDS, Features, Kind, Latent, folds_of, kind_of

POSITIONS = 8
"""Number of positions of each row whose activations are sampled by default."""

_NEARLY, _ENOUGH, _DRAWS = 0.9, 0.75, 20


@dataclass(frozen=True)
class SampledPositions:
    """The rows and positions at which activations are sampled.

    Attributes:
        rows: The numbers of the rows that are kept, ascending.
        positions: The sampled positions of each kept row.
        groups: The group of each kept row: equal rows have the same number. Numbers are in random
            order; :func:`probes.linear.folds_of` makes folds of them.
    """

    rows: Int[np.ndarray, " kept"]
    positions: Int[np.ndarray, "kept sample"]
    groups: Int[np.ndarray, " kept"]

    def of(self, values: Any) -> Any:
        """Return the values of an array or tensor ``[row, pos, …]`` at these positions, ``[kept,
        sample, …]``."""
        return values[self.rows[:, None], self.positions]


def sample_positions(
    mask: Bool[np.ndarray, "row pos"],
    inputs: np.ndarray,
    *,
    count: int = POSITIONS,
    causal: bool = True,
    seed: int = 0,
) -> SampledPositions:
    """Sample positions of every row, and group the rows for cross-validation.

    Args:
        mask: True at the scored positions, ``[row, pos]``.
        inputs: Tokens ``[row, pos]`` or values ``[row, pos, channel]``.
        count: The largest number of positions per row.
        causal: Whether an activation does not depend on later positions.
        seed: Seed of the groups' numbers and of the positions.

    Raises:
        ArgumentError: if no position is scored, or if inputs are equal wherever they are scored.
    """
    if not mask.any():
        raise ArgumentError("mask must score a position, got none: give rows with targets")
    rng = np.random.default_rng(seed)
    prefix, groups = _prefixes(inputs), groups_of(inputs, seed=seed)
    free = _free(mask, prefix, folds_of(groups), rng) if causal else mask
    if not free.any():
        raise ArgumentError("inputs must differ more, got equal ones wherever they are scored")
    common = np.flatnonzero(free.all(axis=0))
    if len(common) * len(free) >= _NEARLY * free.sum():
        chosen = _spread(common, min(count, len(common)))
        return SampledPositions(np.arange(len(free)), np.tile(chosen, (len(free), 1)), groups)
    sizes, folds = free.sum(axis=1), folds_of(groups)
    in_each = min(int(sizes[folds == fold].max()) for fold in np.unique(folds))
    count = max(1, min(count, in_each, int(np.quantile(sizes[sizes > 0], 1 - _ENOUGH))))
    which = np.flatnonzero(sizes >= count)
    own = np.array([_stratified_sample(np.flatnonzero(free[row]), count, rng) for row in which])
    return SampledPositions(which, own, groups[which])


def groups_of(inputs: np.ndarray, *, seed: int | None = None) -> Int[np.ndarray, " row"]:
    """Return a number for each row, equal for equal rows.

    Args:
        inputs: The inputs of the rows.
        seed: Seed for numbering the distinct rows in random order; by default they are numbered in
            the order of their first occurrence.
    """
    numbers = _prefixes(inputs)[:, -1]
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    order = first if seed is None else np.random.default_rng(seed).permutation(len(first))
    groups: Int[np.ndarray, " row"] = np.argsort(np.argsort(order))[which]
    return groups


def is_causal(source: Any) -> bool:
    """Return whether attention is causal according to a model's or store's spec; True without a
    spec."""
    seen = attention_mask_of(source)
    return seen is None or seen.causal


def sampled_positions(
    mask: Bool[np.ndarray, "row pos"], count: int = POSITIONS
) -> Int[np.ndarray, " sample"]:
    """Return at most ``count`` positions, evenly spread over those that are scored in every row.

    This is for rows that are scored at the same positions. For rows of different lengths it returns
    only early positions: use :func:`sample_positions`, which also keeps shared prefixes in one
    fold.

    Raises:
        ArgumentError: if no position is scored in every row.
    """
    scored = np.flatnonzero(mask.all(axis=0))
    if not len(scored):
        raise ArgumentError("mask must leave a position scored in every row, got none: shorten it")
    return _spread(scored, min(count, len(scored)))


def _spread(scored: Int[np.ndarray, " scored"], count: int) -> Int[np.ndarray, " sample"]:
    return scored[np.linspace(0, len(scored) - 1, count).round().astype(int)]


def _stratified_sample(
    scored: Int[np.ndarray, " scored"], count: int, rng: np.random.Generator
) -> Int[np.ndarray, " sample"]:
    """Draw one position at random from each of ``count`` equal stretches."""
    edges = np.linspace(0, len(scored), count + 1).astype(int)
    return scored[edges[:-1] + (rng.random(count) * np.diff(edges)).astype(int)]


def _prefixes(inputs: np.ndarray) -> Int[np.ndarray, "row pos"]:
    """Return a number for the prefix at each position, equal for rows that are equal up to
    there."""
    rows, length = inputs.shape[:2]
    _, codes = np.unique(inputs.reshape(rows * length, -1), axis=0, return_inverse=True)
    codes = codes.reshape(rows, length).astype(np.int64)
    found, now = np.empty_like(codes), np.zeros(rows, dtype=np.int64)
    for place in range(length):
        _, now = np.unique(now * (codes.max() + 1) + codes[:, place], return_inverse=True)
        found[:, place] = now
    return found


def _free(
    mask: Bool[np.ndarray, "row pos"],
    prefix: Int[np.ndarray, "row pos"],
    folds: Int[np.ndarray, " row"],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "row pos"]:
    """Return where a row is scored and in the fold of its prefix; folds of prefixes are drawn again
    if a fold is left without any position."""
    wanted = len(np.unique(folds[mask.any(axis=1)]))
    for _ in range(_DRAWS):
        found = mask & _at_home(prefix, folds, rng)
        if len(np.unique(folds[found.any(axis=1)])) == wanted:
            break
    return found


def _at_home(
    prefix: Int[np.ndarray, "row pos"], folds: Int[np.ndarray, " row"], rng: np.random.Generator
) -> Bool[np.ndarray, "row pos"]:
    """Return where a row is in the one fold in which its prefix may be sampled."""
    found = np.empty(prefix.shape, dtype=bool)
    for place, column in enumerate(prefix.T):
        pairs = rng.permutation(np.unique(column * FOLDS + folds))
        _, first = np.unique(pairs // FOLDS, return_index=True)
        found[:, place] = (pairs[first] % FOLDS)[column] == folds
    return found


@dataclass(frozen=True)
class Samples:
    """Activations and latents at the sampled positions of each row.

    Attributes:
        inputs: The inputs at the samples: tokens ``[row, sample]`` or values ``[row, sample,
            channel]``.
        features: Hook → the activation ``[row, sample, feature]``; further axes (heads) are
            flattened.
        latents: Name → the values ``[row, sample]``; a latent with several channels gives
            ``NAME[0]``, ``NAME[1]`` and so on.
        kinds: Name → ``real`` or ``categorical`` (:func:`probes.linear.kind_of`).
        places: The rows and positions that were sampled, and their groups.
    """

    inputs: np.ndarray
    features: Mapping[str, Features]
    latents: Mapping[str, Latent]
    kinds: Mapping[str, Kind]
    places: SampledPositions

    @property
    def positions(self) -> Int[np.ndarray, "row sample"]:
        """The position of each sample."""
        return self.places.positions

    @property
    def groups(self) -> Int[np.ndarray, " row"]:
        """The group of each row; a group is never divided between folds."""
        return self.places.groups


def collect(
    source: Any,
    inputs: Any,
    hooks: Sequence[str],
    *,
    positions: Int[np.ndarray, "*row sample"] | SampledPositions | None = None,
    batch: int = 64,
    seed: int = 0,
) -> Samples:
    """Run a model, or read a store, and keep the activations at the sampled positions.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: For a model: a :class:`~interp.tasks.base.Batch` or inputs. None for a store.
        hooks: Names of hooks ``[row, pos, …]``.
        positions: The positions, ``[sample]`` for every row or ``[row, sample]``, used as they are,
            with shared prefixes too; or the ``places`` of other samples; by default those of
            :func:`sample_positions`.
        batch: How many rows are run at a time.
        seed: Seed of the sampled positions, if none are given.

    Raises:
        ArgumentError: if no position is scored, or a given position is not in every row.
        HookError: for a hook that does not exist, or has no position axis after the row axis.
    """
    batches = read_batches(source, inputs, hooks, batch=batch)
    masks, tokens = _rows_of(source, inputs, batch)
    chosen = _sampled_positions(source, masks, tokens, positions, seed)
    kept: dict[str, list[np.ndarray]] = {}
    for rows, (which, at) in zip(batches, _parts(chosen, masks), strict=True):
        _check_axes(rows, hooks)
        named = {f"a/{hook}": value for hook, value in rows.activations.items()}
        named |= {f"l/{name}": value for name, value in rows.latents.items() if value.ndim > 1}
        for name, value in {"inputs": rows.inputs, **named}.items():
            kept.setdefault(name, []).append(_numbers(value)[which[:, None], at])
    joined = {name: np.concatenate(pieces) for name, pieces in kept.items()}
    features = {hook: joined[f"a/{hook}"].astype(np.float64) for hook in hooks}
    flat = {hook: value.reshape(*value.shape[:2], -1) for hook, value in features.items()}
    found = scalars({n.removeprefix("l/"): v for n, v in joined.items() if n.startswith("l/")})
    latents = {name: value.astype(np.float64) for name, value in found.items()}
    kinds = {name: kind_of(value) for name, value in found.items()}
    return Samples(joined["inputs"], flat, latents, kinds, chosen)


def scalars(latents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return latents ``[row, pos, …]`` as scalar ones ``[row, pos]``.

    A latent with several channels gives ``NAME[i]`` for each channel i. Types are kept.
    """
    found: dict[str, np.ndarray] = {}
    for name, value in latents.items():
        if value.ndim == 2:
            found[name] = value
            continue
        channels = value.reshape(*value.shape[:2], -1)
        found |= {f"{name}[{i}]": channels[..., i] for i in range(channels.shape[-1])}
    return found


def _numbers(value: Tensor) -> np.ndarray:
    """Return a tensor as an array; bfloat16, which numpy lacks, becomes float32."""
    numbers: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    return numbers


def _rows_of(source: Any, inputs: Any, batch: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the masks of scored positions, ``[row, pos]``, and the inputs, in the batches in which
    they are read."""
    if isinstance(source, ActivationStore):
        parts = list(source.batches(batch))
        return [scored_mask(source, part.rows) for part in parts], [p.inputs() for p in parts]
    given = as_batch(inputs)
    starts = range(batch, len(given), batch)
    mask, tokens = given.mask.cpu().numpy(), given.inputs.cpu().numpy()
    return np.split(mask, starts), np.split(tokens, starts)


def _sampled_positions(
    source: Any,
    masks: Sequence[np.ndarray],
    tokens: Sequence[np.ndarray],
    positions: np.ndarray | SampledPositions | None,
    seed: int,
) -> SampledPositions:
    if isinstance(positions, SampledPositions):
        return positions
    fill = -1.0 if tokens[0].dtype.kind == "i" else float("inf")
    inputs = _join_batches(tokens, fill)
    if positions is None:
        return sample_positions(
            _join_batches(masks, 0.0), inputs, causal=is_causal(source), seed=seed
        )
    given, shortest = np.asarray(positions), min(mask.shape[1] for mask in masks)
    wrong = given[(given < 0) | (given >= shortest)].tolist()
    rule = f"must be positions of every row, 0 to {shortest - 1}"
    need("collect", not wrong and given.size > 0, "positions", rule, wrong or given, "correct them")
    every = np.broadcast_to(given, (len(inputs), given.shape[-1]))
    return SampledPositions(np.arange(len(inputs)), every, groups_of(inputs, seed=seed))


def _join_batches(parts: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """Join batches of rows into one array; shorter rows are padded with ``fill``."""
    longest = max(part.shape[1] for part in parts)
    width = [((0, 0), (0, longest - p.shape[1]), *[(0, 0)] * (p.ndim - 2)) for p in parts]
    filled = [np.pad(p, w, constant_values=fill) for p, w in zip(parts, width, strict=True)]
    return np.concatenate(filled)


def _parts(
    chosen: SampledPositions, masks: Sequence[np.ndarray]
) -> Iterator[tuple[Int[np.ndarray, " kept"], Int[np.ndarray, "kept sample"]]]:
    """Yield for each batch the rows that are kept, and the sampled positions of each."""
    start = 0
    for mask in masks:
        here = (chosen.rows >= start) & (chosen.rows < start + len(mask))
        yield chosen.rows[here] - start, chosen.positions[here]
        start += len(mask)


def _check_axes(rows: Rows, hooks: Sequence[str]) -> None:
    wrong = [
        f"{hook} [{', '.join(rows.labels[hook])}]"
        for hook in hooks
        if rows.labels[hook][1:2] != ("pos",)
    ]
    if wrong:
        raise HookError(
            f"probes read hooks of [row, pos, …], got {'; '.join(wrong)}: name the residual "
            "stream, hook_z, hook_mlp_out or the like"
        )
