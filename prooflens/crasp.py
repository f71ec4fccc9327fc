"""C-RASP, a language of programs that count: as text, as syntax trees, and run on strings (`depth`
§3.1).

    program = parse_program(Path("dyck.cr").read_text())
    accepts(program, "( ( ) )".split())

:mod:`interp.crasp.dsl` builds programs in Python, :mod:`interp.crasp.analysis` tells their depth.
"""

from interp.crasp import (
    Evaluation,
    ProgramError,
    accepts,
    analyse,
    parse_program,
    read_program,
    unary,
)
from interp.crasp.analysis import alphabet, depth, is_past_only
from interp.crasp.dsl import Boolean, Lines, count, sym
from interp.crasp.evaluation import evaluate, evaluate_codes
from interp.crasp.languages import (
    block_symbol,
    block_word,
    membership_program,
    prediction_program,
    two_sided_program,
)
from interp.crasp.predicates import built_in
from interp.crasp.printer import program_text
from interp.crasp.syntax import (
    And,
    Assignment,
    Choice,
    Comparison,
    Constant,
    Count,
    Difference,
    Expression,
    Formula,
    FormulaName,
    Holds,
    Larger,
    Multiple,
    Not,
    Or,
    Program,
    Relation,
    Smaller,
    Sum,
    Symbol,
    Term,
    children,
)

__all__ = [
    "And",
    "Assignment",
    "Boolean",
    "Choice",
    "Comparison",
    "Constant",
    "Count",
    "Difference",
    "Evaluation",
    "Expression",
    "Formula",
    "FormulaName",
    "Holds",
    "Larger",
    "Lines",
    "Multiple",
    "Not",
    "Or",
    "Program",
    "ProgramError",
    "Relation",
    "Smaller",
    "Sum",
    "Symbol",
    "Term",
    "accepts",
    "alphabet",
    "analyse",
    "block_symbol",
    "block_word",
    "built_in",
    "children",
    "count",
    "depth",
    "evaluate",
    "evaluate_codes",
    "is_past_only",
    "membership_program",
    "parse_program",
    "prediction_program",
    "program_text",
    "read_program",
    "sym",
    "two_sided_program",
    "unary",
]
