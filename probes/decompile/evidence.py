"""Measurements beside a program: attention scores by sources, FFNs as tables, and the cost of
frozen norms.

*What LayerNorms cost*: the gain that is left when their scales are frozen. A LayerNorm divides by a
number that depends on everything in the stream, so that its output is not a sum over sources. A
frozen scale is one number for all positions (which can be folded into the weights), or one for each
current token. The gain that is left says how much of the model's decisions depends on the norm's
own scale; programs are fitted to the decisions and need neither.

*What a head's scores are made of*: a sum over pairs of named sources, and how much each
contributes.

    score(i, j) = Σ_{s, t} (u_s(i) W_Q) · (u_t(j) W_K) / √d_head,
    u_s = what source s adds to the stream, minus its mean over features, divided by the
          LayerNorm's scale, times its gain

Sources are the token embedding, the position embedding, the output of each earlier head and FFN,
and constants (biases and the norm's shift). Scores are taken minus their mean over the keys that a
query sees, which does not affect the softmax; the *share* of a pair is its covariance with the
whole score over the score's variance, so that shares of all pairs add up to ``explained``. That is
1 if scores are products of queries and keys and nothing else, and less if a model adds its own
biases to them. The scale is each position's actual one: the cost of freezing it is measured by
:func:`frozen_norms`.

A share says what the scores vary with, not that the model's decisions depend on it.

*What a feed-forward layer does*: a table over the few named values that it needs to read. The FFN's
output at a position is replaced by its mean over all positions with the same values (the current
token, a line of the program, counts that its outputs use). The fewest values are chosen that keep
as many of the model's decisions as all of them do; the rest of the model is unchanged.

A table that keeps the decisions says what the FFN needs to tell apart for them, not that it tells
nothing else apart.

*For models of this package's tasks* the program is also compared on rows four times as long, and
with the program of the proof. Rows of the task contain only strings of its language. On these a
shorter program can decide as the proof's does, and training has no reason to prefer the proof's:
which of the two a model computes shows off the task, where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.attribution.residual_decomposition import residual_decomposition
from interp.attribution.unembedding import norm_gain, norm_shift, takes_mean_out
from interp.errors import HookError
from interp.interventions.components import Component
from interp.interventions.replacement import sites_of
from interp.program import syntax
from interp.program.analysis import is_past_only
from interp.program.evaluation import NONE, line_values, run
from interp.program.printer import expression_text, program_text
from interp.program.syntax import Assignment, Expression, Program, children
from interp.run import Array, Replace, Site
from probes.decompile.components import HeadDoes, Pruned
from probes.decompile.decisions import (
    DecisionTrial,
    Fidelity,
    TokenTable,
    activations,
    agreement,
    decide,
    inputs_of,
    output_decisions,
    outputs_of,
)
from probes.decompile.judging import Judge
from probes.decompile.primitives import Primitive, ideal
from probes.decompile.rows import Split, TokenRows, rows_of_task


@dataclass(frozen=True)
class Frozen:
    """The gain that is left with frozen norms; NaN for a model without norms.

    Attributes:
        folded: The gain with one scale for each norm.
        per_token: The gain with one scale for each norm and current token.
    """

    folded: float
    per_token: float


def frozen_norms(trial: DecisionTrial, fit: TokenRows) -> Frozen:
    """Freeze the scales of all norms at once, at means over some rows, and judge the decisions on
    others.

    Args:
        trial: The model on the rows that are judged.
        fit: The rows over which the means are taken.
    """
    model = trial.model
    sites = [
        Site(at, f"{n}.hook_scale") for at in range(model.cfg.n_layers) for n in ("ln1", "ln2")
    ]
    sites = [s for s in (*sites, Site.of("ln_final.hook_scale")) if s.name in model.hook_dict]
    if not sites:
        return Frozen(float("nan"), float("nan"))
    cache = activations(model, fit, sites)

    def gain(by_token: bool) -> float:
        scales = {site: _mean(cache[site], fit, trial.rows, by_token) for site in sites}
        edits = [Replace(site, Array(scale, "a frozen scale")) for site, scale in scales.items()]
        return trial.gain(trial.decisions_with(*edits))

    return Frozen(gain(False), gain(True))


def _mean(scale: Tensor, fit: TokenRows, judged: TokenRows, by_token: bool) -> Tensor:
    """Return frozen scales for the judged rows, ``[row, pos, 1]``: the mean over the other rows or,
    if ``by_token``, over their positions with the same token."""
    values = scale[..., 0].double().numpy()
    there = fit.tokens != NONE
    found = np.full(judged.tokens.shape, values[there].mean())
    if by_token:
        for code in np.unique(fit.tokens[there]):
            found[judged.tokens == code] = values[fit.tokens == code].mean()
    return torch.from_numpy(found)[..., None]


_SHOWN = 5


@dataclass(frozen=True)
class HeadScore:
    """A head's attention scores as a sum over pairs of sources, and how well a primitive fits it.

    The primitive is the rule that stands for the head in the program; its pattern is that of a
    head that follows the rule exactly.

    Attributes:
        head: The head's layer and number.
        spread: Standard deviation of the scores over the keys of a query; near 0 if all keys get
            about the same score.
        pairs: (source of the query, source of the key, share of the scores' variance): the few
            with the largest absolute shares, the largest first.
        explained: Share of the variance that all pairs together explain; NaN without pairs.
        pattern: 1 − ‖head's pattern − primitive's‖² / ‖head's pattern − uniform attention‖²; below
            0 if the primitive's pattern is further away than uniform attention. NaN if one of the
            two patterns is uniform itself.
        overlap: Mean over queries of Σ_key min(head's attention, primitive's attention).
    """

    head: Component
    spread: float
    pairs: tuple[tuple[str, str, float], ...]
    explained: float
    pattern: float
    overlap: float


def score_pairs(model: Any, rows: TokenRows, head: Component, primitive: Primitive) -> HeadScore:
    """Decompose a head's attention scores by sources, and compare its pattern with a primitive's.

    Args:
        model: A hooked model; heads without ``W_Q`` and ``W_K`` have no pairs.
        rows: A few dozen rows; the queries are the asked positions.
        head: The head's layer and number.
        primitive: The primitive that stands for the head.

    Raises:
        HookError: for a model whose residual stream is not a sum of sources.
    """
    sites = [Site(head.layer, kind, head.head) for kind in ("attn_scores", "pattern")]
    cache = activations(model, rows, sites)
    scores, own = (cache[site].double().numpy() for site in sites)
    n = rows.tokens.shape[1]
    seen = np.tril(np.ones((n, n), dtype=bool)) & (rows.tokens != NONE)[:, None, :]
    seen = seen & rows.asked[:, :, None] & np.isfinite(scores)
    whole = _less_mean(scores, seen)
    variance = float((whole[seen] ** 2).sum())
    shares = _shares(model, rows, head, whole, seen, variance)
    order = sorted(shares, key=lambda pair: -abs(shares[pair]))[:_SHOWN]
    spread = float(np.sqrt(variance / max(seen.sum(), 1)))
    pattern, overlap = _patterns(own, ideal(primitive, rows), seen)
    return HeadScore(
        head,
        spread,
        tuple((*pair, shares[pair]) for pair in order),
        float(sum(shares.values())) if shares else float("nan"),
        pattern,
        overlap,
    )


def _shares(
    model: Any,
    rows: TokenRows,
    head: Component,
    whole: Float[np.ndarray, "row query key"],
    seen: Bool[np.ndarray, "row query key"],
    variance: float,
) -> dict[tuple[str, str], float]:
    """Return (source of the query, source of the key) → the pair's share of the scores' variance.

    Constants of the key are a source too: divided by the norm's scale, they depend on the key.
    Empty if the scores are constant or the model has no ``W_Q``.
    """
    if variance <= 0 or getattr(model, "W_Q", None) is None:
        return {}
    read = _sources(model, rows, head.layer)
    width = model.W_Q.shape[-1] ** 0.5
    sides = []
    for weight, bias in ((model.W_Q, model.b_Q), (model.W_K, model.b_K)):
        side = {name: u @ weight[head.layer, head.head].detach().to(u) for name, u in read.items()}
        constant = bias[head.layer, head.head].detach()
        side["constants"] = side["constants"] + constant.to(side["constants"])
        sides.append(side)
    found = {}
    for query, q in sides[0].items():
        for key, k in sides[1].items():
            part = _less_mean((q @ k.transpose(1, 2) / width).cpu().numpy(), seen)
            found[query, key] = float((part[seen] * whole[seen]).sum()) / variance
    return found


def _sources(model: Any, rows: TokenRows, layer: int) -> dict[str, Tensor]:
    """Return source → what it contributes to the input of the head's queries and keys, ``[row, pos,
    d_model]``."""
    parts = residual_decomposition(model, inputs_of(rows), layer)
    if str(model.cfg.normalization_type or "") == "":
        read = dict(parts)
        shift: Tensor | None = None
    else:
        site, norm = Site(layer, "ln1.hook_scale"), model.blocks[layer].ln1
        scale = activations(model, rows, [site])[site]
        gain, shift = norm_gain(norm), norm_shift(norm)
        read = {}
        for label, part in parts.items():
            flat = part - part.mean(-1, keepdim=True) if takes_mean_out(model) else part
            read[label] = flat / scale.to(flat) * (1.0 if gain is None else gain.to(flat))
    constants = read.pop("bias", torch.zeros_like(next(iter(read.values()))))
    if shift is not None:
        constants = constants + shift.to(constants)
    return {_source_name(label): part for label, part in read.items()} | {"constants": constants}


def _source_name(label: str) -> str:
    layer, _, rest = label.partition("_")
    if rest == "mlp_out":
        return f"what L{layer} FFN wrote"
    return {"embed": "token", "pos_embed": "position"}.get(label, f"what {label} wrote")


def _less_mean(
    values: Float[np.ndarray, "row query key"], seen: Bool[np.ndarray, "row query key"]
) -> NDArray[np.float64]:
    """Return values minus their mean over the keys that each query sees; 0 at other keys."""
    known = np.where(seen, values, 0.0)
    mean = known.sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
    return np.asarray(np.where(seen, known - mean, 0.0))


def _patterns(
    own: Float[np.ndarray, "row query key"],
    other: Float[np.ndarray, "row query key"],
    seen: Bool[np.ndarray, "row query key"],
) -> tuple[float, float]:
    queries = seen.any(-1)
    even = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
    far = float(((other - even)[queries] ** 2).sum())
    base = float(((own - even)[queries] ** 2).sum())
    explained = 1 - float(((own - other)[queries] ** 2).sum()) / base if base > 0 else float("nan")
    overlap = float(np.minimum(own, other)[queries].sum(-1).mean())
    return (explained if far > 1e-9 else float("nan")), overlap


_NEAR, _MOST, _WIDEST = 0.01, 5, 2


@dataclass(frozen=True)
class FfnTable:
    """An FFN replaced by a table.

    Attributes:
        part: The FFN.
        reads: The values that the table is over, as a program writes them.
        cells: How many combinations of them occur.
        gain: The gain that is left with the table in place of the FFN.
        explained: The share of the variance of the FFN's output that the table explains.
    """

    part: Component
    reads: tuple[str, ...]
    cells: int
    gain: float
    explained: float


def ffn_table(trial: DecisionTrial, part: Component, program: Program, fit: TokenRows) -> FfnTable:
    """Find the smallest table that can replace an FFN for the model's decisions.

    Args:
        trial: The model on the rows on which the decisions are compared.
        part: The FFN.
        program: The program whose lines and counts the table may be over, beside the current token.
        fit: The rows over which the table's means are taken.

    Returns:
        Of tables over at most two values (and the one over all of them), the first whose gain is
        within 0.01 of the best.
    """
    judged = trial.rows
    (site,) = sites_of(trial.model, part)
    written = [_output_at(trial.model, site, rows) for rows in (fit, judged)]
    named = _values(program)
    codes = [_codes(program, named, rows) for rows in (fit, judged)]

    def score_reads(reads: Sequence[int]) -> FfnTable:
        instead, cells = _lookup_means(reads, codes, written[0], fit)
        there = judged.tokens != NONE
        edit = Replace(site, Array(torch.from_numpy(instead), "what a table says"))
        own = written[1][there]
        wrong = float(((own - instead[there]) ** 2).sum())
        spread = float(((own - own.mean(0)) ** 2).sum())
        return FfnTable(
            part,
            tuple(expression_text(named[k]) for k in reads),
            cells,
            trial.gain(trial.decisions_with(edit)),
            1 - wrong / spread if spread > 0 else float("nan"),
        )

    every = range(len(named))
    choices = [reads for size in range(_WIDEST + 1) for reads in combinations(every, size)]
    choices += [tuple(every)] if len(named) > _WIDEST else []
    found = [score_reads(reads) for reads in choices]
    best = max(one.gain for one in found)
    return next(one for one in found if one.gain >= best - _NEAR)


def _output_at(model: Any, site: Site, rows: TokenRows) -> Float[np.ndarray, "row pos d_model"]:
    return np.asarray(activations(model, rows, [site])[site].double().numpy())


def _values(program: Program) -> list[Expression]:
    """Return the values that a table may be over, at most five: the current token, the program's
    lines, and the counts in its outputs."""
    found: list[Expression] = [syntax.Token()]
    found += [syntax.Name(line.name) for line in program.lines]
    for output in program.outputs:
        for part in _here(syntax.value_of(output)):
            remainder = isinstance(part, syntax.Operation) and part.operator == "%"
            counts = isinstance(part, syntax.Count | syntax.CountWhere)
            if (counts or remainder) and part not in found:
                found.append(part)
    return found[:_MOST]


def _here(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and its parts, except those that are evaluated at earlier positions."""
    yield expression
    looking = syntax.Count | syntax.CountWhere | syntax.Average | syntax.Pick
    if not isinstance(expression, looking):
        for part in children(expression):
            yield from _here(part)


