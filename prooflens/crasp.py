"""C-RASP, a language of programs that count: as text, as syntax trees, and run on strings (`depth`
§3.1).

    program = parse_program(Path("dyck.cr").read_text())
    accepts(program, "( ( ) )".split())

:mod:`interp.program.analysis` computes a program's depth.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
