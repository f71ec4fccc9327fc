"""How large an inspection's page is, and how fast it answers in Chromium: random weights, rows.

The budget is 144 heads on rows of 64 tokens: at most 50 MB, open in 3 s, an answer to hovering
within 100 ms. Times are of one machine and one browser: the page is opened several times, and the
median and the worst are given. Hovering is timed in the page, from the event to the next frame.

    python -m analyses benchmark view_page --out view.json      needs Playwright and Chromium
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

import prooflens as pl
from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.errors import ArgumentError
from prooflens.tasks import Batch

__all__ = ["main"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_HOVERED = 20
_VOCABULARY = 97
_HOVER = """token => new Promise(done => {
  const start = performance.now();
  token.dispatchEvent(new MouseEvent("mouseenter"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""


def main(
    out: Annotated[Path | None, typer.Option(help="A file for the JSON.")] = None,
    layers: Annotated[int, typer.Option(help="Layers, of 12 heads each.")] = 12,
    rows: Annotated[int, typer.Option(help="Sequences.")] = 60,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 64,
    times: Annotated[int, typer.Option(min=1, help="How often the page is opened.")] = 3,
) -> None:
    """Write a page of random heads, open it in Chromium, hover over tokens; print the times."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise ArgumentError("the benchmark needs Chromium: install it")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "heads.html"
        start = time.perf_counter()
        page.write_text(pl.inspect(_model(layers, length), _rows(rows, length)).html)
        written = time.perf_counter() - start
        opened, hovers, heads = _measure(browser, page, times)
        found = {
            "megabytes": page.stat().st_size / 1e6,
            "write_seconds": written,
            "open_seconds": statistics.median(opened),
            "open_worst_seconds": max(opened),
            "hover_ms": statistics.median(hovers),
            "hover_worst_ms": max(hovers),
            "next_head_ms": statistics.median(heads),
        }
    write_result(found, out)


def _model(layers: int, length: int) -> SequenceTransformer:
    """Twelve heads a layer with random weights."""
    torch.manual_seed(0)
    spec = TransformerSpec(
        d_in=_VOCABULARY,
        d_out=_VOCABULARY,
        n_ctx=length,
        d_model=48,
        n_layers=layers,
        n_heads=12,
        d_head=4,
        ffn=(48,),
        input="tokens",
        norm="layernorm",
        score="dot",
        positions="learned",
    )
    return SequenceTransformer(spec)


def _rows(rows: int, length: int) -> Batch:
    tokens = torch.randint(_VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, tokens.roll(-1, 1), torch.ones(rows, length, dtype=torch.bool))


def _measure(browser: str, page: Path, times: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds until a head's rows stand; milliseconds of hovers, and of going to the next head."""
    from playwright.sync_api import sync_playwright

    opened, hovers, heads = [], [], []
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for _ in range(times):
            tab = started.new_page()
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.locator(".heads .row").first.wait_for()
            opened.append(time.perf_counter() - start)
            for _ in range(3):
                before = tab.locator(".head h2").inner_text()
                start = time.perf_counter()
                tab.keyboard.press("j")
                tab.wait_for_function(
                    f"document.querySelector('.head h2').textContent != '{before}'"
                )
                heads.append(1e3 * (time.perf_counter() - start))
            tokens = tab.locator(".row").first.locator(".token")
            hovers += [float(tokens.nth(3 * i).evaluate(_HOVER)) for i in range(_HOVERED)]
            tab.close()
        started.close()
    return opened, hovers, heads