def _codes(
    program: Program, named: Sequence[Expression], rows: TokenRows
) -> Int[np.ndarray, "value row pos"]:
    lines = [Assignment(f"read{k}_", value) for k, value in enumerate(named)]
    found = line_values([*program.lines, *lines], rows.tokens, rows.vocabulary)
    return np.stack([found[line.name] for line in lines]).astype(np.int64)


def _lookup_means(
    reads: Sequence[int],
    codes: Sequence[Int[np.ndarray, "value _ pos"]],
    written: Float[np.ndarray, "_ pos d_model"],
    fit: TokenRows,
) -> tuple[Float[np.ndarray, "_ pos d_model"], int]:
    """Return the mean output for each position of the judged rows, and the number of the table's
    cells.

    The mean is over the fitted positions with the same values. Combinations that never occurred get
    the mean over the current token or, without it, over all positions.
    """
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


_ROWS = 60


@dataclass(frozen=True)
class ProgramEvidence:
    """Measurements of the model beside a program.

    Attributes:
        scores: The attention scores of each needed head, by sources.
        ffns: The table of each needed FFN.
        norms: The gain that is left with frozen norms.
    """

    scores: tuple[HeadScore, ...]
    ffns: tuple[FfnTable, ...]
    norms: Frozen

    def record(self) -> dict[str, Any]:
        """Return the measurements as JSON data for ``result.json``."""
        return {
            "scores": [
                {
                    "head": one.head.name,
                    "spread": one.spread,
                    "pairs": [list(pair) for pair in one.pairs],
                    "explained": number_or_none(one.explained),
                    "pattern_explained": number_or_none(one.pattern),
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
                    "explained": number_or_none(one.explained),
                }
                for one in self.ffns
            ],
            "norms": {
                "gain_folded": number_or_none(self.norms.folded),
                "gain_per_token": number_or_none(self.norms.per_token),
            },
        }


