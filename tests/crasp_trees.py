"""Random programs, and what they mean, position by position and as slowly as can be."""

from collections.abc import Sequence

from hypothesis import strategies as st

from interp.program.predicates import Predicate, find_predicate
from interp.program.syntax import (
    And,
    Assignment,
    Choice,
    Comparison,
    Constant,
    Count,
    Expression,
    Formula,
    FormulaName,
    Holds,
    Larger,
    Not,
    Operation,
    Or,
    Program,
    Smaller,
    Symbol,
    Term,
    TermName,
    Truth,
)

GUARDS = ("pred", "pred3")
POSITIONS = ("pos_even", "pos_mod3_1")
Parts = tuple[tuple[Assignment, ...], tuple[Predicate, ...]]
RELATIONS = ("==", "!=", "<", ">", "<=", ">=")


def value(program: Program, expression: Expression, string: Sequence[str], i: int) -> bool | int:
    """The value of one expression at one position, straight from the definition."""

    def at(inner: Expression, j: int = i) -> bool | int:
        return value(program, inner, string, j)

    e = expression
    if isinstance(e, Truth | Constant):
        return e.value
    if isinstance(e, Symbol):
        return string[i] == e.token
    if isinstance(e, Holds):
        return i % 2 == 0 if e.predicate == "pos_even" else i % 3 == 1
    if isinstance(e, FormulaName | TermName):
        return at(program[e.name])
    if isinstance(e, Not):
        return not at(e.of)
    if isinstance(e, And):
        return at(e.left) and at(e.right)
    if isinstance(e, Or):
        return at(e.left) or at(e.right)
    if isinstance(e, Comparison):
        left, right = at(e.left), at(e.right)
        signs = {"==": left == right, "!=": left != right, "<": left < right,
                 ">": left > right, "<=": left <= right, ">=": left >= right}  # fmt: skip
        return signs[e.relation]
    if isinstance(e, Count):
        span = range(i, len(string)) if e.future else range(i + 1)
        lag = {None: None, "pred": 1, "pred3": 3}[e.guard]
        return sum(bool(at(e.of, j)) for j in span if lag is None or j == i - lag)
    if isinstance(e, Operation):
        left, right = at(e.left), at(e.right)
        return {"+": left + right, "-": left - right, "*": left * right}[e.operator]
    if isinstance(e, Smaller):
        return min(at(e.left), at(e.right))
    if isinstance(e, Larger):
        return max(at(e.left), at(e.right))
    assert isinstance(e, Choice)
    return at(e.then) if at(e.condition) else at(e.other)


def formulas(terms: st.SearchStrategy[Term], leaves: list[Formula]) -> st.SearchStrategy[Formula]:
    """Formulas over given terms and leaves."""
    compared = st.builds(Comparison, st.sampled_from(RELATIONS), terms, terms)
    leaf = st.sampled_from([Truth(True), Truth(False), *leaves])
    return st.recursive(
        leaf | compared,
        lambda inner: (
            st.builds(Not, inner) | st.builds(And, inner, inner) | st.builds(Or, inner, inner)
        ),
        max_leaves=3,
    )


def terms(
    counted: st.SearchStrategy[Formula],
    leaves: list[Term],
    *,
    past_only: bool = False,
    future: bool = True,
) -> st.SearchStrategy[Term]:
    """Terms that count given formulas."""
    past = st.builds(Count, counted)
    kinds = [past] if past_only else [
        past,
        st.builds(Count, counted, guard=st.sampled_from(GUARDS)),
        *([st.builds(Count, counted, future=st.just(True))] if future else []),
    ]  # fmt: skip
    leaf = st.builds(Constant, st.integers(-7, 7)) | st.one_of(kinds)
    if leaves:
        leaf = leaf | st.sampled_from(leaves)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(Operation, st.sampled_from("+-"), inner, inner),
            *(st.builds(node, inner, inner) for node in (Smaller, Larger)),
            st.builds(Operation, st.just("*"), st.builds(Constant, st.integers(-7, 7)), inner),
            st.builds(Choice, inner, counted, inner),
        ),
        max_leaves=3,
    )


@st.composite
def program_parts(
    draw: st.DrawFn, *, past_only: bool = False, future: bool = True, lines: int = 4
) -> Parts:
    """Lines and imports of programs over a and b; the last line is a formula.

    Not programs: while they are built, the checker of shapes draws random numbers, which
    hypothesis refuses inside a strategy.
    """
    formula_leaves: list[Formula] = [Symbol("a"), Symbol("b")]
    term_leaves: list[Term] = []
    imports = () if past_only else tuple(find_predicate(name) for name in (*GUARDS, *POSITIONS))
    if not past_only:
        formula_leaves += [Holds(name) for name in POSITIONS]
    assigned: list[Assignment] = []
    number = draw(st.integers(1, lines))
    for index in range(number):
        inner = terms(
            st.sampled_from(formula_leaves), list(term_leaves), past_only=past_only, future=future
        )
        shallow = formulas(inner, list(formula_leaves))
        outer = terms(shallow, list(term_leaves), past_only=past_only, future=future)
        wanted = shallow if index == number - 1 else shallow | outer
        name, expression = f"v{index}", draw(wanted)
        assigned.append(Assignment(name, expression))
        if isinstance(expression, Formula):
            formula_leaves.append(FormulaName(name))
        else:
            term_leaves.append(TermName(name))
    return tuple(assigned), imports
