"""C-RASP, a language of programs that count: as text, as syntax trees, and run on strings (`depth`
§3.1).

    program = parse_program(Path("dyck.cr").read_text())
    accepts(program, "( ( ) )".split())

:mod:`interp.crasp.dsl` builds programs in Python, :mod:`interp.crasp.analysis` tells their depth.
"""

from interp.crasp.analysis import analyse, depth
from interp.crasp.dsl import Lines, count, sym
from interp.crasp.evaluation import Evaluation, accepts, evaluate
from interp.crasp.languages import membership_program, prediction_program, two_sided_program
from interp.crasp.mistakes import ProgramError
from interp.crasp.parser import parse_program, read_program
from interp.crasp.predicates import unary
from interp.crasp.printer import program_text
from interp.crasp.syntax import Program

__all__ = [
    "Evaluation",
    "Lines",
    "Program",
    "ProgramError",
    "accepts",
    "analyse",
    "count",
    "depth",
    "evaluate",
    "membership_program",
    "parse_program",
    "prediction_program",
    "program_text",
    "read_program",
    "sym",
    "two_sided_program",
    "unary",
]
