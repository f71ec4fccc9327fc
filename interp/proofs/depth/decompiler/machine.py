"""A counting transformer as one state machine per layer: the variables that a position's state
depends on.

Besides the averages that heads write, the residual stream of a position takes a few values, its
*states*. What heads average takes a few values too; together with those of earlier layers they are
the *classes* of positions that are counted. So everything is a function of a few variables of a
position: its token, its position, what a head of a fixed lag reads, and the interval of each
number:

    rows       values of the variables      every combination that the weights allow
    states     of each row                  what the next network and the readout can distinguish
    classes    of each row                  what later averages can distinguish

A variable is dropped as soon as later layers cannot depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Bool, Int

from interp.proofs.depth.decompiler.covers import support
from interp.proofs.depth.decompiler.network import Inputs, Layer, Network, NotCountingError, outputs
from interp.proofs.depth.decompiler.tables import Codes, Number, overlaps, tabulate

_MOST_ROWS = 400_000
_MOST_PERIOD = 24
_MOST_CLASSES = 120


@dataclass(frozen=True)
class Factor:
    """A variable of a position, which takes one of a few values.

    Attributes:
        kind: ``token``, ``position``, ``lag`` or ``number``.
        size: The number of values: tokens of the vocabulary without BOS, residues of the position,
            classes that a head of a fixed lag distinguishes, or intervals of a number.
        layer: The layer whose classes a lag or a number refers to. A number that only depends on
            earlier layers' averages belongs to the earliest.
        read: The layer whose network compares a number; −1 for other kinds.
        lag: How many positions back the head attends; 0 for other kinds.
        number: The number itself, whose weights are over the classes of ``layer``.
        seen: For a lag, its value for each state before ``layer``, and last that of BOS.
    """

    kind: str
    size: int
    layer: int = -1
    read: int = -1
    lag: int = 0
    number: Number | None = None
    seen: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """The number of layers that are needed to compute the variable."""
        return self.layer + 1


@dataclass(frozen=True)
class Scene:
    """All cases that a position can be in when a layer begins.

    Attributes:
        variables: The variables, the columns of ``rows``.
        rows: The variables' values in each case, ``[row, variable]``.
        states: The state in each case, ``[row]``.
        classes: The class in each case, ``[row]``, that the layer's averages put the position in.
    """

    variables: tuple[Factor, ...]
    rows: Int[np.ndarray, "row variable"]
    states: Int[np.ndarray, " row"]
    classes: Int[np.ndarray, " row"]


@dataclass
class Machine:
    """The state machines of all layers.

    Attributes:
        scenes: One per layer; the last is the readout's.
        answer: Whether the answer is yes, for each row of ``end``.
        end: The cases after the readout.
    """

    scenes: list[Scene] = field(default_factory=list)
    answer: Bool[np.ndarray, " row"] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    end: Scene | None = None


@dataclass
class _Growing:
    """The machine while it is built: states and classes with their vectors."""

    network: Network
    generator: np.random.Generator
    variables: list[Factor]
    rows: np.ndarray
    states: np.ndarray
    classes: np.ndarray
    codes: Codes
    bos: np.ndarray
    points: np.ndarray
    parents: list[np.ndarray] = field(default_factory=list)


def build_machine(network: Network, seed: int) -> Machine:
    """Build the machine of a network.

    Raises:
        NotCountingError: with the reason, if the network is not of this form.
    """
    now = _begin(network, np.random.default_rng(seed))
    machine = Machine()
    for number, layer in enumerate(network.layers):
        constant, points = _classify(now, layer)
        variables, rows, states = tuple(now.variables), now.rows, now.states
        machine.scenes.append(Scene(variables, rows, states, now.classes))
        _run_layer(now, layer, number, constant, points)
        _forget(now)
    machine.end = Scene(tuple(now.variables), now.rows, now.states, now.classes)
    machine.answer = now.codes.vectors[now.states, 0] > 0.5
    return machine


def _begin(network: Network, generator: np.random.Generator) -> _Growing:
    entered = network.entered
    tokens, width = len(entered) - 1, entered.shape[2]
    period = _period(entered)
    variables = [Factor("token", tokens)]
    if period > 1:
        variables.append(Factor("position", period))
    rows = np.array(list(product(range(tokens), range(period))))[:, : len(variables)]
    first = min(1, entered.shape[1] - 1)
    vectors = np.array([entered[1 + r[0], first + (r[1] if period > 1 else 0)] for r in rows])
    codes = Codes(width, network.scale)
    states = codes.of(vectors)
    classes = np.zeros(len(rows), dtype=np.int64)
    nothing = np.zeros((2, width))
    return _Growing(
        network, generator, variables, rows, states, classes, codes, entered[0, 0], nothing
    )


def _period(entered: np.ndarray) -> int:
    """Return the number of positions after which the embeddings repeat, for every token."""
    inside = entered[1:, 1:]
    if entered.shape[1] == 1:
        return 1
    size = float(np.abs(entered).max()) or 1.0
    for period in range(1, min(_MOST_PERIOD, inside.shape[1] // 2) + 1):
        if np.abs(inside[:, period:] - inside[:, :-period]).max() <= 1e-6 * size:
            return period
    raise NotCountingError(f"its positions do not repeat every {_MOST_PERIOD} tokens or fewer")


def _classify(now: _Growing, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """Split the classes by what the heads average; return what they write besides, and the class
    points."""
    constant = layer.constant.copy()
    size = now.network.scale
    for matrix in (layer.average, *layer.lags.values()):
        copied = now.points @ matrix
        if np.abs(copied - copied[0]).max() > 1e-6 * max(np.abs(matrix).max(), 1e-12) * size:
            raise NotCountingError("heads average what earlier heads averaged, or look it up")
        constant += copied[0]
    values = now.codes.vectors @ layer.average
    scale = float(np.abs(layer.average).max()) * size
    averaged = Codes(values.shape[1], scale)
    value = averaged.of(values)
    pairs = np.stack([now.classes, value[now.states]], axis=1)
    kinds, now.classes = np.unique(pairs, axis=0, return_inverse=True)
    now.classes = now.classes.reshape(-1)
    if len(kinds) > _MOST_CLASSES:
        raise NotCountingError(f"heads tell apart more than {_MOST_CLASSES} classes of positions")
    points = now.points[:-1][kinds[:, 0]] + averaged.vectors[kinds[:, 1]]
    bos = now.points[-1] + now.bos @ layer.average
    now.parents.append(kinds[:, 0])
    now.points = np.concatenate([points, bos[None]])
    return constant, now.points


def _run_layer(
    now: _Growing, layer: Layer, number: int, constant: np.ndarray, points: np.ndarray
) -> None:
    """Add the layer's variables, and replace the states by those after the layer."""
    base, lags = _lag_variables(now, layer, number, constant)
    combined = base.shape[1]
    width = layer.keep.shape[1]
    inputs = Inputs(base.reshape(-1, base.shape[2]), points)
    codes = Codes(width, now.network.scale)
    table = tabulate(layer, inputs, codes, now.network.longest, now.generator)
    variables = [_number_variable(now, found, number) for found in table.numbers]
    added = np.array(list(product(*(range(v.size) for v in lags))), dtype=np.int64)
    added = added.reshape(combined, len(lags))
    blocks, after = [], []
    for lag in range(combined):
        for cell, intervals in enumerate(table.cells):
            fits = _consistent(now, variables, intervals)
            old = now.rows[fits]
            fresh = np.tile([*added[lag], *intervals], (len(old), 1)).astype(np.int64)
            blocks.append((fits, np.concatenate([old, fresh], axis=1)))
            after.append(table.after[now.states[fits] * combined + lag, cell])
    if sum(len(rows) for _, rows in blocks) > _MOST_ROWS:
        raise NotCountingError(f"there are more than {_MOST_ROWS} cases to tell apart")
    now.rows = np.concatenate([rows for _, rows in blocks])
    now.classes = np.concatenate([now.classes[fits] for fits, _ in blocks])
    now.states = np.concatenate(after)
    now.variables += [*lags, *variables]
    now.codes = codes
    now.bos = _bos_after(now, layer, constant, points)


