"""A theorem about a trained model, as a cover of its domain: cells, and a bound on each.

    domain ⊆ ∪ cells;   every input of a cell has an error of at most the cell's bound
                        (or: is answered rightly)

A strategy is a choice of cells. Brute force takes every input as a cell; the black box takes the
whole domain as one; the mechanism strategy takes the cases that the model's roles distinguish, so
that what the roles leave unexplained is the size of a cell. All use the same bounds
(:mod:`interp.bounds`): a wrong role makes cells wide where the model attends, and the bound large;
it cannot make it false.

A bound is about the model as a real function of its stored weights and, if ``arithmetic`` is the
model's dtype, about every evaluation in that dtype or a wider one too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from interp.bounds.affine import Affine, Arithmetic, span, subtract
from interp.bounds.attention import weights
from interp.bounds.network import embed_inputs, entry_stream, margins, read_out, stream_after
from probes.certify.lemmas import Lemma, readout

_CENTRE = "answer at the cell's centre"
_RIGHT = "right in real arithmetic"
_NAMED = 2
UNKNOWN = -1
"""Code in a cell's token ids for a token that is left open: any of the domain's vocabulary."""


@dataclass(frozen=True)
class Cells:
    """Some cells of a cover, all of one length; the model's output is judged at the last position.

    Attributes:
        inputs: Real inputs ``[cell, pos, channel]`` as affine forms, or token ids ``[cell, pos]``,
            in which :data:`UNKNOWN` stands for any token of ``vocabulary``.
        targets: The right output ``[cell, d_out]`` as affine forms, or the right token ``[cell]``.
        weight: The number of the domain's inputs that each cell stands for, ``[cell]``; exact below
            2^53.
        symbols: The number of noise symbols that the inputs use.
        vocabulary: The ids that an unknown token may have.
        names: What each noise symbol of the inputs stands for, in words.
    """

    inputs: Affine | Int[np.ndarray, "cell pos"]
    targets: Affine | Int[np.ndarray, " cell"]
    weight: Float64[np.ndarray, " cell"]
    symbols: int = 0
    vocabulary: Int[np.ndarray, " token"] | None = None
    names: tuple[str, ...] = ()

    @property
    def position(self) -> int:
        """The position at which the output is judged: the last one."""
        ids = self.inputs.centre if isinstance(self.inputs, Affine) else self.inputs
        return int(ids.shape[1]) - 1


@dataclass(frozen=True)
class Proof:
    """A bound that was proved by one strategy.

    Attributes:
        strategy: The strategy's name: ``brute force``, ``black box``, ``mechanism`` or ``cubic``.
        kind: ``error`` (largest |output − target|) or ``accuracy`` (least share of the domain that
            is answered rightly).
        bound: The number that is proved.
        cells: The number of cells.
        multiplications: The number of multiplications of centres and generators that were made.
        seconds: How long the proof took.
        arithmetic: The arithmetic that the bound holds for: ``float32``, ``float64``, or ``real``
            numbers alone.
        lemmas: The lemmas of the roles behind the cover; none for brute force and black box.
        parts: What each part of a cell adds to the bound, in the worst cell (for an error).
        vacuous: Why the bound says nothing; empty if it says something.
        data: What the checker needs to make the cover again, as JSON data.
    """

    strategy: str
    kind: str
    bound: float
    cells: int
    multiplications: int
    seconds: float
    arithmetic: str
    lemmas: tuple[Lemma, ...] = ()
    parts: dict[str, float] = field(default_factory=dict)
    vacuous: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def streams(model: Any, cells: Cells, ar: Arithmetic) -> Affine:
    """Return the residual stream that enters the first block, as affine forms ``[cell, pos,
    d_model]``, for every cell.

    An :data:`UNKNOWN` token is bounded by an interval in each embedding coordinate: from the least
    to the greatest value among the tokens that it may be.

    Args:
        model: A covered model.
        cells: The cells whose inputs are embedded.
        ar: The arithmetic whose rounding is counted.
    """
    if isinstance(cells.inputs, Affine):
        ar.symbols = max(ar.symbols, cells.symbols)
        return embed_inputs(model, cells.inputs, ar)
    if not (cells.inputs == UNKNOWN).any():
        return embed_inputs(model, cells.inputs, ar)
    table = weights(model.embed.W_E)
    known = table[np.maximum(cells.inputs, 0)]
    some = table if cells.vocabulary is None else table[cells.vocabulary]
    unknown = (cells.inputs == UNKNOWN)[..., None]
    low = np.where(unknown, some.min(0), known)
    high = np.where(unknown, some.max(0), known)
    return entry_stream(model, span(low, high, ar), ar)


@np.errstate(all="ignore")
def prove(
    model: Any,
    strategy: str,
    kind: str,
    cover: Iterable[Cells],
    *,
    trivial: float,
    arithmetic: str = "real",
    budget: int = 2**24,
    final: Callable[[Any, Cells, Arithmetic], Affine] | None = None,
    lemmas: tuple[Lemma, ...] = (),
) -> Proof:
    """Compute the bound of a cover.

    Args:
        model: A covered model.
        strategy: The strategy's name, for the report.
        kind: ``error`` or ``accuracy``.
        cover: Cells that together contain the domain.
        trivial: The error or accuracy of the best constant answer: a bound that is no better is
            vacuous.
        arithmetic: ``real``, or the model's dtype.
        budget: The largest number of generators (:class:`~interp.bounds.affine.Arithmetic`); 0 if
            every cell is a single input.
        final: A function from a model, cells and arithmetic to the residual stream after all
            blocks; by default the blocks, one after another.
        lemmas: The lemmas of the roles that made the cover; for an error, the readout's is added.

    Returns:
        The proof; if it is vacuous, it says why.
    """
    started, count, work, off = time.perf_counter(), 0, 0, 0.0
    worst, parts, right, wrong, seen, total = 0.0, {}, 0.0, 0.0, 0.0, 0.0
    for cells in cover:
        ar = Arithmetic(arithmetic, budget=budget)
        stream = (final or _through)(model, cells, ar)
        target: Any = cells.targets
        if kind == "error":
            found = subtract(read_out(model, stream, ar), target, ar)
            most, off = _largest(found), max(off, float(np.abs(found.centre).max()))
            if count == 0 or most.max() > worst:
                worst, parts = float(most.max()), _parts(found, int(most.argmax()), cells)
        else:
            sure, middle = _right_answers(model, stream, target, ar)
            right += float(cells.weight[sure].sum())
            wrong += float(cells.weight[~sure].sum())
            seen += float(cells.weight[middle].sum())
        total += float(cells.weight.sum())
        count, work = count + len(cells.weight), work + ar.multiplications
    bound = worst if kind == "error" else _share(right, wrong, total)
    if kind == "accuracy" and budget == 0:  # cells are inputs: their middles are the real outputs
        parts = {_RIGHT: seen / total}
    reason = _vacuous(kind, bound, trivial, parts, 0 if budget == 0 else count)
    lemmas = (*lemmas, *readout(off)) if lemmas and kind == "error" else lemmas
    seconds = time.perf_counter() - started
    return Proof(strategy, kind, bound, count, work, seconds, arithmetic, lemmas, parts, reason)


def _vacuous(kind: str, bound: float, trivial: float, parts: dict[str, float], open_: int) -> str:
    """Return why a bound says nothing; empty if it says something.

    Args:
        kind: ``error`` or ``accuracy``.
        bound: The bound.
        trivial: The error or accuracy of the best constant answer.
        parts: What the bound is made up of.
        open_: The number of cells that contain more than one input.
    """
    if bound < trivial if kind == "error" else bound > trivial:
        return ""
    reason = f"no better than the {kind} {trivial:.4g} of the best constant answer"
    if kind == "accuracy" and open_:
        left = f"what is open inside of {open_} cells is more than the answers differ by"
        return f"{reason}; {bound:.3g} is proved, {left}"
    if kind == "accuracy":
        return f"{reason}; the model is right on {parts[_RIGHT]:.4g} in real arithmetic"
    if not open_ and parts.get(_CENTRE, 0.0) >= trivial:
        return f"the model itself is off by {parts[_CENTRE]:.4g} on some input; {reason}"
    if not parts:
        return reason
    largest = max(parts, key=lambda name: parts[name])
    return f"{reason}; the largest part, {parts[largest]:.3g}, is {largest}"


def _through(model: Any, cells: Cells, ar: Arithmetic) -> Affine:
    return stream_after(model, streams(model, cells, ar), ar)


def _largest(found: Affine) -> Float64[np.ndarray, " cell"]:
    """Return the largest |value| of each cell, over its outputs; infinite where a bound is NaN."""
    low, high = found.bounds()
    most = np.maximum(np.abs(low), np.abs(high)).max(-1)
    return np.where(np.isnan(most), np.inf, most)


def _share(right: float, wrong: float, total: float) -> float:
    """Return right / total, rounded down.

    Sums of counts are exact below 2^53 and nearly so above. A single cell that is not right keeps
    the share below one, however small its weight.
    """
    if not wrong:
        return 1.0
    off = 2.0**-45 if total < 2.0**53 else 2.0**-30
    return max(0.0, float(np.nextafter(min(right / total, 1.0) * (1 - off), 0)))


def _right_answers(
    model: Any, stream: Affine, target: Any, ar: Arithmetic
) -> tuple[np.ndarray, np.ndarray]:
    """Return whether every input of a cell is answered rightly (the target's output exceeds all
    others), and whether its centre is.

    The differences of outputs are bounded, not the outputs. Cells are handled target by target.
    """
    right, middle = np.zeros(len(target), dtype=bool), np.zeros(len(target), dtype=bool)
    for token in np.unique(target[target >= 0]):
        rows = np.flatnonzero(target == token)
        ahead = margins(model, stream[rows], int(token), ar)
        right[rows] = (ahead.bounds()[0] > 0).all(-1)
        middle[rows] = (ahead.centre > 0).all(-1)
    return right, middle


def _parts(found: Affine, cell: int, cells: Cells) -> dict[str, float]:
    """Return what the bound of a cell is made up of, at its worst output; the largest free inputs
    by name."""
    own = found[cell]
    out = int((np.abs(own.centre) + own.deviation).argmax())
    noise = np.abs(own.generators[:, out])
    free = noise[: cells.symbols]
    largest = np.argsort(-free[: len(cells.names)], kind="stable")[:_NAMED].tolist()
    return {
        _CENTRE: float(abs(own.centre[out])),
        **{f"open: {cells.names[k]}": float(free[k]) for k in largest},
        "open: other inputs" if largest else "open inputs": float(np.delete(free, largest).sum()),
        "nonlinearities on the cell": float(noise[cells.symbols :].sum()),
        "attention, products and rounding": float(own.radius[out]),
    }


def chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of consecutive ranges of at most ``size`` that together cover 0 …
    ``total``."""
    for start in range(0, total, size):
        yield start, min(start + size, total)
