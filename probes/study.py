"""Measure one model on one task from all sides, and seal the tables into its activation store.

    task → rows → activations in a store → scores with nulls → roles with evidence

Every table is sealed into the store it came from, so that it can be read back with its provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.interventions.components import Component
from interp.models.transformer import SequenceTransformer
from interp.run import Run
from interp.store import ActivationStore, extract
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory
from interp.threads import one_thread
from probes.ablation import ablation_table
from probes.activations import Sampled, sampled_positions
from probes.kernels import KernelNull, LayerKernels, kernel_null, kernel_table, layer_kernels
from probes.layerwise import decodability, residual_sites
from probes.roles import TASK
from probes.roles.find import decided
from probes.roles.gathering import evidence_of

__all__ = ["Performance", "Study", "study"]

ROWS, BATCH = 256, 64


@dataclass(frozen=True)
class Performance:
    """How well a model solves its task, over scored positions.

    Attributes:
        accuracy: The share of positions with the right sign.
        error: The mean squared error over the target's variance.
        worst: The largest absolute error.
    """

    accuracy: float
    error: float
    worst: float


@dataclass(frozen=True)
class Study:
    """Everything that was measured on one model.

    Attributes:
        name: The name of the model, in words.
        model: The model that was run.
        task: The task it was measured on.
        store: Its activations, with the tables sealed into them.
        scores: Every score with its null (a head table).
        roles: The roles that were decided, with the evidence.
        kernels: What heads attend to and write, by lag.
        null: The re-initialised models' scores that :attr:`kernels` were compared with.
        performance: How well it solves the task.
    """

    name: str
    model: SequenceTransformer
    task: FixedMemory
    store: ActivationStore
    scores: pd.DataFrame
    roles: pd.DataFrame
    kernels: LayerKernels
    null: KernelNull
    performance: Performance

    @property
    def memories(self) -> Mapping[str, int]:
        """The latent of each memory → the lag from which it is fetched."""
        return dict(zip(self.task.arguments[1:], self.task.lags, strict=True))

    @property
    def sites(self) -> tuple[str, ...]:
        """The hooks of the residual stream, in order."""
        return residual_sites(self.model)


@one_thread()
def study(
    name: str,
    model: SequenceTransformer,
    task: FixedMemory,
    out: Path,
    *,
    seed: int = 0,
    null: KernelNull | None = None,
) -> Study:
    """Measure ``model`` on ``task`` and seal everything into a store at ``out``.

    Args:
        name: The name that the model gets in reports.
        model: A causal model of one layer: in a deeper one a head's lag is not the memory's.
        task: A fixed-memory task.
        out: The folder for the activation store.
        seed: Seed of the rows and of the nulls.
        null: The kernels' null of another study with the same spec, task and seed, to save time.

    Raises:
        ArgumentError: for a model that cannot be measured in this way.
    """
    _check_measurable(model)
    sites = residual_sites(model)
    hooks = [*sites, *(f"blocks.0.attn.hook_{name}" for name in ("pattern", "z", "v"))]
    hooks += ["blocks.0.ln1.hook_normalized"] * model.spec.identity_ov
    store = extract(model, task, hooks, out, rows=ROWS, batch=BATCH, seed=seed)
    batch = _rows_of(store)
    memories = dict(zip(task.arguments[1:], task.lags, strict=True))
    kernels = layer_kernels(model, store, 0, memories)
    null = kernel_null(model, batch, 0, memories, seed=seed) if null is None else null
    sampled = Sampled(store, sampled_positions(store.mask()))
    with evaluating(model):
        evidence = evidence_of(model, batch, TASK, latents=True, seed=seed)
        run, groups = evidence.run("given"), _groups(kernels, memories)
        lost = ablation_table(run, [*task.arguments, "f"], groups, seed=seed)
        roles = decided(evidence, task.memories(), task.answers())
        performance = _performance(run)
    scores = pd.concat(
        [decodability(sampled, sites), kernel_table(kernels, memories, null), lost],
        ignore_index=True,
    )
    provenance = {"model": name, "task": task.to_dict(), "seed": seed, "rows": ROWS}
    store.write_measurement("scores", scores, provenance)
    store.write_measurement("roles", roles, provenance)
    return Study(name, model, task, store, scores, roles, kernels, null, performance)


def _groups(kernels: LayerKernels, memories: Mapping[str, int]) -> dict[str, list[Component]]:
    """The heads that select each memory together."""
    least = {"share": TASK.floors.kernel_share, "part": TASK.floors.kernel_part}
    return {
        memory: [Component("head", 0, head) for head in kernels.group(memory, lag, **least)]
        for memory, lag in memories.items()
    }


def _check_measurable(model: SequenceTransformer) -> None:
    problems, spec = Problems("study"), model.spec
    rule = "must have one layer: a head's lag is the memory's lag there alone"
    problems.need(spec.n_layers == 1, "model", rule, spec.n_layers, "measure a one-layer model")
    problems.need(spec.causal, "model", "must be causal: kernels are over the past", False, "as is")
    problems.need(any(spec.heads), "model", "must have a head", spec.n_heads, "add one")
    problems.raise_if_any()


def _rows_of(store: ActivationStore) -> Batch:
    """The rows whose activations the store holds, as a batch."""
    return Batch(
        inputs=torch.from_numpy(store.inputs()),
        targets=torch.from_numpy(store.targets()),
        mask=torch.from_numpy(store.mask()),
        latents={name: torch.from_numpy(value) for name, value in store.latents().items()},
    )


def _performance(run: Run) -> Performance:
    pieces = [(output.double(), places.targets.double()) for places, output in run.outputs()]
    found, scored = (torch.cat(some) for some in zip(*pieces, strict=True))
    wrong = found - scored
    return Performance(
        accuracy=float((found.sign() == scored.sign()).double().mean()),
        error=float(wrong.square().mean() / scored.var(correction=0)),
        worst=float(wrong.abs().max()),
    )
