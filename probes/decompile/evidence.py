"""The evidence beside a program: scores by sources, FFNs as tables, and what frozen norms cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interp.errors import HookError
from interp.rasp.syntax import Program
from probes.decompile.components import HeadDoes, Kept
from probes.decompile.decisions import TokenTable
from probes.decompile.ffn_tables import FfnTable, ffn_table
from probes.decompile.norms import Frozen, frozen_norms
from probes.decompile.rows import Split
from probes.decompile.scores import HeadScore, score_pairs

__all__ = ["Evidence", "evidence"]

_ROWS = 60


@dataclass(frozen=True)
class Evidence:
    """What is measured in the model once a program is there.

    Attributes:
        scores: Of each head that is needed.
        ffns: Of each FFN that is needed.
        norms: What is left of the decisions with frozen norms.
    """

    scores: tuple[HeadScore, ...]
    ffns: tuple[FfnTable, ...]
    norms: Frozen

    def record(self) -> dict[str, Any]:
        """What ``result.json`` holds of it."""
        return {
            "scores": [
                {
                    "head": one.head.name,
                    "spread": one.spread,
                    "pairs": [list(pair) for pair in one.pairs],
                    "explained": _number(one.explained),
                    "pattern_explained": _number(one.pattern),
                    "pattern_overlap": one.overlap,
                }
                for one in self.scores
            ],
            "ffns": [
                {
                    "part": one.part.name,
                    "reads": list(one.reads),
                    "cells": one.cells,
                    "gain": one.gain,
                    "explained": _number(one.explained),
                }
                for one in self.ffns
            ],
            "norms": {
                "gain_folded": _number(self.norms.folded),
                "gain_per_token": _number(self.norms.per_token),
            },
        }


def evidence(
    model: Any,
    data: Split,
    table: TokenTable,
    kept: Kept,
    heads: Sequence[HeadDoes],
    program: Program,
) -> Evidence:
    """Measure all of it, on fitted rows and rows held out."""
    fit, held = data.fit[:_ROWS], data.held[:_ROWS]
    first: dict[str, HeadDoes] = {}
    for one in heads:
        if not one.at:
            first.setdefault(one.head.name, one)
    scores = []
    for one in first.values():
        try:
            scores.append(score_pairs(model, held, one.head, one.primitive))
        except HookError:
            continue  # a model whose stream is no sum has no sources
    ffns = [
        ffn_table(model, part, program, data.fit[: 4 * _ROWS], held, table)
        for part in kept.parts
        if part.kind == "ffn"
    ]
    return Evidence(tuple(scores), tuple(ffns), frozen_norms(model, fit, held, table))


def _number(value: float) -> float | None:
    return float(value) if value == value else None
