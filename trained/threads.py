"""One thread for tiny models.

Operations on a few thousand numbers cost less than waking a second thread, and when the machine is
busy the threads wait for each other: two processes with two threads each were seen to run a
hundredfold slower. Not for models whose matrix products fill a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block on one thread, and put the number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
