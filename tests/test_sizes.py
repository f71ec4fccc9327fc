"""Code stays in pieces that a reader can hold, with names that say what they do, and a walk through
it enters few of them."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ("prooflens", "interp", "probes", "trained")
FOLDERS = (*PRODUCT, "analyses")
FUNCTION, CLASS = 80, 600
WALK = 238
"""The most modules of the product that ``prooflens inspect`` of a shipped model may import."""
SKIPS = "# fmt: " + "skip"

VERBS = {"embed", "unembed", "seed", "need", "feed"}
GIVEN = {"assigned", "counted", "guarded", "signed", "fixed", "related"}
"""Names that are data too: rules of the grammar of decisions, and sets of keys."""


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


def participles(text: str) -> Iterator[str]:
    """Functions, properties aside, whose whole name is a participle: "written" is no act."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not any(
            ast.unparse(one).endswith("property") for one in node.decorator_list
        ):
            name = node.name.strip("_")
            if re.fullmatch(r"[a-z]+ed|written|found|kept|seen|drawn|told|lost|held|built", name):
                yield from {name} - VERBS - GIVEN


def test_functions_are_named_by_verbs_or_nouns() -> None:
    assert {f"{p}:{name}" for p in files() for name in participles(p.read_text())} == set()
    assert list(participles("def _scored(): ...\ndef embed(): ...")) == ["scored"]


INSPECT = """
import json, sys
from prooflens.cli.main import main
sys.argv = ["prooflens", "inspect", "code-lm", "--rows", "4", "--out", "out"]
try:
    main()
except SystemExit as stopped:
    if stopped.code:
        raise
tops = %r
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] in tops)))
"""


@pytest.mark.slow
def test_inspect_enters_few_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INSPECT % (PRODUCT,)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entered = json.loads(done.stdout.splitlines()[-1])
    assert len(entered) <= WALK, f"{len(entered)} modules: " + " ".join(entered)


def test_few_lines_are_kept_from_the_formatter() -> None:
    """Outside tests, where tables of cases may stand in columns."""
    found = [str(p.relative_to(ROOT)) for p in files() for _ in range(p.read_text().count(SKIPS))]
    assert len(found) <= 30, found


def test_long_parts_are_found() -> None:
    text = "def short():\n    pass\n\n\ndef long():\n" + "    x = 1\n" * FUNCTION
    assert list(long_parts(text)) == [("long", FUNCTION + 1)]
