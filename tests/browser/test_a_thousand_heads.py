"""Pages of 1,024 heads open in a real browser and answer: heads as points, tables that sort."""

from pathlib import Path

import numpy as np
import pandas as pd
from synthetic_view import synthetic

from prooflens.inspection import Inspected
from prooflens.pages.page import Page, PageTable, Section, render

LAYERS = HEADS = 32


def opened(browser, file: Path, text: str):
    """The page in a tab, and what went wrong there."""
    file.write_text(text, "utf-8")
    tab, wrong = browser.new_page(), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto(file.as_uri())
    return tab, wrong


def test_a_page_of_heads_opens(browser, tmp_path: Path) -> None:
    many = synthetic(LAYERS, HEADS, 4, 16, alike=True)
    tab, wrong = opened(browser, tmp_path / "heads.html", Inspected(many).html)
    tab.locator(".heads .row").first.wait_for()
    before = tab.locator(".head h2").inner_text()
    assert tab.locator("svg .point").count() == LAYERS * HEADS
    tab.keyboard.press("j")
    tab.wait_for_function(f"document.querySelector('.head h2').textContent != '{before}'")
    assert wrong == []
    tab.close()


def test_a_report_of_heads_opens_and_sorts(browser, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]
    scores = {f"score {number}": rng.normal(size=len(names)) for number in range(20)}
    table = pd.DataFrame({"head": names, **scores})
    page = Page(
        "Heads", ["All."], [Section("All heads", (), (), [PageTable(table, "", sortable=True)])]
    )
    tab, wrong = opened(browser, tmp_path / "report.html", render(page))
    assert tab.locator("tbody tr").count() == len(names)
    tab.locator("th button").nth(1).click()
    first, last = (tab.locator("tbody tr").nth(n).locator("td").nth(1) for n in (0, -1))
    lowest, highest = sorted((float(first.inner_text()), float(last.inner_text())))
    assert abs(lowest - min(scores["score 0"])) < 0.01
    assert abs(highest - max(scores["score 0"])) < 0.01
    assert wrong == []
    tab.close()
