"""What a feed-forward layer does, as a table over named values: which values it needs to read.

What the FFN writes at a position is replaced by its mean over all positions where some named values
(the current token, what a line of the program holds, counts that its decisions speak of) are the
same. The fewest values are taken that keep as much of the model's decisions as all of them do;
everything else in the model goes on as it was.

A table that keeps the decisions says what the FFN needs to tell apart for them, not that it tells
nothing else apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from interp.interventions.components import Component
from interp.interventions.replacement import sites_of
from interp.rasp import syntax
from interp.rasp.evaluation import NONE, evaluate
from interp.rasp.printer import expression_text
from interp.rasp.syntax import Assignment, Expression, Program, children
from interp.run import Array, Replace, Site
from probes.decompile.decisions import TokenTable, activations, decided, outputs_of, run_of
from probes.decompile.rows import Rows

__all__ = ["FfnTable", "ffn_table"]

_NEAR, _MOST, _WIDEST = 0.01, 5, 2


@dataclass(frozen=True)
class FfnTable:
    """An FFN as a table.

    Attributes:
        part: Which FFN.
        reads: The values that the table is over, as a program writes them.
        cells: Combinations of them that occur.
        gain: What is left of the model's decisions with the table in its place.
        explained: Share of the variance of what it writes.
    """

    part: Component
    reads: tuple[str, ...]
    cells: int
    gain: float
    explained: float


def ffn_table(
    model: Any, part: Component, program: Program, fit: Rows, judged: Rows, table: TokenTable
) -> FfnTable:
    """The smallest table that does what an FFN does for the decisions.

    Args:
        model: Hooked.
        part: An FFN.
        program: Whose lines and counts the table may be over, beside the current token.
        fit: Rows whose means fill the table.
        judged: Rows on which the decisions are compared.
        table: Fitted to the model's decisions.
    """
    (site,) = sites_of(model, part)
    written = [_written(model, site, rows) for rows in (fit, judged)]
    named = _values(program)
    codes = [_codes(program, named, rows) for rows in (fit, judged)]
    run = run_of(model, judged)
    truth = decided(outputs_of(model, judged, run=run), judged)

    def tried(reads: Sequence[int]) -> FfnTable:
        instead, cells = _looked_up(reads, codes, written[0], fit)
        there = judged.tokens != NONE
        edit = Replace(site, Array(torch.from_numpy(instead), "what a table says"))
        found = decided(outputs_of(model, judged, edit, run=run), judged)
        own = written[1][there]
        wrong = float(((own - instead[there]) ** 2).sum())
        spread = float(((own - own.mean(0)) ** 2).sum())
        return FfnTable(
            part,
            tuple(expression_text(named[k]) for k in reads),
            cells,
            table.fidelity(judged, truth, found).or_match,
            1 - wrong / spread if spread > 0 else float("nan"),
        )

    every = range(len(named))
    choices = [reads for size in range(_WIDEST + 1) for reads in combinations(every, size)]
    choices += [tuple(every)] if len(named) > _WIDEST else []
    found = [tried(reads) for reads in choices]
    best = max(one.gain for one in found)
    return next(one for one in found if one.gain >= best - _NEAR)


def _written(model: Any, site: Site, rows: Rows) -> Float[np.ndarray, "row pos d_model"]:
    return np.asarray(activations(model, rows, [site])[site].double().numpy())


def _values(program: Program) -> list[Expression]:
    """The current token, the program's lines, and the counts that its outputs speak of."""
    found: list[Expression] = [syntax.Token()]
    found += [syntax.Name(line.name) for line in program.lines]
    for output in program.outputs:
        value = output.condition if isinstance(output, syntax.Allow) else output.value
        for part in _here(value):
            remainder = isinstance(part, syntax.Arithmetic) and part.operator == "%"
            if (isinstance(part, syntax.Count) or remainder) and part not in found:
                found.append(part)
    return found[:_MOST]


def _here(expression: Expression) -> Iterator[Expression]:
    """An expression and what is inside it, but for what is asked of earlier positions."""
    yield expression
    if not isinstance(expression, syntax.Count | syntax.Average | syntax.Pick):
        for part in children(expression):
            yield from _here(part)


def _codes(
    program: Program, named: Sequence[Expression], rows: Rows
) -> Int[np.ndarray, "value row pos"]:
    lines = [Assignment(f"read{k}_", value) for k, value in enumerate(named)]
    found = evaluate([*program.lines, *lines], rows.tokens, rows.vocabulary)
    return np.stack([found[line.name] for line in lines]).astype(np.int64)


def _looked_up(
    reads: Sequence[int],
    codes: Sequence[Int[np.ndarray, "value _ pos"]],
    written: Float[np.ndarray, "_ pos d_model"],
    fit: Rows,
) -> tuple[Float[np.ndarray, "_ pos d_model"], int]:
    """Means over equal values, for the judged rows; values that never occurred get the mean over
    the current token's, or over everything."""
    there = fit.tokens != NONE
    found = np.broadcast_to(written[there].mean(0), (*codes[1].shape[1:], written.shape[-1])).copy()
    cells = 1
    for some in ([0], reads) if 0 in reads and len(reads) > 1 else (reads,):
        if not some:
            continue
        keys = codes[0][list(some)][:, there].T
        cell, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        total = np.zeros((len(cell), written.shape[-1]))
        np.add.at(total, inverse, written[there])
        mean = total / np.bincount(inverse)[:, None]
        places = {tuple(key): k for k, key in enumerate(cell.tolist())}
        asked = codes[1][list(some)].reshape(len(some), -1).T.tolist()
        at = np.array([places.get(tuple(key), -1) for key in asked]).reshape(codes[1].shape[1:])
        found[at >= 0] = mean[at[at >= 0]]
        cells = len(cell)
    return found, cells
