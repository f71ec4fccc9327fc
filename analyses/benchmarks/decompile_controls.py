"""Models that nobody trained, or whose weights were shuffled: does decompiling find programs there?

    python -m analyses benchmark decompile_controls [--out FILE] [--first N] [--models N]

*Untrained*: models of six architectures (layers, heads, width, with LayerNorm, learned positions
and a feed-forward layer) with fresh weights, as they are drawn and eight times as large, on rows of
three kinds: strings over two letters and over three with every token asked for, and distinct
numbers with a separator and the next token asked for. *Shuffled*: shipped models of tokens, each
weight tensor's entries permuted, on rows of their own task.

A control is *found* if the answer is: match and gain of at least .9 on held-out and on longer rows,
short (:mod:`probes.decompile.judging`). "No attention needed" is no
program: the table on the current token does it. JSON keys: ``controls``, ``found``, ``share``,
``no_attention``, ``largest_gain``, ``seconds`` (median), ``table``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.decompiling import TokenRows, decompile, rows_of_task
from prooflens.rasp import NONE, Vocabulary, program_text
from prooflens.trained import load

__all__ = ["cases", "main", "measure"]

_ARCHITECTURES = ((1, 1, 16), (1, 2, 32), (1, 4, 64), (2, 1, 16), (2, 2, 32), (2, 4, 64))
_SCALES = (1.0, 8.0)
_KINDS = ("two letters", "three letters", "numbers")
_DRAWS, _SHUFFLES = 2, 4
_SHIPPED = (
    *("depth-L3-layers1", "depth-L4-layers2", "depth-L5-layers3", "depth-L6-layers4"),
    *("induction-attention", "fixed-memory-multiplexer", "template-majority", "max-of-4"),
)
_ROWS, _LONGEST = 120, 20


@dataclass(frozen=True)
class Control:
    """A control model: an untrained one (of an architecture, with a scale of the weights, on rows
    of a kind), or a shipped one with shuffled weights."""

    seed: int
    shipped: str = ""
    architecture: tuple[int, int, int] = (1, 1, 16)
    scale: float = 1.0
    rows: str = _KINDS[0]


def cases(first: int = 100) -> list[Control]:
    """All controls, kinds mixed.

    Args:
        first: Seed of the first ones. What counts as short was decided on the controls from seed 0
            on; from seed 100 on they judge.
    """
    fresh = [
        Control(seed, "", architecture, scale, rows)
        for seed in range(first, first + _DRAWS)
        for architecture in _ARCHITECTURES
        for scale in _SCALES
        for rows in _KINDS
    ]
    shuffled = [
        Control(seed, name) for seed in range(first, first + _SHUFFLES) for name in _SHIPPED
    ]
    order = np.random.default_rng(0).permutation(len(fresh) + len(shuffled))
    return [(fresh + shuffled)[k] for k in order]


def measure(control: Control) -> dict[str, Any]:
    """Decompile one control and return what was found."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    model, rows = _shuffle_model(control) if control.shipped else _build_untrained(control)
    found = decompile(model, rows, seed=control.seed)
    best = found.best
    return {
        **vars(control),
        "answer": found.answer,
        "gain": best.score,
        "match": min(best.held.match, best.longer.match),
        "lines": best.program.size,
        "nodes": best.program.nodes,
        "program": program_text(best.program) if found.answer == "found" else "",
        "seconds": time.perf_counter() - start,
    }


def _shuffle_model(control: Control) -> tuple[Any, TokenRows]:
    model = load(control.shipped)
    rows = rows_of_task(model.card.task, count=_ROWS, seed=control.seed)
    generator = torch.Generator().manual_seed(control.seed)
    with torch.no_grad():
        for weight in model.parameters():
            order = torch.randperm(weight.numel(), generator=generator)
            weight.copy_(weight.flatten()[order].reshape(weight.shape))
    return model, rows


def _build_untrained(control: Control) -> tuple[Any, TokenRows]:
    rows = _rows(control.rows, control.seed)
    layers, heads, width = control.architecture
    size = len(rows.vocabulary.texts)
    spec = TransformerSpec(
        d_in=size,
        d_out=size,
        n_ctx=rows.tokens.shape[1],
        d_model=width,
        n_layers=layers,
        n_heads=heads,
        d_head=width // heads,
        ffn=(4 * width,),
        activation="gelu",
        norm="layernorm",
        positions="learned",
    )
    model = SequenceTransformer(spec, seed=1000 + control.seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "ln" not in name:
                weight.mul_(control.scale)
    return model, rows


def _rows(kind: str, seed: int) -> TokenRows:
    """Strings that begin with <bos> and end with <eos>; numbers are followed by <sep> and again
    by themselves."""
    rng = np.random.default_rng(seed)
    letters = {"two letters": tuple("ab"), "three letters": tuple("abc")}.get(kind)
    content = letters or tuple(str(n) for n in range(16))
    bos, sep, eos = range(len(content), len(content) + 3)
    vocabulary = Vocabulary((*content, "<bos>", "<sep>", "<eos>"))
    tokens = np.full((_ROWS, _LONGEST + 2), NONE)
    asked = np.zeros(tokens.shape, dtype=bool)
    for i in range(_ROWS):
        n = int(rng.integers(3, _LONGEST // (1 if letters else 2)))
        drawn = rng.choice(len(content), n, replace=letters is not None).tolist()
        row = [bos, *drawn, eos] if letters else [bos, *drawn, sep, *drawn[: n - 1], eos]
        tokens[i, : len(row)] = row
        asked[i, (0 if letters else n + 1) : len(row) - 1] = True
    return TokenRows(tokens, asked, None, vocabulary, "sets" if letters else "next token")


def main() -> None:
    """Measure, print the JSON and write it where asked."""
    parser = argparse.ArgumentParser(description="Programs found where there are none.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first", type=int, default=0, help="The first control.")
    parser.add_argument("--models", type=int, default=len(cases()), help="How many of them.")
    parser.add_argument("--seed", type=int, default=100, help="Seed of the first ones.")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    chosen = cases(options.seed)[options.first : options.first + options.models]
    table = list(measure_all(measure, chosen, options.workers))
    found = sum(row["answer"] == "found" for row in table)
    result = {
        "controls": len(table),
        "found": found,
        "share": found / len(table),
        "no_attention": sum(row["answer"] == "no attention needed" for row in table),
        "largest_gain": max(row["gain"] for row in table if row["answer"] == "not found"),
        "seconds": float(np.median([row["seconds"] for row in table])),
        "table": table,
    }
    write_result(result, options.out)
