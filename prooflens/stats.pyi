from interp.stats.head_table import COLUMNS as COLUMNS
from interp.stats.head_table import adjust as adjust
from interp.stats.head_table import head_table as head_table
from interp.stats.head_table import score_row as score_row
from interp.stats.nulls import decodability_null as decodability_null
from interp.stats.p_values import Null as Null
from interp.stats.p_values import from_draws as from_draws
