"""C-RASP: programs that count, as text, trees and runs (`depth` §3.1).

    program = parse(Path("dyck.cr").read_text())
    accepts(program, "( ( ) )".split())

:mod:`interp.crasp.dsl` builds programs in Python, :mod:`interp.crasp.analysis` tells their depth.
"""

from interp.crasp.analysis import analyse, depth
from interp.crasp.evaluation import Evaluation, accepts, evaluate
from interp.crasp.mistakes import ProgramError
from interp.crasp.parser import parse, read_program
from interp.crasp.printer import program_text
from interp.crasp.syntax import Program

__all__ = [
    "Evaluation",
    "Program",
    "ProgramError",
    "accepts",
    "analyse",
    "depth",
    "evaluate",
    "parse",
    "program_text",
    "read_program",
]
