"""The same program in fewer words: what stands there twice gets a line and a name.

A difference of counts that several outputs ask about becomes ``d = count(…) - count(…)``; a plain
count that is used more than once ``n_a``. A difference that is asked about once and compared with 0
is a comparison of the two: ``count(…) - count(…) <= -1`` becomes ``count(…) < count(…)``. What a
program decides stays as it was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from interp.program import syntax
from interp.program.syntax import Assignment, Expression, Program, children

_PLAIN: dict[tuple[str, int], syntax.Relation] = {
    ("<=", 0): "<=",
    ("<=", -1): "<",
    (">=", 0): ">=",
    (">=", 1): ">",
}


def shortened(program: Program) -> Program:
    """The program with repeated counts and differences named."""
    repeated = Counter(
        part
        for output in program.outputs
        for part in children(_value(output), deep=True)
        if isinstance(part, syntax.CountWhere)
        or (isinstance(part, syntax.Arithmetic) and _counts(part))
    )
    inside = Counter(
        part for found in repeated for part in children(found, deep=True) if part != found
    )
    chosen = [
        p for p, times in repeated.items() if times > 1 and inside[p] * times < repeated[p] + 1
    ]
    chosen = [
        p for p in chosen if not any(p != q and p in set(children(q, deep=True)) for q in chosen)
    ]
    names = {line.name for line in program.lines}
    lines, outputs = list(program.lines), program.outputs
    for part in chosen:
        name = _free(_name(part), names)
        names.add(name)
        lines.append(Assignment(name, part))
        outputs = tuple(_with(output, part, syntax.Name(name)) for output in outputs)
    found = {p for output in outputs for p in children(_value(output), deep=True)}
    for old in found:
        if (new := _compared(old)) != old:
            outputs = tuple(_with(output, old, new) for output in outputs)
    return replace(program, lines=tuple(lines), outputs=outputs)


def _compared(part: Expression) -> Expression:
    """A difference that is compared with 0, or nearly, as a comparison of its two sides."""
    match part:
        case syntax.Comparison(
            relation,
            syntax.Arithmetic("-", syntax.CountWhere() as left, syntax.CountWhere() as right),
            syntax.Constant(value),
        ):
            plain = _PLAIN.get((relation, value))
            return part if plain is None else syntax.Comparison(plain, left, right)
    return part


def _counts(part: syntax.Arithmetic) -> bool:
    return any(isinstance(inside, syntax.CountWhere) for inside in children(part, deep=True))


def _name(part: Expression) -> str:
    if isinstance(part, syntax.Arithmetic):
        return "d"
    where = part.where if isinstance(part, syntax.CountWhere) else None
    if (
        isinstance(where, syntax.Comparison)
        and where.left == syntax.Key("token")
        and isinstance(where.right, syntax.Literal_)
    ):
        word = "".join(c for c in where.right.text if c.isalnum())
        return f"n_{word}" if word else "n"
    return "n"


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found


def _value(output: syntax.Output) -> Expression:
    return output.condition if isinstance(output, syntax.Allow) else output.value


def _with(output: syntax.Output, old: Expression, new: Expression) -> syntax.Output:
    if isinstance(output, syntax.Allow):
        return replace(output, condition=exchanged(output.condition, old, new))
    return replace(output, value=exchanged(output.value, old, new))


def exchanged(part: Expression, old: Expression, new: Expression) -> Expression:
    """The expression with one part of it replaced wherever it stands."""
    return syntax.rebuilt(part, lambda inner: new if inner == old else inner)
