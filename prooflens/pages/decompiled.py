"""The page of a decompiled model: the program, which component each line stands for, and how
faithful it is.

The conclusion comes first, in a sentence with its numbers, with the program, one figure and what to
doubt. Then follow the program line by line with the component that each line stands for, how
faithful it is, and rows on which program and model differ. The evidence is folded: heads, scores,
layers.

The last sections say what components are made of (scores by their sources, feed-forward layers as
tables, the cost of frozen LayerNorm scales) and compare the proof's program, if there is one, with
the one that was found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from interp.figures.lines import gain_by_lines
from interp.figures.maps import attention_in_words, attention_maps
from interp.figures.style import save
from interp.output import output_folder
from interp.program.printer import expression_text, output_text, program_text
from prooflens.pages.page import Link, Page, PageTable, Picture, Section, page_name, render

if TYPE_CHECKING:
    from interp.interventions.components import Component
    from probes.decompile.components import HeadDoes
    from probes.decompile.decisions import Fidelity
    from probes.decompile.workflow import Decompiled

_ALIKE = 0.9
"""Least overlap of a head's attention with that of its primitive with which the primitive counts as
an explanation of the head."""


def anchor_of(part: Component) -> str:
    """Return the HTML anchor of a component's table row, to which links on the page point."""
    return f"part-{part.name.replace(' ', '-')}"


