from interp.attention.behaviour import SCALE as SCALE
from interp.attention.behaviour import copying_table as copying_table
from interp.attention.behaviour import positional_table as positional_table
from interp.attention.by_lag import lag_table as lag_table
from interp.attention.patterns import kernel_by_lag as kernel_by_lag
from interp.attention.patterns import mass_by_lag as mass_by_lag
from interp.store.rows import layer_hooks as layer_hooks
from interp.store.rows import read_batches as read_batches
