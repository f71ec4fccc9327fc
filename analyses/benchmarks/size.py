"""How large the house is: lines of product, laboratory and tests; modules and who imports them.

    product_lines      lines of Python in prooflens, interp, probes and trained
    laboratory_lines   lines of Python in analyses
    test_lines         lines of Python in tests
    modules            files of Python of the product
    single_importer    of these, how many exactly one other file of the product imports
    door_names         names that ``import prooflens`` offers
    commands           commands of ``prooflens``; those of a group are counted one by one

Lines are as ``wc -l`` counts them, docstrings and blank lines included. Who imports whom is read
from the text, imports inside functions too. An import of a name from a package is one of the
module in which the package found it.

    python -m analyses benchmark size
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click
import typer

import prooflens as pl
from analyses.benchmarks.result import write_result
from prooflens.commands import command_names

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
PRODUCT = ("prooflens", "interp", "probes", "trained")
DOOR = ROOT / "prooflens" / "__init__.py"


def main(out: Annotated[Path | None, typer.Option(help="A file for the JSON.")] = None) -> None:
    """Count, print a table a folder, and the sums as JSON."""
    folders = {name: _lines(ROOT / name) for name in (*PRODUCT, "analyses", "tests")}
    for name, lines in folders.items():
        click.echo(f"{name:<10} {lines:>7,} lines  {len(_files(ROOT / name)):>4} files")
    importers = _importers()
    write_result(
        {
            "product_lines": sum(folders[name] for name in PRODUCT),
            "laboratory_lines": folders["analyses"],
            "test_lines": folders["tests"],
            "modules": len(importers),
            "single_importer": sum(len(found) == 1 for found in importers.values()),
            "door_names": len(dir(pl)),
            "commands": len(command_names()),
        },
        out,
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _both(file: Path) -> list[Path]:
    """A module and the list of the names that it offers; the door's list is no importer."""
    stub = file.with_suffix(".pyi")
    return [file, stub] if stub.is_file() and file != DOOR else [file]


def _lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in _files(folder))


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _importers() -> dict[str, set[str]]:
    """Each module of the product, and the modules of the product that import it."""
    trees = {
        _module(file): ast.parse("\n".join(one.read_text(encoding="utf-8") for one in _both(file)))
        for name in PRODUCT
        for file in _files(ROOT / name)
    }
    homes = {name: dict(_imports(tree, set(trees))) for name, tree in trees.items()}
    found: dict[str, set[str]] = defaultdict(set, {name: set() for name in trees})
    for name, tree in trees.items():
        for offered, module in _imports(tree, set(trees)):
            while offered in homes[module] and homes[module][offered] != module:
                module = homes[module][offered]  # a package offers what it found elsewhere
            if module != name:
                found[module].add(name)
    return dict(found)


def _imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[str, str]]:
    """(name, module it comes from) of each import of a module of the product."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.name, one.name) for one in node.names if one.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                submodule = f"{node.module}.{one.name}"
                if submodule in known:
                    yield one.name, submodule
                elif node.module in known:
                    yield one.name, node.module
