"""Compile a C-RASP program to a transformer with as many layers as its counts nest (`depth` §3.3).

    embedding     is_BOS, and the bits of all formulas of the current token alone
    positions     learned, only if the program needs them: the bits of ``pos_even`` and its like
    input FFN     only then: formulas of token and position together
    attention ℓ   a head uniform over the prefix with BOS: averages of the formulas of depth ℓ that
                  are counted (each is 0 at BOS), and in layer 0 of is_BOS itself; and for each
                  guard ``predN`` a head that attends to lag N alone
    FFN ℓ         formulas of depth ℓ + 1, exact bits: ramps or signs (`circuits`)
    output        the bit of the last line, at every position after BOS

A head of lag N has the score −P (s − N)²/2 with P so large that exp of any other key's is 0; where
there is no token N back, the key farthest back is BOS, whose values are 0. Without predicates of
one position the number of weights does not depend on the length; these need one row of weights per
position. The construction shows the upper bound, that depth d suffices; that fewer layers do not is
the paper's theorem. The output at BOS has no meaning. Programs that count the future, and guards
other than ``predN``, are refused: their counts have another denominator.

Id 0 is BOS, 1 … are the letters of the program's alphabet, sorted, and the last is any other token.

*The residual stream* of a compiled program: coordinate 0 is is_BOS, 1 is avg_BOS. Then there is one
coordinate for each line, and for everything that lines need: bits of the token, bits of the
position, and for every count the bit that is counted and its average (or guarded bit).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import Problems, need
from interp.hooks.site import Site
from interp.models.spec import Activation, Dtype, TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.program import syntax
from interp.program.analysis import alphabet, depths, is_past_only, used_names
from interp.program.evaluation import evaluate
from interp.program.printer import expression_text
from interp.program.syntax import Assignment, Expression, Formula, Program, Term, children
from interp.proofs.depth.circuits import AffineSum, FfnCircuit, FormulaCircuit, SignCircuit
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part, zero_model


def vocabulary_of(program: Program) -> tuple[str | None, ...]:
    """Return the token of each id; None for BOS (id 0) and for every other token (the last id)."""
    return (None, *alphabet(program), None)


def token_ids(program: Program, strings: Sequence[Sequence[str]]) -> Int[Tensor, "batch pos"]:
    """Return the ids of strings with BOS in front, so that token i of a string is at position i +
    1.

    Shorter strings are padded with the last id. The model attends only to earlier positions, so the
    padding does not change the answers inside the string.
    """
    words = vocabulary_of(program)
    index = {word: number for number, word in enumerate(words) if word is not None}
    longest = max((len(string) for string in strings), default=0)
    ids = torch.full((len(strings), longest + 1), len(words) - 1)
    ids[:, 0] = 0
    for row, string in enumerate(strings):
        known = [index.get(token, len(words) - 1) for token in string]
        ids[row, 1 : len(string) + 1] = torch.tensor(known, dtype=ids.dtype)
    return ids


IS_BOS, AVERAGE_BOS = 0, 1
_PRED = re.compile(r"pred([1-9][0-9]*)?")


def guard_lag(guard: str) -> int | None:
    """Return N of ``predN``; None for any other guard."""
    found = _PRED.fullmatch(guard)
    return int(found[1] or 1) if found else None


@dataclass
class StreamPlan:
    """The coordinates of the residual stream for each name, count and position predicate.

    Attributes:
        program: The program, without lines that its last line does not need.
        vocabulary: The token of each id.
        names: Line → coordinate.
        tokens: Formulas of the token alone that are read by circuits or counted → coordinate.
        positions: Predicates of the position → coordinate.
        counted: Formula that is counted → coordinate of its bit, 0 at BOS.
        counts: Count → coordinate of its average, or of a guarded count itself.
    """

    program: Program
    vocabulary: tuple[str | None, ...]
    names: dict[str, int] = field(default_factory=dict)
    tokens: dict[Expression, int] = field(default_factory=dict)
    positions: dict[Expression, int] = field(default_factory=dict)
    counted: dict[Expression, int] = field(default_factory=dict)
    counts: dict[syntax.Count, int] = field(default_factory=dict)
    width: int = 2

    def __post_init__(self) -> None:
        self.levels = depths(self.program)
        self.depth = self.levels[self.program.lines[-1].name]
        self._lines: dict[str, int] = {}
        for line in self.program.lines:
            self._lines[line.name] = self.level(line.expression)
            self.names[line.name] = self._next()
            self._place(line.expression)

    def level(self, expression: Expression) -> int:
        """Return how deep counts nest in an expression; −1 if it needs neither a count nor a
        position."""
        if isinstance(expression, syntax.FormulaName | syntax.TermName):
            return self._lines[expression.name]
        if isinstance(expression, syntax.Holds):
            return 0
        inside = max((self.level(part) for part in children(expression)), default=-1)
        return max(inside, 0) + 1 if isinstance(expression, syntax.Count) else inside

    def heads(self, layer: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return each head's lag (0: the whole prefix) and its pairs (coordinate read, coordinate
        written)."""
        reads: dict[int, list[tuple[int, int]]] = {}
        if layer == 0:
            reads[0] = [(IS_BOS, AVERAGE_BOS)]
        for count, coordinate in self.counts.items():
            if max(self.level(count.of), 0) == layer:
                lag = guard_lag(count.guard) if count.guard else 0
                reads.setdefault(lag or 0, []).append((self.counted[count.of], coordinate))
        return sorted(reads.items())

    def places(self, layer: int) -> dict[Expression, int]:
        """Return the coordinates that a circuit of this layer can read; layer −1 is the input
        FFN."""
        held: dict[Expression, int] = dict((*self.tokens.items(), *self.positions.items()))
        for count, coordinate in self.counts.items():
            if max(self.level(count.of), 0) <= layer:
                held[count] = coordinate
        for line in self.program.lines:
            if isinstance(line.expression, Formula) and self.level(line.expression) <= layer:
                held[syntax.FormulaName(line.name)] = self.names[line.name]
        return held

    def ffn_outputs(self, layer: int) -> tuple[list[str], list[Expression]]:
        """Return the lines and the counted formulas that this layer's FFN computes."""
        lines = [x.name for x in self.program.lines if self.level(x.expression) == layer + 1]
        return lines, [formula for formula in self.counted if self.level(formula) == layer + 1]

    def _place(self, expression: Expression) -> None:
        if isinstance(expression, syntax.Count):
            if expression.of not in self.counted:
                self.counted[expression.of] = self._next()
            if expression not in self.counts:
                self.counts[expression] = self._next()
        if isinstance(expression, syntax.Holds):
            if expression not in self.positions:
                self.positions[expression] = self._next()
        elif not isinstance(expression, Formula) or self.level(expression) >= 0:
            for part in children(expression):
                self._place(part)
        elif not isinstance(expression, syntax.FormulaName) and expression not in self.tokens:
            self.tokens[expression] = self._next()

    def _next(self) -> int:
        self.width += 1
        return self.width - 1


