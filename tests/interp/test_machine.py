"""Large blocks of memory stand by themselves, and go back to the system when they are freed."""

import ctypes
import sys

import pytest
import torch

from interp.machine import keep_freed_memory, keep_large_blocks_apart


class _Blocks(ctypes.Structure):
    """What glibc's ``mallinfo2`` gives."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _mapped_bytes() -> int:
    library = ctypes.CDLL(None)
    if sys.platform != "linux" or not hasattr(library, "mallinfo2"):
        pytest.skip("the C library does not tell what it has mapped")
    library.mallinfo2.restype = _Blocks
    return int(library.mallinfo2().hblkhd)


@pytest.mark.parametrize("trained", [False, True])
def test_large_blocks_are_mapped_and_given_back(trained: bool) -> None:
    if trained:
        keep_freed_memory()
    blocks = [torch.empty(2**24, dtype=torch.uint8) for _ in range(4)]
    del blocks  # freed mappings raise the threshold, until it is set
    keep_large_blocks_apart()
    before = _mapped_bytes()
    blocks = [torch.empty(2**24, dtype=torch.uint8) for _ in range(256)]  # beyond any free heap
    assert _mapped_bytes() >= before + 2 * 2**24
    del blocks
    assert _mapped_bytes() == before


def test_a_training_keeps_what_it_frees() -> None:
    keep_freed_memory()
    before = _mapped_bytes()
    blocks = [torch.empty(2**24, dtype=torch.uint8) for _ in range(8)]
    assert _mapped_bytes() == before, "they lie in the heap"
    del blocks
    keep_large_blocks_apart()
