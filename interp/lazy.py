"""Modules whose names are imported when they are first used, so that importing them is quick.

    __getattr__, __dir__, __all__ = lazy(__name__, __file__)

The names are listed once, in the ``.pyi`` file beside the module's ``.py``, as imports:

    from interp.store import extract as extract

Editors and type checkers read that file, and so does :func:`lazy`; to add a name, add its line. A
submodule of the package is named ``from package import submodule as submodule``. No other name may
be that of a submodule: once the submodule is imported, Python finds it first.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the functions ``__getattr__`` and ``__dir__`` and the list ``__all__`` of a lazy
    module.

    Args:
        package: The module's or package's ``__name__``.
        file: Its ``__file__``, next to which a ``.pyi`` file lists the names.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes: dict[str, tuple[str, str]] = {}
    for line in stub.body:
        if isinstance(line, ast.Import | ast.ImportFrom):
            for alias in line.names:
                home = getattr(line, "module", alias.name)
                homes[alias.asname or alias.name] = (home, alias.name)
        elif isinstance(line, ast.Assign):  # plot = figures: offered under the new name alone
            homes[ast.unparse(line.targets[0])] = homes.pop(ast.unparse(line.value))
    names = sorted(homes)

    def load(name: str) -> Any:
        if name not in homes:
            text = f"module {package!r} has no attribute {name!r}{_elsewhere(package, file, name)}"
            raise AttributeError(text, name=name, obj=sys.modules[package])
        home, there = homes[name]
        with pause_collection():
            if home == package:  # one of its own submodules
                return import_module(f"{home}.{there}")
            module = import_module(home)
            if home == there:
                return module
            found = getattr(module, there, None)
            return import_module(f"{home}.{there}") if found is None else found

    return load, lambda: names, names


@contextmanager
def pause_collection() -> Iterator[None]:
    """Import without garbage collection, which takes time and finds little, because modules'
    definitions stay in memory."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _elsewhere(package: str, file: str, name: str) -> str:
    """Return where a submodule of the package offers a name that the package itself does not."""
    if name.startswith("_") or Path(file).stem != "__init__":
        return ""
    folder = Path(file).parent
    if (folder / f"{name}.py").is_file():
        return f": it is a module of its own, import {package}.{name}"
    for path in sorted(folder.glob("[a-z]*.py*")):
        text = path.read_text(encoding="utf-8")
        if f" as {name}\n" in text or f'\n    "{name}",\n' in text:  # a line of its __all__
            return f": it is {package}.{path.stem}.{name}"
    return ""
