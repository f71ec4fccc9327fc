"""Move a model to a torch device and convert it to a floating dtype.

    place_model(model, device="cuda", dtype="bfloat16")

Weights are rounded once, after they were checked as they are in the files. A run in bfloat16 has
three decimal digits: attention sums to 1 within a hundredth, and losses differ from those in single
precision in the third digit. Effects that small are not reliable; measure them in single precision.
"""

from __future__ import annotations

from typing import Any

import torch

from interp.errors import Problems
from interp.machine import check_device

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Name of each number format that a model can run in → the torch dtype."""


def check_place(device: str, dtype: str | None) -> None:
    """Check that a device and a dtype exist, before anything is loaded.

    Raises:
        ArgumentError: if one does not exist, naming those that do.
    """
    problems = Problems("run")
    known = dtype is None or dtype in DTYPES
    problems.need(known, "dtype", f"must be one of {', '.join(DTYPES)}", dtype, "pick one")
    check_device(device, problems)
    problems.raise_if_any()


def place_model(model: Any, *, device: str = "cpu", dtype: str | None = None) -> Any:
    """Move a model to a device, round it to a dtype, and return the same model.

    Args:
        model: A hooked model.
        device: A torch device, such as ``cpu`` or ``cuda:1``.
        dtype: One of :data:`DTYPES`; None leaves the weights as they are.

    Raises:
        ArgumentError: if the device does not exist, or the dtype is not one of these.
    """
    check_place(device, dtype)
    kind = None if dtype is None else DTYPES[dtype]
    torch.nn.Module.to(model, device=torch.device(device), dtype=kind)  # a bridge's own prints
    if kind is not None and hasattr(model, "cfg"):
        model.cfg.dtype = kind
    return model