def _bos_after(now: _Growing, layer: Layer, constant: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the vector of BOS after the layer; BOS attends only to itself."""
    base = now.bos + constant
    for matrix in layer.lags.values():
        base = base + now.bos @ matrix
    return outputs(layer, base[None], points[-1:])[0]


def _lag_variables(
    now: _Growing, layer: Layer, number: int, constant: np.ndarray
) -> tuple[np.ndarray, list[Factor]]:
    """Return the inputs without averages, ``[state, combination of lagged values, d]``, and the lag
    variables."""
    base = (now.codes.vectors + constant)[:, None]
    lags = []
    for lag, matrix in sorted(layer.lags.items()):
        values = np.concatenate([now.codes.vectors, now.bos[None]]) @ matrix
        codes = Codes(values.shape[1], now.network.scale * float(np.abs(matrix).max()))
        seen = codes.of(values)
        base = base[:, :, None] + codes.vectors[None, None]
        base = base.reshape(len(base), -1, base.shape[-1])
        lags.append(Factor("lag", len(codes), number, number, lag, None, tuple(seen.tolist())))
    return base, lags


def _number_variable(now: _Growing, number: Number, layer: int) -> Factor:
    """Return the variable of a number, over the classes of the earliest layer that distinguishes
    enough."""
    weights, first = np.array(number.weights), layer
    while first > 0:
        parents = now.parents[first]
        above = np.zeros(parents.max() + 1, dtype=np.int64)
        above[parents] = weights
        if (above[parents] != weights).any():
            break
        weights, first = above, first - 1
    lowest = Number(tuple(weights.tolist()), number.thresholds, number.bends)
    return Factor("number", len(number.thresholds) + 1, first, layer, 0, lowest)


def _consistent(
    now: _Growing, fresh: Sequence[Factor], intervals: Int[np.ndarray, " number"]
) -> Int[np.ndarray, " row"]:
    """Return the rows whose earlier comparisons of the same numbers allow these intervals."""
    fits = np.ones(len(now.rows), dtype=bool)
    for variable, interval in zip(fresh, intervals, strict=True):
        for column, old in enumerate(now.variables):
            same = old.kind == "number" and old.layer == variable.layer
            if not same or old.number is None or variable.number is None:
                continue
            if old.number.weights == variable.number.weights:
                pairs = overlaps(old.number, variable.number)
                allowed = [one for one, other in pairs if other == interval]
                fits &= np.isin(now.rows[:, column], allowed)
    return np.flatnonzero(fits)


def _forget(now: _Growing) -> None:
    """Drop variables that neither states nor classes depend on; of several choices, keep shallow
    ones."""
    order = sorted(range(len(now.variables)), key=lambda v: now.variables[v].depth)
    rows = now.rows[:, order]
    value = now.states * (now.classes.max(initial=0) + 1) + now.classes
    kept = sorted(order[place] for place in support(rows, value))
    now.variables = [now.variables[v] for v in kept]
    now.rows, index = np.unique(now.rows[:, kept], axis=0, return_index=True)
    now.states, now.classes = now.states[index], now.classes[index]
