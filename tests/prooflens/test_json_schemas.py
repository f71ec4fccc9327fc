"""docs/schemas: written from the typed outputs, and what real runs print is what they say."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from forked_calls import RECIPE
from typer.testing import CliRunner

from interp.stats.head_table import COLUMNS
from interp.store import ActivationStore, extract
from probes.columns import TABLES, HeadRow, columns
from prooflens.cli.main import app, command_names
from prooflens.inspection import Inspected, Measurements, inspect
from trained.loading import load

ABOUTS = [table.about for table in TABLES.values()]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/schemas"


def checker(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / name).read_text()))


def test_the_files_are_what_the_script_writes() -> None:
    made = runpy.run_path(str(ROOT / "docs/json_schemas.py"))["schemas"]()
    there = {str(p.relative_to(FOLDER)): p.read_text() for p in FOLDER.rglob("*.json")}
    assert there == made, "python docs/json_schemas.py"
    assert sorted(command_names()) == sorted(n[:-5] for n in made if "/" not in n)
    for name in made:
        jsonschema.Draft202012Validator.check_schema(json.loads(made[name]))


def test_descriptions_have_no_indentation() -> None:
    written = [path.read_text() for path in FOLDER.rglob("*.json")]
    assert not any("\\n " in text for text in (*written, *map(json.dumps, ABOUTS)))


def test_head_tables_have_one_list_of_columns() -> None:
    assert sorted(columns(HeadRow)) == sorted(COLUMNS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "p.cr").write_text('many = # "a" >= 2\n')
    (folder / "p.txt").write_text("next = token\n")
    (folder / "r.toml").write_text(RECIPE)
    rows = [{"tokens": [0, 1, 2], "label": [1, 2, 0]}] * 4
    told = {"vocabulary": {"a": 0, "b": 1, "c": 2}, "objective": "next token", "rows": rows}
    (folder / "rows.json").write_text(json.dumps(told))
    return folder


STORE = "extract induction-mlp --hooks *hook_pattern --hooks *resid_post --rows 16 --out st"
RUNS = [
    "certify max-of-4 --strategy black-box",
    "crasp p.cr",
    "crasp p.cr a b a",
    "crasp p.cr --compile --longest 20 --out compiled",
    "decompile depth-L3-layers1 --rows 64 --lines 2 --out program",
    "decompile apply p.txt --data rows.json",
    STORE,
    f"{STORE} --dry-run",
    "store st",
    "store st --verify",
    "store st --repair",
    "inspect induction-mlp --quick --out inspected",
    "inspect st --out stored",
    "store inspected --figures --out figures",
    "models",
    "probe fixed-memory-multiplexer --rows 32 --hooks *resid_mid",
    "probe fixed-memory-multiplexer --rows 32 --hooks *",
    "tasks",
    "tasks fixed_memory",
    "train r.toml --out trained",
    "train r.toml --out trained --resume",
    "weights induction-mlp",
    "weights induction-mlp --metrics trace_share --out weights",
    "weights code-lm --revisions step-500,main --metrics trace_share",
]


@pytest.mark.parametrize("words", RUNS)
def test_what_is_printed_is_what_the_schema_says(
    words: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("probes.fresh_models._DRAWS", 20)
    done = CliRunner().invoke(app, [*words.split(), "--json"])
    assert done.exit_code in (0, 1), f"{done.output} {done.exception!r}"
    found = json.loads(done.stdout)
    schema = checker(f"{words.split()[0]}.json")
    assert [error.message for error in schema.iter_errors(found)] == []
    assert not schema.is_valid({**found, "undeclared": 1})
    assert not schema.is_valid({key: value for key, value in found.items() if key != "lines"})


@pytest.mark.parametrize("word", ["--verify", "--repair"])
def test_what_is_wrong_with_a_store_is_told_as_the_schema_says(word: str, tmp_path: Path) -> None:
    store = extract(load("induction-mlp"), torch.ones(4, 5, dtype=torch.long), ["hook_embed"],
                    tmp_path / "st")  # fmt: skip
    part = store.path / store.parts[0].file
    part.write_bytes(part.read_bytes()[:-100])
    found = json.loads(CliRunner().invoke(app, ["store", str(store.path), word, "--json"]).stdout)
    assert [error.message for error in checker("store.json").iter_errors(found)] == []
    assert found["faults" if word == "--verify" else "moved"]


_OF_SOME = {"by_position", "text_attention", "text_loss", "text_first", "revision"}
"""Columns that the tables of language models, or of several checkpoints, have alone."""


def sealed_tables(model: str, out: Path) -> Inspected:
    """The tables that an inspection sealed."""
    inspect(model, out=out, count=8)
    store = ActivationStore(out / "store")
    tables = {name: store.measurement(name) for name in store.measurements}
    return Inspected(Measurements(tables, {}))


def check_tables(found: Inspected) -> set[str]:
    """The names of an inspection's tables, each held against its schema."""
    seen = set()
    for name in found.measured.tables:
        kind = re.sub("^loss-.*", "loss-TRIAL", re.sub("^attention-.*", "attention-ROLE", name))
        rows = found.records(name)
        schema = checker(f"tables/{kind}.json")
        assert [error.message for error in schema.iter_errors(rows)][:3] == [], name
        if rows:
            told = set(columns(TABLES[kind].row)) - _OF_SOME
            assert set().union(*rows) >= told, name
            if kind != "rounds-readable":  # whose columns are named after latents
                assert not schema.is_valid([{**rows[0], "undeclared": 1}])
            seen.add(kind)
    return seen


def test_every_sealed_table_is_as_its_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.fresh_models._DRAWS", 20)
    monkeypatch.setattr("prooflens.inspection.inspection_page", lambda *_: "")
    seen = check_tables(sealed_tables("nested-memory-2", tmp_path / "a"))
    seen |= check_tables(sealed_tables("induction-mlp-table", tmp_path / "b"))
    assert seen == set(TABLES) - {"explained"}, "that one is of language models"


def test_every_table_of_a_language_model_is_as_its_schema_says(language: Inspected) -> None:
    assert check_tables(language) >= {"explained", "raised", "shown-heads"}


def names_of(schema: Any) -> set[str]:
    """All keys that a schema's objects have."""
    return {key for one in schema.get("anyOf", [schema]) for key in one["properties"]}


def test_the_page_of_commands_names_the_same_keys() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text()
    for name in command_names():
        lines = [line for line in text.splitlines() if line.startswith(f"| `{name}")]
        for key in names_of(json.loads((FOLDER / f"{name}.json").read_text())) - {"lines"}:
            assert f"`{key}`" in "".join(lines), (name, key)
