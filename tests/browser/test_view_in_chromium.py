"""The page of heads in a real browser: what a reader does with it, and that it fetches nothing."""

import json
import re

import numpy as np
import pytest
import torch
from chromium import opened

import prooflens as pl

HEADS = ["L0H0", "L1H0"]


@pytest.fixture(scope="module")
def model():
    return pl.load("induction-attention")


@pytest.fixture(scope="module")
def viewed(model):
    return pl.inspect(model, count=12, prompts=["3 4 5 9 3 4"])


@pytest.fixture(scope="module")
def saved(viewed, tmp_path_factory: pytest.TempPathFactory):
    return viewed.save(tmp_path_factory.mktemp("view") / "out")


@pytest.fixture
def page(browser, saved):
    with opened(browser, saved) as tab:
        tab.locator(".heads .row").first.wait_for()
        yield tab


def head_title(page) -> str:
    return page.locator(".head h2").inner_text()


def test_it_opens_with_what_was_found_and_the_head_that_does_it(page, viewed) -> None:
    said = page.locator(".findings li").all_inner_texts()
    assert said == viewed.findings
    assert said[0].startswith("L1H0 does induction")
    assert said[1].startswith("It finds it by reading L0H0, which looks at the token before")
    assert head_title(page) == "L1H0"
    told = page.locator(".sentences").inner_text()
    assert re.search(r"induction, confirmed \(q [^)]+\): share of attention", told)


def test_keys_go_from_head_to_head_and_the_address_follows(page) -> None:
    page.keyboard.press("j")
    assert head_title(page) == "L0H0"
    assert page.evaluate("location.hash") == "#L0H0"
    page.keyboard.press("k")
    assert head_title(page) == "L1H0"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("j previous")  # in the search field letters are letters
    assert head_title(page) == "L1H0"
    assert page.locator(".search output").inner_text() == "0 of 2 heads"
    page.keyboard.press("Control+a")
    page.keyboard.type("previous-token")
    assert page.locator(".search output").inner_text() == "1 of 2 heads"
    page.keyboard.press("Enter")
    assert head_title(page) == "L0H0"


def test_a_link_opens_its_head(browser, saved) -> None:
    tab = browser.new_page()
    tab.goto(saved.as_uri() + "#L0H0")
    assert tab.locator(".head h2").inner_text() == "L0H0"
    tab.evaluate("location.hash = '#L1H0'")
    tab.wait_for_function("document.querySelector('.head h2').textContent === 'L1H0'")
    tab.close()


def weights(page, row: int) -> list[float]:
    tokens = page.locator(".row").nth(row).locator(".token")
    return [float(w) for w in tokens.evaluate_all("all => all.map(t => t.dataset.weight)")]


def test_hovering_shows_the_models_attention_within_the_stated_error(page, model, viewed) -> None:
    codes = viewed.measured["shown-heads"]
    error = float(codes.loc[codes["part"] == "pattern", "error"].max())
    prompt = torch.tensor([[0, 3, 4, 5, 9, 3, 4]])  # prompts come first, behind BOS
    _, cache = model.run_with_cache(prompt)
    true = cache["blocks.1.attn.hook_pattern"][0, 0].detach().numpy()
    first = page.locator(".row").first
    first.locator(".token").nth(5).hover()
    np.testing.assert_allclose(weights(page, 0)[:6], true[5, :6], atol=error + 1e-6)
    assert "Token 5" in first.locator(".told").inner_text()
    assert f"{true[5].max():.2f}" in first.locator(".told").inner_text()
    page.get_by_label("At a token").select_option("from")
    first.locator(".token").nth(2).hover()
    np.testing.assert_allclose(weights(page, 0), true[:, 2], atol=error + 1e-6)
    page.get_by_label("At a token").select_option("to")
    page.get_by_label("by", exact=True).select_option("value")
    first.locator(".token").nth(5).hover()
    value = (cache["blocks.1.attn.hook_v"][0, :, 0] @ model.W_O[1, 0]).norm(dim=-1)
    wanted = true[5] * value.detach().numpy()
    np.testing.assert_allclose(weights(page, 0), wanted, atol=0.02 * wanted.max() + 1e-6)