def evidence(
    model: Any,
    data: Split,
    table: TokenTable,
    kept: Pruned,
    heads: Sequence[HeadDoes],
    program: Program,
) -> ProgramEvidence:
    """Measure scores, FFNs and norms for a program.

    Args:
        model: A hooked model.
        data: The rows, split; means are taken over fitted rows, and decisions judged on held-out
            ones.
        table: The table on the current token that gains are measured against.
        kept: The pruned model.
        heads: The heads with their primitives; of each head only the first is used.
        program: The program.
    """
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
    judged = DecisionTrial(model, held, table)
    ffns = [
        ffn_table(judged, part, program, data.fit[: 4 * _ROWS])
        for part in kept.parts
        if part.kind == "ffn"
    ]
    return ProgramEvidence(tuple(scores), tuple(ffns), frozen_norms(judged, fit))


def number_or_none(value: float) -> float | None:
    """Return a number for JSON data; None if it is not finite."""
    return float(value) if np.isfinite(value) else None


_TIMES = 4
_PARTS = ("held", "longer", "off_task")


@dataclass(frozen=True)
class Beside:
    """The proof's program beside the program that was found.

    Attributes:
        program: The proof's program.
        model: Part of the rows (``held``, ``longer``, ``off_task``) → the share of decisions in
            which the proof's program agrees with the model.
        found: The same for the program that was found.
    """

    program: Program
    model: dict[str, float]
    found: dict[str, float]

    def record(self) -> dict[str, Any]:
        """Return the comparison as JSON data for ``result.json``: the program's text and both
        matches."""
        return {
            "program": program_text(self.program),
            "match_model": self.model,
            "match_found": self.found,
        }