def evidence_sections(found: Decompiled) -> Iterator[Section]:
    """Yield the sections on scores by sources, FFNs as tables, and the cost of frozen norms."""
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
                *_unexplained_sentences(found),
            ],
            tables=[PageTable(pd.DataFrame(rows, columns=columns), "Scores by sources.")],
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
                PageTable(
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


def _unexplained_sentences(found: Decompiled) -> Iterator[str]:
    """Yield a sentence for each head that attends elsewhere than its primitive says."""
    does = {one.head: one for one in reversed(found.heads) if not one.at}
    for score in found.evidence.scores:
        if score.overlap < _ALIKE and score.head in does:
            one, elsewhere = does[score.head], 1 - score.overlap
            yield (
                f"Not explained: {elsewhere:.2f} of the attention of {score.head.name} lies "
                f"elsewhere than '{one.primitive.words}' says. With the primitive in its place "
                f"{one.gain:.2f} of the gain is left; what the head does beside it, no line says."
            )


_ROWS = {"held": "held-out rows", "longer": "longer rows", "off_task": "rows off the task"}


def beside_the_proof(found: Decompiled) -> Iterator[Section]:
    """Yield the section that compares the proof's program with the one that was found; nothing for
    a task without a proof."""
    shown = found.proof
    if shown is None:
        return
    texts = (program_text(one).splitlines() for one in (shown.program, found.best.program))
    lines = pd.DataFrame(list(zip_longest(*texts, fillvalue="")), columns=["proof", "found"])
    shares = pd.DataFrame(
        [(_ROWS[part], shown.model[part], shown.found[part]) for part in _ROWS],
        columns=["rows", "proof decides as the model", "proof decides as the program found"],
    )
    yield Section(
        "Did training find the proof?",
        [_proof_answer(found)],
        tables=[
            PageTable(lines, "The proof's program and the one that was found."),
            PageTable(shares, "Shares of decisions taken alike."),
        ],
    )


def _proof_answer(found: Decompiled) -> str:
    shown = found.proof
    if shown is None:
        return ""
    on = min(shown.model["held"], shown.model["longer"])
    off = shown.model["off_task"]
    if min(on, off) >= 1.0:
        same = "the same lines" if shown.program == found.best.program else "other lines"
        return (
            "In what it decides, yes: on every row that was looked at, also off the task, the "
            f"model decides as the proof's program. The program found says so in {same}; which of "
            "them the weights hold, decisions do not tell: see what each head does."
        )
    if on >= 1.0:
        return (
            "No: on the task the model decides as the proof's program, but off the task only in "
            f"{off:.3f} of the decisions. What it computes is right where the task asks it, and "
            "something else."
        )
    return (
        f"No: the model decides as the proof's program in {on:.3f} of the decisions on the task "
        f"and {off:.3f} off it."
    )


MARKER = "program.txt"
_REST = "map-of-the-rest"
"""HTML anchor of the heat maps of heads that no line of the program stands for."""


def sentence(found: Decompiled) -> str:
    """Return what was found, in a sentence."""
    best, kept = found.best, len(found.kept.parts)
    numbers = (
        f"gain {_number(best.held.gain)} on held-out rows, {_number(best.longer.gain)} on longer "
        f"ones, {_number(best.off_task.gain)} off the task"
    )
    if len(found.data.every):
        wrong = round((1 - best.every.match) * len(found.data.every))
        strings = f"{f'but {wrong} of ' if wrong else ''}{len(found.data.every)} strings"
        numbers += f"; alike on all {strings}"
    if found.answer == "no attention needed" and min(found.table) < 1.0:
        return (
            "No attention needed: a program that reads the current token alone decides as the "
            f"model does ({numbers})."
        )
    if found.answer == "no attention needed":
        return (
            "No attention needed: a table on the current token alone takes every decision as the "
            f"model does, on {len(found.data.held)} held-out and {len(found.data.longer)} longer "
            "rows."
        )
    if found.answer == "found":
        lines = f"{best.program.size} line{'s' * (best.program.size != 1)}"
        needed = f"the model needs {kept} of its components for it"
        return f"A program of {lines} decides as the model does ({numbers}); {needed}."
    wanted = found.least if best.score < found.least else "every string"
    return (
        f"No program of at most {found.lines} lines found; the best has a gain of "
        f"{best.score:.2f} where {wanted} is asked for ({numbers})."
    )


def write_decompiled(
    found: Decompiled, name: str, out: Path, *, analysed: str = "", overwrite: bool = False
) -> str:
    """Write ``program.txt``, ``result.json``, the figures and ``report.html`` to a folder.

    Args:
        found: The result of :func:`probes.decompile.workflow.decompile`.
        name: The model's name on the page.
        out: The folder.
        analysed: What of the model was analysed, in words.
        overwrite: Whether to replace an earlier folder.

    Returns:
        What was found, in a sentence.

    Raises:
        OutputError: if the folder exists and may not be replaced.
    """
    told = sentence(found)
    with output_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        (folder / "program.txt").write_text(program_text(found.best.program), encoding="utf-8")
        record = json.dumps(found.record(), indent=1)
        (folder / "result.json").write_text(record + "\n", encoding="utf-8")
        replaced, curve = list(_replacement_pictures(found, folder)), _curve(found, folder)
        picture = replaced.pop(0) if replaced else curve
        rest = [*replaced, *([curve] if curve is not None and curve is not picture else [])]
        lines = "; ".join(program_text(found.best.program).splitlines())
        page = Page(
            title=f"{page_name(name)}, decompiled",
            findings=[told, f"The program: {lines}"],
            sections=list(_sections(found, folder, rest)),
            facts=[
                f"What is analysed: {analysed}.",
                f"{found.seconds:.1f} seconds",
                f"{len(found.data.fit)} rows fitted",
            ],
            picture=picture,
            doubts=list(_doubts(found)),
        )
        (folder / "report.html").write_text(render(page), encoding="utf-8")
    return told


def _doubts(found: Decompiled) -> Iterator[str]:
    """Yield sentences about reasons for doubt in the numbers."""
    off, right = found.best.off_task.gain, found.right
    if not math.isfinite(off):
        yield (
            "What happens off the task: there a table on the current token makes no mistake "
            "either, so that no gain can be told."
        )
    elif off >= found.least:
        yield (
            "Little off the task: on random tokens, ties, repeats and rows with single tokens "
            f"exchanged the program decides as the model does, too (gain {off:.2f})."
        )
    else:
        yield (
            "Off the task (random tokens, ties, repeats, single tokens exchanged) its gain is "
            f"{off:.2f}: there the model does something else than these lines."
        )
    if math.isfinite(right.model) and right.errors:
        yield (
            f"Where the model errs ({right.errors} decisions) the program does as the model in "
            f"{right.as_model:.2f} of them: the rest of its errors is not in these lines."
        )
    yield from _open(found)
    rows = "all strings of these lengths" if len(found.data.every) else "rows, not on all"
    yield (
        f"Program and model are compared on decisions, not on numbers, and on {rows}: "
        "other lines may decide the same on them."
    )


def _sections(found: Decompiled, folder: Path, pictures: list[Picture]) -> Iterator[Section]:
    program = pd.DataFrame(list(_lines(found)), columns=["line", "stands for", "evidence"])
    numbers = [f"line-{k + 1}" for k in range(len(program))]
    yield Section(
        "The program",
        [
            "Each line leads to the component it stands for, and to the pattern that it replaced; "
            "the last ones are the feed-forward layers, the LayerNorms and the readout, replaced "
            "together with the heads that no other line stands for.",
        ],
        pictures=pictures,
        tables=[PageTable(program, "The program, line by line.", anchors=numbers)],
    )
    yield from beside_the_proof(found)
    yield Section(
        "How faithful it is",
        _labels(found),
        tables=[PageTable(_fidelity(found), "Decisions taken alike.")],
    )
    yield _parting(found)
    if found.heads:
        yield Section(
            "What each head does",
            [
                "A primitive is put in the place of a head's own pattern while the rest of the "
                "model goes on. Gain is what is left of the model's decisions beyond the table on "
                "the current token."
            ],
            pictures=list(_patterns(found, folder)),
            tables=[_heads(found)],
            folded=True,
        )
    for section in evidence_sections(found):
        yield replace(section, folded=True)
    yield Section(
        "What is needed",
        [
            f"Replaced by their means: {_names(found.kept.dropped)}. That leaves "
            f"{found.kept.gain:.2f} of the gain. Needed: {_names(found.kept.parts)}."
        ],
        folded=True,
    )


def _parting(found: Decompiled) -> Section:
    if not found.differ:
        told = "On every row that was looked at, on the task and off it, they decide alike."
        return Section("Where they part", [told])
    columns = ["rows", "tokens so far", "model", "program"]
    rows = pd.DataFrame(list(found.parted), columns=columns)
    return Section("Where they part", tables=[PageTable(rows, "Decisions that differ.")])


def _open(found: Decompiled) -> Iterator[str]:
    """Yield a sentence for each line that could pick with another word without any row showing a
    difference."""
    by_line: dict[tuple[str, str], list[str]] = {}
    for one in found.alike:
        by_line.setdefault((one.line, one.word), []).append(one.instead)
    for (line, word), others in by_line.items():
        yield (
            f"In {line}, {word} cannot be told from {', '.join(others)}: on every row that was "
            "looked at, on the task and off it, they decide alike."
        )


def _labels(found: Decompiled) -> list[str]:
    """Return sentences that compare model and program with the labels; none without labels."""
    right = found.right
    if not math.isfinite(right.model):
        return []
    told = (
        f"Of the labelled decisions that were not fitted the model takes {right.model:.3f} rightly "
        f"and the program {right.program:.3f}."
    )
    if not right.errors:
        return [told]
    return [
        told,
        f"Where the model errs ({right.errors} decisions) the program does as the model in "
        f"{right.as_model:.2f} of them and is right in {right.as_label:.2f}.",
    ]


def _names(parts: Iterable[Component]) -> str:
    return ", ".join(part.name for part in parts) or "nothing"


def _lines(found: Decompiled) -> Iterator[tuple[str, str | Link, str | Link]]:
    """Yield each line of the program, a link to the component that it stands for, and a link to its
    evidence."""
    best = found.best
    for number, line in enumerate(best.program.lines):
        source = best.sources.get(line.name, -1)
        text = f"{line.name} = {expression_text(line.expression)}"
        if source < 0:
            yield text, "no head alone", _to_heads(found, "what heads fetch, put together")
            continue
        head = found.heads[source]
        name = (
            head.head.name
            if head.gain >= found.least
            else f"no head alone, nearest {head.head.name}"
        )
        told = f"{head.primitive.words}: gain {head.gain:.2f} in its place"
        yield text, Link(name, anchor_of(head.head)), Link(told, _map(number))
    rest, ffns = [found.heads[k] for k in found.rest], found.evidence.ffns
    parts = [*(one.head for one in rest), *(one.part for one in ffns[:1])]
    words = ", ".join([*(one.head.name for one in rest), "FFNs, norms and readout"])
    for output in best.program.outputs:
        told = f"gain {best.score:.2f} of the whole"
        yield (
            output_text(output),
            Link(words, anchor_of(parts[0])) if parts else words,
            Link(told, _REST) if rest else _to_heads(found, told),
        )


def _to_heads(found: Decompiled, text: str) -> str | Link:
    return Link(text, anchor_of(found.heads[0].head)) if found.heads else text


def _map(line: int) -> str:
    """Return the anchor of the heat map of a line, counted from 0."""
    return f"map-{line + 1}"


def _fidelity(found: Decompiled) -> pd.DataFrame:
    best = found.best
    rows = [("held out", best.held), ("longer", best.longer), ("off the task", best.off_task)]
    beyond = [] if found.far is None else [("up to four times the task's length", found.far)]
    beyond += [("all strings", best.every)] if len(found.data.every) else []
    table = pd.DataFrame(
        [(name, f.match, f.gain) for name, f in [*rows, *beyond]], columns=["rows", "match", "gain"]
    )
    table["match of the table"] = [*found.table, *(_table_off(f) for _, f in [rows[-1], *beyond])]
    return table


def _table_off(fidelity: Fidelity) -> float:
    """Return the match of the current-token table, computed from a program's match and gain; NaN if
    it cannot be."""
    if not math.isfinite(fidelity.gain) or fidelity.gain >= 1:
        return float("nan")
    return 1 - (1 - fidelity.match) / (1 - fidelity.gain)


def _heads(found: Decompiled) -> PageTable:
    rows = [
        (one.head.name, one.at or "anywhere", one.primitive.words, one.gain, _other_primitives(one))
        for one in found.heads
    ]
    columns = ["head", "at the token", "does", "gain", "others tried"]
    names = [anchor_of(one.head) for one in found.heads]
    anchors = [name if name not in names[:k] else f"{name}-{k}" for k, name in enumerate(names)]
    words = "Heads that are needed, and what can stand in for them."
    return PageTable(pd.DataFrame(rows, columns=columns), words, anchors=anchors)


def _other_primitives(one: HeadDoes) -> str:
    return "; ".join(
        f"{words} {gain:.2f}" for words, gain in one.tried if words != one.primitive.words
    )


def _replacement_pictures(found: Decompiled, folder: Path) -> Iterator[Picture]:
    """Yield a picture for each line that stands for a head: the head's pattern and the line's, on
    one row; the line with the largest gain first."""
    sources = [found.best.sources.get(line.name, -1) for line in found.best.program.lines]
    shown = [k for k, source in enumerate(sources) if source >= 0]
    for number in sorted(shown, key=lambda k: -found.heads[sources[k]].gain):
        line, one = found.best.program.lines[number], found.heads[sources[number]]
        path = folder / f"line{number + 1}.png"
        drawn = _pattern_pair(found, sources[number], line.name)
        save(attention_maps(drawn, columns=2), path)
        said = f"{line.name} = {expression_text(line.expression)}"
        told = f"What {said} replaced: {one.head.name} on one row. {_did(one)}"
        numbers = f"Most: {attention_in_words(drawn)}."
        yield Picture(path, told, _map(number), told=numbers)


def _patterns(found: Decompiled, folder: Path) -> Iterator[Picture]:
    """Yield pictures of the heads that no line stands for."""
    rest = [found.heads[k] for k in found.rest]
    drawn: dict[str, np.ndarray] = {}
    for k in found.rest:
        drawn |= _pattern_pair(found, k, "primitive")
    if drawn:
        path = folder / "patterns.png"
        save(attention_maps(drawn, columns=2), path)
        heads = "; ".join(f"{one.head.name}: {one.primitive.words}" for one in rest)
        told = f"Heads that no line stands for, trained and as tried. {heads}."
        yield Picture(path, told, _REST, told=f"Most: {attention_in_words(drawn)}.")


def _pattern_pair(found: Decompiled, at: int, said: str) -> dict[str, np.ndarray]:
    (own, ideal), name = found.patterns[at], found.heads[at].head.name
    return {f"{name}, trained": own, f"{name}, {said}": ideal}


def _did(one: HeadDoes) -> str:
    return f"With it in the head's place {one.gain:.2f} of the gain is left."


def _curve(found: Decompiled, folder: Path) -> Picture | None:
    points = found.record()["curve"]
    if len(points) < 2:
        return None
    path = folder / "curve.png"
    save(
        gain_by_lines([p["lines"] for p in points], [p["gain"] for p in points], found.least), path
    )
    told = ", ".join(f"{p['lines']:.0f}: {p['gain']:.2f}" for p in points)
    return Picture(path, f"Gain of the best program by its number of lines, at most {told}.")


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not defined"
