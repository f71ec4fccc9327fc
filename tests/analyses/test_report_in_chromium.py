"""The claims' report in a real browser: headless Chromium, driven by Playwright."""

import json
from pathlib import Path

import pandas as pd
import pytest
from chromium import opened
from matplotlib.figure import Figure

from analyses.papers.base import Drawing, Setting, Status, Verdict
from analyses.papers.claims_report import write_report
from analyses.papers.ledger import Claim
from analyses.papers.results import write_result
from interp.figures.style import save

CLAIMS: dict[str, tuple[Status, str]] = {
    "memory-b": ("reproduced", "12 heads"),
    "memory-a": ("not reproduced", "7 heads"),
    "depth-c": ("partly", "0.5"),
}


def drawing() -> Figure:
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot([0, 1])
    return figure


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three claims that were run, one that was not, and a model with its proof."""
    out = tmp_path_factory.mktemp("claims")
    ledger = {
        name: Claim(
            name, name.split("-")[0], "source", f"Statement {name}.", "A rule.", "No.", "m:f"
        )
        for name in (*CLAIMS, "depth-unrun")
    }
    for name, (status, key) in CLAIMS.items():
        table = pd.DataFrame({"seed": range(30), "score": [i * 0.7 % 1 for i in range(30)]})
        verdict = Verdict(
            status, "Because <b>of</b> numbers.", key, {"scores": [1.0]}, {"scores": table},
            {"line": Drawing(drawing(), f"A line for {name}")}, ("made-up",),
        )  # fmt: skip
        write_result(ledger[name], Setting("quick", (1,), {}, out), verdict, 1.0, out)
    folder = out / "models" / "made-up"
    about = {"paper": "memory", "words": ["A model."], "proof": ""}
    for stem in ("attention", "latents"):
        save(drawing(), folder / stem, formats=("png",))
    (folder / "model.json").write_text(json.dumps(about))
    roles = {"component": ["head", "ffn"], "layer": 0, "head": [1, -1], "strength": [0.5, 2.0]}
    words = dict.fromkeys(("role", "target", "status", "evidence"), "words")
    pd.DataFrame({**roles, **words, "effect": 0.1, "q": 0.0}).to_csv(folder / "roles.csv")
    probes = {"hook": ["hook_embed"], "latent": "f", "kind": "numeric", "score": 0.5, "q": 0.0}
    more = dict.fromkeys(("control", "input", "untrained"), 0.0)
    pd.DataFrame({**probes, **more}).to_csv(folder / "probes.csv")
    statements = {"theory": ["off by 0"], "constructed": ["yes"], "trained": ["no"]}
    pd.DataFrame(statements).to_csv(folder / "statements.csv", index=False)
    return write_report(ledger, out)


@pytest.fixture
def page(browser, report):
    with opened(browser, report, pictures=True) as tab:
        yield tab


def visible_ids(page) -> list[str]:
    """Ids of the verdict table's visible rows, top to bottom."""
    return page.locator("#table-verdicts tbody tr:visible td:first-child a").all_inner_texts()


def test_every_image_is_drawn_and_has_its_size_and_words(page) -> None:
    images = page.locator("img").evaluate_all(
        "all => all.map(i => [i.getAttribute('width'), i.getAttribute('height'), i.alt.trim(), "
        "i.complete && i.naturalWidth > 0])"
    )
    assert len(images) == 3 * 2 + 2
    for width, height, words, drawn in images:
        assert int(width) > 0
        assert int(height) > 0
        assert words
        assert drawn


def test_every_link_stays_in_the_file_and_arrives(page) -> None:
    links = page.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert len(links) > 10
    assert all(link.startswith("#") for link in links)
    ids = page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
    assert {link[1:] for link in links} <= set(ids)
    assert len(ids) == len(set(ids))
    models = page.locator("article#depth-c a[href='#model-made-up']")
    assert models.count() == 1
    back = page.locator("article#model-made-up a").evaluate_all("all => all.map(a => a.hash)")
    assert {f"#{name}" for name in CLAIMS} <= set(back)


def test_verdicts_are_sorted_by_mouse_and_keyboard(page) -> None:
    head = page.get_by_role("button", name="claim", exact=True)
    head.click()
    assert visible_ids(page) == ["depth-c", "memory-a", "memory-b"]
    head.focus()
    page.keyboard.press("Enter")
    assert visible_ids(page) == ["memory-b", "memory-a", "depth-c"]
    assert page.locator("#table-verdicts th").first.get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="verdict", exact=True).press("Space")
    assert visible_ids(page) == ["memory-a", "depth-c", "memory-b"]  # worst first


def test_verdicts_are_filtered(page) -> None:
    verdicts = page.locator("#verdicts")
    assert verdicts.locator("output").inner_text() == "3 of 3"
    verdicts.get_by_label("Find").fill("STATEMENT MEMORY")
    assert sorted(visible_ids(page)) == ["memory-a", "memory-b"]
    verdicts.get_by_role("combobox", name="Verdict").select_option("reproduced")
    assert visible_ids(page) == ["memory-b"]
    assert verdicts.locator("output").inner_text() == "1 of 3"
    verdicts.get_by_label("Find").fill("")
    verdicts.get_by_role("combobox", name="Verdict").select_option("all")
    verdicts.get_by_role("combobox", name="Paper").select_option("depth")
    assert visible_ids(page) == ["depth-c"]


def test_a_claims_own_table_is_sorted_by_number_and_filtered(page) -> None:
    claim = page.locator("article#depth-c")
    claim.get_by_text("Table: scores").click()
    claim.get_by_role("button", name="score", exact=True).click()
    scores = [float(text) for text in claim.locator("tbody td:nth-child(2)").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    claim.get_by_label("Find").fill("no such text")
    assert claim.locator("output").inner_text() == "0 of 30"
    assert page.locator("#table-verdicts tbody tr:visible").count() == 3


def test_dark_light_and_print(page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen[scheme] = page.evaluate(background)
    assert seen["light"] == "rgb(255, 255, 255)" != seen["dark"]
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(background) == seen["light"]
    assert page.locator("nav").first.is_hidden()


def test_printing_opens_what_is_folded_and_folds_it_again(page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")
    page.evaluate(
        "addEventListener('beforeprint', () => "
        "window.unfolded = document.querySelectorAll('details[open]').length)"
    )
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("window.unfolded") == page.locator("details").count()
    assert page.locator("details[open]").count() == 0


def test_what_was_not_run_stands_folded_under_its_paper_and_in_the_matrix(page) -> None:
    assert page.locator(".matrix a[href='#depth-unrun']").inner_text() == "·"
    assert page.locator("#depth-unrun").is_hidden()
    page.locator(".matrix a[href='#depth-unrun']").click()
    assert page.locator("#depth-unrun").is_visible()


def test_nothing_is_wider_than_a_small_screen(page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
    assert page.locator(".scroll").evaluate_all(wide) == 0
    tall = "all => all.filter(e => e.clientHeight > innerHeight).length"
    assert page.locator(".scroll").evaluate_all(tall) == 0, "a long table scrolls in its own box"
    head = page.locator("#table-verdicts thead")
    assert head.evaluate("head => getComputedStyle(head).position") == "sticky"
    cell = page.locator("#table-verdicts td.key").first
    said = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert "key number" in said, "where headings do not stand above cells, each says its own"
