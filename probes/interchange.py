"""Does the model use a probe's direction? Exchange the value along it between two rows, and watch
the output.

An interchange intervention: at one hook and position, the base row's coordinate along the direction
is replaced by the source row's. If the direction encodes a variable that the model uses, the output
becomes what it should be for the base with that variable taken from the source (the *expected*
output, from the task).

    moved = 1 − ‖output − expected‖² / ‖clean output − expected‖²        real outputs
    moved = (right after − right before) / (1 − right before)            token outputs

The placebo moves the base activation as far in a random direction. A direction with `moved` near 1
and a placebo near 0 is used as the variable should be. A direction that does nothing may be read by
the probe alone.

:func:`interchange_table` does this for every latent of a task, with the source row's own output as
the expected one: a latent that alone decides the output moves it all the way, one of several only
part of it. A direction that does not move the output is not used *linearly* at this hook and *at
this position*: what other positions read of it is not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import Problems, need
from interp.hooks.hook_names import require_hooks
from interp.run import Add, Array, Run, Site
from interp.stats.bootstrap import row_interval
from interp.stats.head_table import adjust
from interp.stats.nulls import paired_null
from interp.tasks.base import Batch
from probes.activations import Samples, collect
from probes.exchange import run_at
from probes.linear import Features, Kind, Latent, direction, logistic

_PLACEBOS = 8
_ROWS = 256
"""Largest number of rows in one forward pass. It bounds memory."""
_LEAST_PAIRS = 8
_LEAST = 1e-8
"""Least norm by which a random move is divided when it is scaled to the size of the tested move. It
avoids a division by 0."""
_FLAT = 1e-6
"""Directions with a singular value of at most this share of the largest are dropped: they are
linear combinations of the others up to rounding."""


@dataclass(frozen=True)
class Interchange:
    """How far outputs moved when the value along a direction was exchanged between rows.

    Attributes:
        moved: The share of the way to the expected outputs.
        placebo: The same share for random directions, averaged over several.
        changed: How far the output moves in any direction: ‖output − clean‖² / ‖clean − expected‖²;
            for tokens, the number of answers that change divided by the number that should.
        placebo_changed: The same for random directions.
        low: Lower end of the 95 % interval of ``moved − placebo`` over pairs.
        high: The upper end.
        p: The larger of the p-values of two one-sided tests over pairs: that the mean of ``moved −
            placebo`` is above 0, and that the mean of ``moved`` is (since a placebo can move
            outputs away from the expected ones).
    """

    moved: float
    placebo: float
    changed: float
    placebo_changed: float
    low: float
    high: float
    p: float


INTERCHANGE_COLUMNS = (
    *("latent", "hook", "kind", "pairs"),
    *(field.name for field in fields(Interchange)),
    "q",
)


@torch.no_grad()
def interchange(
    model: Any,
    hook: str,
    directions: Float[Tensor, "rank d_model"],
    base: Tensor,
    source: Tensor,
    expected: Tensor,
    position: int | Int[Tensor, " row"],
    *,
    source_position: int | Int[Tensor, " row"] | None = None,
    seed: int = 0,
) -> Interchange:
    """Exchange the values along directions between paired rows, at one position of each.

    Args:
        model: A hooked model in evaluation mode.
        hook: The hook at which values are exchanged, ``[row, pos, d_model]``.
        directions: The directions whose span is exchanged, in units of the activations. Weights of
            a probe that standardises its features first, such as :func:`probes.linear.logistic`,
            are not in these units: use those of :func:`probe_directions`.
        base, source: Inputs, paired row by row.
        expected: The outputs at ``position`` for the base with the variable from the source:
            ``[row, output]`` real, or ``[row]`` token ids.
        position: The position at which values are exchanged and the output is read: one for all
            pairs, or one for each.
        source_position: The position at which the source is read; ``position`` by default.
        seed: Seed of the placebos and of the interval.

    Raises:
        ArgumentError: if the numbers of rows differ, if directions are zero, or if the expected
            outputs equal the clean ones.
        HookError: for a hook that does not exist.
    """
    require_hooks([hook], model.hook_dict, "has no hook")
    problems = Problems("interchange")
    paired = len(base) == len(source) == len(expected)
    sizes = (len(base), len(source), len(expected))
    problems.need(paired, "base", "must pair with source and expected", sizes, "match their rows")
    size = float(directions.norm())
    problems.need(size > 0, "directions", "must not be zero", size, "fit them to what varies")
    problems.raise_if_any()
    basis = _span(directions)
    width, rank = basis.shape
    placebos = [_random_basis(width, rank, seed + i) for i in range(_PLACEBOS)]
    at = torch.as_tensor(position).expand(len(base))
    taken = at if source_position is None else torch.as_tensor(source_position).expand(len(base))
    left, moves = [], []
    for some in torch.arange(len(base)).split(_ROWS):
        run = run_at(model, base[some], at[some])
        others = run_at(model, source[some], taken[some])
        apart = _value_at(others, hook, taken[some]) - _value_at(run, hook, at[some])
        where, outputs = tuple(at[some].tolist()), list[Tensor]()
        for move in (None, *_moves(apart, basis, placebos)):
            edits = [] if move is None else [Add(Site.of(hook), Array(move[:, None]), at=where)]
            found = [output.cpu() for _, output in run.with_(*edits).outputs()]
            outputs.append(torch.cat(found))
        left.append([distance(output, expected[some]).numpy() for output in outputs])
        before = outputs[0] if expected.is_floating_point() else outputs[0].argmax(-1)
        moves.append([distance(output, before).numpy() for output in outputs[1:]])
    return _summary(np.concatenate(left, axis=1), np.concatenate(moves, axis=1), seed)


def _span(directions: Float[Tensor, "rank d_model"]) -> Float[Tensor, "d_model independent"]:
    """Return an orthonormal basis of the span of some directions."""
    found, sizes, _ = torch.linalg.svd(directions.mT.double(), full_matrices=False)
    return found[:, sizes > _FLAT * sizes[0]].float()


def _random_basis(width: int, rank: int, seed: int) -> Float[Tensor, "d_model rank"]:
    """Return an orthonormal basis of a random subspace."""
    drawn = torch.randn(width, rank, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn)[0]


def _value_at(run: Run, hook: str, at: Int[Tensor, " row"]) -> Float[Tensor, "row d_model"]:
    """Return the activation of a hook at one position of each row."""
    site = Site.of(hook)
    return run.at([site])[site].cpu()[torch.arange(len(at)), at]


def _moves(
    apart: Float[Tensor, "row d_model"],
    basis: Float[Tensor, "d_model rank"],
    placebos: Sequence[Float[Tensor, "d_model rank"]],
) -> Iterator[Float[Tensor, "row d_model"]]:
    """Yield how rows are moved: within the basis to the source's coordinates, then as far in each
    random subspace."""
    first = apart @ basis.to(apart) @ basis.to(apart).mT
    yield first
    size = first.norm(dim=-1, keepdim=True)
    for other in placebos:
        move = apart @ other.to(apart) @ other.to(apart).mT
        yield move * (size / move.norm(dim=-1, keepdim=True).clamp_min(_LEAST))


def probe_directions(
    features: Features, latent: Latent, kind: Kind
) -> Float[np.ndarray, "direction feature"]:
    """Return the directions that the linear probe of a latent reads, in units of the activations.

    Args:
        features: Activations at the sampled positions of each row.
        latent: The latent's values there, ``[row, sample]``.
        kind: ``real``: one direction (:func:`probes.linear.direction`). ``categorical``: the
            weights of the logistic regression, one row for two classes and one per class for more,
            each divided by its feature's standard deviation.
    """
    if kind == "real":
        return direction(features, latent)[None]
    flat = features.reshape(-1, features.shape[-1])
    _, names = np.unique(latent, return_inverse=True)
    scaler, classifier = logistic().fit(flat, names.ravel())
    weights: Float[np.ndarray, "direction feature"] = classifier.coef_ / scaler.scale_
    return weights if len(weights) == 1 else weights - weights.mean(0)


def interchange_table(
    model: Any,
    batch: Batch,
    hooks: Mapping[str, str],
    *,
    seed: int = 0,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> pd.DataFrame:
    """Exchange each latent between rows, and measure how far the output moves to the source row's.

    Directions are fitted on one half of the rows and exchanged between rows of the other half,
    whose latents and outputs differ, at a sampled position of each.

    Args:
        model: A hooked model in evaluation mode.
        batch: Rows with the latents.
        hooks: Latent → the hook ``[row, pos, d_model]`` at which it is exchanged.
        seed: Seed of the sampled positions, the halves, the pairs, the placebos and the interval.
        watch: A wrapper around the loop over latents, for a progress bar.

    Returns:
        Columns :data:`INTERCHANGE_COLUMNS`: :class:`Interchange` for each latent, with the number
        of pairs; q is over all latents. With fewer than 8 pairs the numbers are NaN.

    Raises:
        ArgumentError: for latents that the batch does not have.
        HookError: for a hook that does not exist or has no position axis.
    """
    if not hooks:
        return pd.DataFrame(columns=list(INTERCHANGE_COLUMNS))
    samples = collect(model, batch, list(dict.fromkeys(hooks.values())), seed=seed)
    absent = [name for name in hooks if name not in samples.latents]
    rule = f"must name latents among {', '.join(samples.latents)}"
    need("interchange_table", not absent, "hooks", rule, absent, "drop them")
    rows = [
        _of_latent(model, batch, samples, name, hooks[name], seed) for name in watch(list(hooks))
    ]
    table = pd.DataFrame(rows, columns=[name for name in INTERCHANGE_COLUMNS if name != "q"])
    table["q"] = adjust(table["p"].to_numpy(dtype=float))
    return table[list(INTERCHANGE_COLUMNS)]


def _of_latent(
    model: Any, batch: Batch, samples: Samples, name: str, hook: str, seed: int
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(np.unique(samples.groups))
    learned = np.isin(samples.groups, numbers[: len(numbers) // 2])
    latent, kind = samples.latents[name], samples.kinds[name]
    row: dict[str, Any] = {"latent": name, "hook": hook, "kind": kind, "pairs": 0}
    if not np.ptp(latent[learned]):
        return row
    directions = probe_directions(samples.features[hook][learned], latent[learned], kind)
    base, source, at = _pairs(latent, rng.permutation(np.flatnonzero(~learned)))
    if not len(base):
        return row
    rows, positions = torch.from_numpy(samples.places.rows), torch.from_numpy(samples.positions)
    inputs = batch.inputs
    put, taken = positions[base, at], positions[source, at]
    ours, theirs = (
        _output_at(model, inputs, rows[which], where)
        for which, where in ((base, put), (source, taken))
    )
    expected = theirs if batch.targets.is_floating_point() else theirs.argmax(-1)
    differs = distance(ours, expected) > 0
    row["pairs"] = int(differs.sum())
    if row["pairs"] < _LEAST_PAIRS or not np.any(directions):
        return row
    found = interchange(
        model,
        hook,
        torch.from_numpy(directions),
        inputs[rows[base][differs]],
        inputs[rows[source][differs]],
        expected[differs],
        put[differs],
        source_position=taken[differs],
        seed=seed,
    )
    return row | asdict(found)


def _pairs(
    latent: Latent, rows: Int[np.ndarray, " half"]
) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]:
    """Pair each row with the next row whose latent differs, at one sample of both; rows without
    such a row are left out."""
    found = []
    for place, row in enumerate(rows):
        at, others = place % latent.shape[1], np.roll(rows, -place - 1)[:-1]
        differing = others[latent[others, at] != latent[row, at]]
        if len(differing):
            found.append((row, differing[0], at))
    base, source, at = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return base, source, at


def _output_at(
    model: Any, inputs: Tensor, rows: Int[Tensor, " pair"], at: Int[Tensor, " pair"]
) -> Float[Tensor, "pair output"]:
    """Return the model's output at one position of each row."""
    return torch.cat([output.cpu() for _, output in run_at(model, inputs[rows], at).outputs()])


