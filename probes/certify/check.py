"""Check a certificate again, without knowing how its strategies found their covers.

Trusted: this file, :mod:`interp.bounds`, the task's inputs and answers, and arithmetic. Cells and
lemmas are made anew from a cover; a claim holds if the bound is no worse (``certify --check``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice, pairwise, product
from math import inf, isclose
from typing import Any

import numpy as np

from interp.bounds import attention, counted, network, passed_on, two_layers
from interp.bounds.affine import UP, Affine, Arithmetic, box, exactly, share, subtract
from interp.bounds.three_paths import LEAST, not_three_paths, tables_of
from interp.errors import CheckpointError
from interp.tasks.catalogue import task_from_dict
from interp.tasks.depth.strings import counts_and_blocks, letters_of, prefixes, whole_strings
from interp.tasks.memory.kernels import MemoryKernel

_CHUNK, _MOST, _ASKED, _COUNTS = 512, 4096, "last token and answer", "counts and blocks"
_WHOLE = {_ASKED: "templates", _COUNTS: "strings"}
_Json = dict[str, Any]
_BROKEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)


@dataclass(frozen=True)
class CheckResult:
    """The check of one strategy; its lemmas anew as (role, component, statement, number)."""

    strategy: str
    claimed: float
    found: float
    holds: bool
    note: str = ""
    lemmas: tuple[tuple[str, str, str, float], ...] = ()


@np.errstate(all="ignore")
def check(certificate: _Json, model: Any, sha256: str) -> list[CheckResult]:
    """Bound every strategy again that claims something, on a model whose weights have the SHA-256
    ``sha256``; with others there is one failed result.

    Raises:
        CheckpointError: if the certificate lacks something, or makes no sense.
    """
    try:
        if certificate["model"]["sha256"] != sha256:
            words = "it is about other weights: SHA-256 differs"
            return [CheckResult("model", 0.0, 0.0, False, words)]
        claims = [proof for proof in certificate["strategies"] if not proof["vacuous"]]
        return [_verdict(certificate["domain"], proof, model) for proof in claims]
    except _BROKEN as error:
        raise CheckpointError(f"the certificate cannot be followed: {error!r}") from error


def _verdict(domain: _Json, proof: _Json, model: Any) -> CheckResult:
    claimed, error = float(proof["bound"]), {"error": True, "accuracy": False}[proof["kind"]]
    task, cover = task_from_dict(domain["task"]), proof["data"]["cover"]
    found, off, lemmas = inf if error else 0.0, 0.0, ()
    if not (note := _unfit(model, task, domain, proof)):
        if domain["kind"] == "rows" and not not_three_paths(model):
            found = _maximum(model, task, proof) if cover == "caps" else _every_row(model, task)
        else:
            bound = _whole if _WHOLE.get(cover) == domain["kind"] and not error else _cell_bound
            found, off = bound(model, task, domain, proof)
        lemmas = tuple(_lemmas(model, task, domain, proof, off))
        note = _lemma_mismatch(proof["lemmas"], lemmas)
    holds = not note and (found <= claimed if error else found >= claimed)
    return CheckResult(proof["strategy"], claimed, found, bool(holds), note, lemmas)


def _unfit(model: Any, task: Any, domain: _Json, proof: _Json) -> str:
    """Return why a proof does not apply to this model; empty if it does."""
    if reason := network.not_covered(model):
        return reason
    spec, kind, cover = model.spec, domain["kind"], proof["data"]["cover"]
    longest = task.length if kind in ("templates", "rows") else domain["length"]
    if longest + (kind == "strings") > spec.n_ctx:
        return "its rows are longer than the model's context"
    if not spec.causal and kind not in ("templates", "rows"):
        return "the model is not causal"
    paths = kind == "rows" and not not_three_paths(model)
    rounded = tables_of(model, task.length).arithmetic if paths else spec.dtype
    if proof["arithmetic"] not in ("real", "real" if cover in _WHOLE else rounded):
        return f"nothing is known of its evaluation in {proof['arithmetic']}"
    fits = {"slices": passed_on.not_along, "pairs": passed_on.not_named, "caps": not_three_paths}
    fits |= {_ASKED: two_layers.not_two_layers, _COUNTS: counted.not_counted}
    fits["multisets"] = passed_on.not_orderless
    return fits.get(cover, lambda m: "")(model)


def _cell_bound(model: Any, task: Any, domain: _Json, proof: _Json) -> tuple[float, float]:
    """Return the bound over all cells, and the largest error at their centres."""
    makers = {"signs": _signs, "strings": _strings, "templates": _row_chunks, "rows": _row_chunks}
    makers |= {"averages": _averages, "addressed": _address_cells}
    worst, middle, right, total, error = 0.0, 0.0, 0, 0, proof["kind"] == "error"
    budget = {"points": 0, "multisets": 0, "boxes": 2**22}.get(proof["data"]["cover"], 2**24)
    cover = makers[domain["kind"]](model, task, domain, proof)
    for inputs, target, weight, symbols in chain([next(cover)], cover):
        ar = Arithmetic(proof["arithmetic"], budget=budget, symbols=symbols)
        stream = inputs(ar) if callable(inputs) else network.last_stream(model, inputs, ar)
        if error:
            off = subtract(network.read_out(model, stream, ar), target, ar)
            worst = float(np.maximum(worst, np.abs(np.stack(off.bounds())).max()))  # NaN stays
            middle = float(np.maximum(middle, np.abs(off.centre).max()))
            continue
        for answer in sorted(set(target.tolist())):
            rows = np.flatnonzero(target == answer)
            low, _ = network.margins(model, stream[rows], answer, ar).bounds()
            right += sum(weight[i] for i in rows[(low > 0).all(-1)])
        total += sum(weight)
    return (worst, middle) if error else (share(right, total), 0.0)


def _signs(model: Any, task: Any, domain: _Json, proof: _Json) -> Iterator[Any]:
    """Yield cells of sequences ±1: inputs at certain lags are fixed, all others are free."""
    table, args = task.truth_table(), (0, *task.lags)
    for t in range(max(task.lags), domain["length"]):
        lags = {"points": range(t + 1), "boxes": ()} | {"cases": proof["data"].get("lags")}
        known = sorted({lag for lag in lags[proof["data"]["cover"]] if 0 <= lag <= t})
        reach = np.array([[float(t - s not in known)] for s in range(t + 1)])
        every = product((-1, 1), repeat=len(known))
        while rows := list(islice(every, _CHUNK)):
            centre, ends = np.zeros((len(rows), t + 1, 1)), np.zeros((len(rows), 2))
            centre[:, [t - lag for lag in known], 0] = rows
            for i, row in enumerate(rows):
                sign = dict(zip(known, row, strict=True))
                may = product(*([sign[lag]] if lag in sign else (-1, 1) for lag in args))
                ends[i] = np.sort([table[arguments] for arguments in may])[[0, -1]]
            middle, half = ends.mean(1)[:, None], np.ptp(ends, 1)[:, None] / 2
            target = Affine(middle, np.zeros((0, *middle.shape)), half)
            yield box(centre, reach), target, None, int(reach.sum())


def _strings(model: Any, task: Any, domain: _Json, proof: _Json) -> Iterator[Any]:
    ordered = proof["data"]["cover"] == "points" or bool(passed_on.not_orderless(model))
    asks = partial(prefixes, ordered=ordered) if task.kind != "membership" else whole_strings
    yield from ((*each, 0) for each in asks(task, domain["length"], most=_CHUNK))


def _row_chunks(model: Any, task: Any, domain: _Json, proof: _Json) -> Iterator[Any]:
    every = task.every_row()
    while part := list(islice(every, _CHUNK)):
        rows, told = (np.array(each) for each in zip(*part, strict=True))
        yield rows, exactly(told[:, None]) if told.dtype.kind == "f" else told, [1] * len(part), 0


def _averages(model: Any, task: Any, domain: _Json, proof: _Json) -> Iterator[Any]:
    """Yield cells by intervals of the average m; its noise symbol follows those of the inputs."""
    n, size, omega = min(proof["data"].get("slices", 1), _MOST), domain["box"], task.frequency
    for t in range(task.burn_in, domain["length"]):
        rho = MemoryKernel.parse(task.kernels[0]).values(np.arange(t + 1.0))[::-1]
        ends = np.linspace(-1, 1, n + 1) * (np.abs(rho).sum() * size * UP)
        middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * UP
        slope, (centre, rise, rest) = np.zeros((t + 2, n, 1)), network.sine(omega, middle, half)
        slope[-1, :, 0] = rise
        target = Affine(centre[:, None], slope, rest[:, None])
        free = box(np.zeros((n, t + 1, 1)), np.full((t + 1, 1), size))
        inputs = {"boxes": free, "slices": partial(passed_on.along, model, free, rho, middle, half)}
        yield inputs[proof["data"]["cover"]], target, None, t + 2


def _address_cells(model: Any, task: Any, domain: _Json, proof: _Json) -> Iterator[Any]:
    """Yield cells of last and fetched token; of boxes, all but the last address is free."""
    past, now = (_tokens(task, domain, proof["data"], symbol) for symbol in (1, 0))
    others = passed_on.values_of(model, past, Arithmetic(proof["arithmetic"], symbols=2))
    lengths = range(max(task.locations) + 1, domain["length"] + 1)
    for place, last in enumerate(now.centre[:, 0]):
        lag = task.location_tables()[0][place * 2**task.bits // len(now.centre)]
        if proof["data"]["cover"] == "pairs":
            again = now[[place] * len(past.centre)]
            stream = partial(passed_on.bound_named_lag, model, past, again, lag, lengths, others)
            yield stream, past[:, 0, :1], None, 2
        for n in lengths if proof["data"]["cover"] == "boxes" else ():
            centre, wide = np.zeros((1, n, 1 + task.bits)), np.ones((n, 1 + task.bits))
            centre[0, -1, 1:], wide[-1], wide[:, 0] = last[1:], 0.0, domain["box"]
            inputs = box(centre, wide)
            yield inputs, inputs[:, n - 1 - lag, :1], None, len(inputs.generators)


def _tokens(task: Any, domain: _Json, data: _Json, symbol: int) -> Affine:
    """Return all addresses, each with its value in every interval, ``[cell, 1, 1 + bits]``."""
    ends = np.linspace(-domain["box"], domain["box"], min(data.get("pieces", 1), _MOST) + 1)
    codes = product((-1.0, 1.0), repeat=task.bits)
    centre = np.array([[((lo + hi) / 2, *code)] for code in codes for lo, hi in pairwise(ends)])
    noise = np.zeros((2, *centre.shape))
    noise[symbol, ..., 0] = (ends[1] - ends[0]) / 2 * UP
    return Affine(centre, noise, np.zeros_like(centre))


def _maximum(model: Any, task: Any, proof: dict[str, Any]) -> float:
    """Return the share of right rows below their caps; free positions hold their worst token."""
    v, n, tables, right = task.vocabulary, task.length, tables_of(model, task.length), 0
    sets = [s for size in range(n) for s in combinations(range(n - 1), size)]
    for q, m in product(range(v), range(v)):
        ahead = tables.direct[q, m] - tables.direct[q] - tables.slack
        f = tables.e[q, :, :, None] * (ahead + tables.ov[:, :, m, None] - tables.ov)
        for copies, cap in zip(sets, proof["data"]["caps"][q][m], strict=True):
            others = [p for p in range(n - 1) if p not in copies]
            legal = (q == m) or (q < m and bool(copies))
            if cap < 0 or not legal or cap > m or (others and not cap):
                continue
            total = f[-1, q] + f[list(copies), m].sum(0) + sum(f[p, :cap].min(0) for p in others)
            right += int(cap ** len(others)) * bool((np.delete(total, m) > LEAST).all())
    return share(right, v**n)


def _every_row(model: Any, task: Any) -> float:
    """Return the share of right rows of the maximum task, by enumerating all rows."""
    v, n, tables, right = task.vocabulary, task.length, tables_of(model, task.length), 0
    for q, first in product(range(v), repeat=2):
        f, e = tables.e[q, ..., None] * (tables.direct[q] + tables.ov), tables.e[q]
        logits, size, top = f[-1, q] + f[0, first], e[-1, q] + e[0, first], np.array(max(q, first))
        for p in range(1, n - 1):
            logits, size = logits[..., None, :] + f[p], size[..., None] + e[p]
            top = np.maximum(top[..., None], np.arange(v))
        ahead = np.take_along_axis(logits, top[..., None], -1) - logits
        np.put_along_axis(ahead, top[..., None], inf, -1)
        right += int((ahead.min(-1) > size * tables.slack + LEAST).sum())
    return share(right, v**n)


def _whole(model: Any, task: Any, domain: _Json, proof: _Json) -> tuple[float, Any]:
    """Return the share right by a refined cover, and the heads' most attention elsewhere."""
    if proof["data"]["cover"] == _COUNTS:
        cells = counts_and_blocks(task, domain["length"])
        return counted.share_right(model, letters_of(task), *cells, Arithmetic()), 0.0
    symbols, listed = np.array(task.symbols), task.by_last_and_answer()
    found = two_layers.count_right(model, symbols, listed, Arithmetic())
    return share(sum(found.right), found.rows), found.elsewhere


