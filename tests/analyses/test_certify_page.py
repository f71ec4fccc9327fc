"""The page of a theorem says which open input adds what to the bound."""

import json
from pathlib import Path
from typing import Any

import pytest
from certified_models import FIXED

from analyses.report.certify import write_theorem
from probes.certify.run import certify
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
    assert "What is proved of model" in page
    assert all(name in page for name in named)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert {p["strategy"] for p in result["strategies"]} == {p.strategy for p in found.proofs}
