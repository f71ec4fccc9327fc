"""Exchanging two folders in one step, which Python's standard library does not offer.

Linux has ``renameat2`` with ``RENAME_EXCHANGE``, macOS ``renamex_np`` with ``RENAME_SWAP``: at no
moment is either name without a folder. Elsewhere, and on file systems that refuse it, the caller
has to do without.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

__all__ = ["exchange"]

_HERE, _EXCHANGE, _SWAP = -100, 2, 2
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV}


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names of one file system.

    Returns:
        False if the system cannot; nothing has changed then.

    Raises:
        OSError: if the disk refuses.
    """
    names = os.fsencode(first), os.fsencode(second)
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(*names, _SWAP)
    elif sys.platform.startswith("linux") and hasattr(library, "renameat2"):
        failed = library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    else:
        return False
    reason = ctypes.get_errno()
    if failed and reason not in _CANNOT:
        raise OSError(reason, os.strerror(reason), str(first), None, str(second))
    return not failed
