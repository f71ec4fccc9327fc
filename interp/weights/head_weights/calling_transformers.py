"""Call transformers without its progress bars and warnings, and turn its errors into one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from interp.errors import CheckpointError


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn any error of another library into a :class:`CheckpointError` of one line.

    Args:
        what: The beginning of that line, such as ``the tokenizer of NAME cannot be loaded``.
    """
    try:
        yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{what}: {reason}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch off transformers' progress bars and warnings inside the ``with``; prooflens does the
    checks."""
    from transformers.utils import logging

    before, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()
