"""The viewer of an inspection's page: its document, its bytes, what is escaped, its size."""

import base64
import json
import re

import numpy as np
import pytest
from synthetic_view import pattern_of, synthetic

from interp.errors import ArgumentError
from probes.measure import Measurements
from prooflens.inspection import Inspected
from prooflens.pages.inspection import wide_table


@pytest.fixture(scope="module")
def measured() -> Measurements:
    return synthetic(2, 3, 9, 8)


@pytest.fixture(scope="module")
def page(measured: Measurements) -> str:
    return Inspected(measured).html


def data_of(page: str) -> dict:
    (text,) = re.findall(r'id="view-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_document_holds_what_was_measured(page, measured) -> None:
    data = data_of(page)
    assert data["format"] == {"name": "prooflens-view", "version": 1}
    words, (group,), (model,) = data["words"], data["groups"], data["models"]
    rows = measured["shown-rows"]
    assert [words[i] for i in group["rows"][1]] == rows.loc[rows["row"] == 1, "token"].tolist()
    names = [f"L{layer}H{head}" for layer in (0, 1) for head in range(3)]
    assert [head["name"] for head in model["heads"]] == names
    assert model["heads"][0]["values"] == [None, "inf"]  # not measured, infinite: never zero
    (role,) = model["heads"][2]["roles"]
    assert role["short"] == "share <b>of</b> attention 0.90; the loss rises by 1.50 nats"
    assert role["sure"] == (
        "Yes: all 2 tests pass; nearest to failing: share <b>of</b> attention 0.90, where 0.3 is "
        "asked."
    )
    assert [(test["kind"], test["passes"]) for test in role["tests"]] == [
        ("behaviour", True),
        ("cause", True),
    ]
    assert model["heads"][2]["order"] == "after_same"
    assert model["heads"][0]["groups"][0]["lags"][4:6] == [0.2, None]
    assert model["error"] == pytest.approx(1 / 510, rel=0.02)


def test_a_heads_bytes_are_its_codes(page, measured) -> None:
    (text,) = re.findall(r'id="bytes-0-L1H2">(.*?)</script>', page)
    codes = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    parts = [pattern_of(measured, 1, 2, part) for part in ("pattern", "written", "effect")]
    assert [len(part) for part in parts] == [9 * 36, 9 * 8, 9 * 8]
    np.testing.assert_array_equal(codes, np.concatenate(parts))


def test_no_text_becomes_markup(page) -> None:
    assert "</script>0" not in page
    assert page.count("<script") == page.count("</script>")
    assert "<b>of" not in page
    assert "a &lt;note&gt;" in page


def test_heads_are_in_the_order_of_their_numbers() -> None:
    found = synthetic(1, 12, 2, 4)
    names = list(wide_table(found.tables, found.about)["head"])
    assert names == [f"L0H{head}" for head in range(12)]


def test_size_of_a_large_page() -> None:
    """144 heads on 60 rows of 64 tokens."""
    size = len(Inspected(synthetic(12, 12, 60, 64, alike=True)).html.encode())
    assert size <= 50e6


def test_a_notebook_has_a_static_part_that_says_so(measured) -> None:
    html = Inspected(measured)._repr_html_()
    assert "This is the static part" in html
    assert "L0H2" in html
    assert "<script" not in html


def test_the_chosen_head_is_shared(measured) -> None:
    found = Inspected(measured)
    found.head = "L1H1"
    assert found.head == "L1H1"
    with pytest.raises(ArgumentError, match="head must be one of the model's"):
        found.head = "L9H9"
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    assert found.widget.head == "L1H1"
    found.widget.head = "L0H0"
    assert found.head == "L0H0"
    assert set(found.widget.codes) == {f"0-L{a}H{b}" for a in (0, 1) for b in range(3)}
    assert json.loads(found.widget.document)["models"][0]["name"] == "made up"
