"""The loss without each head of a GPT-2-sized model, against one full forward pass a head.

    python -m analyses benchmark inspection [--rows 32] [--heads 144] [--threads 2] [--whole]

GPT-2 small's shapes with random weights (12 layers × 12 heads, width 768, 50,257 tokens) through a
``TransformerBridge``, on the three trials of ``prooflens inspect``. Both sides give one table,
the mean rise of the loss without each head on every trial: one is
:func:`probes.inspection.losses.loss_tables`; the other is what users write, ``run_with_hooks``
once a head with ``hook_z`` replaced by its mean, then the cross-entropy at scored positions. Of the
other side ``--compared`` heads, spread over all layers, are run and their time is taken for all.

With ``--whole`` an inspection runs first, in its default profile: a model that nobody trained
has no role, so its verdict needs no ablation.

The last line is JSON: ``seconds`` and ``peak_mb`` (of ``inspect`` with ``--whole``, else of the
tables), ``vs_naive`` (how many times faster the same tables are) and ``max_difference`` (of the
rises, in nats).
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy

from prooflens.architectures import Pretrained, load_pretrained
from prooflens.inspection import inspect, loss_tables
from prooflens.interventions import Component, components
from prooflens.roles import LANGUAGE, Trial, evidence_of, rows_of, token_trials

__all__ = ["main", "rises_one_by_one"]


def main(
    rows: Annotated[int, typer.Option(help="Rows of every trial.")] = 32,
    heads: Annotated[int, typer.Option(help="Heads in the tables, from the first on.")] = 144,
    compared: Annotated[int, typer.Option(help="Heads that are run one by one.")] = 12,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 2,
    whole: Annotated[bool, typer.Option("--whole", help="Run an inspection, too.")] = False,
) -> None:
    """Print seconds, memory and the ratio as JSON in the last line."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = _model(place / "model")
        result = _inspected(model, place, rows) if whole else {}
        trials, _ = token_trials(model, rows=rows)
        parts = [part for part in components(model.model) if part.kind == "head"][:heads]
        started = time.perf_counter()
        evidence = evidence_of(model.model, rows_of(trials), LANGUAGE)
        table = loss_tables(evidence, trials, parts, None, seed=0, every=True)
        ours = time.perf_counter() - started
    result = result or {"seconds": round(ours, 1), "peak_mb": _peak()}
    some = parts[:: max(1, len(parts) // compared)]
    found, naive = {}, 0.0
    for trial in trials:
        started = time.perf_counter()
        found[trial.name] = rises_one_by_one(model.model, trial, some)
        naive += (time.perf_counter() - started) * len(parts) / len(some)
    typer.echo(f"tables of {len(parts)} heads: {ours:.0f} s; one by one {naive:.0f} s")
    scores = table.set_index(["trial", "layer", "head"])["score"]
    worst = max(
        abs(float(scores[name, part.layer, part.head]) - rise)
        for name, rises in found.items()
        for part, rise in rises.items()
    )
    typer.echo(json.dumps({**result, "vs_naive": round(naive / ours, 2), "max_difference": worst}))


def _model(folder: Path) -> Pretrained:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    return load_pretrained(folder)


def _inspected(model: Pretrained, place: Path, rows: int) -> dict[str, Any]:
    """The seconds and the memory of an inspection, without loading the model or drawing."""
    started = time.perf_counter()
    found = inspect(model.model, count=rows, out=place / "out")
    seconds = time.perf_counter() - started
    typer.echo(f"inspect: {seconds:.0f} s; {len(found.roles)} rows of roles")
    return {"seconds": round(seconds, 1), "peak_mb": _peak()}


@torch.no_grad()
def rises_one_by_one(model: Any, trial: Trial, parts: list[Component]) -> dict[Component, float]:
    """What users write by hand: one forward pass a head, then the loss at scored positions."""
    names = sorted({f"blocks.{part.layer}.attn.hook_z" for part in parts})
    batch = trial.batch
    logits, cache = model.run_with_cache(batch.inputs, names_filter=names)
    clean, found = _loss(logits, trial), {}
    for part in parts:
        name = f"blocks.{part.layer}.attn.hook_z"
        hook = partial(_put, mean=cache[name].mean(0), head=part.head)
        changed = model.run_with_hooks(batch.inputs, fwd_hooks=[(name, hook)])
        found[part] = float((_loss(changed, trial) - clean).mean())
    return found


def _put(z: Tensor, hook: Any, mean: Tensor, head: int) -> Tensor:
    z[:, :, head] = mean[:, head]
    return z


def _loss(logits: Tensor, trial: Trial) -> Tensor:
    """Each row's mean loss over scored positions."""
    mask = trial.batch.mask
    losses = cross_entropy(logits.transpose(1, 2), trial.batch.targets, reduction="none")
    return (losses * mask).sum(1) / mask.sum(1)


def _peak() -> int:
    """The most memory that this process has held, in megabytes."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held // (1 << 20 if sys.platform == "darwin" else 1 << 10)
