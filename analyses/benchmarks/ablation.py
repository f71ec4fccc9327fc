"""Ablating every head at once against one forward pass a head with TransformerLens hooks.

    python -m analyses benchmark ablation [--repeats 3] [--threads 2]

GPT-2 small's shapes with random weights (12 layers × 12 heads, width 768) through a
``TransformerBridge``. Both sides mean-ablate each of the 144 heads and end at the logits: one runs
``run_with_hooks`` once a head with ``hook_z`` replaced, the other
:func:`interp.interventions.replacement.ablation_outputs`. They take turns in one process and each
one's best turn counts. Two shapes: 1 × 32 tokens and 4 × 64. Means come from another batch of 8
rows: the mean of one row is the row.

The last line is JSON: ``short`` and ``long`` (how many times faster), and
``max_relative_difference`` (largest |difference of logits| over the largest |logit|, over all heads
and both shapes). Ratios of one machine; they travel better than seconds.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from analyses.benchmarks.extraction import build_model
from prooflens.interventions import ablation_outputs, components

__all__ = ["SHAPES", "main", "one_by_one"]

SHAPES = {"short": (1, 32), "long": (4, 64)}
_VOCABULARY, _REFERENCE_ROWS = 50257, 8


def main(
    repeats: Annotated[int, typer.Option(help="Turns.")] = 3,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 2,
) -> None:
    """Print the seconds of both ways, and their ratios as JSON in the last line."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder))
    result, worst = {}, 0.0
    for name, (rows, length) in SHAPES.items():
        tokens, reference = _rows(rows, length, 0), _rows(_REFERENCE_ROWS, length, 1)
        seconds: dict[str, list[float]] = {"ours": [], "TransformerLens": []}
        for _ in range(repeats):
            seconds["ours"].append(_time(_ours(model, tokens, reference)))
            seconds["TransformerLens"].append(_time(one_by_one(model, tokens, reference)))
        ours, theirs = (min(found) for found in seconds.values())
        typer.echo(f"{rows} × {length}: ours {ours:.2f} s, one by one {theirs:.2f} s")
        result[name] = round(theirs / ours, 2)
        worst = max(worst, _difference(model, tokens, reference))
    typer.echo(json.dumps({**result, "max_relative_difference": worst}))


def _rows(rows: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, _VOCABULARY, (rows, length), generator=generator)


def _ours(model: Any, tokens: Tensor, reference: Tensor) -> Iterator[Tensor]:
    heads = [part for part in components(model) if part.kind == "head"]
    for _, logits in ablation_outputs(model, tokens, heads, reference=reference):
        yield logits


@torch.no_grad()
def _means(model: Any, reference: Tensor) -> dict[str, Tensor]:
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
    _, cache = model.run_with_cache(reference, names_filter=names)
    return {name: cache[name].mean(0) for name in names}


def one_by_one(model: Any, tokens: Tensor, reference: Tensor) -> Iterator[Tensor]:
    """Yield the model's output without each head, as users compute it by hand with one forward pass
    per head."""
    means = _means(model, reference)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            name = f"blocks.{layer}.attn.hook_z"
            hook = partial(_put, mean=means[name], head=head)
            with torch.no_grad():
                yield model.run_with_hooks(tokens, fwd_hooks=[(name, hook)])


def _put(z: Tensor, hook: Any, mean: Tensor, head: int) -> Tensor:
    z[:, :, head] = mean[:, head]
    return z


def _time(logits: Iterator[Tensor]) -> float:
    started = time.perf_counter()
    for _ in logits:
        pass
    return time.perf_counter() - started


def _difference(model: Any, tokens: Tensor, reference: Tensor) -> float:
    worst = 0.0
    pairs = zip(_ours(model, tokens, reference), one_by_one(model, tokens, reference), strict=True)
    for ours, theirs in pairs:
        worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max()))
    return worst