def far(model: Any, task: Any, program: Program, judge: Judge, *, seed: int) -> Fidelity | None:
    """Measure how often a program decides as the model on rows of up to four times the task's
    length.

    Args:
        model: A hooked model.
        task: A task of strings, such as :class:`interp.tasks.depth.strings.PrefixPrediction`.
        program: The program that is judged.
        judge: A judge with the table that gains are measured against.
        seed: Seed of the rows.

    Returns:
        Match and gain; None for tasks without bins of lengths, and for models that take no longer
        rows.
    """
    bins = getattr(task, "bins", None)
    longest = max((high for _, high in bins), default=0) if bins else 0
    most = min(_TIMES * longest, model.cfg.n_ctx - 1)
    if longest < 1 or most <= longest:
        return None
    rows = rows_of_task(replace(task, bins=((longest + 1, most),)), count=100, seed=seed + 3)
    own = output_decisions(outputs_of(model, rows), rows)
    found = decide(run(program, rows.tokens, rows.vocabulary), rows)
    return judge.table.fidelity(rows, own, found)


def proof(task: Any, program: Program, judge: Judge) -> Beside | None:
    """Compare the C-RASP program of a task with a program that was found.

    Args:
        task: A task; or a C-RASP program, for compiled models.
        program: The program that was found.
        judge: A judge with the rows and the model's decisions on them.

    Returns:
        The comparison. None for tasks without a C-RASP program or with one that looks at later
        positions, and for rows without exactly two answers.
    """
    counted = task if isinstance(task, Program) else getattr(task, "program", None)
    answers = judge.data.fit.answers
    if not isinstance(counted, Program) or answers is None or len(answers) != 2:
        return None
    if not is_past_only(counted):
        return None
    no, yes = (judge.data.fit.vocabulary.texts[code] for code in answers)
    wanted = counted.deciding(yes, no)
    model, found = {}, {}
    for name in _PARTS:
        part = getattr(judge.data, name)
        theirs, ours = (
            decide(run(one, part.tokens, part.vocabulary), part) for one in (wanted, program)
        )
        model[name] = agreement(theirs, np.asarray(judge.truth[name]))
        found[name] = agreement(theirs, ours)
    return Beside(wanted, model, found)
