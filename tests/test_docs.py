"""The Python code of README.md and docs/*.md runs, block after block, file by file.

A block that cannot run is marked by a comment on the line before it: ``<!-- not run: reason -->``.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(p for p in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) if p.is_file())
_BLOCK = re.compile(
    r"^(?:<!-- not run:(?P<reason>.*?)-->[ \t]*\n+)?```python[ \t]*\n(?P<code>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


def blocks(text: str) -> list[tuple[int, str, str | None]]:
    """(line of the code, code, reason not to run it)."""
    return [
        (text.count("\n", 0, found.start("code")), found["code"], found["reason"])
        for found in _BLOCK.finditer(text)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_in_the_documentation_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code, reason in blocks(path.read_text()):
        if reason is None:
            # Empty lines in front, so that a traceback shows the line of the document.
            exec(compile("\n" * line + code, str(path), "exec"), namespace)  # noqa: S102


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_python_block_is_found_and_excused_only_with_a_reason(path: Path) -> None:
    text = path.read_text()
    found = blocks(text)
    assert len(found) == len(re.findall(r"^[ \t]*```[ \t]*(?:python|py)\b", text, re.MULTILINE))
    assert all(reason is None or reason.strip() for _, _, reason in found)


def test_blocks_are_found_with_their_lines_and_excuses() -> None:
    excused = "<!-- not run: needs a GPU -->\n```python\ny\n```\n"
    text = "a\n```python\nx = 1\n```\n" + excused + "```sh\nz\n```\n"
    assert blocks(text) == [(2, "x = 1\n", None), (6, "y\n", " needs a GPU ")]
