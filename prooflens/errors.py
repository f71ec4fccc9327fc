"""Errors: one line each, with argument, rule, value received and what to do."""

from interp.errors import (
    ArgumentError,
    CheckpointError,
    ConformanceError,
    HookError,
    MissingDependencyError,
    OutputError,
    Problems,
    ProoflensError,
    StoreError,
)

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "ConformanceError",
    "HookError",
    "MissingDependencyError",
    "OutputError",
    "Problems",
    "ProoflensError",
    "StoreError",
]
