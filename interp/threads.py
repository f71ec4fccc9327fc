"""Set how many threads a computation uses.

Operations on a few thousand numbers cost less than waking a second thread, and when the machine is
busy the threads of one operation wait for each other: two processes with two threads each were seen
to run a hundredfold slower. :func:`one_thread` is for tiny models. :func:`workers` is for many
independent calls: each gets a share of the threads, so that none waits for another. Neither is for
single operations that fill all cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block on one thread, and restore the number of threads afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of ``count`` worker threads that divide PyTorch's threads among them.

    At the end of the block, calls that have not started are cancelled, running ones are waited
    for, and PyTorch's number of threads is restored.
    """
    before = torch.get_num_threads()
    share = max(1, before // count)
    pool = ThreadPoolExecutor(count, "prooflens", torch.set_num_threads, (share,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