def _lemmas(model: Any, task: Any, domain: _Json, proof: _Json, off: Any) -> Iterator[Any]:
    """Yield the role, component, statement and number of each lemma that belongs to a cover."""
    data, ar, n = proof["data"], Arithmetic("real", budget=0), domain.get("length", 0)
    cover, block = data["cover"], model.blocks[-1] if model.blocks else None
    if cover in ("multisets", _COUNTS):
        yield "counter", "layer 0", "what the order of earlier tokens changes", 0.0
    if cover == "cases":
        for layer, head, lags in data["heads"]:
            words = f"attention outside lag {' and '.join(map(str, lags))} is at most this"
            role = "memory-location" if len(lags) == 1 else "memory-mixture"
            lengths = range(max(task.lags) + 1, n + 1)
            most = [network.attention_outside(model, t, layer, head, lags) for t in lengths]
            yield role, f"head {layer}.{head}", words, max(most)
    elif cover == "multisets":
        x, same = network.embed_inputs(model, letters_of(task)[None], ar), np.zeros((3, 3), int)
        x = network.apply_norm(block.ln1, x, ar) if block else x
        found = attention.score_forms(block.attn, x, x, same, ar) if block else exactly(same)
        apart = (found.bounds()[1].max(-1) - found.bounds()[0].min(-1)).max()
        yield "counter", "layer 0", "largest difference of scores", apart
    elif cover == "slices":
        rho = MemoryKernel.parse(task.kernels[0]).values(np.arange(float(n)))[::-1]
        rows = network.embed_inputs(model, exactly(np.eye(n + 1, n)[..., None]), ar)
        passed = network.after_attention(block, rows, ar, last_only=True).centre[:, 0]
        own = passed[:-1] - passed[-1]
        beside = np.abs(own - np.outer(rho, rho @ own) / (rho @ rho)).sum() / np.abs(own).sum()
        yield "memory-location", "layer 0", "share of what is passed on beside the average", beside
    elif cover == "pairs":
        last, lengths = _tokens(task, domain, data, 0), range(max(task.locations) + 1, n + 1)
        each, ar = len(last.centre) // 2**task.bits, Arithmetic("real", symbols=2)
        for code, lag in enumerate(task.location_tables()[0]):
            own = last[code * each : (code + 1) * each]
            least = passed_on.weights_of_keys(model, own, lag, lengths, ar)[0]
            words = f"attention outside lag {lag}, named by token {code}, is at most this"
            for head, share_ in enumerate(least[:, :, 0, 0].min(0)):
                yield "memory-location", f"head {len(model.blocks) - 1}.{head}", words, 1 - share_
    elif cover == "caps":
        paths = tables_of(model, task.length)
        other, own = paths.ov[:, ~np.eye(task.vocabulary, dtype=bool)], paths.ov.diagonal(0, 1, 2)
        fall, apart = -np.diff(paths.scores).min(), np.ptp(paths.scores, (1, 2)).max()
        rise, query = (own - paths.ov.mean(-1)).min(), np.ptp(paths.direct, 1).max()
        yield "dense", "head 0.0", "largest fall of the score from token k to k + 1", max(0.0, fall)
        yield "dense", "head 0.0", "largest difference of scores in a row", apart
        yield "copying", "head 0.0", "least rise of a token's own logit over its row's mean", rise
        yield "copying", "head 0.0", "largest spread of other logits", np.ptp(other)
        yield "none", "direct path", "largest difference that the query's own token makes", query
    elif cover == _ASKED:
        words = "attention outside the token after an earlier equal one is at most this"
        yield from (("induction", f"head 1.{g}", words, most) for g, most in enumerate(off))
    if cover in ("cases", "multisets", "slices", "pairs") and proof["kind"] == "error":
        yield "readout", "ffn 0", "answers at middles of cases are off by at most this", off


def _lemma_mismatch(told: list[_Json], found: tuple[Any, ...]) -> str:
    """Return how a certificate's lemmas differ from those found; empty if they do not."""
    words = [[said[key] for key in ("role", "component", "statement")] for said in told]
    if words != [list(lemma[:3]) for lemma in found]:
        return "its lemmas are not those of its cover"
    for said, (_, part, words, number) in zip(told, found, strict=True):
        claimed = inf if said["number"] is None else float(said["number"])
        if not isclose(claimed, number, rel_tol=1e-6, abs_tol=1e-9):
            return f"{part}: {words}: told {claimed:.9g}, is {number:.9g}"
    return ""
