"""Checks a certificate again, knowing no strategy.

Trusted: this file, :mod:`interp.bounds` (a cell in, a bound out), the task's own rule for the right
answer, and the arithmetic of the machine. Cells are made here anew from what the certificate says
of its cover; where inputs are counted they are counted here in another way. A claim stands if the
bound found here is no worse than the one claimed, and if the lemmas are those that the cover goes
with, their numbers found again from the weights (``prooflens certify --check FILE MODEL``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice, pairwise, permutations, product
from math import inf
from typing import Any

import numpy as np

from interp.bounds.affine import Affine, box, exactly, subtract
from interp.bounds.network import embedded, margins, not_covered, read_out, stream_after
from interp.bounds.passed_on import along, named, not_along, not_named, not_orderless, values_of
from interp.bounds.relaxation import sine
from interp.bounds.rounding import UP, Arithmetic, share
from interp.bounds.three_paths import LEAST, not_three_paths, tables_of
from interp.errors import CheckpointError
from interp.tasks.catalogue import task_from_dict
from interp.tasks.depth.batches import to_inputs
from interp.tasks.depth.languages import language
from interp.tasks.memory.kernels import MemoryKernel
from probes.certify.lemmas import Lemma, lemmas_of, readout, told_otherwise

__all__ = ["Verdict", "check"]

_CHUNK, _MOST = 512, 4096
_Json = dict[str, Any]
_BROKEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)


@dataclass(frozen=True)
class Verdict:
    """Of one strategy: what it claims, what was found, and whether the claim stands; the lemmas as
    they were found."""

    strategy: str
    claimed: float
    found: float
    holds: bool
    note: str = ""
    lemmas: tuple[Lemma, ...] = ()


@np.errstate(all="ignore")
def check(certificate: _Json, model: Any, sha256: str) -> list[Verdict]:
    """Every strategy that claims something (is not vacuous), bounded again on ``model``.

    Raises:
        CheckpointError: if the file lacks something, or what it says makes no sense.
    """
    try:
        if certificate["model"]["sha256"] != sha256:
            note = "the certificate is about other weights (SHA-256 differs)"
            return [Verdict("model", 0.0, 0.0, False, note)]
        claims = [proof for proof in certificate["strategies"] if not proof["vacuous"]]
        return [_verdict(certificate["domain"], proof, model) for proof in claims]
    except _BROKEN as error:
        raise CheckpointError(f"the certificate cannot be followed: {error!r}") from error


def _verdict(domain: _Json, proof: _Json, model: Any) -> Verdict:
    claimed, error = float(proof["bound"]), {"error": True, "accuracy": False}[proof["kind"]]
    task, cover = task_from_dict(domain["task"]), proof["data"]["cover"]
    found, off, note = inf if error else 0.0, 0.0, _unfit(model, task, domain, proof)
    if note:
        return Verdict(proof["strategy"], claimed, found, False, note)
    if domain["kind"] == "rows" and not not_three_paths(model):
        found = _maximum(model, task, proof) if cover == "caps" else _every_row(model, task)
    else:
        found, off = _covered(model, task, domain, proof)
    lemmas = lemmas_of(model, task, domain, proof["data"], proof["strategy"])
    lemmas += readout(off) if lemmas and error else ()
    note = told_otherwise(proof["lemmas"], lemmas)
    holds = not note and (found <= claimed if error else found >= claimed)
    return Verdict(proof["strategy"], claimed, found, bool(holds), note, lemmas)


def _unfit(model: Any, task: Any, domain: _Json, proof: _Json) -> str:
    """Why a proof says nothing about this model; empty if it does."""
    if reason := not_covered(model):
        return reason
    spec, kind = model.spec, domain["kind"]
    if domain.get("length", getattr(task, "length", 0)) + (kind == "strings") > spec.n_ctx:
        return "its rows are longer than the model's context"
    if not spec.causal and kind not in ("templates", "rows"):
        return "the model is not causal"
    paths = kind == "rows" and not not_three_paths(model)
    rounded = tables_of(model, task.length).arithmetic if paths else spec.dtype
    if proof["arithmetic"] not in ("real", rounded):
        return f"nothing is known of its evaluation in {proof['arithmetic']}"
    needed = {"slices": not_along, "pairs": not_named, "multisets": not_orderless}
    return (needed | {"caps": not_three_paths}).get(proof["data"]["cover"], lambda m: "")(model)


def _covered(model: Any, task: Any, domain: _Json, proof: _Json) -> tuple[float, float]:
    """The bound, and how far answers are off at middles of cells."""
    makers = {"signs": _signs, "strings": _strings, "templates": _templates, "rows": _rows}
    makers |= {"averages": _averages, "addressed": _addressed}
    worst, middle, right, total, error = 0.0, 0.0, 0, 0, proof["kind"] == "error"
    budget = 0 if proof["data"]["cover"] in ("points", "multisets") else 2**24
    cover = makers[domain["kind"]](model, task, domain, proof["data"])
    for inputs, target, weight, symbols in chain([next(cover)], cover):
        ar = Arithmetic(proof["arithmetic"], budget=budget, symbols=symbols)
        known = callable(inputs)  # the last stream itself
        stream = inputs(ar) if known else stream_after(model, embedded(model, inputs, ar), ar)
        if error:
            off = subtract(read_out(model, stream, ar), target, ar)
            worst = max(worst, float(np.abs(np.stack(off.bounds())).max()))
            middle = max(middle, float(np.abs(off.centre).max()))
            continue
        for answer in sorted(set(target.tolist())):
            rows = np.flatnonzero(target == answer)
            low, _ = margins(model, stream[rows], answer, ar).bounds()
            right += sum(weight[i] for i in rows[(low > 0).all(-1)])
        total += sum(weight)
    return (worst, middle) if error else (share(right, total), 0.0)


def _signs(model: Any, task: Any, domain: _Json, data: _Json) -> Iterator[Any]:
    table, args = task.truth_table(), (0, *task.lags)
    for t in range(max(task.lags), domain["length"]):
        lags = {"points": range(t + 1), "boxes": ()}.get(data["cover"]) or data.get("lags", ())
        known = sorted({lag for lag in lags if 0 <= lag <= t})
        free = [t - lag for lag in range(t + 1) if lag not in known]
        for start in range(0, 2 ** len(known), _CHUNK):
            codes = np.arange(start, min(start + _CHUNK, 2 ** len(known)))
            signs = 2.0 * (codes[:, None] >> np.arange(len(known)) & 1) - 1
            centre = np.zeros((len(codes), t + 1, 1))
            centre[:, [t - lag for lag in known], 0] = signs
            reach = np.zeros((t + 1, 1))
            reach[free] = 1.0
            unknown = [lag for lag in args if lag not in known]
            answers = []
            for row in signs:
                at = dict(zip(known, row, strict=True))
                given = [
                    table[tuple(int((at | dict(zip(unknown, rest, strict=True)))[k]) for k in args)]
                    for rest in product((-1, 1), repeat=len(unknown))
                ]
                answers.append((min(given), max(given)))
            low, high = np.array(answers, dtype=np.float64).T
            middle, half = ((low + high) / 2)[:, None], ((high - low) / 2)[:, None]
            target = Affine(middle, np.zeros((0, *middle.shape)), half)
            yield box(centre, reach), target, None, len(free)


def _strings(model: Any, task: Any, domain: _Json, data: _Json) -> Iterator[Any]:
    """Prefixes by dynamic programming over (blocks, a's); each by itself where order is seen."""
    k = int(task.language.removeprefix("L_"))
    lengths = {n for lo, hi in task.bins for n in range(lo, hi + 1) if n <= domain["length"]}
    ids = to_inputs(task.program, np.array([[0, 1]]), language(task.language).letters, 2)[0, 1:]
    endings: dict[tuple[int, int], int] = {}  # strings that go on from (length, blocks)
    for i in range(max(lengths), 0, -1):
        for j in range(1, k + 1):
            more = endings.get((i + 1, j), 0) + endings.get((i + 1, j + 1), 0)
            endings[i, j] = more + (i in lengths and j == k)
    by_letter = data["cover"] == "points" or bool(not_orderless(model))
    states: dict[Any, int] = {((0,) if by_letter else (), 1, 1): 1}  # letters if kept, blocks, a's
    for i in range(1, max(lengths) + 1):
        rows: dict[Any, float] = {}
        for (word, j, a), ways in states.items():
            letter = 1 - j % 2
            text = word or (1,) * (i - a - letter) + (0,) * (a - 1 + letter) + (letter,)
            rows[text, int(j == k)] = rows.get((text, int(j == k)), 0) + ways * endings[i, j]
        kept = [(text, y, w) for (text, y), w in rows.items() if w]
        for start in range(0, len(kept), _CHUNK):
            part = kept[start : start + _CHUNK]
            tokens = np.pad(ids.numpy()[np.array([p[0] for p in part])], ((0, 0), (1, 0)))
            yield tokens, np.array([p[1] for p in part]), [p[2] for p in part], 0
        after: dict[Any, int] = {}
        for (word, j, a), ways in states.items():
            for j2 in (j, j + 1):
                if j2 <= k:
                    key = ((*word, 1 - j2 % 2) if word else (), j2, a + j2 % 2)
                    after[key] = after.get(key, 0) + ways
        states = after


def _templates(model: Any, task: Any, domain: _Json, data: _Json) -> Iterator[Any]:
    first, stop = task.train if task.split == "train" else task.test
    symbols = range(len(task.regular) + first, len(task.regular) + stop)

    def every() -> Iterator[tuple[list[int], Any]]:
        for template, label in zip(task.templates, task.labels, strict=True):
            wild = sorted({c for c in template if c not in task.regular})
            token = {c: i for i, c in enumerate(task.regular)}
            for drawn in permutations(symbols, len(wild)):
                token |= dict(zip(wild, drawn, strict=True))
                answer = token[label] if isinstance(label, str) else float(label)
                yield [token[c] for c in template], answer

    each = every()
    while part := list(islice(each, _CHUNK)):
        rows, answers = zip(*part, strict=True)
        yield np.array(rows), _target(list(answers)), [1] * len(rows), 0


def _target(answers: list[Any]) -> Any:
    numbers = np.array(answers)
    return exactly(numbers[:, None]) if numbers.dtype == np.float64 else numbers


def _rows(model: Any, task: Any, domain: _Json, data: _Json) -> Iterator[Any]:
    every = product(range(task.vocabulary), repeat=task.length)
    while rows := list(islice(every, _CHUNK)):
        yield np.array(rows), np.array(rows).max(1), [1] * len(rows), 0


def _averages(model: Any, task: Any, domain: _Json, data: _Json) -> Iterator[Any]:
    """m in intervals, its symbol after those of the inputs."""
    n, size, omega = min(data.get("slices", 1), _MOST), domain["box"], task.frequency
    for t in range(task.burn_in, domain["length"]):
        rho = MemoryKernel.parse(task.kernels[0]).values(np.arange(t + 1.0))[::-1]
        reach = float(np.abs(rho).sum() * size * UP)
        ends = np.linspace(-reach, reach, n + 1)
        middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * UP
        slope, (centre, rise, rest) = np.zeros((t + 2, n, 1)), sine(omega, middle, half)
        slope[-1, :, 0] = rise
        target = Affine(centre[:, None], slope, rest[:, None])
        free = box(np.zeros((n, t + 1, 1)), np.full((t + 1, 1), size))
        known = partial(along, model, free, rho, middle, half)
        yield free if data["cover"] == "boxes" else known, target, None, t + 2


def _addressed(model: Any, task: Any, domain: _Json, data: _Json) -> Iterator[Any]:
    """Last token and fetched token by address and interval; with boxes all but the address free."""
    bits, size, n = task.bits, domain["box"], min(data.get("pieces", 1), _MOST)
    codes = np.array(list(product((-1.0, 1.0), repeat=bits)))
    judged = range(max(task.locations), domain["length"])
    ends = np.linspace(-size, size, n + 1)
    tokens = np.array([((lo + hi) / 2, *code) for code in codes for lo, hi in pairwise(ends)])
    reach = float((ends[1] - ends[0]) / 2 * UP)

    def free(rows: Any, symbol: int) -> Affine:
        noise = np.zeros((2, len(rows), 1, 1 + bits))
        noise[symbol, ..., 0] = reach
        return Affine(rows[:, None], noise, np.zeros_like(rows[:, None]))

    for code, lag in enumerate(task.location_tables()[0]):
        for last in tokens[code * n : (code + 1) * n] if data["cover"] == "pairs" else ():
            past, now = free(tokens, 1), free(np.tile(last, (len(tokens), 1)), 0)
            yield partial(_named, model, past, now, lag, judged), past[:, 0, :1], None, 2
        for t in judged if data["cover"] == "boxes" else ():
            centre, wide = np.zeros((1, t + 1, 1 + bits)), np.ones((t + 1, 1 + bits))
            centre[0, t, 1:], wide[t, 1:], wide[:, 0] = codes[code], 0.0, size
            inputs = box(centre, wide)
            yield inputs, inputs[:, t - lag, :1], None, len(inputs.generators)


def _named(model: Any, past: Affine, now: Affine, lag: int, judged: Any, ar: Arithmetic) -> Affine:
    others = values_of(model, past, Arithmetic(ar.dtype, symbols=2))
    return named(model, past, now, lag, [t + 1 for t in judged], others, ar)


def _maximum(model: Any, task: Any, proof: dict[str, Any]) -> float:
    """Max-of-K: rows below their caps, each free position taken at its worst token, exactly."""
    v, n, tables, right = task.vocabulary, task.length, tables_of(model, task.length), 0
    sets = [s for size in range(n) for s in combinations(range(n - 1), size)]
    wrong = 1 - np.eye(v)
    for q, m in product(range(v), range(v)):
        ahead = tables.direct[q, m] - tables.direct[q] - tables.slack
        f = tables.e[q, :, :, None] * (ahead + tables.ov[:, :, m, None] - tables.ov)
        for copies, cap in zip(sets, proof["data"]["caps"][q][m], strict=True):
            others = [p for p in range(n - 1) if p not in copies]
            legal = (q == m) or (q < m and bool(copies))
            if cap < 0 or not legal or cap > m or (others and not cap):
                continue
            total = f[-1, q] + f[list(copies), m].sum(0)
            total = total + sum((f[p, :cap].min(0) for p in others), np.zeros(v))
            right += int(cap ** len(others)) * bool((total[wrong[m] > 0] > LEAST).all())
    return share(right, v**n)


def _every_row(model: Any, task: Any) -> float:
    """Max-of-K by counting every row."""
    v, n, tables, right = task.vocabulary, task.length, tables_of(model, task.length), 0
    for q, first in product(range(v), repeat=2):
        f = tables.e[q][:, :, None] * (tables.direct[q] + tables.ov)
        logits, size = (f[-1, q] + f[0, first])[None], np.zeros(1)
        size, top = tables.e[q, -1, q] + tables.e[q, 0, first] + size, np.full(1, max(q, first))
        for p in range(1, n - 1):
            logits = (logits[:, None] + f[p]).reshape(-1, v)
            size = (size[:, None] + tables.e[q, p]).reshape(-1)
            top = np.maximum(top[:, None], np.arange(v)).reshape(-1)
        ahead = logits[np.arange(len(top)), top, None] - logits
        ahead[np.arange(len(top)), top] = np.inf
        right += int((ahead.min(1) > size * tables.slack + LEAST).sum())
    return share(right, v**n)