def test_tokens_are_reached_by_keys(page) -> None:
    line = page.locator(".tokens").first
    line.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "Token 1 “3” attends to" in page.locator(".told").first.inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".token.at").count() == 0


def test_rows_stand_at_several_quantiles_and_other_orders_can_be_chosen(page, viewed) -> None:
    names = page.locator(".row h4").all_inner_texts()
    assert names[0].startswith("your prompt")
    kinds = [re.split(" ·| rows| rep| shuf", name)[0] for name in names[1:]]
    wanted = ["strongest", "upper quartile", "median", "lower quartile", "weakest"]
    assert [kind for kind in kinds if kind in wanted] == wanted
    page.get_by_label("ordered by").select_option("previous")
    assert "share on the previous token" in page.locator(".row h4").nth(1).inner_text()
    page.get_by_label("rows", exact=True).select_option("shuffled")
    assert "shuffled" in page.locator(".row h4").first.inner_text()


def test_points_and_grid_choose_heads(page) -> None:
    page.locator("svg .point[data-head=L0H0]").click()
    assert head_title(page) == "L0H0"
    page.get_by_label("Show").select_option("grid")
    rows = page.locator(".grid tbody th").all_inner_texts()
    assert rows == ["L0", "L1"]  # layer 0 on top
    page.get_by_role("button", name="L1H0").click()
    assert head_title(page) == "L1H0"
    page.get_by_label("colour").select_option("layer")
    assert page.get_by_role("button", name="L1H0, 1.00").get_attribute("aria-pressed") == "true"


def test_all_heads_are_a_table_for_those_who_see_no_points(page) -> None:
    page.locator("#table-1 summary").click()
    table = page.locator("#table-1 table")
    assert table.locator("tbody td:first-child").all_inner_texts() == HEADS
    assert "induction" in table.inner_text()
    assert page.locator(".overview svg").get_attribute("aria-label").startswith("Heads as points")
    assert page.locator("figure svg:not([aria-label])").count() == 0


def test_light_dark_and_small_screens(page) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen.add(page.evaluate("getComputedStyle(document.querySelector('.heads')).color"))
    assert len(seen) == 2
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.locator("#table-1 summary").click()
    page.locator("details.raised summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_without_the_script_there_are_findings_and_a_table(browser, saved, viewed) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(saved.as_uri())
    assert tab.locator(".findings li").all_inner_texts() == viewed.findings
    assert tab.locator("#table-1 tbody tr").count() == 2
    context.close()


def test_what_was_not_measured_or_is_infinite_is_marked(browser, saved, tmp_path) -> None:
    text = saved.read_text()
    found = re.search(r'(id="view-data">)(.*?)(</script>)', text, re.DOTALL)
    data = json.loads(found[2])
    data["models"][0]["heads"][0]["values"] = [None] * len(data["models"][0]["columns"])
    data["models"][0]["heads"][1]["values"][-1] = "inf"
    changed = text[: found.start(2)] + json.dumps(data) + text[found.end(2) :]
    (tmp_path / "gaps.html").write_text(changed)
    tab = browser.new_page()
    tab.goto((tmp_path / "gaps.html").as_uri() + "#L0H0")
    assert set(tab.locator(".numbers td:nth-child(2)").all_inner_texts()) == {"–"}
    assert tab.locator("svg .point[data-head=L0H0]").locator("circle").count() == 0
    assert "not measured or infinite" in tab.locator(".overview svg").inner_html()
    tab.keyboard.press("j")
    assert tab.locator(".numbers td:nth-child(2)").last.inner_text() == "∞"
    tab.close()
