"""Rows of one's own: every form of a file gives the same rows, to every command that takes some."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import prooflens as pl
from interp.errors import ArgumentError
from probes.decompile.rows import resolve_rows
from probes.inspection.texts import token_texts
from probes.own_rows import read_own_rows as own_rows
from probes.own_rows import rows_given
from prooflens.cli.main import app

IDS = [[3, 4, 5, 6], [4, 5, 6, 7], [5, 6, 7, 8], [6, 7, 8, 9], [9, 9]]
MODEL = "induction-attention"


def lines(folder: Path, rows: list) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def write_worded_rows(folder: Path, rows: list[list[int]], objective: str = "next token") -> Path:
    """The same rows with words; everything after the first token is asked."""
    words = {f"w{i}": i for i in range(10)} | {"<pad>": 10}
    told = [{"tokens": row, "label": [10, *row[1:]]} for row in rows]
    if objective == "sets":
        told = [{"tokens": row, "label": [[0] * 11] * len(row)} for row in rows]
    file = folder / "rows.json"
    file.write_text(json.dumps({"vocabulary": words, "objective": objective, "rows": told}))
    return file


def test_ids_and_words_are_the_same_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array(IDS[:4]))
    known = pl.read_rows(write_worded_rows(tmp_path, IDS))
    found = pl.read_rows(lines(tmp_path, IDS))
    for name in ("tokens", "asked", "labels"):
        assert np.array_equal(getattr(found, name), getattr(known, name)), name
    assert found.vocabulary.texts == tuple(str(i) for i in range(10))
    whole = pl.read_rows(tmp_path / "rows.npy", pl.load(MODEL).card)
    assert np.array_equal(whole.tokens, known.tokens[:4])
    assert len(whole.vocabulary.texts) == 32  # as many as the model knows
    save_file({"input_ids": torch.tensor(IDS[:4])}, tmp_path / "rows.safetensors")
    for kind in ("jsonl", "json", "npy", "safetensors"):
        given = own_rows(tmp_path / f"rows.{kind}", vocabulary=32, rows=9, length=9)
        assert given.batch.inputs.tolist() == IDS[:4]
        assert given.batch.targets[:, :-1].tolist() == [row[1:] for row in IDS[:4]]
        assert given.batch.mask.tolist() == [[True, True, True, False]] * 4
        assert given.counts.nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]
    few = own_rows(tmp_path / "rows.jsonl", vocabulary=32, rows=4, length=3)
    assert few.batch.inputs.shape == (4, 3)
    assert own_rows(tmp_path / "rows.jsonl", vocabulary=32, rows=9, length=9).about == (
        "4 rows of 4 tokens of rows.jsonl (1 shorter ones left out)"
    )


def test_labels_and_masks_say_what_is_asked(tmp_path: Path) -> None:
    rows = [{"input_ids": ids, "labels": [7, -100, 8, 9], "mask": [1, 1, 1, 0]} for ids in IDS[:4]]
    found = pl.read_rows(lines(tmp_path, rows))
    assert found.asked.tolist() == [[False, True, False, False]] * 4
    assert found.labels[:, 1].tolist() == [8] * 4
    same = own_rows(tmp_path / "rows.jsonl", vocabulary=32, rows=9, length=9).batch
    assert same.mask.tolist() == found.asked.tolist()
    assert same.targets[:, 1].tolist() == [8] * 4


def test_what_may_follow_is_for_decompile_alone(tmp_path: Path) -> None:
    file = write_worded_rows(tmp_path, IDS, "sets")
    assert pl.read_rows(file).objective == "sets"
    with pytest.raises(ArgumentError, match="must be 'next token' here, got 'sets'"):
        own_rows(file, vocabulary=32, rows=9, length=9)
    empty = tmp_path / "none.jsonl"
    empty.write_text("\n")
    with pytest.raises(ArgumentError, match="must hold a row, got none"):
        pl.read_rows(empty)


def test_ids_are_asked_and_decided_on(tmp_path: Path) -> None:
    file, model = lines(tmp_path, IDS), pl.load(MODEL)
    _, rows, task = resolve_rows(model, pl.read_rows(file, model.card), count=9, seed=0)
    assert len(rows) == 5
    assert task is None
    program = tmp_path / "program.txt"
    program.write_text("next = token + 1\n")
    words = ("decompile", "apply", str(program), "--data", str(file), "--json")
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["decisions"] == 13
    assert found["right"] == pytest.approx(12 / 13)  # 9 follows 9


@pytest.mark.parametrize("name", ["rows", "$x^2$ {{ 7*7 }}", "rows.v2"])
def test_a_file_under_another_name_is_told_by_how_it_begins(name: str, tmp_path: Path) -> None:
    expected = pl.read_rows(write_worded_rows(tmp_path, IDS[:4])).tokens
    (tmp_path / "words").mkdir()
    write_worded_rows(tmp_path, IDS[:4]).rename(tmp_path / "words" / name)
    assert np.array_equal(pl.read_rows(tmp_path / "words" / name).tokens, expected)
    np.save(tmp_path / "rows.npy", np.array(IDS[:4]))
    (tmp_path / "rows.npy").rename(tmp_path / name)
    assert np.array_equal(pl.read_rows(tmp_path / name).tokens, expected)
    save_file({"input_ids": torch.tensor(IDS[:4])}, tmp_path / name)
    assert np.array_equal(pl.read_rows(tmp_path / name).tokens, expected)
    lines(tmp_path, [{"input_ids": IDS[0]}, *IDS[1:4]]).rename(tmp_path / name)
    assert np.array_equal(pl.read_rows(tmp_path / name).tokens, expected)
    (tmp_path / name).write_text("def f(x): return x")
    with pytest.raises(ArgumentError, match="a text needs a model with a tokenizer"):
        pl.read_rows(tmp_path / name)


def test_words_under_another_name_are_shown_as_words(tmp_path: Path) -> None:
    write_worded_rows(tmp_path, IDS[:4]).rename(tmp_path / "mine")
    found = own_rows(tmp_path / "mine", vocabulary=32, rows=9, length=9)
    assert token_texts(found.batch.inputs, None, found.words)[0] == ("w3", "w4", "w5", "w6")


def test_tokens_and_batches_are_rows_too() -> None:
    size = {"vocabulary": 32, "rows": 3, "length": 3}
    ids = rows_given(IDS[:4], **size)
    assert ids.batch.inputs.tolist() == [row[:3] for row in IDS[:3]]
    assert ids.batch.targets[:, :2].tolist() == [row[1:3] for row in IDS[:3]]
    assert ids.counts[5] == 3
    batch = pl.next_tokens(torch.tensor(IDS[:4]))
    assert rows_given(batch, **size).batch.inputs.tolist() == ids.batch.inputs.tolist()
    with pytest.raises(ArgumentError, match="rows must be a Batch, or token ids"):
        rows_given(IDS, **size)
    with pytest.raises(ArgumentError, match=r"or token ids \[row, pos\] of one length"):
        rows_given(torch.zeros(2, 3), **size)
