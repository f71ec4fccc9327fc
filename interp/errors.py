"""The errors that prooflens raises, and how their messages are made.

Every error a user can cause is a :class:`ProoflensError`; the command line prints it as one line
and exits with code 2. Arguments are checked before any work starts and *all* problems are
reported at once: each names the argument, the rule, the value received and what to do.
"""

from __future__ import annotations

from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any


class ProoflensError(Exception):
    """Base class of errors that a user can cause; the message is meant for the user.

    Attributes:
        problems: (argument, sentence) of each broken rule, if arguments were checked.
    """

    problems: tuple[tuple[str, str], ...] = ()


class ArgumentError(ProoflensError, ValueError):
    """Raised if one or more arguments break a rule."""


class HookError(ProoflensError, KeyError):
    """Raised if the model does not have, or does not fire, a hook that was asked for."""

    def __str__(self) -> str:
        """Return the message itself, where ``KeyError`` would show its ``repr``."""
        return str(self.args[0]) if self.args else ""


class ConformanceError(ProoflensError):
    """Raised if a model's hooks do not carry what their names say."""


class CheckpointError(ProoflensError):
    """Raised if a checkpoint is missing, damaged, of a newer version, or not what it says it is."""


class StoreError(ProoflensError):
    """Raised if an activation store is missing, damaged, in use, or not what was asked for."""


class OutputError(ProoflensError):
    """Raised if a result cannot be written where it was asked to go."""


class MissingDependencyError(ProoflensError, ImportError):
    """Raised if an optional extra is needed and not installed."""


def refuse_unless(holds: bool, argument: str, rule: str, received: Any, advice: str) -> None:
    """Check one argument, and raise an error with a message of one short line if it is wrong.

    Long values are shortened; objects other than text, numbers, lists and tuples are described by
    their type, shape and dtype.

    Raises:
        ArgumentError: ``argument rule, got received: advice`` unless ``holds`` is true.
    """
    if not holds:
        said = str(received) if isinstance(received, Path) else received
        words = " ".join(repr(said).split())
        if not (said is None or isinstance(said, str | int | float | list | tuple)):
            words = said.__name__ if isinstance(said, type) else type(said).__name__
            words += f" of shape {tuple(said.shape)}" if hasattr(said, "shape") else ""
            words += f" of {said.dtype}" if hasattr(said, "dtype") else ""
        shown = words if len(words) <= _SHORT else words[:_SHORT] + "…"
        raise ArgumentError(f"{argument} {rule}, got {shown}: {advice}")


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of at least 0, of Python or NumPy; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def need_path(argument: str, path: Any) -> None:
    """Check that an argument is text or a path; raise :exc:`ArgumentError` otherwise."""
    good = isinstance(path, str | PathLike) and str(path) != ""
    refuse_unless(good, argument, "must be a name or a path", path, "give text or a Path")


_NAMED, _LONGEST, _SHORT = 24, 1000, 60
"""Limits that keep an error message readable: the number of problems that one message names, and
the number of characters of a received value that is shown, in a collected message and in a short
one."""


class Problems:
    """Collects broken rules, so that all of them are reported in one error.

    >>> problems = Problems("TransformerSpec")
    >>> problems.need(-3 > 0, "n_layers", "must be at least 0", -3, "use 0 for no layers")
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    ...
    interp.errors.ArgumentError: TransformerSpec: n_layers must be at least 0, got -3: use 0 for \
no layers
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.found: list[str] = []
        self._arguments: list[str] = []

    def need(self, holds: bool, argument: str, rule: str, received: Any, advice: str) -> None:
        """Record ``argument rule, got received: advice`` unless ``holds`` is true."""
        if not holds:
            said = repr(str(received) if isinstance(received, Path) else received)
            said = said if len(said) <= _LONGEST else said[:_LONGEST] + "…"
            self.found.append(f"{argument} {rule}, got {said}: {advice}")
            self._arguments.append(argument)

    def raise_if_any(self, error: type[ProoflensError] = ArgumentError) -> None:
        """Raise one ``error`` naming the problems that were recorded, if there are any.

        If there are very many, it names the first ones; its attribute ``problems`` has all.

        Raises:
            ProoflensError: of the class ``error``, if any rule was broken.
        """
        if self.found:
            rest = len(self.found) - _NAMED
            more = [f"and {rest} more"] if rest > 0 else []
            refusal = error(f"{self.subject}: " + "; ".join([*self.found[:_NAMED], *more]))
            refusal.problems = tuple(zip(self._arguments, self.found, strict=False))
            raise refusal


def need(
    subject: str,
    holds: bool,
    argument: str,
    rule: str,
    received: Any,
    advice: str,
    error: type[ProoflensError] = ArgumentError,
) -> None:
    """Check one rule, and raise an error at once if it is broken.

    Args:
        subject: The class or function whose argument is checked; the message begins with it.
        holds: Whether the rule is kept; if so, nothing happens.
        argument, rule, received, advice: Parts of the message, as in :meth:`Problems.need`.
        error: The class of the error.

    Raises:
        ProoflensError: of the class ``error``, with the message that :class:`Problems` gives.
    """
    problems = Problems(subject)
    problems.need(holds, argument, rule, received, advice)
    problems.raise_if_any(error)
