"""Real Chromium, driven by Playwright; skipped where there is none (Debian's package is
``chromium``)."""

import shutil

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
