"""What is measured of a language model's heads: behaviour, losses, and the rows it is done on."""

from probes.inspection.behaviour import Performance, performance, stored_rows
from probes.inspection.heads import inspect_heads
from probes.inspection.inspected_rows import inspected_rows
from probes.inspection.losses import loss_tables

__all__ = [
    "Performance",
    "inspect_heads",
    "inspected_rows",
    "loss_tables",
    "performance",
    "stored_rows",
]
