"""The sheet of common mistakes in docs/recipes.md: every line is what a user sees, or does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_ROW = re.compile(r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \|$", re.MULTILINE)
SHEET = _ROW.findall((ROOT / "docs/recipes.md").read_text())
SAY = """
import json, os, sys
import torch
from prooflens.cli.main import main
import prooflens as pl

model, code = pl.load("induction-attention"), pl.load("code-lm")
ids = pl.repeated_tokens(32, 24, 32, seed=0)
store = pl.extract(model, ids, ["*hook_resid_post", "*hook_pattern"], "store")


def said(cell):
    if cell.startswith("prooflens "):
        return command(cell)
    try:
        eval(cell)
    except Exception as error:
        return str(error)


def command(cell):
    with open("said", "w+") as file, contextlib.redirect_stderr(file):
        sys.argv = cell.split()
        try:
            with contextlib.redirect_stdout(open(os.devnull, "w")):
                main()
        except SystemExit as ended:
            file.seek(0)
            return file.read().strip() if ended.code else None


out = [[said(cell) for cell in row] for row in json.loads(sys.argv[1])]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[list[str | None]]:
    """What each line's wrong and right cells say, in a process as a user has it."""
    cells = json.dumps([[wrong, right] for wrong, _, right in SHEET])
    done = subprocess.run(
        [sys.executable, "-c", "import contextlib" + SAY, cells],
        cwd=tmp_path_factory.mktemp("sheet"), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_the_whole_sheet_is_read() -> None:
    text = (ROOT / "docs/recipes.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(SHEET) == len(lines) >= 20


@pytest.mark.parametrize("number", range(len(SHEET)), ids=[row[0] for row in SHEET])
def test_a_mistake_is_answered_as_the_sheet_says(number: int, seen: list[list[str | None]]) -> None:
    assert seen[number] == [SHEET[number][1], None]


def test_the_list_of_pages_names_every_page_and_no_other() -> None:
    text = (ROOT / "docs/llms.txt").read_text()
    named = re.findall(r"^- \[.+?\]\((.+?)\): \S.*\.$", text, re.MULTILINE)
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)
    assert text.startswith("# prooflens\n\n> ")
    assert text.count("\n- ") == len(named)


def test_what_contributors_are_pointed_to_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    named = re.findall(r"(?:tests|docs)/\w+\.(?:py|md)", text)
    assert all((ROOT / place).exists() for place in (*links, *named))
    assert len(text.splitlines()) <= 50, "one screen"
