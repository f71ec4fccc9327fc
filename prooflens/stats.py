"""Statistics: nulls, p-values and false discovery."""

from interp.stats.head_table import COLUMNS, adjust, head_table, score_row
from interp.stats.nulls import decodability_null
from interp.stats.p_values import Null, from_draws

__all__ = [
    "COLUMNS",
    "Null",
    "adjust",
    "decodability_null",
    "from_draws",
    "head_table",
    "score_row",
]
