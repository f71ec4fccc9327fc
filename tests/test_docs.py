"""The code of README.md and docs/*.md runs: python and sh blocks in order, file by file.

A block that cannot run is marked by a comment on the line before it: ``<!-- not run: reason -->``.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import prooflens as pl
from prooflens.cli.main import app

ROOT = Path(__file__).parent.parent
FILES = sorted(p for p in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) if p.is_file())
_BLOCK = re.compile(
    r"^(?:<!-- not run:(?P<reason>.*?)-->[ \t]*\n+)?"
    r"```(?P<language>python|sh)[ \t]*\n(?P<code>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)

Block = tuple[int, str, str, str | None]


def blocks(text: str) -> list[Block]:
    """(line of the code, language, code, reason not to run it)."""
    return [
        (text.count("\n", 0, b.start("code")), b["language"], b["code"], b["reason"])
        for b in _BLOCK.finditer(text)
    ]


_PLAIN = re.compile(r"prooflens [^|&;<>$`*~]*(?:'[^']*'[^|&;<>$`*~]*)*")
"""A command that needs no shell, and so no process that imports everything once more."""


def run_shell(code: str) -> None:
    """As a user with the environment active; the first command that fails fails the block."""
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]
    if all(_PLAIN.fullmatch(line) for line in lines):
        for line in lines:
            run_command(line)
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-ec", code], env={**os.environ, "PATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def run_command(line: str) -> None:
    """One ``prooflens`` command, in this process."""
    done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"


@pytest.fixture(autouse=True)
def few_fresh_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sentence of the pages hangs on the thousandth draw of a null; minutes do."""
    monkeypatch.setattr("probes.fresh_models._DRAWS", 100)


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow) if p.name == "howto-ray.md" else p for p in FILES],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_code_in_the_documentation_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, language, code, reason in blocks(path.read_text()):
        if reason is not None:
            continue
        if "PROOFLENS_GPT2" in code and "PROOFLENS_GPT2" not in os.environ:
            pytest.skip("PROOFLENS_GPT2 does not name a folder with GPT-2 weights")
        if language == "sh":
            run_shell(code)
        else:
            # Empty lines in front, so that a traceback shows the line of the document.
            exec(compile("\n" * line + code, str(path), "exec"), namespace)  # noqa: S102


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_is_found_and_excused_only_with_a_reason(path: Path) -> None:
    text = path.read_text()
    found = blocks(text)
    fences = re.findall(r"^[ \t]*```[ \t]*(?:python|py|sh|bash|shell)\b", text, re.MULTILINE)
    assert len(found) == len(fences)
    assert all(reason is None or reason.strip() for *_, reason in found)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_from_outside_the_built_pages_arrive(name: str) -> None:
    """Those of docs/ are checked where they are built: ``make docs``."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


_INSIDE = re.compile(r"^\s*(?:from|import) +(?:interp|probes|trained|analyses)\b.*", re.MULTILINE)


def for_users() -> list[Path]:
    """What a user copies from: the README, the pages and the notebooks; not the reference."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    return sorted([*pages, *ROOT.glob("notebooks/*.ipynb")])


@pytest.mark.parametrize("path", for_users(), ids=lambda p: str(p.relative_to(ROOT)))
def test_users_need_one_import(path: Path) -> None:
    """``import prooflens as pl`` is enough, and is there wherever ``pl`` is used."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    else:
        code = "\n".join(
            c for _, language, c, _ in blocks(path.read_text()) if language == "python"
        )
    assert _INSIDE.findall(code) == []
    assert ("import prooflens as pl" in code) == ("pl." in code)


def test_blocks_are_found_with_their_lines_and_excuses() -> None:
    excused = "<!-- not run: needs a GPU -->\n```python\ny\n```\n"
    text = "a\n```python\nx = 1\n```\n" + excused + "```sh\nz\n```\n```toml\nw\n```\n"
    assert blocks(text) == [
        (2, "python", "x = 1\n", None),
        (6, "python", "y\n", " needs a GPU "),
        (9, "sh", "z\n", None),
    ]


@pytest.mark.parametrize("code", ["prooflens store store", "prooflens store store\ntrue"])
def test_a_failing_command_fails_its_block(code: str) -> None:
    with pytest.raises(AssertionError, match="store: not an activation store"):
        run_shell(code)


def test_commands_that_need_a_shell_get_one() -> None:
    assert _PLAIN.fullmatch("prooflens coupling --hooks '*' --out a/b.png  # a comment, \"quoted\"")
    for line in (
        "prooflens a | head",
        "prooflens a $B",
        "prooflens a *.py",
        "ls",
        "prooflens a; b",
    ):
        assert not _PLAIN.fullmatch(line)


def test_every_name_of_the_door_has_an_example() -> None:
    text = (ROOT / "docs/reference/prooflens.md").read_text()
    code = "\n".join(c for _, language, c, _ in blocks(text) if language == "python")
    assert [name for name in pl.__all__ if not re.search(rf"\bpl\.{name}\b", code)] == []