Precision = Literal["ramp", "sign"]
_PEAK = 2048.0
"""Peak height P, in nats, of the score of a head that attends to a single lag. Every other lag
scores at least P/2 lower, and exp(−P/2) is 0 in float64, so that the attention is exact."""


def compile_program(
    program: Program,
    *,
    longest: int = 1000,
    dtype: Dtype = "float64",
    precision: Precision = "ramp",
) -> Construction:
    """Build a transformer that computes the program's last line at every position.

    Inputs are :func:`interp.proofs.depth.compiler.token_ids`; the output ``[batch, pos, 1]`` is
    exactly 1 where the line holds and 0 where it does not. ``mechanism.directions`` has every name
    that the last line depends on, and every count (as text). A number is stored divided by 1 + the
    number of tokens so far; a number of depth 0 and a guarded count are stored as they are. With
    ``sign``, a number's direction is only proportional to it, and a number with min, max, a choice
    or a guard has none.

    Args:
        program: A program that counts the past only, whose last line is a formula.
        longest: The length of the longest input, in tokens.
        dtype: Dtype of the weights.
        precision: ``ramp``: the weights' values depend on ``longest``. ``sign``: they do not (nor
            does their number), and the certificate says how long inputs may be before rounding
            matters.

    Raises:
        ArgumentError: for other programs, or if rounding could change an answer.
    """
    _check(program, longest, precision)
    plan = StreamPlan(_drop_unused(program), vocabulary_of(program))
    entry = _circuit(plan, -1, longest, precision) if any(plan.ffn_outputs(-1)) else None
    layers = [_circuit(plan, layer, longest, precision) for layer in range(plan.depth)]
    circuits = layers if entry is None else [entry, *layers]
    if precision == "sign":
        for circuit in circuits:
            circuit.layers = max(other.depth for other in circuits)
    spec = _spec(plan, entry, layers, longest, dtype, precision)
    certificate = _certificate(spec, plan, circuits, precision)
    model = zero_model(spec)
    with torch.no_grad():
        _write(model, plan, entry, layers, program.lines[-1].name)
    name = f"compiled-{program.lines[-1].name}"
    return Construction(name, program, model, _mechanism(plan, precision), certificate)


