"""Real Chromium, driven by Playwright; skipped where there is none (Debian's package is
``chromium``)."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update")  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: install it to test the report in a browser")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield started
        started.close()


@contextmanager
def opened(browser: Any, file: Path, pictures: bool = False) -> Iterator[Any]:
    """A page, in a tab; at the end nothing was said on the console and nothing was fetched, but
    the pictures that are in the file."""
    wrong, asked = [], []
    tab = browser.new_page()
    tab.set_default_timeout(15_000)
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(file.as_uri())
    yield tab
    tab.close()
    assert wrong == []
    others = [url for url in asked if url != file.as_uri()]
    assert [url for url in others if not (pictures and url.startswith("data:"))] == []
    assert asked
