from interp.stats.head_table import COLUMNS as COLUMNS
from interp.stats.head_table import adjust as adjust
from interp.stats.p_values import Null as Null
from interp.stats.p_values import from_draws as from_draws
