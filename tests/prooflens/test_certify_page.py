"""The page of a theorem says which open input adds what to the bound."""

import json
from pathlib import Path
from typing import Any

import pytest
from certified_models import FIXED, maximum_model

from interp.tasks.maximum import Maximum
from probes.certify.run import certify
from prooflens.pages.certify import write_theorem
from trained import zoo


def test_parts_add_up_to_the_bound_and_the_largest_open_inputs_are_named(tmp_path: Path) -> None:
    model = zoo.load("fixed-memory-multiplexer").model
    options: dict[str, Any] = {
        "lags": {(0, 1): 1, (0, 0): 3},
        "strategies": ["mechanism", "black box"],
    }
    found = certify(model, FIXED, name="a/model", **options)
    for proof in found.proofs:
        assert sum(proof.parts.values()) == pytest.approx(proof.bound, rel=1e-6)
    named = [name for name in found.best.parts if name.startswith("open: input at lag")]
    assert (found.best.strategy, len(named)) == ("mechanism", 2)
    assert not {"open: input at lag 1", "open: input at lag 3"} & set(named), "these are the cases"
    write_theorem(found, tmp_path / "out", overwrite=False)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "What is proved of a/model" in page
    assert all(name in page for name in named)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert {p["strategy"] for p in result["strategies"]} == {p.strategy for p in found.proofs}


def test_the_page_opens_with_what_is_proved_one_figure_and_what_to_doubt(tmp_path: Path) -> None:
    model = maximum_model(6, 3, 1)
    found = certify(model, Maximum(6, 3), name="small")
    write_theorem(found, tmp_path / "out", overwrite=False)
    page = (tmp_path / "out" / "index.html").read_text()
    share = f"a share of at least {found.safe(found.best):.6g} of all 6^3 rows of 3 tokens"
    order = [
        share,
        "<img",
        "What would have to be doubted",
        "Numbers are computed from the weights",
        "A strategy splits the domain",
    ]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert "head 0.0: largest fall of the score from token k to k + 1" in page
    vacuous = certify(model, Maximum(6, 3), name="small", strategies=["black box"])
    assert vacuous.best.vacuous
    write_theorem(vacuous, tmp_path / "nothing", overwrite=False)
    assert "Nothing is proved of the model" in (tmp_path / "nothing" / "index.html").read_text()
