"""The sections that say what a decompiled model's components are made of: scores by their sources,
feed-forward layers as tables, and what the scales of LayerNorms are worth."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from interp.interventions.components import Component
from probes.decompile.workflow import Decompiled
from prooflens.pages.page import Section, Table

__all__ = ["anchor_of", "made_of"]

_ALIKE = 0.9
"""Share of a head's attention that its primitive shares, from which it counts as explained."""


def anchor_of(part: Component) -> str:
    """What links to a component's row name."""
    return f"part-{part.name.replace(' ', '-')}"


def made_of(found: Decompiled) -> Iterator[Section]:
    """Scores by sources, FFNs as tables, and what frozen norms cost."""
    shown = found.evidence
    if shown.scores:
        rows = [
            (
                one.head.name,
                one.spread,
                "; ".join(f"{q} × {k} {share:.2f}" for q, k, share in one.pairs),
                one.explained,
                one.overlap,
                one.pattern,
            )
            for one in shown.scores
        ]
        columns = ["head", "spread", "query × key: share", "all pairs", "overlap", "explained"]
        yield Section(
            "What the scores are made of",
            [
                "A head's score is a sum over pairs of a source in the query and a source in the "
                "key; shares are of its variance over the keys of a query, the five largest. "
                "Spread is the score's standard deviation there: near 0 the head attends evenly, "
                "whatever the shares. Overlap and explained compare the head's pattern with the "
                "primitive's: the attention they share, and the part of the pattern's distance "
                "from an even one that the primitive takes away.",
                *_unexplained(found),
            ],
            tables=[Table(pd.DataFrame(rows, columns=columns), "Scores by sources.")],
        )
    if shown.ffns:
        tables = [
            (one.part.name, ", ".join(one.reads) or "nothing", one.cells, one.gain, one.explained)
            for one in shown.ffns
        ]
        columns = ["FFN", "reads", "entries", "gain", "variance explained"]
        yield Section(
            "Each feed-forward layer as a table",
            [
                "What the layer writes is replaced by its mean over all positions where the named "
                "values are the same, while the rest of the model goes on as it was."
            ],
            tables=[
                Table(
                    pd.DataFrame(tables, columns=columns),
                    "FFNs, one by one.",
                    anchors=[anchor_of(one.part) for one in shown.ffns],
                )
            ],
        )
    if math.isfinite(shown.norms.folded):
        yield Section(
            "What the LayerNorms cost",
            [
                "With the scale of every norm frozen to one number, as it would be folded into the "
                f"weights, {shown.norms.folded:.2f} of the gain is left; with one number for each "
                f"current token {shown.norms.per_token:.2f}. The program needs no norm; its gain "
                "is against the model as it is."
            ],
        )


def _unexplained(found: Decompiled) -> Iterator[str]:
    """A sentence for each head that attends elsewhere than its primitive says."""
    does = {one.head: one for one in reversed(found.heads) if not one.at}
    for score in found.evidence.scores:
        if score.overlap < _ALIKE and score.head in does:
            one, elsewhere = does[score.head], 1 - score.overlap
            yield (
                f"Not explained: {elsewhere:.2f} of the attention of {score.head.name} lies "
                f"elsewhere than '{one.primitive.words}' says. With the primitive in its place "
                f"{one.gain:.2f} of the gain is left; what the head does beside it, no line says."
            )
