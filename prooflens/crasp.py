"""C-RASP, a language of programs that count: as text, as syntax trees, and run on strings (`depth`
§3.1).

    program = parse_program(Path("dyck.cr").read_text())
    accepts(program, "( ( ) )".split())

:mod:`interp.program.analysis` tells a program's depth.
"""

from interp.program.analysis import alphabet, analyse, depth, is_past_only
from interp.program.evaluation import Evaluation, accepts, evaluate, evaluate_codes
from interp.program.languages import (
    block_symbol,
    block_word,
    membership_program,
    prediction_program,
    two_sided_program,
)
from interp.program.parser import ProgramError, parse_program, read_program
from interp.program.predicates import built_in, unary
from interp.program.printer import program_text
from interp.program.syntax import (
    And,
    Arithmetic,
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
    Or,
    Program,
    Relation,
    Smaller,
    Symbol,
    Term,
    children,
)

__all__ = [
    "And",
    "Arithmetic",
    "Assignment",
    "Choice",
    "Comparison",
    "Constant",
    "Count",
    "Evaluation",
    "Expression",
    "Formula",
    "FormulaName",
    "Holds",
    "Larger",
    "Not",
    "Or",
    "Program",
    "ProgramError",
    "Relation",
    "Smaller",
    "Symbol",
    "Term",
    "accepts",
    "alphabet",
    "analyse",
    "block_symbol",
    "block_word",
    "built_in",
    "children",
    "depth",
    "evaluate",
    "evaluate_codes",
    "is_past_only",
    "membership_program",
    "parse_program",
    "prediction_program",
    "program_text",
    "read_program",
    "two_sided_program",
    "unary",
]
