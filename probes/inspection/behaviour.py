"""What an inspection runs a model for: stored activations, the model's loss, each component's
effect.

    stores   attention patterns and what heads write, on repeated tokens, their shuffled control
             and text
    loss     its rise when a head or an FFN is replaced by its mean over rows, in nats a token, on
             every trial; null: the sign of each row's difference is random. Of models with more
             than 64 heads and FFNs, only for heads with a role's behaviour, unless all are asked
             for

Tables are sealed into the store of the repeated tokens, and read back from it when an inspection is
resumed; the rises of the loss a few components at a time. Mean ablation leaves the model where it
never is, and a head whose work another takes over has no effect: a missing rise is no proof of
idleness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component, components
from interp.stats.head_table import ANY_TARGET, finished, head_table
from interp.stats.p_values import from_draws
from interp.store import ActivationStore, extract
from probes.roles.looking import looked_at
from probes.roles.runs import Runs
from probes.roles.trials import Trial

__all__ = [
    "Performance",
    "Watch",
    "ablated_parts",
    "loss_tables",
    "performance",
    "sealed",
    "stored_rows",
]

_BATCH, _MANY, _AT_ONCE = 32, 64, 48

Watch = Callable[[Sequence[Any]], Iterable[Any]]
"""Goes through items, and tells how far it is."""


@dataclass(frozen=True)
class Performance:
    """How well the model does on a trial.

    Attributes:
        trial: The name of the trial.
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
    """Extract the activations that measurements read into stores; with ``resume`` only those
    missing.

    Returns:
        ``repeated`` and ``shuffled``, or ``text``, or ``rows``.
    """
    batches = {trial.name: trial.batch}
    if trial.control is not None:
        batches["shuffled"] = trial.control
    hooks = looked_at(model, behaviour=True)
    return {
        name: extract(
            model,
            batch,
            hooks,
            folder / name,
            batch=_BATCH,
            resume=resume and (folder / name).exists(),
        )
        for name, batch in batches.items()
    }


def ablated_parts(
    model: HookedModel, roles: pd.DataFrame, *, every: bool = False
) -> list[Component]:
    """The components whose rise of the loss is measured: all of a small model; of others the heads
    of a role table, unless ``every`` one is asked for."""
    parts = list(components(model))
    if every or len(parts) <= _MANY:
        return parts
    named = set(zip(roles["layer"], roles["head"], strict=True))
    return [part for part in parts if (part.layer, part.head) in named]


def loss_tables(
    model: HookedModel,
    trials: Sequence[Trial],
    parts: Sequence[Component],
    store: ActivationStore,
    *,
    seed: int,
    watch: Watch = lambda items: items,
) -> pd.DataFrame:
    """The rise of the loss on every trial without each component (a head table).

    Args:
        model: The hooked model.
        trials: The kinds of rows.
        parts: The components.
        store: Where what is finished is sealed, and read from when an inspection is resumed.
        seed: Of the intervals.
        watch: Called with the pieces of the work; goes through them.
    """
    known = {trial.name: _known(store, trial, seed) for trial in trials}
    pieces = []
    for trial in trials:
        done = set(_places(known[trial.name]))
        left = [part for part in parts if (part.kind, part.layer, part.head) not in done]
        pieces += [(trial, left[i : i + _AT_ONCE]) for i in range(0, len(left), _AT_ONCE)]
    for trial, some in watch(pieces):
        found = ablate(model, trial.batch, some, seed=seed).assign(trial=trial.name)
        joined = pd.concat([known[trial.name], found], ignore_index=True)
        known[trial.name] = finished(joined, family=ANY_TARGET)
        about = _about(trial, seed)
        store.write_measurement(f"loss-{trial.name}", known[trial.name], about, overwrite=True)
    wanted = {(part.kind, part.layer, part.head) for part in parts}
    table = pd.concat(list(known.values()), ignore_index=True)
    chosen = np.array([at in wanted for at in _places(table)], dtype=bool)
    return table[chosen].reset_index(drop=True)


def _known(store: ActivationStore, trial: Trial, seed: int) -> pd.DataFrame:
    """What an interrupted inspection sealed about a trial."""
    name = f"loss-{trial.name}"
    if name in store.measurements and store.provenance(name) == _about(trial, seed):
        return store.measurement(name)
    return head_table([])


def _about(trial: Trial, seed: int) -> dict[str, Any]:
    digest = hashlib.sha256(trial.batch.inputs.numpy().tobytes()).hexdigest()
    return {"rows_sha256": digest, "seed": seed}


def _places(table: pd.DataFrame) -> Iterator[tuple[str, int, int]]:
    return zip(table["component"], table["layer"], table["head"], strict=True)


def performance(
    runs: Runs, name: str, control: Runs | None = None, *, draws: int = 10_000
) -> Performance:
    """The loss and accuracy on a trial's rows, compared with its control.

    Args:
        runs: The model's clean pass over the trial's rows.
        name: The trial's.
        control: The same model's over the control's rows, if it has one.
        draws: Permutations of rows between the two.
    """
    losses, other, p = runs.row_losses, float("nan"), float("nan")
    if control is not None:
        without = control.row_losses
        other = float(without.mean())
        pooled = torch.cat((losses, without)).numpy()
        rng, n = np.random.default_rng(0), len(losses)
        found = _gap(np.stack([rng.permutation(pooled) for _ in range(draws)]), n)
        p = from_draws(float(_gap(pooled, n)), found).p
    return Performance(name, float(losses.mean()), other, runs.accuracy, p)


def _gap(losses: NDArray[np.floating], n: int) -> NDArray[np.floating]:
    """How much higher the mean is after the first ``n`` of the last axis."""
    return np.asarray(losses[..., n:].mean(-1) - losses[..., :n].mean(-1))


def sealed(
    store: ActivationStore, name: str, provenance: dict[str, Any], make: Callable[[], pd.DataFrame]
) -> pd.DataFrame:
    """The stored table of that name if it was made in the same way; else it is made and stored."""
    if name in store.measurements and store.provenance(name) == provenance:
        return store.measurement(name)
    table = make()
    store.write_measurement(name, table, provenance, overwrite=True)
    return table
