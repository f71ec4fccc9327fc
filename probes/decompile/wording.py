"""Rewrite a program without changing what it decides.

An expression that occurs twice gets a line and a name: a difference of counts that several outputs
use becomes ``d = count(…) - count(…)``; a plain count that is used more than once ``n_a``. A
difference that is used once and compared with 0 becomes a comparison of the two counts: ``count(…)
- count(…) <= -1`` becomes ``count(…) < count(…)``.

A line that picks by ``commonest`` may decide alike with ``least`` or ``first``: such programs are
:func:`variants`, which rows off the task can tell apart
(:func:`probes.decompile.judging.choose_words`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from interp.program import syntax
from interp.program.syntax import (
    Assignment,
    Expression,
    Program,
    children,
    value_of,
    with_value,
)

_AS_COMPARISON: dict[tuple[str, int], syntax.Relation] = {
    ("<=", 0): "<=",
    ("<=", -1): "<",
    (">=", 0): ">=",
    (">=", 1): ">",
}


def shorten(program: Program) -> Program:
    """Factor repeated subexpressions out of a program, without changing its outputs.

    A count, or a difference of counts, that occurs more than once in the program's outputs gets a
    line of its own, and the occurrences are replaced by the line's name. A subexpression of an
    expression that gets a line gets none. A difference of two counts that is still compared with
    0, 1 or −1 becomes a comparison of the counts where this is equivalent:
    ``count(…) - count(…) <= -1`` becomes ``count(…) < count(…)``.

    Args:
        program: The program.

    Returns:
        The rewritten program; the argument is not modified.
    """
    repeated = Counter(
        part
        for output in program.outputs
        for part in children(value_of(output), deep=True)
        if isinstance(part, syntax.CountWhere)
        or (isinstance(part, syntax.Operation) and _counts(part))
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
        outputs = _exchange_in(outputs, part, syntax.Name(name))
    found = {p for output in outputs for p in children(value_of(output), deep=True)}
    for old in found:
        if (new := _comparison(old)) != old:
            outputs = _exchange_in(outputs, old, new)
    return replace(program, lines=tuple(lines), outputs=outputs)


def _comparison(part: Expression) -> Expression:
    """Return a difference of two counts compared with 0, 1 or −1 as a comparison of the counts, if
    that is equivalent."""
    match part:
        case syntax.Comparison(
            relation,
            syntax.Operation("-", syntax.CountWhere() as left, syntax.CountWhere() as right),
            syntax.Constant(value),
        ):
            plain = _AS_COMPARISON.get((relation, value))
            return part if plain is None else syntax.Comparison(plain, left, right)
    return part


def _counts(part: syntax.Operation) -> bool:
    return any(isinstance(inside, syntax.CountWhere) for inside in children(part, deep=True))


def _name(part: Expression) -> str:
    if isinstance(part, syntax.Operation):
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


def _exchange_in(
    outputs: tuple[syntax.Output, ...], old: Expression, new: Expression
) -> tuple[syntax.Output, ...]:
    return tuple(with_value(one, syntax.replace_part(value_of(one), old, new)) for one in outputs)


@dataclass(frozen=True)
class Variant:
    """A program in which one line picks with another word.

    Attributes:
        program: The program.
        names: Old name of the line → its new name.
        line: The line's old name.
        word: The word that it picks with.
    """

    program: Program
    names: dict[str, str]
    line: str
    word: syntax.Which


def variants(program: Program, number: int) -> Iterator[Variant]:
    """Yield the program with each other word in one line.

    A name of the line that begins with the word is changed as well.

    Args:
        program: The program.
        number: The index of the line; nothing is yielded if its expression is not a pick.
    """
    line = program.lines[number]
    if not isinstance(line.expression, syntax.Pick):
        return
    pick, taken = line.expression, {one.name for one in program.lines}
    for word in get_args(syntax.Which):
        if word == pick.which:
            continue
        begins = line.name.startswith(f"{pick.which}_")
        name = f"{word}{line.name.removeprefix(pick.which)}" if begins else line.name
        if name != line.name and name in taken:
            continue
        lines = [
            Assignment(one.name, _rename_line(one.expression, line.name, name))
            for one in program.lines
        ]
        lines[number] = Assignment(name, syntax.Pick(word, pick.value, pick.where))
        outputs = tuple(
            with_value(one, _rename_line(value_of(one), line.name, name)) for one in program.outputs
        )
        changed = replace(program, lines=tuple(lines), outputs=outputs)
        yield Variant(changed, {line.name: name}, line.name, word)


def _rename_line(part: Expression, old: str, new: str) -> Expression:
    return syntax.replace_part(
        syntax.replace_part(part, syntax.Name(old), syntax.Name(new)),
        syntax.Key(old),
        syntax.Key(new),
    )
