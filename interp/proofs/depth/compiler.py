"""A C-RASP program as a transformer with as many layers as its counts nest (`depth` §3.3).

    embedding     is_BOS, and the bits of all formulas of the current token alone
    attention ℓ   one head, uniform over the prefix with BOS: averages of the formulas of depth ℓ
                  that are counted (each is 0 at BOS), and in layer 0 of is_BOS itself
    FFN ℓ         formulas of depth ℓ + 1 (:mod:`interp.proofs.depth.formulas`), exact bits
    output        the bit of the last line, at every position after BOS

No positional encoding; the number of weights does not depend on the length, the slope of the ramps
does: the model is right up to ``longest`` tokens and refuses longer inputs. What it shows is the
upper bound, depth d suffices; that fewer layers do not is the paper's theorem. The output at BOS
means nothing. Programs that count the future or ask for positions are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from interp.crasp.analysis import depths, is_past_only, used_names
from interp.crasp.evaluation import evaluate
from interp.crasp.printer import expression_text
from interp.crasp.syntax import (
    Assignment,
    Count,
    Expression,
    Formula,
    FormulaName,
    Program,
    Term,
    TermName,
    children,
)
from interp.errors import Problems
from interp.models.spec import Dtype, TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.depth.circuits import Affine, Circuit
from interp.proofs.depth.formulas import FormulaCircuit
from interp.proofs.depth.vocabulary import vocabulary_of
from interp.proofs.mechanism import Certificate, Construction, Mechanism, Part

__all__ = ["compile_program"]

_IS_BOS, _AVERAGE_BOS = 0, 1


def compile_program(
    program: Program, *, longest: int = 1000, dtype: Dtype = "float64"
) -> Construction:
    """A model that computes the program's last line at every position.

    Inputs are :func:`interp.proofs.depth.vocabulary.token_ids`; the output ``[batch, pos, 1]`` is
    exactly 1 where the line holds and 0 where it does not. ``mechanism.directions`` has every name
    that the last line depends on, and every count (as text); a number is held divided by 1 + the
    tokens so far, a number of depth 0 as it is.

    Args:
        program: Counting the past only, without predicates of positions; the last line a formula.
        longest: Tokens of the longest input.
        dtype: Of the weights.

    Raises:
        ArgumentError: for other programs, or where rounding could change an answer.
    """
    _check(program, longest)
    plan = _Plan(_pruned(program), vocabulary_of(program))
    circuits = [_circuit(plan, layer, longest) for layer in range(plan.depth)]
    spec = TransformerSpec(
        d_in=len(plan.vocabulary),
        d_out=1,
        n_ctx=longest + 1,
        d_model=plan.width,
        n_layers=plan.depth,
        n_heads=1,
        d_head=tuple(len(plan.read(layer)) for layer in range(plan.depth)),
        ffn=tuple(circuit.widths for circuit in circuits),
        score="none",
        dtype=dtype,
    )
    certificate = _certificate(spec, plan, circuits)
    model = SequenceTransformer(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        _write_embedding(model, plan)
        for layer, circuit in enumerate(circuits):
            for channel, (source, target) in enumerate(plan.read(layer)):
                model.blocks[layer].attn.W_V[0, source, channel] = 1
                model.blocks[layer].attn.W_O[0, channel, target] = 1
            circuit.write(model.blocks[layer].mlp)
        model.unembed.W_U[plan.names[program.lines[-1].name], 0] = 1
    name = f"compiled-{program.lines[-1].name}"
    return Construction(name, program, model, _mechanism(plan), certificate)


@dataclass
class _Plan:
    """Which coordinate holds what.

    Attributes:
        program: The lines that matter.
        vocabulary: What each id stands for.
        names: Line → coordinate.
        tokens: Formulas of the token alone that are read by circuits or counted → coordinate.
        counted: Formula that is counted → coordinate of its bit, 0 at BOS.
        averages: The same → coordinate of its average.
    """

    program: Program
    vocabulary: tuple[str | None, ...]
    names: dict[str, int] = field(default_factory=dict)
    tokens: dict[Formula, int] = field(default_factory=dict)
    counted: dict[Formula, int] = field(default_factory=dict)
    averages: dict[Formula, int] = field(default_factory=dict)
    width: int = 2

    def __post_init__(self) -> None:
        self.levels = depths(self.program)
        self.depth = self.levels[self.program.lines[-1].name]
        for line in self.program.lines:
            self.names[line.name] = self._next()
            self._place(line.expression)

    def level(self, expression: Expression) -> int:
        """The nesting of counts, names followed."""
        if isinstance(expression, FormulaName | TermName):
            return self.levels[expression.name]
        inside = max((self.level(part) for part in children(expression)), default=0)
        return inside + isinstance(expression, Count)

    def read(self, layer: int) -> list[tuple[int, int]]:
        """(coordinate averaged, coordinate written) of a layer's head."""
        bos = [(_IS_BOS, _AVERAGE_BOS)] if layer == 0 else []
        here = [f for f in self.counted if self.level(f) == layer]
        return bos + [(self.counted[f], self.averages[f]) for f in here]

    def places(self, layer: int) -> dict[Expression, int]:
        """What a circuit of this layer can read."""
        held: dict[Expression, int] = {}
        held.update(self.tokens.items())
        for formula, coordinate in self.averages.items():
            if self.level(formula) <= layer:
                held[Count(formula)] = coordinate
        for line in self.program.lines:
            if isinstance(line.expression, Formula) and self.levels[line.name] <= layer:
                held[FormulaName(line.name)] = self.names[line.name]
        return held

    def _place(self, expression: Expression) -> None:
        if isinstance(expression, Count) and expression.of not in self.counted:
            self.counted[expression.of] = self._next()
            self.averages[expression.of] = self._next()
        if not isinstance(expression, Formula) or self.level(expression) > 0:
            for part in children(expression):
                self._place(part)
        elif not isinstance(expression, FormulaName) and expression not in self.tokens:
            self.tokens[expression] = self._next()

    def _next(self) -> int:
        self.width += 1
        return self.width - 1