def distance(output: Tensor, expected: Tensor) -> Float[Tensor, "*draw row"]:
    """Return how far each row's output is from the expected one.

    Args:
        output: The model's outputs ``[row, output]``.
        expected: Real outputs ``[*draw, row, output]``, or token ids ``[*draw, row]``.

    Returns:
        The squared distance for real outputs; for token ids 1 where the token with the largest
        logit is not the expected one, else 0.
    """
    output, expected = output.detach().cpu(), expected.cpu()
    if expected.is_floating_point():
        return (output.double() - expected.double()).square().sum(-1)
    return (output.argmax(-1) != expected).double()


def _summary(
    left: Float[np.ndarray, "output row"], moves: Float[np.ndarray, "change row"], seed: int
) -> Interchange:
    """Summarise an interchange, from distances to the expected output and to the clean output.

    Args:
        left: Distances to the expected output: clean, exchanged, then placebos.
        moves: Distances to the clean output: exchanged, then placebos.
        seed: Seed of the interval.
    """
    clean, gained = left[0], left[0] - left[1:]
    size = float(clean.mean())
    rule = "must differ from what the model gives without an exchange"
    need("interchange", size > 0, "expected", rule, size, "choose pairs whose answers differ")
    difference = (gained[0] - gained[1:].mean(0)) / size
    low, high = row_interval(difference, seed=seed)
    return Interchange(
        moved=float(gained[0].mean()) / size,
        placebo=float(gained[1:].mean()) / size,
        changed=float(moves[0].mean()) / size,
        placebo_changed=float(moves[1:].mean()) / size,
        low=low,
        high=high,
        p=max(paired_null(difference).p, paired_null(gained[0] / size).p),
    )
