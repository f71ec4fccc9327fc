"""Code stays in pieces that a reader can hold: how long functions, classes and files may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("prooflens", "interp", "probes", "trained", "analyses")
FUNCTION, FILE, CLASS = 80, 400, 260
SKIPS = "# fmt: " + "skip"


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def long_parts(text: str) -> Iterator[tuple[str, int]]:
    """Functions and classes with more lines than they may have, docstring included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > (CLASS if isinstance(node, ast.ClassDef) else FUNCTION):
                yield node.name, lines


def test_no_function_or_class_is_too_long() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in files()
        for name, lines in long_parts(path.read_text())
    }
    assert found == {}


def test_no_file_is_too_long() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files()}
    assert {path: lines for path, lines in sizes.items() if lines > FILE} == {}


def test_few_lines_are_kept_from_the_formatter() -> None:
    """Outside tests, where tables of cases may stand in columns."""
    found = [str(p.relative_to(ROOT)) for p in files() for _ in range(p.read_text().count(SKIPS))]
    assert len(found) <= 30, found


def test_long_parts_are_found() -> None:
    text = "def short():\n    pass\n\n\ndef long():\n" + "    x = 1\n" * FUNCTION
    assert list(long_parts(text)) == [("long", FUNCTION + 1)]