def _check(program: Program, longest: int) -> None:
    problems = Problems("compile_program")
    need = problems.need
    last = program.lines[-1]
    rule, advice = "must end with a formula", "end with one, as in … >= 1"
    need(isinstance(last.expression, Formula), "program", rule, last.name, advice)
    advice = "write it with counts of the past"
    need(is_past_only(program), "program", "must count the past only", "#>", advice)
    imports = [predicate.name for predicate in program.imports]
    rule = "must not ask for positions: the model has no positional encoding"
    need(not imports, "program", rule, imports, "write it without imports")
    need(longest >= 1, "longest", "must be at least 1", longest, "raise it")
    problems.raise_if_any()


def _pruned(program: Program) -> Program:
    """Without the lines that the last one does not depend on."""
    used = used_names(program)
    return Program(tuple(line for line in program.lines if line.name in used))


def _circuit(plan: _Plan, layer: int, longest: int) -> Circuit:
    circuit = Circuit(plan.width)
    build = FormulaCircuit(plan.program, circuit, plan.places(layer), _AVERAGE_BOS, longest)
    for line in plan.program.lines:
        if plan.levels[line.name] == layer + 1:
            expression, coordinate = line.expression, plan.names[line.name]
            if isinstance(expression, Formula):
                circuit.outputs[coordinate] = build.bit(expression)
            elif isinstance(expression, Term):
                circuit.outputs[coordinate] = build.number(expression)
    is_bos = Affine(((_IS_BOS, 1.0),))
    for formula, coordinate in plan.counted.items():
        if plan.level(formula) == layer + 1:
            not_bos = is_bos * -1.0 + 1.0
            circuit.outputs[coordinate] = circuit.both(build.bit(formula), not_bos)
    return circuit


def _write_embedding(model: SequenceTransformer, plan: _Plan) -> None:
    """Bits of the token alone: the program itself says what they are, on strings of one token."""
    model.embed.W_E[0, _IS_BOS] = 1
    wanted: dict[int, Expression] = {}
    for line in plan.program.lines:
        if plan.levels[line.name] == 0:
            wanted[plan.names[line.name]] = line.expression
    for formula, coordinate in (*plan.tokens.items(), *plan.counted.items()):
        if plan.level(formula) == 0:
            wanted[coordinate] = formula
    flat = [line for line in plan.program.lines if plan.levels[line.name] == 0]
    asked = [Assignment(f"at {place}", expression) for place, expression in wanted.items()]
    if not asked:
        return
    words = plan.vocabulary[1:-1]
    strings = [[word or ""] for word in words] + [["\n"]]  # no program names a line break
    run = evaluate(Program((*flat, *asked)), strings)
    for place in wanted:
        values = torch.tensor(run.values[f"at {place}"][:, 0], dtype=model.embed.W_E.dtype)
        model.embed.W_E[1:, place] = values


def _certificate(spec: TransformerSpec, plan: _Plan, circuits: list[Circuit]) -> Certificate:
    """Averages of n + 1 values in [0, 1] are off by at most (n + 5) u; bits are exact."""
    unit, longest = torch.finfo(spec.torch_dtype).eps / 2, spec.n_ctx - 1
    held = (_AVERAGE_BOS, *plan.averages.values())
    averages = dict.fromkeys(held, (longest + 5) * unit)
    worst = max((circuit.rounding(unit, averages) for circuit in circuits), default=0.0)
    problems = Problems("compile_program")
    rule = f"must keep the ramps' rounding below 0.5 in {spec.dtype}, and it is {worst:.2g}"
    advice = "shorten the inputs, use smaller factors or float64"
    problems.need(worst < 0.5, "longest", rule, longest, advice)
    problems.raise_if_any()
    domain = f"every string of 1 to {longest} tokens, at every position after BOS"
    return Certificate(0.0, {"margin": 0.5, "rounding at the ramps": worst}, domain)


def _mechanism(plan: _Plan) -> Mechanism:
    parts: list[Part] = []
    where: dict[str, int] = {}
    written: dict[str, str] = {}
    for line in plan.program.lines:
        level = plan.levels[line.name]
        where[line.name] = plan.names[line.name]
        written[line.name] = f"blocks.{level - 1}.hook_resid_post" if level else "hook_embed"
        if level:
            parts.append(Part("ffn", level - 1, None, "formula", line.name))
    for formula, coordinate in plan.averages.items():
        layer, text = plan.level(formula), expression_text(Count(formula))
        where[text], written[text] = coordinate, f"blocks.{layer}.hook_resid_mid"
        parts.append(Part("head", layer, 0, "count", text))
    axes = torch.eye(plan.width, dtype=torch.float64)
    directions = {name: axes[coordinate] for name, coordinate in where.items()}
    return Mechanism(tuple(parts), directions, written)
