"""Errors: one line each, with argument, rule, value received and what to do."""

from interp.errors import ArgumentError, CheckpointError, OutputError, Problems, ProoflensError

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "OutputError",
    "Problems",
    "ProoflensError",
]
