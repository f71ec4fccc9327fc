"""The main job, run once, and what a reader finds in its folder."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from typer.testing import CliRunner

from interp.proofs.memory import construct_fixed_memory
from interp.store import ActivationStore
from prooflens.cli.main import app
from prooflens.demo.run import ComparedModels, findings, inspect_model
from trained import zoo


@dataclass(frozen=True)
class Demo:
    """One run of the main job, with fewer draws for its nulls."""

    out: Path
    said: list[str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probes.fresh_models._DRAWS", 200)
        out = tmp_path_factory.mktemp("demo") / "out"
        done = CliRunner().invoke(app, ["demo", "--out", str(out), "--json"])
    assert done.exit_code == 0, repr(done.exception)
    printed = json.loads(done.stdout)
    schema = json.loads((Path(__file__).parents[2] / "docs/schemas/demo.json").read_text())
    jsonschema.validate(printed, schema)
    return Demo(out, printed["findings"])


def test_findings_name_heads_and_ffn_with_numbers(demo: Demo) -> None:
    said = demo.said
    assert len(said) == 2
    for memory, lag in (("x[t-1]", 1), ("x[t-3]", 3)):
        assert re.search(rf"head L0H[01] extracts {re.escape(memory)} \(lag {lag}; r²", said[0])
    assert "the FFN of layer 0 computes the Boolean function (r² lost without it 0." in said[0]
    told = "4 hold for the trained model, 0 hold for the mixed model, 0 hold for the untrained"
    assert told in said[1]
    assert "within its certificate" in said[1]


def test_folder_holds_report_figures_numbers_and_stores(demo: Demo) -> None:
    out, said = demo.out, demo.said
    html = (out / "report.html").read_text()
    for finding in said:
        assert finding.replace("'", "&#39;") in html
    assert {p.name for p in (out / "figures").iterdir()} == {
        "attention-by-lag.png", "attention-by-lag-narrow.png", "kernels-by-lag.png",
    }  # fmt: skip
    numbers = json.loads((out / "numbers.json").read_text())
    assert numbers["models"]["trained"]["accuracy"] > 0.999
    names = ("constructed", "mixed", "trained", "untrained")
    found = [pd.read_csv(out / "models" / n / "roles.csv").assign(model=n) for n in names]
    roles = pd.concat(found)
    counts = roles["model"].value_counts().to_dict()
    assert counts == {"constructed": 7, "mixed": 3, "trained": 5, "untrained": 2}
    sure = roles[roles["status"] == "confirmed"]["model"].value_counts().to_dict()
    assert sure == {"constructed": 7, "mixed": 3, "trained": 4}
    sealed = ActivationStore(out / "models" / "trained" / "store").measurement("roles")
    written = roles[roles["model"] == "trained"]["evidence"].tolist()
    assert sealed["evidence"].tolist() == written


def test_what_is_not_confirmed_is_said_not_to_be(tmp_path: Path) -> None:
    """A model whose heads look nowhere in particular: the report must not name any."""
    shipped = zoo.load("fixed-memory-multiplexer")
    shipped.model.blocks[0].attn.terms["table"].bias.data.zero_()
    blurred = inspect_model("trained", shipped.model, shipped.task, tmp_path / "out")
    confirmed = blurred.roles[blurred.roles["status"] == "confirmed"]
    assert set(confirmed["role"]) <= {"passing-on"}  # an FFN passes on whatever is fetched
    built, control = (replace(blurred, name=name) for name in ("constructed", "control"))
    comparison = ComparedModels(blurred, built, (control,), construct_fixed_memory(shipped.task))
    said = findings(comparison)
    assert "no head is confirmed to extract x[t-1]" in said[0]
    assert "no FFN is confirmed to compute the Boolean function" in said[0]
    assert "The constructed proof, unconfirmed" in said[1]
    assert "ABOVE its certificate" in said[1]
