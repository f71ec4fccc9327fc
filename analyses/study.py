"""One model on one task, measured through and through: the tables a report is made of.

    task → rows → activations in a store → scores with nulls → roles with evidence

Every table is sealed into the store it came from, so that it can be read back with its provenance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from interp.models.transformer import SequenceTransformer
from interp.store import ActivationStore, extract
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory
from probes.ablation import ablation_table
from probes.activations import Sampled, sampled_positions
from probes.kernels import LayerKernels, kernel_table, layer_kernels
from probes.layerwise import decodability, residual_sites
from probes.roles import decide_roles

__all__ = ["Performance", "Study", "study"]

ROWS, BATCH, POSITIONS = 256, 64, 8


@dataclass(frozen=True)
class Performance:
    """How well a model solves its task, over scored positions.

    Attributes:
        accuracy: Share with the right sign.
        error: Mean squared error over the target's variance.
        worst: Largest absolute error.
    """

    accuracy: float
    error: float
    worst: float


@dataclass(frozen=True)
class Study:
    """What was measured on one model.

    Attributes:
        name: Of the model, in words.
        model: Which.
        task: The task it was measured on.
        store: Its activations, with the tables.
        scores: Every score with its null (a head table).
        roles: What was decided, with evidence.
        kernels: Attention by lag of each layer.
        performance: How well it solves the task.
    """

    name: str
    model: SequenceTransformer
    task: FixedMemory
    store: ActivationStore
    scores: pd.DataFrame
    roles: pd.DataFrame
    kernels: tuple[LayerKernels, ...]
    performance: Performance

    @property
    def memories(self) -> Mapping[str, int]:
        """Latent → its lag."""
        return dict(zip(self.task.arguments[1:], self.task.lags, strict=True))

    @property
    def sites(self) -> tuple[str, ...]:
        """Hooks of the residual stream, in order."""
        return residual_sites([bool(widths) for widths in self.model.spec.ffn_widths])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Thousands of tiny operations run faster on one thread, many times so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def study(
    name: str, model: SequenceTransformer, task: FixedMemory, out: Path, *, seed: int = 0
) -> Study:
    """Measure ``model`` on ``task`` and seal everything into a store at ``out``.

    Args:
        name: What to call the model.
        model: A one-layer or deeper model of the task.
        task: A fixed-memory task.
        out: Folder of the activation store.
        seed: Of the rows and of the nulls.
    """
    layers = range(model.spec.n_layers)
    sites = residual_sites([bool(widths) for widths in model.spec.ffn_widths])
    hooks = [*sites, *[f"blocks.{layer}.attn.hook_{kind}" for layer in layers
                       for kind in ("pattern", "z")]]  # fmt: skip
    store = extract(model, task, hooks, out, rows=ROWS, batch=BATCH, seed=seed)
    batch = _rows_of(store)
    memories = dict(zip(task.arguments[1:], task.lags, strict=True))
    kernels = tuple(layer_kernels(model, batch, layer, memories) for layer in layers)
    sampled = Sampled(store, sampled_positions(store.mask(), POSITIONS))
    scores = pd.concat(
        [
            decodability(sampled, sites, seed=seed),
            *[kernel_table(k, model, batch, memories, seed=seed) for k in kernels],
            ablation_table(model, batch, [*task.arguments, "f"], seed=seed),
        ],
        ignore_index=True,
    )
    roles = decide_roles(scores, memories, "f", task.arguments)
    provenance = {"model": name, "task": task.to_dict(), "seed": seed, "rows": ROWS}
    store.write_measurement("scores", scores, provenance)
    store.write_measurement("roles", roles, provenance)
    return Study(name, model, task, store, scores, roles, kernels, _performance(model, batch))


def _rows_of(store: ActivationStore) -> Batch:
    """The very rows whose activations the store holds."""
    return Batch(
        inputs=torch.from_numpy(store.inputs()),
        targets=torch.from_numpy(store.targets()),
        mask=torch.from_numpy(store.mask()),
        latents={name: torch.from_numpy(value) for name, value in store.latents().items()},
    )


@torch.no_grad()
def _performance(model: SequenceTransformer, batch: Batch) -> Performance:
    found, scored = (t[batch.mask].double() for t in (model(batch.inputs), batch.targets))
    wrong = found - scored
    return Performance(
        accuracy=float((found.sign() == scored.sign()).double().mean()),
        error=float(wrong.square().mean() / scored.var(correction=0)),
        worst=float(wrong.abs().max()),
    )
