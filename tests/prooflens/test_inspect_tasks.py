"""``prooflens inspect`` of models of tasks and of stores, and their figures, from outside."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.text import Text
from typer.testing import CliRunner

import prooflens as pl
from interp.models.checkpoint import save_checkpoint
from interp.models.transformer import SequenceTransformer
from interp.proofs.induction import construct_relation
from interp.store import ActivationStore, extract
from interp.tasks.relation import TokenRelation
from probes.measure import decodability_table
from probes.roles import ROLE_COLUMNS
from prooflens.cli.main import app
from prooflens.pages.head_figures import roles_figure
from trained import zoo

TASK = "token_relation:relation=previous-token,value=copy,symbols=8,length=13"
BUILT = construct_relation(
    TokenRelation("previous-token", "copy", symbols=8, length=13), heads=2
).model
SPEC = BUILT.spec


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return save_checkpoint(BUILT, tmp_path / "model")


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a model and its inspection, and what the command said."""
    root = tmp_path_factory.mktemp("inspected")
    save_checkpoint(BUILT, root / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done = CliRunner().invoke(app, ["inspect", "model", "--task", TASK, "--rows", "48"])
    assert done.exit_code == 0, repr(done.exception)
    return root, done.stdout


@pytest.fixture
def out(
    inspected: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of the inspection; its model lies where it was, and is there for the next test."""
    monkeypatch.chdir(tmp_path)
    yield Path(shutil.copytree(inspected[0] / "out/model-inspect", tmp_path / "out/model-inspect"))
    save_checkpoint(BUILT, inspected[0] / "model", overwrite=True)


def test_table_figures_and_store(inspected: tuple[Path, str], out: Path, told, run) -> None:
    assert "plays previous-token" in inspected[1]
    assert "previous-token: confirmed" in inspected[1]
    table = pd.read_csv(out / "roles.csv")
    assert tuple(table.columns) == (*ROLE_COLUMNS, "tests")
    assert set(table[table["status"] == "confirmed"]["role"]) == {"previous-token", "copying"}
    rows = json.loads((out / "inspection.json").read_text())["roles"]
    assert [row["evidence"] for row in rows] == table["evidence"].tolist()
    assert {"name", "kind", "score", "floor", "p", "q", "low", "high"} == set(rows[0]["tests"][0])
    page = (out / "report.html").read_text()
    effect = table[table["status"] == "confirmed"]["effect"].max()
    assert f"without it the output changes by {effect:.2f} of its variance." in page
    assert page.index("plays") < page.index("What would have to be doubted") < page.index("<table")
    assert "(profile task)" in page
    confirmed = page[page.index("<h2>Confirmed") : page.index("<h2>Every head")]
    assert not re.search(r">\d\S*e-(1[1-9]|[2-9]\d)<", confirmed), "a tail that nobody measured"
    sealed = ActivationStore(out / "store").measurement("roles")
    assert sealed["evidence"].tolist() == table["evidence"].tolist()
    first = {p.name: p.read_bytes() for p in (out / "figures").iterdir() if "narrow" not in p.name}
    assert {"attention-previous-token.png", "attention-copying.png", "roles.png"} <= set(first)
    told("store", "--figures", "out/model-inspect")
    again = {p.name: p.read_bytes() for p in Path("out/model-inspect-figures").iterdir()}
    assert {name: again[name] for name in first} == first
    shutil.rmtree(inspected[0] / "model")
    told("inspect", out / "store", "--out", "sealed")
    assert Path("sealed/report.html").read_text() == page
    anew = ("inspect", out / "store", "--profile", "task", "--out", "candidates")
    ended = run(*anew)
    assert ended.code == 1
    assert "candidates (cause: no model could be run)" in ended.out
    assert "no more than candidates" in ended.err
    assert "No model was run" in Path("candidates/report.html").read_text()
    told("store", "--figures", out / "store", "--out", "later")
    later = {p.name for p in Path("later").iterdir()}
    assert "attention-previous-token.png" in later
    assert "attention-copying.png" not in later, "it was taken for roles that are no more"


def test_every_head_of_a_role_has_its_attention(tmp_path: Path) -> None:
    found = pl.inspect("fixed-memory-multiplexer", count=48, out=tmp_path / "out")
    table = found.measured["attention-memory-location"]
    assert set(table["head"]) == {"L0H0 x[t-3]", "L0H1 x[t-1]"}
    store = ActivationStore(tmp_path / "out" / "store")
    pattern = store.activation("blocks.0.attn.hook_pattern")[:, 1].astype(float)
    mean = (pattern / pattern.sum(-1, keepdims=True)).mean(0)
    drawn = table[table["head"] == "L0H1 x[t-1]"].filter(like="key ").to_numpy()
    assert drawn == pytest.approx(mean, abs=1e-6)


def test_attention_of_padding_and_of_heads_that_are_not_stored_is_left_out(tmp_path: Path) -> None:
    batch = TokenRelation("previous-token", "copy", symbols=8, length=13).sample(32, seed=1)
    batch.mask[:16, 6:] = False
    hook = "blocks.0.attn.hook_pattern"
    store = extract(BUILT, batch, [hook], tmp_path / "s", heads=[1])
    found = pl.inspect(store)
    assert set(found.roles["head"]) == {1}
    assert set(found.roles["status"]) == {"candidate"}
    (name, *_) = [name for name in found.measured.tables if name.startswith("attention-")]
    table = found.measured[name]
    pattern = store.activation(hook)[:, 0].astype(float)
    drawn = table.filter(like="key ").to_numpy()
    assert drawn[:6] == pytest.approx(pattern[:, :6].mean(0), abs=1e-6)
    assert drawn[6:] == pytest.approx(pattern[16:, 6:].mean(0), abs=1e-6)


def test_rows_without_targets_have_roles_too(model: Path, told) -> None:
    """A file of tokens names neither targets nor where they are scored."""
    tokens, store = model.parent / "tokens.txt", model.parent / "store"
    rows = TokenRelation("previous-token", "copy", symbols=8, length=13).sample(48, seed=4).inputs
    tokens.write_text("\n".join(" ".join(map(str, row)) for row in rows.tolist()) + "\n")
    hooks = ["--hooks", "blocks.0.attn.hook_pattern"]
    told("extract", model, "--tokens", tokens, *hooks, "--out", store)
    assert "previous-token: confirmed" in told("inspect", store)


def test_another_model_under_the_stores_name_is_not_run(
    inspected: tuple[Path, str], out: Path, run
) -> None:
    save_checkpoint(SequenceTransformer(SPEC, seed=1), inspected[0] / "model", overwrite=True)
    again = ("inspect", out / "store", "--profile", "task", "--out", "again")
    ended = run(*again)
    assert (ended.code, "has other weights now" in ended.err) == (1, True)


def test_latents_are_read_where_each_row_is_scored_elsewhere() -> None:
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(40, seed=0)
    assert not batch.mask.all(0).any()
    table = decodability_table(shipped.model, batch)
    layers = range(shipped.model.cfg.n_layers)
    sites = ["blocks.0.hook_resid_pre", *(f"blocks.{i}.hook_resid_mid" for i in layers)]
    assert table["site"].drop_duplicates().tolist() == sites
    assert set(table["latent"]) == {"previous", "successor"}
    assert table["score"].between(-0.1, 1).all()
    last = table[table["site"] == sites[-1]].set_index("latent")["score"]
    assert last["successor"] == pytest.approx(1)


@pytest.fixture(scope="module")
def next_tokens() -> tuple[Any, torch.Tensor, Any]:
    """A model, rows without labels, and what was found on them."""
    model = pl.load("induction-attention")
    ids = model.card.task.sample(24, seed=3).inputs
    return model, ids, pl.inspect(model, ids)


def test_the_profile_follows_from_the_rows(next_tokens) -> None:
    """Next tokens: nats; labels of one's own: shares of variance; and the page says so."""
    model, ids, found = next_tokens
    assert found.measured.about["profile"] == "language"
    assert "rises of the loss in nats a token (profile language)" in found.html
    told = found.roles.set_index(["role", "layer"])["status"]
    assert told["induction", 1] == "confirmed"
    assert (
        pl.find_roles(model, pl.next_tokens(ids))["role"].tolist()
        == pl.find_roles(model, pl.next_tokens(ids), profile="language")["role"].tolist()
    )


def test_at_chance_is_said(next_tokens) -> None:
    """A model on labels that it never learned: nothing that is lost says anything."""
    model, ids, right = next_tokens
    mask = pl.next_tokens(ids).mask
    wrong = pl.inspect(model, pl.Batch(ids, (ids + 5) % 32, mask))
    assert wrong.measured.about["profile"] == "task"
    assert any("no better than always the same answer" in said for said in wrong.findings)
    assert "the model is at chance there" in wrong.html
    assert not any("always the same answer" in said for said in right.findings)


def test_a_map_of_very_many_heads_shows_the_most_certain() -> None:
    heads = [
        {"component": "head", "layer": n // 50, "head": n % 50, "role": "dense", "strength": 0.1,
         "status": "confirmed" if n == 399 else "rejected"}
        for n in range(400)
    ]  # fmt: skip
    figure = roles_figure(pd.DataFrame(heads))
    words = {text.get_text() for text in figure.findobj(Text)}
    assert {"confirmed", "rejected (40 of 399)"} <= words
    assert "L7H49" in words
    assert len({word for word in words if re.fullmatch(r"L\d+H\d+", word)}) == 41
