"""A model's run on some rows: places, edits, metrics, and by how much a metric gets worse."""

from interp.hooks.site import Site, ffn_sites, head_sites, written_by
from interp.run.edits import (
    Add,
    Array,
    DropKeys,
    Edit,
    KeepKeys,
    Lookup,
    Mean,
    Replace,
    Resample,
    Swap,
    Through,
    Zero,
)
from interp.run.evidence import Finding, gather_evidence
from interp.run.gate import by_length, next_tokens
from interp.run.metrics import Change, LogitDifference, Loss, Metric
from interp.run.run import Run

__all__ = [
    "Add",
    "Array",
    "Change",
    "DropKeys",
    "Edit",
    "Finding",
    "KeepKeys",
    "LogitDifference",
    "Lookup",
    "Loss",
    "Mean",
    "Metric",
    "Replace",
    "Resample",
    "Run",
    "Site",
    "Swap",
    "Through",
    "Zero",
    "by_length",
    "ffn_sites",
    "gather_evidence",
    "head_sites",
    "next_tokens",
    "written_by",
]
