"""Can ρ be read off the attention: nearest neighbours, segments, indexed vectors?

Single-layer models are trained on the values alone, and their attention is compared with the
coupling that the task was built from: the nearest neighbour's edge, the even weights within a
segment, the set of indices. Models before training are the null. The attention of one layer without
residual is all that passes information between positions, so here attention is the explanation; in
deeper models it need not be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.figures.graph import AttentionPair, PointGraph, attention_graph, attention_pairs
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.models import single_layer
from analyses.papers.coupling.tasks import IndexedAverage, NearestPoint, SegmentCentres
from analyses.papers.experiment import Experiment, status_of
from prooflens.architectures import build
from prooflens.tasks import Batch

__all__ = ["readable", "readings"]

_PATTERN = "blocks.0.attn.hook_pattern"
_ROWS = 512
_FOUND, _NEAR = 0.95, 0.1


def readable(setting: Setting) -> Verdict:
    """Test that attention recovers the coupling (ledger: ``coupling-attention``)."""
    tasks: tuple[Any, ...] = (NearestPoint(), SegmentCentres(), IndexedAverage())
    experiment = Experiment(setting)
    for task in tasks:
        spec = _spec(task, setting.options["m_h"], setting.options["width"])
        experiment.add({"task": task.name}, task, spec)
    _, trained = experiment.run()
    rows = []
    for (_, run), fit in zip(experiment.planned, trained, strict=True):
        batch = run.task.sample(_ROWS, seed=2**62 + 3)
        untrained = build(run.spec, seed=run.training.seed + 1000)
        rows.append(
            {"task": run.task.name, "seed": run.training.seed, "error": fit.metrics["error"]}
            | readings(fit.model, batch)
            | {f"untrained_{k}": v for k, v in readings(untrained, batch).items()}
        )
    table = pd.DataFrame(rows)
    medians = table.groupby("task", sort=False).median(numeric_only=True)
    judged = {str(task): _holds(str(task), row) for task, row in medians.iterrows()}
    edges, distances = medians["found"].tolist(), medians["distance"].tolist()
    words = (
        f"Nearest edges exact for {edges[0]:.1%} of points, segments found for {edges[1]:.1%} of "
        f"prediction tokens (weights {distances[1]:.2f} away), index sets for {edges[2]:.1%} "
        f"(weights {distances[2]:.2f} away)."
    )
    numbers = {
        "tasks": {
            str(t): {c: g[c].tolist() for c in table.columns if c not in ("task", "seed")}
            for t, g in table.groupby("task", sort=False)
        },
        "holds": judged,
    }
    models = [fit.model for fit in trained[:: len(setting.seeds)]]
    return Verdict(
        status_of(judged),
        words,
        f"edges {edges[0]:.1%}, segments {edges[1]:.1%}, sets {edges[2]:.1%}",
        numbers,
        {"readings": table},
        _drawings(tasks, models),
    )


def _spec(task: Any, m_h: int, width: int) -> Any:
    """Return the spec of the single-layer model. For one-hot indices f̂ is linear."""
    spec = single_layer(task, m_h, width)
    return replace(spec, input_ffn=()) if getattr(task, "one_hot", False) else spec


def readings(model: Any, batch: Batch) -> dict[str, float]:
    """Measure how well a model's attention recovers the task's coupling, over the scored queries.

    Returns:
        ``found``: share of queries whose most attended keys are exactly the right ones (the nearest
        point; all points of the segment; the set of indices). ``distance``: mean total variation
        distance from the right weights.
    """
    attention, right = _attention(model, batch), _right(batch)
    count = (right > 0).sum(-1)
    order = attention.argsort(dim=-1, descending=True)
    sought = torch.gather(right > 0, -1, order)
    place = torch.arange(order.shape[-1])
    exact = (sought | (place >= count[..., None])).all(-1)
    distance = (attention - right).abs().sum(-1) / 2
    scored = batch.mask
    return {
        "found": float(exact[scored].double().mean()),
        "distance": float(distance[scored].double().mean()),
    }


@torch.no_grad()
def _attention(model: Any, batch: Batch) -> Tensor:
    _, cache = model.run_with_cache(batch.inputs, names_filter=[_PATTERN])
    pattern: Tensor = cache[_PATTERN][:, 0]
    return pattern


def _right(batch: Batch) -> Tensor:
    """Return the attention weights from which the task was built, ``[batch, query, key]``."""
    if "nearest" not in batch.latents:
        return batch.latents["coupling"]
    length = batch.inputs.shape[1]
    return torch.nn.functional.one_hot(batch.latents["nearest"], length).float()


def _holds(task: str, row: Any) -> bool:
    found = row["found"] >= _FOUND
    return bool(found if task.startswith("nearest") else found and row["distance"] <= _NEAR)


def _drawings(tasks: tuple[Any, ...], models: list[Any]) -> dict[str, Drawing]:
    batch = tasks[0].sample(3, seed=7)
    attention = _attention(models[0], batch).numpy()
    points = batch.inputs.numpy()
    graphs = [
        PointGraph(
            f"input {i + 1}",
            points[i, :, :2],
            np.where(points[i, :, 2] > 0, 0, 1),
            attention[i],
            batch.latents["nearest"][i].numpy(),
        )
        for i in range(3)
    ]
    pairs = []
    for title, task, model in zip(
        ("segments", "indexed vectors"), tasks[1:], models[1:], strict=True
    ):
        one = task.sample(1, seed=7)
        shown = one.mask[0, :, None].float()
        pairs.append(
            AttentionPair(
                title, (_right(one)[0] * shown).numpy(), (_attention(model, one)[0] * shown).numpy()
            )
        )
    return {
        "nearest-neighbours": Drawing(
            attention_graph(graphs), "Attention as arrows, over the edges to the nearest points."
        ),
        "segments-and-sets": Drawing(
            attention_pairs(pairs),
            "Attention matrices beside the weights of the average that is asked for.",
        ),
    }
