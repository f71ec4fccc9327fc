"""The search of the built pages finds words where they are opened as files."""

import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / "docs" / "offline_search.py"
CONFIG = f"""
site_name: two pages
use_directory_urls: false
theme: {{name: mkdocs, highlightjs: false}}
hooks: ["{HOOK}"]
plugins: [search]
nav: [{{First: index.md}}, {{Second: deep/second.md}}]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    (folder / "docs" / "deep").mkdir(parents=True)
    (folder / "mkdocs.yml").write_text(CONFIG)
    (folder / "docs" / "index.md").write_text("# First\n\nHeads and layers.\n")
    (folder / "docs" / "deep" / "second.md").write_text("# Second\n\nInduction looks back.\n")
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(built, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.parametrize("opened", ["index.html", "deep/second.html"])
def test_a_word_is_found_without_a_server(browser, site: Path, opened: str) -> None:
    page = browser.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((site / opened).as_uri())
    page.click("text=Search")
    page.wait_for_selector("#mkdocs-search-query", state="visible")
    page.fill("#mkdocs-search-query", "inductio")
    page.press("#mkdocs-search-query", "n")
    page.wait_for_selector("#mkdocs-search-results article")
    found = [link.get_attribute("href") for link in page.query_selector_all("article a")]
    assert [place.split("#")[0].split("/")[-1] for place in found] == ["second.html"] * len(found)
    with page.expect_navigation():
        page.click("article a >> nth=0")
    assert page.url.split("#")[0] == (site / "deep" / "second.html").as_uri()
    assert wrong == []
    page.close()