def _check(program: Program, longest: int, precision: str) -> None:
    problems = Problems("compile_program")
    need = problems.need
    last = program.lines[-1]
    rule, advice = "must end with a formula", "end with one, as in … >= 1"
    need(isinstance(last.expression, Formula), "program", rule, last.name, advice)
    advice = "write it with counts of the past"
    need(is_past_only(program), "program", "must count the past only", "#>", advice)
    parts = [p for line in program.lines for p in children(line.expression, deep=True)]
    guards = sorted({p.guard for p in parts if isinstance(p, syntax.Count) and p.guard})
    for guard in guards:
        rule = "must guard counts by pred or predN only: others have a denominator of their own"
        need(guard_lag(guard) is not None, "program", rule, guard, "count without it")
    need(longest >= 1, "longest", "must be at least 1", longest, "raise it")
    known = get_args(Precision)
    rule = f"must be one of {', '.join(known)}"
    need(precision in known, "precision", rule, precision, "pick one")
    problems.raise_if_any()


def _drop_unused(program: Program) -> Program:
    """Return the program without the lines that the last line does not depend on."""
    used = used_names(program)
    kept = tuple(line for line in program.lines if line.name in used)
    return Program(kept, imports=program.imports)


def _circuit(plan: StreamPlan, layer: int, longest: int, precision: Precision) -> FfnCircuit:
    circuit = FfnCircuit(plan.width)
    build = _builder(plan, circuit, layer, longest, precision)
    outside = AffineSum(((IS_BOS, -1.0),), 1.0)
    if precision == "sign":
        outside = circuit.sign(outside - 0.5, 0.5)
    lines, counted = plan.ffn_outputs(layer)
    for name in lines:
        expression, coordinate = plan.program[name], plan.names[name]
        if isinstance(expression, Formula):
            circuit.outputs[coordinate] = build.bit(expression)
        elif isinstance(expression, Term) and precision == "ramp":
            circuit.outputs[coordinate] = build.number(expression)
    for formula in counted:
        circuit.outputs[plan.counted[formula]] = circuit.both(build.bit(formula), outside)
    return circuit


def _builder(
    plan: StreamPlan, circuit: FfnCircuit, layer: int, longest: int, precision: Precision
) -> FormulaCircuit:
    """Return the builder of a layer's circuit; in the input FFN (layer −1) numbers are stored as
    they are, so the unit is 1 and the margin ½."""
    unit = AffineSum(((AVERAGE_BOS, 1.0),)) if layer >= 0 else AffineSum((), 1.0)
    kind = SignCircuit if precision == "sign" else FormulaCircuit
    return kind(plan.program, circuit, plan.places(layer), unit, longest if layer >= 0 else 0)


def _spec(
    plan: StreamPlan,
    entry: FfnCircuit | None,
    layers: list[FfnCircuit],
    longest: int,
    dtype: Dtype,
    precision: Precision,
) -> TransformerSpec:
    heads = [plan.heads(layer) for layer in range(plan.depth)]
    activation: Activation | tuple[Activation, ...] = "relu"
    if precision == "sign" and (layers or entry):
        relu: tuple[Activation, ...] = ("relu",)
        activation = ("pair_sign", *relu * ((entry or layers[0]).depth - 1))
    return TransformerSpec(
        d_in=len(plan.vocabulary),
        d_out=1,
        n_ctx=longest + 1,
        d_model=plan.width,
        n_layers=plan.depth,
        n_heads=tuple(len(layer) for layer in heads),
        d_head=tuple(max((len(reads) for _, reads in layer), default=1) for layer in heads),
        ffn=tuple(circuit.widths for circuit in layers),
        input_ffn=entry.widths if entry else (),
        score="none",
        lag_bias="bump" if any(lag for layer in heads for lag, _ in layer) else "none",
        positions="learned" if plan.positions else "none",
        activation=activation,
        dtype=dtype,
    )


def _write(
    model: SequenceTransformer,
    plan: StreamPlan,
    entry: FfnCircuit | None,
    layers: list[FfnCircuit],
    last: str,
) -> None:
    _write_embedding(model, plan)
    if entry is not None and model.input_ffn is not None:
        entry.write(model.input_ffn)
    for layer, circuit in enumerate(layers):
        attn: Any = model.blocks[layer].attn
        for head, (lag, reads) in enumerate(plan.heads(layer)):
            if lag:
                attn.terms["bump"].p[head], attn.terms["bump"].c[head] = _PEAK, _PEAK * lag
            for channel, (source, target) in enumerate(reads):
                attn.W_V[head, source, channel] = 1
                attn.W_O[head, channel, target] = 1
        circuit.write(model.blocks[layer].mlp)
    model.unembed.W_U[plan.names[last], 0] = 1


