"""How long does an inspection take, and how much longer would one forward pass an edit take?

    python -m analyses benchmark inspection [MODEL] [--quick] [--rows 32] [--threads 2]

``MODEL`` is a name that ``prooflens models`` lists, or a folder. It is inspected as ``prooflens
inspect`` does, into a folder that is dropped. Without one, GPT-2 small's shapes with random weights
(12 layers × 12 heads, width 768, 50,257 tokens) are the easy case: a model that nobody trained has
no role, so its verdict needs no ablation.

Then two sides give one table, the mean rise of the loss without each head on every trial. One is
:func:`prooflens.inspection.loss_tables`, as an inspection makes it: rows are run while it is open
whether the loss rises by the floor of a cause, on at most eight of them. The other is what users
write: ``run_with_hooks`` once a head with what it writes replaced by its mean, on all rows, then
the cross-entropy at scored positions. It runs a tenth of the heads, spread over all layers, and its
time is taken for all. On these heads our table is made once more on all rows, to compare like with
like.

The last line is JSON: ``seconds`` of the inspection (loading and drawing included), ``peak_mb``,
``first_finding_seconds`` (until the first sentence on the model's rows), ``forwards`` (forward
passes over all rows that it took), ``vs_naive`` (how many times faster our table is),
``vs_naive_all_rows`` (the same where ours is made on all rows), ``held`` (the share of the 95 %
intervals of our table that hold the number of all rows) and ``max_difference`` (the largest between
both sides, of rises on all rows, in nats).
"""

from __future__ import annotations

import json
import re
import resource
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy

from prooflens.architectures import load_pretrained
from prooflens.inspection import inspect, loss_tables
from prooflens.interventions import Component, components
from prooflens.roles import LANGUAGE, Trial, evidence_of, rows_of, token_trials
from prooflens.run import Mean, Site
from prooflens.trained import folder_of

__all__ = ["main", "rises_one_by_one"]

_FORWARDS = re.compile(r"measured by (\d+) forward passes")


def main(
    model: Annotated[str, typer.Argument(help="A model's name or folder; none for GPT-2's.")] = "",
    rows: Annotated[int, typer.Option(help="Rows of every trial.")] = 32,
    quick: Annotated[bool, typer.Option("--quick", help="As inspect --quick.")] = False,
    compared: Annotated[int, typer.Option(help="Heads run one by one; 0 for a tenth.")] = 0,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 2,
    whole: Annotated[bool, typer.Option(help="Run an inspection, too.")] = True,
) -> None:
    """Print seconds, memory and the ratio as JSON in the last line."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        named = model or str(_random(place / "model"))
        result = _measure_inspection(named, place, rows, quick) if whole else {}
        loaded = load_pretrained(folder_of(named))
        trials, _ = token_trials(loaded, rows=rows)
        parts = [part for part in components(loaded.model) if part.kind == "head"]
        some = parts[:: max(1, len(parts) // (compared or -(-len(parts) // 10)))]
        share = len(some) / len(parts)
        ours, bought, _ = _tables(loaded.model, trials, parts, every=False)
        exactly, _, evidence = _tables(loaded.model, trials, some, every=True)
        naive, differences, held = 0.0, list[float](), list[bool]()
        for trial in trials:
            started = time.perf_counter()
            scored = replace(trial, batch=evidence.batch(trial.name))
            found = rises_one_by_one(loaded.model, scored, some)
            naive += time.perf_counter() - started
            run = evidence.run(trial.name)
            for part, rise in found.items():
                mean = float(run.by_row(run.rise(Mean(Site(part.layer, "z", part.head)))).mean())
                differences.append(abs(mean - rise))
                low, high = bought[trial.name, part.layer, part.head]
                held.append(low <= mean <= high)
    typer.echo(
        f"tables of {len(parts)} heads: {ours:.0f} s; on all rows {exactly / share:.0f} s; one by "
        f"one {naive / share:.0f} s"
    )
    ratios = {
        "vs_naive": round(naive / share / ours, 2),
        "vs_naive_all_rows": round(naive / exactly, 2),
        "held": round(sum(held) / len(held), 3),
        "max_difference": max(differences),
    }
    typer.echo(json.dumps({"peak_mb": _peak(), **result, **ratios}))


def _tables(
    model: Any, trials: list[Trial], parts: list[Component], *, every: bool
) -> tuple[float, dict[tuple[str, int, int], tuple[float, float]], Any]:
    """Return the seconds that our table takes, the interval of each head on each trial, and the
    evidence."""
    started = time.perf_counter()
    evidence = evidence_of(model, rows_of(trials), LANGUAGE)
    table = loss_tables(evidence, trials, parts, None, seed=0, every=every)
    seconds = time.perf_counter() - started
    places = zip(table["trial"], table["layer"].tolist(), table["head"].tolist(), strict=True)
    intervals = zip(table["low"].tolist(), table["high"].tolist(), strict=True)
    return seconds, dict(zip(places, intervals, strict=True)), evidence


def _random(folder: Path) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    return folder


def _measure_inspection(model: str, place: Path, rows: int, quick: bool) -> dict[str, Any]:
    """Return an inspection's duration, memory, time to the first finding, and number of forward
    passes."""
    started, told = time.perf_counter(), dict[str, float]()
    steps: list[str] = []

    def step(words: str) -> None:
        steps.append(words)
        told.setdefault(words, time.perf_counter() - started)

    found = inspect(model, count=rows, quick=quick, out=place / "out", step=step)
    seconds = time.perf_counter() - started
    typer.echo(f"inspect: {seconds:.0f} s; {len(found.roles)} rows of roles")
    after = next(at for at, words in enumerate(steps) if words.startswith("attention of")) + 1
    forwards = next(int(one[1]) for words in steps if (one := _FORWARDS.search(words)))
    return {
        "seconds": round(seconds, 1),
        "peak_mb": _peak(),
        "first_finding_seconds": round(told[steps[after]], 1),
        "forwards": forwards,
    }


@torch.no_grad()
def rises_one_by_one(model: Any, trial: Trial, parts: list[Component]) -> dict[Component, float]:
    """Compute the rises as users do by hand: one forward pass per head, then the loss at scored
    positions."""
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
    """Return each row's mean loss over its scored positions."""
    mask = trial.batch.mask
    losses = cross_entropy(logits.transpose(1, 2), trial.batch.targets, reduction="none")
    return (losses * mask).sum(1) / mask.sum(1)


def _peak() -> int:
    """Return the peak memory of this process in megabytes."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held // (1 << 20 if sys.platform == "darwin" else 1 << 10)
