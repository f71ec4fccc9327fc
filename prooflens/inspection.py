"""What is measured of a language model's heads: behaviour, losses, and the rows it is done on."""

from probes.inspection.behaviour import Performance, performance, stored_rows
from probes.inspection.heads import inspect_heads
from probes.inspection.inspected_rows import inspected_rows
from probes.inspection.losses import loss_tables
from probes.viewing.measure import Effects, HeadOnRows, Seen
from probes.viewing.model import Column, Viewed
from probes.viewing.quantised import quantised
from probes.viewing.sequences import Sequences

__all__ = [
    "Column",
    "Effects",
    "HeadOnRows",
    "Performance",
    "Seen",
    "Sequences",
    "Viewed",
    "inspect_heads",
    "inspected_rows",
    "loss_tables",
    "performance",
    "quantised",
    "stored_rows",
]
