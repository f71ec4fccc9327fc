"""How fast many models are trained, against a lean loop that trains one after another.

    python -m analyses benchmark training [--models 32] [--steps STEPS] [--out FILE.json]

Three grids of models with two layers on rows of 32 tokens (prefix-prediction of L_4, seeds and
learning rates differ): width and batch 16 and 16, 32 and 32, 32 and 64, trained for 800, 400 and
300 steps: about a minute of work for two cores each. Ours is
``trained.grid.train`` with everything it does: measuring the size of stacks, starting processes,
evaluation. The lean loop draws the same rows in the same blocks and does nothing but forward, loss,
backward, clipping and fused AdamW, with as many threads as cores or with one, whichever is faster;
its time is measured on a few models and scaled; which number of threads is faster, the
first round decides. Both sides run in turn, so that they see the same machine.

JSON keys: ``tiny``, ``small``, ``worst`` (lean seconds over ours for the three grids, median of the
rounds) and ``device`` (the same for the first grid on a GPU; null without one); ``seconds`` holds
what was measured. Ratios, not seconds, are what carries over. With other work on the cores both
sides wait for it, and the ratio of a side with two processes is not that of a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prooflens.trained import TrainingRun

__all__ = ["grid", "lean", "main", "measure"]

SIZES = {"tiny": (16, 16), "small": (32, 32), "worst": (32, 64)}
_STEPS = {"tiny": 800, "small": 400, "worst": 300}
_RATES = (1e-3, 3e-3)
_LEAN_MODELS = 4


def grid(width: int, batch: int, *, models: int, steps: int) -> list[TrainingRun]:
    """Return runs that differ in seed and learning rate."""
    from prooflens.architectures import TransformerSpec
    from prooflens.tasks import PrefixPrediction
    from prooflens.trained import Training, TrainingRun

    task = PrefixPrediction("L_4", bins=((3, 31),))
    spec = TransformerSpec(
        d_in=4,
        d_out=2,
        n_ctx=32,
        d_model=width,
        n_layers=2,
        n_heads=1,
        d_head=width,
        ffn=(2 * width,),
        norm="layernorm",
    )
    trainings = [
        Training(steps, batch=batch, learning_rate=_RATES[i % len(_RATES)], seed=i // len(_RATES))
        for i in range(models)
    ]
    return [TrainingRun(str(i), task, spec, training) for i, training in enumerate(trainings)]


def lean(runs: Sequence[TrainingRun], *, threads: int, device: str = "cpu") -> float:
    """Return the seconds that it takes to train one model after another with a plain loop, on the
    rows that the trainer draws."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    start = time.perf_counter()
    for run in runs:
        _train_one(run, device)
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    torch.set_num_threads(before)
    return seconds


def _train_one(run: TrainingRun, device: str) -> Any:
    import torch
    from torch.nn.functional import cross_entropy

    from prooflens.architectures import build
    from prooflens.trained import TrainingRows

    training, rows = run.training, TrainingRows(run.task, run.training)
    model = build(run.spec, seed=training.seed).to(device).train()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, weight_decay=training.weight_decay, fused=True)
    block = None
    for step in range(training.steps):
        number, place = divmod(step, rows.steps)
        if place == 0:
            block = rows.block(number).to(device)
        part = block[place * training.batch : (place + 1) * training.batch]  # type: ignore[index]
        warm = min(1.0, (step + 1) / training.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * step / training.steps))
        optimizer.param_groups[0]["lr"] = training.learning_rate * warm * cosine
        loss = cross_entropy(model(part.inputs)[part.mask], part.targets[part.mask])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(weights, training.clip)
        optimizer.step()
    return model


def measure(
    width: int, batch: int, *, models: int, steps: int, rounds: int, device: str = "cpu"
) -> tuple[float, list[dict[str, float]]]:
    """The median ratio of lean seconds over ours, and the seconds of each round."""
    from prooflens.machine import cores
    from prooflens.trained import train

    runs = grid(width, batch, models=models, steps=steps)
    few = runs[: min(_LEAN_MODELS, models)]
    choices = sorted({1, cores()}) if device == "cpu" else [1]
    found = []
    for _ in range(rounds):
        tried = {count: lean(few, threads=count, device=device) for count in choices}
        choices = [min(tried, key=lambda count: tried[count])]  # the faster one from here on
        start = time.perf_counter()
        train(runs, device=device)
        ours = time.perf_counter() - start
        found.append({"lean": min(tried.values()) * models / len(few), "ours": ours})
    return median(seconds["lean"] / seconds["ours"] for seconds in found), found


def _show(name: str, ratio: float, rounds: Sequence[dict[str, float]]) -> None:
    lean, ours = (median(seconds[side] for seconds in rounds) for side in ("lean", "ours"))
    width, batch = SIZES.get(name, SIZES["tiny"])
    sys.stdout.write(
        f"{name:<7} width {width}, batch {batch}: one after another {lean:6.1f} s, "
        f"ours {ours:6.1f} s, {ratio:.2f} times\n"
    )
    sys.stdout.flush()


def main() -> None:
    """Measure, print the JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of training many models.")
    parser.add_argument("--models", type=int, default=32)
    parser.add_argument("--steps", type=int, help="of every grid [default: 800, 400, 300]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[*SIZES, "device"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    import torch

    from analyses.benchmarks.result import write_result

    size = {"models": options.models, "rounds": options.rounds}
    steps = {name: options.steps or count for name, count in _STEPS.items()}
    found: dict[str, Any] = {"device": None, **size, "steps": steps, "seconds": {}}
    wanted = [(name, name, "cpu") for name in SIZES]
    wanted += [("device", "tiny", "cuda")] * torch.cuda.is_available()
    for name, grid_name, device in wanted:
        if options.only in (None, name):
            plan = {**size, "steps": steps[grid_name], "device": device}
            found[name], found["seconds"][name] = measure(*SIZES[grid_name], **plan)
            _show(name, found[name], found["seconds"][name])
    write_result(found, options.out)
