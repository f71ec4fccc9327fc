from interp.proofs.depth.decompiler.program import decisions as decisions
from interp.proofs.depth.decompiler.program import decompile_counting as decompile_counting
from probes.decompile.judging import LEAST as LEAST
from probes.decompile.rows import TokenRows as TokenRows
from probes.decompile.rows import rows_of_task as rows_of_task
from probes.decompile.workflow import decompile as decompile
from probes.own_rows import read_rows as read_rows
