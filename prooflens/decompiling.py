"""From a model back to a program: the rows it is asked on, the search, and its judgement."""

from probes.decompile.counting import decisions, decompile_counting
from probes.decompile.judging import LEAST
from probes.decompile.rows import Rows, rows_of_task
from probes.decompile.workflow import decompile
from probes.own_rows import read_rows

__all__ = [
    "LEAST",
    "Rows",
    "decisions",
    "decompile",
    "decompile_counting",
    "read_rows",
    "rows_of_task",
]