def _write_embedding(model: SequenceTransformer, plan: StreamPlan) -> None:
    """Write the bits of each token, computed by running the program on strings of that one
    token."""
    model.embed.W_E[0, IS_BOS] = 1
    wanted: dict[int, Expression] = {}
    flat = [line for line in plan.program.lines if plan.level(line.expression) < 0]
    for line in flat:
        wanted[plan.names[line.name]] = line.expression
    for formula, coordinate in (*plan.tokens.items(), *plan.counted.items()):
        if plan.level(formula) < 0:
            wanted[coordinate] = formula
    asked = [Assignment(f"at {place}", expression) for place, expression in wanted.items()]
    if asked:
        words = plan.vocabulary[1:-1]
        strings = [[word or ""] for word in words] + [["\n"]]  # no program names a line break
        run = evaluate(Program((*flat, *asked)), strings)
        for place in wanted:
            values = torch.tensor(run.values[f"at {place}"][:, 0], dtype=model.embed.W_E.dtype)
            model.embed.W_E[1:, place] = values
    tables = {p.name: p.table(model.spec.n_ctx - 1) for p in plan.program.imports if p.arity == 1}
    for predicate, place in plan.positions.items():
        if isinstance(predicate, syntax.Holds) and model.pos_embed is not None:
            held = torch.from_numpy(tables[predicate.predicate].astype(np.float64))
            model.pos_embed.W_pos[1:, place] = held.to(model.embed.W_E.dtype)


def _certificate(
    spec: TransformerSpec, plan: StreamPlan, circuits: list[FfnCircuit], precision: Precision
) -> Certificate:
    """Bound the rounding error: averages of n + 1 values in [0, 1] have an error of at most (n + 5)
    u."""
    unit = torch.finfo(spec.torch_dtype).eps / 2

    def rounding(longest: int) -> float:
        """Return a bound on the rounding error of any argument of a ramp or sign.

        It holds for inputs of up to ``longest`` tokens and is scaled such that every bit is exact
        while it is below ½.
        """
        scale = (longest + 1) / spec.n_ctx if precision == "sign" else 1.0
        held = (AVERAGE_BOS, *(c for count, c in plan.counts.items() if count.guard is None))
        averages = dict.fromkeys(held, (longest + 5) * unit)
        return scale * max((circuit.rounding(unit, averages) for circuit in circuits), default=0.0)

    worst = rounding(spec.n_ctx - 1)
    rule = f"must keep the rounding below the margin 0.5 in {spec.dtype}, and it is {worst:.2g}"
    advice = "shorten the inputs, use smaller factors or float64"
    need("compile_program", worst < 0.5, "longest", rule, spec.n_ctx - 1, advice)
    parts = {"margin": 0.5, "rounding": worst}
    if precision == "sign":
        longest = spec.n_ctx - 1
        while rounding(2 * longest) < 0.5 and longest < 2**40:
            longest *= 2
        parts["exact to length"] = float(longest)
    domain = f"every string of 1 to {spec.n_ctx - 1} tokens, at every position after BOS"
    return Certificate(0.0, parts, domain)


def _mechanism(plan: StreamPlan, precision: Precision) -> Mechanism:
    axes = torch.eye(plan.width, dtype=torch.float64)
    parts: list[Part] = []
    directions: dict[str, torch.Tensor] = {}
    written: dict[str, str] = {}
    for line in plan.program.lines:
        level, name = plan.level(line.expression), line.name
        directions[name] = axes[plan.names[name]]
        written[name] = (Site(level - 1, "resid_post") if level > 0 else Site(-1, "embed")).name
        if level >= 0 and precision == "sign" and isinstance(line.expression, Term):
            _hold_linear(plan, line.expression, name, directions, written)
        elif level > 0:
            parts.append(Part("ffn", level - 1, None, "formula", name))
    for count, coordinate in plan.counts.items():
        layer, text = max(plan.level(count.of), 0), expression_text(count)
        directions[text], written[text] = axes[coordinate], Site(layer, "resid_mid").name
        lag = guard_lag(count.guard) if count.guard else None
        lags = [found for found, _ in plan.heads(layer)]
        role = "uniform" if lag is None else "previous-token" if lag == 1 else "memory-location"
        parts.append(Part("head", layer, lags.index(lag or 0), role, text, lag=lag))
    return Mechanism(tuple(parts), directions, written)


def _hold_linear(
    plan: StreamPlan,
    term: Expression,
    name: str,
    directions: dict[str, torch.Tensor],
    written: dict[str, str],
) -> None:
    """Record the direction of a number that is a linear combination of averages."""
    level = plan.level(term)
    build = SignCircuit(
        plan.program,
        FfnCircuit(plan.width),
        plan.places(level - 1),
        AffineSum(((AVERAGE_BOS, 1.0),)),
        1,
    )
    linear = build.linear(term)
    del directions[name], written[name]
    if linear is not None and linear.weights:
        direction = torch.zeros(plan.width, dtype=torch.float64)
        for coordinate, weight in linear.weights:
            direction[coordinate] = weight
        directions[name] = direction / direction.norm()
        written[name] = Site(level - 1, "resid_mid").name
