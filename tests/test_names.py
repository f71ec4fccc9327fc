"""Every name is defined: pyflakes on trees whose jaxtyping shapes are taken out.

ruff's F821 and mypy's name-defined are off, because a shape (``Float[Tensor, "batch pos"]``) is a
string that both take for a forward reference.
"""

import ast
from collections import Counter
from pathlib import Path

import jaxtyping
import pytest
from pyflakes import checker, messages

ROOT = Path(__file__).parent.parent
FOLDERS = ("prooflens", "interp", "probes", "trained", "analyses", "tests")
UNDEFINED = (messages.UndefinedName, messages.UndefinedLocal, messages.UndefinedExport)


def _is_shaped(node: ast.expr) -> bool:
    """Whether ``node`` is one of jaxtyping's dtypes: ``Float``, or ``jaxtyping.Float``."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    kind = getattr(jaxtyping, name, None) if name else None
    return isinstance(kind, type) and issubclass(kind, jaxtyping.AbstractDtype)


class _ShapesOut(ast.NodeTransformer):
    """Replaces the shape in ``Float[Tensor, "batch pos"]`` by ``...``."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if _is_shaped(node.value) and isinstance(node.slice, ast.Tuple):
            node.slice.elts[-1] = ast.copy_location(ast.Constant(...), node.slice.elts[-1])
        return node


def undefined_names(code: str, name: str = "code") -> list[str]:
    """Each undefined name with its line."""
    found = checker.Checker(_ShapesOut().visit(ast.parse(code)), name).messages
    return [f"{m.lineno}: {m.message % m.message_args}" for m in found if isinstance(m, UNDEFINED)]


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_no_name_is_undefined() -> None:
    wrong = {str(path.relative_to(ROOT)): undefined_names(path.read_text()) for path in files()}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_undefined_names_are_found_beside_shapes() -> None:
    code = """
from __future__ import annotations
from jaxtyping import Float
from torch import Tensor
def f(x: Float[Tensor, "batch pos"], y: Lost) -> Float[Gone, "#batch 3*pos"]:
    z: "Nowhere" = absent
    return z
"""
    names = {line.split("name ")[1] for line in undefined_names(code)}
    assert names == {"'Lost'", "'Gone'", "'Nowhere'", "'absent'"}


@pytest.mark.parametrize("code", ["__all__ = ['f']", "def f():\n    x += 1\n"])
def test_exports_and_locals_are_looked_at(code: str) -> None:
    assert undefined_names(code)


def test_every_test_file_has_a_name_of_its_own() -> None:
    """pytest imports a test file by its name alone, so two files of one name cannot both be run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_every_class_has_a_name_of_its_own() -> None:
    """Two classes of one name are read as one: of all folders but the tests."""
    folders = [ROOT / folder for folder in FOLDERS if folder != "tests"]
    places: dict[str, list[str]] = {}
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
