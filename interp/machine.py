"""What this machine can hold and has: asked before memory is taken or a device is used.

An allocation that does not fit is refused with the estimate, where a sum of sizes tells it before
anything is built. Linux promises memory that it does not have, so waiting for the failure means
being killed. That an estimate fits is no promise: what else the computation takes is not in it.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from interp.errors import ArgumentError, Problems

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of these options in glibc's ``malloc.h``."""

_LARGE = 2**24
"""Bytes from which on a block stands by itself. Left alone, glibc raises this to 32 MiB, which is
just more than a piece of logits has (:mod:`interp.run.run`)."""

_LARGEST = 2**25
"""The most that glibc takes for the size of a block that stands by itself."""

_KEPT = 2**30
"""Bytes of freed memory that a training keeps for its next step."""

_DEVICES = ("cpu", "cuda", "mps", "xpu")
_SHORT = 120
"""Characters; longer refusals of PyTorch's list what it was built with."""


def free_bytes() -> int:
    """Memory that can be had without swapping, of the machine or the container."""
    found = [int(psutil.virtual_memory().available)]
    with suppress(OSError, ValueError):  # "max" where the container has no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def keep_large_blocks_apart() -> None:
    """Let the C library give large blocks of memory back as soon as they are freed.

    glibc takes blocks of up to 32 MiB from one heap. What is kept for long, such as the numbers
    that an edit was measured to have, then lies between freed logits, which are neither given back
    nor fit again: an inspection with 0.7 GB of its heap in use held 9. Elsewhere nothing is done.
    """
    _set_malloc(_MMAP_THRESHOLD, _LARGE)
    _set_malloc(_TRIM_THRESHOLD, 2 * _LARGE)  # which glibc takes itself for such a threshold


def keep_freed_memory() -> None:
    """Let the C library keep what a training step frees for the next one, up to 1 GiB.

    Otherwise each large tensor's pages are taken from the system anew at every step: on rows of 80
    tokens 12 to 18 % of a step's time were the system's. It holds until
    :func:`keep_large_blocks_apart` is called. Elsewhere nothing is done.
    """
    _set_malloc(_MMAP_THRESHOLD, _LARGEST)
    _set_malloc(_TRIM_THRESHOLD, _KEPT)


def _set_malloc(option: int, value: int) -> None:
    """Set an option of glibc's allocator; another C library is left alone."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(option, value)


def need_bytes(
    estimate: int, what: str, advice: str, *, error: type[Exception] = ArgumentError
) -> None:
    """Refuse what will not fit.

    Args:
        estimate: Bytes at the least.
        what: Words for it: ``a model of 10 layers``.
        advice: What to make smaller.
        error: Raised if it does not fit.

    Raises:
        Exception: of the class ``error``, with the estimate and what is free.
    """
    free = free_bytes()
    if estimate > free:
        raise error(
            f"{what} takes at least {estimate / 1e9:,.1f} GB and {free / 1e9:,.1f} GB are free: "
            f"{advice}"
        )


def check_device(device: str, problems: Problems, argument: str = "device") -> None:
    """Note a device that is not of this machine, or on which nothing can be computed."""
    import torch

    rule, advice = "must be a device of this machine", f"choose from {', '.join(_DEVICES)}"
    try:
        kind: Any = torch.device(device).type
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError) as error:
        told = str(error).partition("\n")[0]
        problems.need(False, argument, rule, device, told if len(told) <= _SHORT else advice)
        return
    problems.need(kind in _DEVICES, argument, rule, device, advice)
