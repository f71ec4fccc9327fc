"""Extensions by installed packages: tasks, roles, head scores and architectures, by entry points.

    [project.entry-points."prooflens.tasks"]      kind        = "package.module:TaskClass"
    [project.entry-points."prooflens.roles"]      role        = "package.module:ROLE"
    [project.entry-points."prooflens.metrics"]    score       = "package.module:function"
    [project.entry-points."prooflens.models"]     model_type  = "package.module:ARCHITECTURE"

A :class:`Registry` maps names to what prooflens ships and what installed packages add. Packages are
looked for when a registry is first read, not on import. An entry that cannot be loaded, does not
fit, or uses a name that is taken is left out with a :class:`PluginWarning` that names it, so that a
broken package breaks nothing else.

Loading an entry imports its package: it is code that the user has installed. Nothing that is read
from a file (a checkpoint, a store, a recipe) can name a package to import.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from interp.errors import ArgumentError

T = TypeVar("T")


class PluginWarning(UserWarning):
    """An entry point of an installed package that was left out, with the reason."""


class Registry(MutableMapping[str, T]):
    """A mapping from names to what prooflens ships, then to what installed packages add.

    Args:
        shipped: Name → what prooflens ships.
        group: The group of entry points, such as ``prooflens.tasks``.
        problem: A function that returns the reason why an object cannot be registered under a name,
            or ``""`` if it can.
    """

    def __init__(
        self, shipped: dict[str, T], group: str, problem: Callable[[str, object], str]
    ) -> None:
        self.shipped = frozenset(shipped)
        self.group = group
        self._known, self._problem = dict(shipped), problem
        self._read = False

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __setitem__(self, name: str, value: T) -> None:
        """Add an object under a name for as long as the program runs.

        Raises:
            ArgumentError: if it does not fit, by the rules that packages' entries must keep.
        """
        reason = self._problem(name, value)
        if reason:
            raise ArgumentError(f"{self.group} {name} is not added: {reason}")
        self._all()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._read:
            self._read = True  # first, since a package may read the registry while it is imported
            for entry in _entries(self.group):
                self._add(entry)
        return self._known

    def _add(self, entry: EntryPoint) -> None:
        reason = ""
        try:
            value = entry.load()
        except Exception as error:  # whatever a package's import raises
            reason = f"it cannot be imported ({type(error).__name__}: {error})"
        else:
            if entry.name in self._known and self._known[entry.name] is not value:
                reason = "the name is taken"
            reason = reason or self._problem(entry.name, value)
        if reason:
            text = f"{self.group} {entry.name} of {_package(entry)} is left out: {reason}"
            warnings.warn(text, PluginWarning, stacklevel=2)
        else:
            self._known[entry.name] = value


def _entries(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda entry: entry.name)


def _package(entry: EntryPoint) -> str:
    dist = entry.dist
    return f"{dist.name} {dist.version}" if dist is not None else entry.value.split(":")[0]
