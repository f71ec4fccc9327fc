"""The page of a run holds every value, whole and escaped."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from interp.crasp import parse_program as parse
from interp.errors import OutputError
from prooflens.pages.trace import trace_page, write_trace


class Tables(HTMLParser):
    """Rows of cells of every table; every tag and attribute seen."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, None), *attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cell = True

    def handle_endtag(self, tag: str) -> None:
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.tables[-1][-1][-1] += data


def read(page: str) -> Tables:
    reader = Tables()
    reader.feed(page)
    return reader


def test_every_line_at_every_position() -> None:
    program = parse('n = # "<a>"\nx = n >= 2')
    found = read(trace_page(program, [["<a>", "&", "<a>"], ["b"]]))
    assert found.tables == [
        [
            ["position", "0", "1", "2"],
            ["token", "<a>", "&", "<a>"],
            ["n depth 1", "1", "1", "2"],
            ["x depth 1", "·", "·", "✓"],
        ],
        [["position", "0"], ["token", "b"], ["n depth 1", "0"], ["x depth 1", "·"]],
    ]


def test_nothing_is_fetched_or_run() -> None:
    page = trace_page(parse('x = "<script>"'), [["<script>"]], title="<script>")
    found = read(page)
    names = {name for name, _ in found.attributes}
    assert not names & {"src", "href", "script", "link", "img"}
    assert "url(" not in page


def test_verdicts() -> None:
    page = trace_page(parse('x = "a"'), [["a"], ["b"]])
    assert "<caption>accepted: a</caption>" in page
    assert "<caption>rejected: b</caption>" in page
    assert "last line is a number: a" in trace_page(parse('n = # "a"'), [["a"]])


def test_a_file_is_kept_unless_allowed(tmp_path: Path) -> None:
    program, out = parse('x = "a"'), tmp_path / "new" / "trace.html"
    write_trace(program, ["a"], out, title="one")
    with pytest.raises(OutputError, match="exists"):
        write_trace(program, ["a"], out)
    assert "<title>one" in out.read_text()
    write_trace(program, ["a"], out, title="two", overwrite=True)
    assert "<title>two" in out.read_text()
