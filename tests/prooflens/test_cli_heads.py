"""``prooflens heads`` and ``prooflens plot`` from the outside."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.text import Text

from interp.models.checkpoint import save_checkpoint
from interp.models.transformer import SequenceTransformer
from interp.proofs.induction import construct_relation
from interp.store import ActivationStore, extract
from interp.tasks.relation import TokenRelation
from probes.roles import ROLE_COLUMNS, candidates
from prooflens.cli.main import main
from prooflens.pages.head_figures import attention_tables, roles_figure
from prooflens.pages.roles import _layers, measure_model
from trained import zoo

TASK = "token_relation:relation=previous-token,value=copy,symbols=8,length=13"


BUILT = construct_relation(
    TokenRelation("previous-token", "copy", symbols=8, length=13), heads=2
).model
SPEC = BUILT.spec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_checkpoint(BUILT, tmp_path / "model")


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["prooflens", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_table_figures_and_store(model: Path, monkeypatch, capsys) -> None:
    out = model.parent / "out"
    assert run(monkeypatch, "heads", model, "--task", TASK, "--rows", 48, "--out", out) == 0
    said = capsys.readouterr().out
    assert "previous-token" in said
    assert "confirmed" in said
    assert "q 2.0e-10  share of attention to the previous token" in said
    assert not re.search(r"q \S+e-(1[1-9]|[2-9]\d)", said)
    table = pd.read_csv(out / "roles.csv")
    assert tuple(table.columns) == ROLE_COLUMNS
    assert set(table[table["status"] == "confirmed"]["role"]) == {"previous-token", "copying"}
    rows = json.loads((out / "roles.json").read_text())
    assert [row["evidence"] for row in rows] == table["evidence"].tolist()
    assert {"name", "kind", "score", "floor", "p", "q", "low", "high"} == set(rows[0]["tests"][0])
    page = (out / "report.html").read_text()
    effect = table[table["status"] == "confirmed"]["effect"].max()
    assert f"without it the output changes by {effect:.2f} of its variance." in page
    assert page.index("plays") < page.index("What would have to be doubted") < page.index("<table")
    sealed = ActivationStore(out / "store").measurement("roles")
    assert sealed["evidence"].tolist() == table["evidence"].tolist()
    first = {p.name: p.read_bytes() for p in (out / "figures").iterdir()}
    assert {"attention-previous-token.png", "attention-copying.png"} <= set(first)
    assert "roles.png" in first
    assert run(monkeypatch, "plot", out / "store", "--out", model.parent / "again") == 0
    again = {p.name: p.read_bytes() for p in (model.parent / "again").iterdir()}
    assert {name: again[name] for name in first} == first
    capsys.readouterr()
    assert run(monkeypatch, "heads", out / "store") == 0
    assert "2 confirmed" in capsys.readouterr().out, "the store's own model was run"
    shutil.rmtree(model)
    assert run(monkeypatch, "heads", out / "store") == 1
    told = capsys.readouterr()
    assert "0 confirmed" in told.out
    assert "no more than candidates" in told.err
    assert run(monkeypatch, "plot", out / "store", "--out", model.parent / "later") == 0
    later = {p.name for p in (model.parent / "later").iterdir()}
    assert "attention-previous-token.png" in later
    assert "attention-copying.png" not in later, "it was taken for roles that are no more"


def test_every_head_of_a_role_has_its_attention(tmp_path: Path) -> None:
    shipped = zoo.load("fixed-memory-multiplexer")
    known = {"model": "fixed-memory-multiplexer"}
    found = measure_model(shipped.model, shipped.task, tmp_path / "s", rows=48, seed=0, about=known)
    table = found.store.measurement("attention-memory-location")
    assert set(table["head"]) == {"L0H0 x[t-3]", "L0H1 x[t-1]"}
    pattern = found.store.activation("blocks.0.attn.hook_pattern")[:, 1].astype(float)
    mean = (pattern / pattern.sum(-1, keepdims=True)).mean(0)
    drawn = table[table["head"] == "L0H1 x[t-1]"].filter(like="key ").to_numpy()
    assert drawn == pytest.approx(mean, abs=1e-6)


def test_attention_of_padding_and_of_heads_that_are_not_stored_is_left_out(tmp_path: Path) -> None:
    task = TokenRelation("previous-token", "copy", symbols=8, length=13)
    batch = task.sample(32, seed=1)
    batch.mask[:16, 6:] = False
    hook = "blocks.0.attn.hook_pattern"
    store = extract(BUILT, batch, [hook], tmp_path / "s", heads=[1])
    roles = candidates(store)
    assert set(roles["head"]) == {1}
    ((name, table),) = attention_tables(store, roles.iloc[:1].assign(role="sink"))
    assert name == "attention-sink"
    assert not list(attention_tables(store, roles.assign(head=0, role="sink")))
    pattern = store.activation(hook)[:, 0].astype(float)
    drawn = table.filter(like="key ").to_numpy()
    assert drawn[:6] == pytest.approx(pattern[:, :6].mean(0), abs=1e-6)
    assert drawn[6:] == pytest.approx(pattern[16:, 6:].mean(0), abs=1e-6)


def test_rows_without_targets_have_roles_too(model: Path, monkeypatch, capsys) -> None:
    """A file of tokens names neither targets nor where they are scored."""
    tokens, store = model.parent / "tokens.txt", model.parent / "store"
    rows = TokenRelation("previous-token", "copy", symbols=8, length=13).sample(48, seed=4).inputs
    tokens.write_text("\n".join(" ".join(map(str, row)) for row in rows.tolist()) + "\n")
    hooks = ["--hooks", "blocks.0.attn.hook_pattern"]
    assert run(monkeypatch, "extract", model, "--tokens", tokens, *hooks, "--out", store) == 0
    assert run(monkeypatch, "heads", store) == 0
    assert "previous-token                   confirmed" in capsys.readouterr().out


def test_another_model_under_the_stores_name_is_not_run(model: Path, monkeypatch, capsys) -> None:
    out = model.parent / "out"
    assert run(monkeypatch, "heads", model, "--task", TASK, "--rows", 32, "--out", out) == 0
    shutil.rmtree(model)
    save_checkpoint(SequenceTransformer(SPEC, seed=1), model)
    capsys.readouterr()
    assert run(monkeypatch, "heads", out / "store") == 1
    assert "has other weights now" in capsys.readouterr().err


def test_refusals_are_one_line(model: Path, monkeypatch, capsys) -> None:
    for words, told in (
        (["heads", model], "task must be named"),
        (["heads", "none", "--task", "no_such"], "kind must be one of"),
        (["plot", model, "--out", model.parent / "figures"], "manifest.json"),
        (["heads", model, "--out", model], "exists: choose another name"),
    ):
        assert run(monkeypatch, *words) == 2
        told_now = capsys.readouterr().err.strip().splitlines()
        assert len(told_now) == 1
        assert told in told_now[0]


def test_latents_are_read_where_each_row_is_scored_elsewhere() -> None:
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(40, seed=0)
    assert not batch.mask.all(0).any()
    table = _layers(shipped.model, batch)
    layers = range(shipped.model.cfg.n_layers)
    sites = ["blocks.0.hook_resid_pre", *(f"blocks.{i}.hook_resid_mid" for i in layers)]
    assert table["site"].drop_duplicates().tolist() == sites
    assert set(table["latent"]) == {"previous", "successor"}
    assert table["score"].between(-0.1, 1).all()
    last = table[table["site"] == sites[-1]].set_index("latent")["score"]
    assert last["successor"] == pytest.approx(1)


def test_a_language_profile_asks_for_repeated_tokens(monkeypatch, capsys) -> None:
    task = "repeated_tokens:vocabulary=32,length=40,periods=[6,14]"
    asked = ("heads", "induction-attention", "--profile", "language", "--task", task)
    assert run(monkeypatch, *asked, "--rows", 32) == 0
    told = capsys.readouterr().out
    lines = [line for line in told.splitlines() if " induction " in line]
    assert any("L1H0" in line and "confirmed" in line for line in lines), told
    assert run(monkeypatch, *asked[:2], "--profile", "speech") == 2
    assert "'speech' is not one of 'task', 'language'" in capsys.readouterr().err


def test_a_map_of_very_many_heads_shows_the_most_certain() -> None:
    heads = [
        {"component": "head", "layer": n // 50, "head": n % 50, "role": "dense", "strength": 0.1,
         "status": "confirmed" if n == 399 else "rejected"}
        for n in range(400)
    ]  # fmt: skip
    figure = roles_figure(pd.DataFrame(heads))
    words = {text.get_text() for text in figure.findobj(Text)}
    assert "confirmed (240 components left out)" in words
    assert "L7H49" in words
    assert len({word for word in words if re.fullmatch(r"L\d+H\d+", word)}) == 160
