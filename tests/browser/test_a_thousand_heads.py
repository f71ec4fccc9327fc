"""Pages of 1,024 heads open in a real browser and answer: heads as points, tables that sort."""

from pathlib import Path

import numpy as np
import pandas as pd
from chromium import opened
from synthetic_view import synthetic

from prooflens.inspection import Inspected
from prooflens.pages.page import Page, PageTable, Section, render

LAYERS = HEADS = 32


def test_a_page_of_heads_opens(browser, tmp_path: Path) -> None:
    many = synthetic(LAYERS, HEADS, 4, 16, alike=True)
    file = tmp_path / "heads.html"
    file.write_text(Inspected(many).html, "utf-8")
    with opened(browser, file) as tab:
        tab.locator(".heads .row").first.wait_for()
        before = tab.locator(".head h2").inner_text()
        assert tab.locator("svg .point").count() == LAYERS * HEADS
        tab.keyboard.press("j")
        tab.wait_for_function(f"document.querySelector('.head h2').textContent != '{before}'")


def test_a_report_of_heads_opens_and_sorts(browser, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]
    scores = {f"score {number}": rng.normal(size=len(names)) for number in range(20)}
    table = pd.DataFrame({"head": names, **scores})
    page = Page(
        "Heads", ["All."], [Section("All heads", (), (), [PageTable(table, "", sortable=True)])]
    )
    file = tmp_path / "report.html"
    file.write_text(render(page), "utf-8")
    with opened(browser, file) as tab:
        assert tab.locator("tbody tr").count() == len(names)
        tab.locator("th button").nth(1).click()
        first, last = (tab.locator("tbody tr").nth(n).locator("td").nth(1) for n in (0, -1))
        lowest, highest = sorted((float(first.inner_text()), float(last.inner_text())))
    assert abs(lowest - min(scores["score 0"])) < 0.01
    assert abs(highest - max(scores["score 0"])) < 0.01
