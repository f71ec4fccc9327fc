"""The page of heads as a file: its schema, what is escaped, its size, its command."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_view import synthetic
from typer.testing import CliRunner

import prooflens as pl
from interp.errors import ArgumentError, OutputError
from probes.roles.profile import LANGUAGE
from probes.viewing.model import Viewed
from prooflens.cli.main import app
from prooflens.pages.show import View
from prooflens.pages.view import head_table, viewer_file


@pytest.fixture(scope="module")
def viewed() -> Viewed:
    return synthetic(2, 3, 9, 8)


@pytest.fixture(scope="module")
def page(viewed: Viewed) -> str:
    return View((viewed,), LANGUAGE).html


def data_of(page: str) -> dict:
    (text,) = re.findall(r'id="view-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_document_holds_what_was_measured(page, viewed) -> None:
    data = data_of(page)
    assert data["format"] == {"name": "prooflens-view", "version": 1}
    words, (group,), (model,) = data["words"], data["groups"], data["models"]
    assert [words[i] for i in group["rows"][1]] == list(viewed.shown[0].texts[1])
    assert [head["name"] for head in model["heads"]] == [f"L{a}H{b}" for a, b in viewed.heads]
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


def test_a_heads_bytes_are_its_codes(page, viewed) -> None:
    (text,) = re.findall(r'id="bytes-0-L1H2">(.*?)</script>', page)
    codes = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    own, rows, n = viewed.seen[0].heads[1, 2], 9, 8
    size = n * (n + 1) // 2
    assert len(codes) == rows * (size + 2 * n)
    triangle = np.tril_indices(n)
    np.testing.assert_array_equal(codes[size : 2 * size], own.pattern.codes[1][triangle])
    np.testing.assert_array_equal(codes[rows * size :][:n], own.written.codes[0])
    np.testing.assert_array_equal(codes[-n:], viewed.effects[0].by_position[1, 2].codes[-1])


def test_no_text_becomes_markup(page) -> None:
    assert "</script>0" not in page
    assert page.count("<script") == page.count("</script>")
    assert "<b>of" not in page
    assert "a &lt;note&gt;" in page


def test_the_page_may_fetch_nothing(page) -> None:
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["']?(?!data:|#)\w+:""", page)


def test_heads_are_in_the_order_of_their_numbers() -> None:
    names = list(head_table(synthetic(1, 12, 2, 4)).frame["head"])
    assert names == [f"L0H{head}" for head in range(12)]


def test_size_of_a_large_page() -> None:
    """144 heads on 60 rows of 64 tokens."""
    size = len(View((synthetic(12, 12, 60, 64, alike=True),), LANGUAGE).html.encode())
    assert size <= 50e6


def test_the_viewer_is_what_its_sources_make() -> None:
    """``make viewer`` writes the sources' digest into the file it builds."""
    from prooflens.pages.viewer_digest import source_digest

    assert viewer_file("viewer.js").startswith(f"/* sources {source_digest()} */\n")


def test_a_few_models_stand_side_by_side(viewed) -> None:
    other = synthetic(2, 3, 9, 8, name="other")
    found = View((viewed, other), LANGUAGE)
    assert [model["name"] for model in data_of(found.html)["models"]] == ["made up", "other"]
    assert found.findings[0].startswith("made up: L0H2 does induction: 90% of its attention")
    assert "<li>made up: induction: confirmed L0H2 (+0.90, loss +1.50).</li>" in found.html


def test_a_notebook_has_a_static_part_that_says_so(viewed) -> None:
    html = View((viewed,), LANGUAGE)._repr_html_()
    assert "This is the static part" in html
    assert "L0H2" in html
    assert "<script" not in html


def test_the_chosen_head_is_shared(viewed) -> None:
    found = View((viewed,), LANGUAGE)
    found.head = "L1H1"
    assert found.head == "L1H1"
    with pytest.raises(ArgumentError, match="head must be one of the model's"):
        found.head = "L9H9"
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    assert found.widget.head == "L1H1"
    found.widget.head = "L0H0"
    assert found.head == "L0H0"
    assert set(found.widget.codes) == {f"0-L{a}H{b}" for a, b in viewed.heads}
    assert json.loads(found.widget.document)["models"][0]["name"] == "made up"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "store"
    model = pl.load("induction-attention")
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
    pl.extract(model, model.card.task, hooks, folder, rows=10, seed=0)
    return folder


def test_a_store_without_its_model_shows_candidates(store) -> None:
    found = pl.view(store, rows=6)
    (viewed,) = found.views
    assert len(viewed.shown[0].batch) == 6
    assert set(viewed.roles["status"]) <= {"candidate"}
    assert viewed.effects == (None,)
    assert any("no model is run" in note for note in viewed.notes)


def test_what_does_not_fit_a_store_is_refused(store) -> None:
    with pytest.raises(ArgumentError, match="text, data must be left out for a store"):
        pl.view(store, text="words")
    with pytest.raises(ArgumentError, match="models must be models, or one store"):
        pl.view(store, "induction-mlp")


def test_the_command_writes_one_file_and_refuses_to_replace_it(tmp_path: Path) -> None:
    out = tmp_path / "heads.html"
    rows = {"vocabulary": {f"w{i}": i for i in range(8)}, "objective": "next token"}
    rows["rows"] = [{"tokens": [1, 2, 3], "label": [1, 2, 3]}] * 2
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    asked = ["view", "induction-attention", "--out", str(out), "--rows", "8", "--prompt", "3 4 3"]
    found = CliRunner().invoke(app, [*asked, "--data", str(tmp_path / "rows.json"), "--no-ablate"])
    assert found.exit_code == 0, found.output
    assert "L1H0 does induction" in found.output
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".html"] == ["heads.html"]
    data = data_of(out.read_text())
    kinds = [group["kind"] for group in data["groups"]]
    assert kinds == ["data", "task", "repeated", "shuffled", "prompt"]
    assert data["words"][:3] == ["w1", "w2", "w3"]
    with pytest.raises(OutputError, match="exists"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


@pytest.mark.parametrize(
    ("trained", "first"),
    [(True, "L1H0 does induction: "), (False, "No head does induction: the most that one attends")],
)
def test_a_checkpoint_in_gpt2s_format_says_who_does_induction(
    tmp_path: Path, trained: bool, first: str
) -> None:
    model = pl.load("induction-attention")
    if not trained:
        model = pl.SequenceTransformer(model.spec, seed=3)
    pl.export(model, tmp_path / "gpt2", bos=0)
    found = pl.view(tmp_path / "gpt2", rows=4, length=24, ablate=False)
    assert found.findings[0].startswith(first)
    assert first in found.html
