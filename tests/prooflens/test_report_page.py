import re
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from interp.figures.style import save
from prooflens.pages.page import Page, PageTable, Picture, Section, render


def page(tmp_path: Path) -> str:
    figure = Figure(figsize=(3, 2))
    figure.add_subplot().plot([0, 1])
    (png,) = save(figure, tmp_path / "line", formats=("png",))
    frame = pd.DataFrame({"name": ["<b>x</b>"], "big_one": [123456.0], "tiny": [1.5e-7],
                          "none": [float("nan")], "flag": [True], "n": [3]})  # fmt: skip
    section = Section(
        "One & two", ("if a < b",), (Picture(png, 'a "line"'),), (PageTable(frame, "t"),)
    )
    return render(Page("Title", ["first", "second"], [section], ["seed 0"]))


def test_page_is_self_contained(tmp_path: Path) -> None:
    html = page(tmp_path)
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert sources
    assert all(s.startswith(("data:image/png;base64,", "#")) for s in sources)
    assert "://" not in html, "numbers of pictures may spell anything else"
    assert "<script" not in html


def test_words_are_escaped_and_pictures_have_size_and_text(tmp_path: Path) -> None:
    html = page(tmp_path)
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "One &amp; two" in html
    (image,) = re.findall(r"<img [^>]*>", html)
    assert re.search(r'width="\d+" height="\d+" alt="a &#34;line&#34;"', image)


def test_numbers_are_short_and_missing_ones_empty(tmp_path: Path) -> None:
    cells = re.findall(r'<td class="(\w+)"[^>]*>(.*?)</td>', page(tmp_path))
    assert cells == [
        ("short", "&lt;b&gt;x&lt;/b&gt;"), ("number", "1.2e+05"), ("number", "1.5e-07"),
        ("number", ""), ("yes", "yes"), ("number", "3"),
    ]  # fmt: skip


def test_what_was_found_stands_first_then_its_figure_and_the_doubts(tmp_path: Path) -> None:
    figure = Figure(figsize=(3, 2))
    wide, narrow = (save(figure, tmp_path / name, formats=("png",))[0] for name in "ab")
    picture = Picture(wide, "what it shows", narrow=narrow)
    html = render(Page("t", ["found"], [Section("Evidence")], (), picture, ["one <seed>"]))
    order = [html.index(words) for words in ("<li>found", "what it shows", "one &lt;seed&gt;",
                                             "<h2>Evidence")]  # fmt: skip
    assert order == sorted(order)
    assert html.count('<source media="(max-width: 40rem)" srcset="data:image/png;base64,') == 1
    assert "doubted" not in render(Page("t", ["found"], [Section("Evidence")]))


def test_tails_are_not_printed_as_if_they_were_measured() -> None:
    frame = pd.DataFrame({"q": [1e-47, 0.0, 0.004], "score": [1e-47, 0.0, 0.004]})
    cells = [[cell.text for cell in row] for row in PageTable(frame, "t").rows]
    assert cells == [["< 1e-10", "1.0e-47"], ["< 1e-10", "0"], ["0.004", "0.004"]]


def test_a_sortable_table_has_buttons_and_unrounded_keys() -> None:
    frame = pd.DataFrame({"head": ["L0H1", "a<b"], "score": [0.123456789, float("nan")]})
    plain = render(Page("t", [], [Section("s", tables=(PageTable(frame, "c"),))]))
    html = render(Page("t", [], [Section("s", tables=(PageTable(frame, "c", sortable=True),))]))
    assert "<script" not in plain
    assert html.count('<button type="button">') == 2
    assert 'data-key="0.123456789">0.123</td>' in html
    assert 'data-name="score"' in html, "what a cell is, where headings do not stand above it"
    assert 'data-key=""' in html
    assert 'data-key="a&lt;b"' in html
    assert not re.search(r'(?:src|href)="(?!#|data:)', html)
