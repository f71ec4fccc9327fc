"""The memory and devices of this machine, checked before memory is taken or a device is used.

An allocation that does not fit is refused with an estimate, if a sum of sizes gives one before
anything is built. Linux promises memory that it does not have, so waiting for the failure means
being killed. An estimate that fits is no guarantee: it does not include everything that the
computation takes.
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
"""Codes of the options ``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD`` in glibc's ``malloc.h``."""

_LARGE = 2**24
"""Size in bytes (16 MiB) from which a block of memory is mapped by itself, so that it goes back to
the system when it is freed. Left alone, glibc raises this threshold to 32 MiB, just above the size
of a piece of logits (:mod:`interp.run.run`); freed logits then stay with the process (9.4 GB for
SmolLM2-135M, of which 0.7 GB were in use)."""

_LARGEST = 2**25
"""The largest threshold, in bytes (32 MiB), that glibc accepts for mapping a block by itself."""

_KEPT = 2**30
"""Bytes of freed memory (1 GiB) that a training process keeps for its next step instead of
returning them to the system."""

_DEVICES = ("cpu", "cuda", "mps", "xpu")
_SHORT = 120
"""Number of characters up to which PyTorch's message about an unusable device is shown. Longer
messages list the back ends PyTorch was built with; advice is shown in their place."""


def free_bytes() -> int:
    """Return the memory in bytes that is available without swapping, of the machine or the
    container."""
    found = [int(psutil.virtual_memory().available)]
    with suppress(OSError, ValueError):  # "max" where the container has no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def keep_large_blocks_apart() -> None:
    """Make the C library return large blocks of memory to the system as soon as they are freed.

    glibc takes blocks of up to 32 MiB from one heap. Data that is kept for long, such as an edit's
    measured values, then lies between freed logits, whose memory is neither returned nor large
    enough for new ones: an inspection with 0.7 GB of its heap in use held 9. With other C libraries
    nothing is done.
    """
    _set_malloc(_MMAP_THRESHOLD, _LARGE)
    _set_malloc(_TRIM_THRESHOLD, 2 * _LARGE)  # which glibc takes itself for such a threshold


def keep_freed_memory() -> None:
    """Make the C library keep memory that a training step frees for the next one, up to 1 GiB.

    Otherwise each large tensor's pages are requested from the system again at every step: on rows
    of 80 tokens 12 to 18 % of a step's time was spent in the system. It holds until
    :func:`keep_large_blocks_apart` is called. With other C libraries nothing is done.
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
    """Refuse a computation that does not fit into memory.

    Args:
        estimate: A lower bound on the bytes that are needed.
        what: A name for what needs them: ``a model of 10 layers``.
        advice: What to make smaller.
        error: The class of the error that is raised.

    Raises:
        Exception: of the class ``error``, with the estimate and the free memory, if it does not
            fit.
    """
    free = free_bytes()
    if estimate > free:
        raise error(
            f"{what} takes at least {estimate / 1e9:,.1f} GB and {free / 1e9:,.1f} GB are free: "
            f"{advice}"
        )


def check_device(device: str, problems: Problems, argument: str = "device") -> None:
    """Record a problem if a device is not of this machine, or nothing can be computed on it."""
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
