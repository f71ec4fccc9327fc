"""How large a page of heads is, and how fast it answers in Chromium: synthetic data, no model.

The budget is 144 heads on 60 rows of 64 tokens: at most 50 MB, open in 3 s, an answer to hovering
within 100 ms. Times are of one machine and one browser: the page is opened several times, and the
median and the worst are given. Hovering is timed in the page, from the event to the next frame.

    python -m analyses benchmark view_page --out view.json      needs Playwright and Chromium
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer

from analyses.benchmarks.result import write_result
from prooflens.errors import ArgumentError
from prooflens.inspection import Column, Effects, HeadOnRows, Seen, Sequences, Viewed, quantised
from prooflens.pages import view_page
from prooflens.roles import LANGUAGE, ROLE_COLUMNS
from prooflens.store import AttentionMask
from prooflens.tasks import Batch

__all__ = ["synthetic"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_HOVERED = 20
_HOVER = """token => new Promise(done => {
  const start = performance.now();
  token.dispatchEvent(new MouseEvent("mouseenter"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""


def synthetic(
    layers: int, heads: int, rows: int, length: int, *, name: str = "made up", alike: bool = False
) -> Viewed:
    """A model's page with random causal attention; its tokens look like markup.

    Args:
        layers, heads: How many; layer 0, head 2 has the one role.
        rows, length: Of its sequences.
        name: Of the model.
        alike: Whether all heads share one attention, which is quicker to make.
    """
    rng = np.random.default_rng(0)
    inputs = torch.arange(rows * length).reshape(rows, length) % 97
    texts = tuple(tuple(f"</script>{i % 97}" for i in row) for row in inputs.tolist())
    batch = Batch(inputs, inputs, torch.ones(rows, length, dtype=torch.bool))
    places = tuple((layer, head) for layer in range(layers) for head in range(heads))
    seen: dict[Any, Any] = {}
    by_position: dict[Any, Any] = {}
    by_row: dict[Any, Any] = {}
    for place in places[:1] if alike else places:
        seen[place] = _head(rng, rows, length)
        lost = rng.normal(size=(rows, length))
        by_position[place], by_row[place] = quantised(lost), lost.mean(1)
    for place in places:
        for found in (seen, by_position, by_row):
            found.setdefault(place, found[places[0]])
    values = {place: float(i) for i, place in enumerate(places)} | {places[0]: np.inf}
    columns = (
        Column("previous", "previous (share)", "About.", dict.fromkeys(places[1:], 0.5)),
        Column("loss-task", "loss without it (nats)", "About.", values),
    )
    return Viewed(
        name,
        places,
        columns,
        _roles(),
        {},
        (Sequences("task", "rows", batch, texts),),
        (Seen(seen, AttentionMask(), tuple(range(32))),),
        (Effects(by_position, by_row, pd.DataFrame(), "mean", "nats"),),
        None,
        ("a <note>",),
    )


def _head(rng: np.random.Generator, rows: int, length: int) -> HeadOnRows:
    pattern = np.tril(rng.random((rows, length, length), dtype=np.float32) ** 8)
    pattern /= pattern.sum(-1, keepdims=True)
    lags = np.full(32, np.nan)
    lags[:5] = 0.2
    masses = {"previous": rng.random(rows), "after_same": np.full(rows, np.nan)}
    norms = quantised(rng.random((rows, length)))
    return HeadOnRows(quantised(pattern, shares=True), norms, masses, lags)


def _roles() -> pd.DataFrame:
    role: dict[str, Any] = dict.fromkeys(ROLE_COLUMNS, "")
    role |= {"component": "head", "layer": 0, "head": 2, "role": "induction"}
    role |= {"status": "confirmed", "strength": 0.9, "effect": 1.5, "q": 0.0}
    test = {"p": 0.0, "q": 0.0, "low": 0.8, "high": 0.95}
    tests = [
        test
        | {"name": "share <b>of</b> attention", "kind": "behaviour", "score": 0.9, "floor": 0.3},
        test
        | {"name": "the loss rises, in nats, by", "kind": "cause", "score": 1.5, "floor": 0.05},
        test | {"name": "beside it", "kind": "sufficiency", "score": 0.0, "floor": 0.5},
    ]
    return pd.DataFrame([role | {"evidence": "", "tests": json.dumps(tests)}])


def main(
    out: Annotated[Path | None, typer.Option(help="A file for the JSON.")] = None,
    layers: Annotated[int, typer.Option(help="Layers, of 12 heads each.")] = 12,
    rows: Annotated[int, typer.Option(help="Sequences.")] = 60,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 64,
    times: Annotated[int, typer.Option(min=1, help="How often the page is opened.")] = 3,
) -> None:
    """Write a page of synthetic heads, open it in Chromium, hover over tokens; print the times."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise ArgumentError("the benchmark needs Chromium: install it")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "heads.html"
        start = time.perf_counter()
        page.write_text(view_page([synthetic(layers, 12, rows, length)], LANGUAGE), "utf-8")
        written = time.perf_counter() - start
        opened, hovers, heads = _measured(browser, page, times)
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


def _measured(browser: str, page: Path, times: int) -> tuple[list[float], list[float], list[float]]:
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
