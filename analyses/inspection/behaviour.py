"""What a model's heads do on the trials' rows, and what is lost without them.

    attention   share of attention by class of key: previous, same, after_same, first, local, own
                (:mod:`interp.heads.content`), on repeated tokens, their shuffled control and text
    copying     how much a head raises the tokens it attends to, and
    positional  how far its attention is the same on all rows (:mod:`interp.heads.behaviour`)
    loss        its rise when a head or an FFN is replaced by its mean over rows, in nats a token,
                on every trial; null: the sign of each row's difference is random

Every frame is a head table; the trial stands in ``target`` after an @: ``after_same@repeated``.
Frames are sealed into the activation store that they were made from, and read back from it when an
inspection is resumed. Mean ablation leaves the model where it never is, and a head whose work
another takes over has no effect: a missing rise is no proof of idleness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from analyses.inspection.trials import Trial
from interp.errors import ConformanceError
from interp.heads.ablate import ablated
from interp.heads.behaviour import SCALE, copying_table, positional_table
from interp.heads.content import attention_mass
from interp.heads.effects import Component, components, mean_outputs, run_without
from interp.heads.nulls import from_draws, signs_null
from interp.heads.reading import read_batches
from interp.heads.table import head_table, score_row
from interp.lens import HookedModel
from interp.store import ActivationStore, extract
from interp.tasks.base import Batch

__all__ = [
    "Performance",
    "attention_tables",
    "loss_table",
    "performance",
    "row_losses",
    "stored_rows",
]

_BATCH = 32


@dataclass(frozen=True)
class Performance:
    """How well the model does a trial.

    Attributes:
        trial: Which.
        loss: Mean over rows of the loss at scored positions, in nats a token.
        control: The same on the control's rows; NaN where there is none.
        accuracy: Share of scored positions with the right token on top.
        p: Of a loss that far below the control's, by exchanging rows; NaN without a control.
    """

    trial: str
    loss: float
    control: float
    accuracy: float
    p: float


def stored_rows(
    model: HookedModel, trial: Trial, folder: Path, *, resume: bool
) -> dict[str, ActivationStore]:
    """The activations that measurements read, extracted into stores (or what is missing of them).

    Returns:
        ``repeated`` and ``shuffled``, or ``text``.
    """
    batches = {trial.name: trial.batch}
    if trial.control is not None:
        batches["shuffled"] = trial.control
    hooks = [*_hooks(model, "pattern"), *_hooks(model, "z"), SCALE]
    return {
        name: extract(model, batch, hooks, folder / name, batch=_BATCH,
                      resume=resume and (folder / name).exists())
        for name, batch in batches.items()
    }  # fmt: skip


def attention_tables(model: HookedModel, store: ActivationStore, name: str) -> pd.DataFrame:
    """Attention by class, copying and position of every head on one store's rows."""

    def make() -> pd.DataFrame:
        patterns = _hooks(model, "pattern")
        everything = [*patterns, *_hooks(model, "z"), SCALE]
        tables = [
            attention_mass(read_batches(store, None, patterns, batch=_BATCH)),
            positional_table(read_batches(store, None, patterns, batch=_BATCH)),
            copying_table(model, read_batches(store, None, everything, batch=_BATCH)),
        ]
        found = pd.concat(tables, ignore_index=True)
        found["target"] = found["target"] + f"@{name}"
        return found

    return _sealed(store, "attention", {"rows": name}, make)


def loss_table(model: HookedModel, trial: Trial, store: ActivationStore, seed: int) -> pd.DataFrame:
    """The rise of the loss on a trial without each head and each FFN."""

    def make() -> pd.DataFrame:
        whole = row_losses(_output(model, trial.batch.inputs), trial.batch)
        rows = []
        for part, output in _without_each(model, trial.batch.inputs):
            rise = (row_losses(output, trial.batch) - whole).double().numpy()
            draws = signs_null(rise, seed=seed)
            null = from_draws(float(rise.mean()), draws, normal_tail=True)
            error = 1.96 * float(rise.std(ddof=1)) / np.sqrt(len(rise))
            rows.append(score_row(
                "loss_increase", float(rise.mean()), null, component=part.kind, layer=part.layer,
                head=part.head, target=f"loss@{trial.name}",
                interval=(float(rise.mean()) - error, float(rise.mean()) + error),
            ))  # fmt: skip
        return head_table(rows)

    digest = hashlib.sha256(trial.batch.inputs.numpy().tobytes()).hexdigest()
    return _sealed(store, f"loss-{trial.name}", {"rows_sha256": digest, "seed": seed}, make)


def performance(model: HookedModel, trial: Trial, *, draws: int = 10_000) -> Performance:
    """Loss and accuracy on a trial, against its control."""
    output = _output(model, trial.batch.inputs)
    losses = row_losses(output, trial.batch)
    mask = trial.batch.mask
    right = output[mask].argmax(-1) == trial.batch.targets[mask]
    control, p = float("nan"), float("nan")
    if trial.control is not None:
        other = row_losses(_output(model, trial.control.inputs), trial.control)
        control = float(other.mean())
        pooled = torch.cat((losses, other)).double().numpy()
        rng, n = np.random.default_rng(0), len(losses)
        found = np.array([_gap(rng.permutation(pooled), n) for _ in range(draws)])
        p = from_draws(_gap(pooled, n), found, normal_tail=True).p
    return Performance(trial.name, float(losses.mean()), control, float(right.float().mean()), p)


def row_losses(output: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy at the scored positions of each row, in nats: ``[row]``."""
    each = F.cross_entropy(output.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
    scored = batch.mask.float()
    return (each.view_as(scored) * scored).sum(1) / scored.sum(1).clamp_min(1)


def _gap(losses: np.ndarray[Any, Any], n: int) -> float:
    return float(losses[n:].mean() - losses[:n].mean())


def _hooks(model: HookedModel, kind: str) -> list[str]:
    return [f"blocks.{layer}.attn.hook_{kind}" for layer in range(model.cfg.n_layers)]


@torch.no_grad()
def _output(model: HookedModel, inputs: Tensor) -> Tensor:
    output: Tensor = model(inputs)  # type: ignore[operator]
    return output


def _without_each(model: HookedModel, inputs: Tensor) -> Iterator[tuple[Component, Tensor]]:
    """All at once where the model can be replayed, else one forward pass a component."""
    parts = components(model)
    try:
        yield from ablated(model, inputs, parts, how="mean")
    except ConformanceError:
        yield from _one_by_one(model, inputs, parts)


def _one_by_one(
    model: HookedModel, inputs: Tensor, parts: Sequence[Component]
) -> Iterator[tuple[Component, Tensor]]:
    means = mean_outputs(model, inputs, parts)
    for part in parts:
        yield part, run_without(model, inputs, [part], means)[0]


def _sealed(
    store: ActivationStore, name: str, provenance: dict[str, Any], make: Callable[[], pd.DataFrame]
) -> pd.DataFrame:
    """The table of that name in the store, if it was made in the same way; else made and kept."""
    if name in store.measurements and store.provenance(name) == provenance:
        return store.measurement(name)
    table = make()
    store.write_measurement(name, table, provenance, overwrite=True)
    return table
