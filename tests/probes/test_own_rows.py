"""Rows of token ids that the user gives: read, scored, and random rows drawn from their tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.pretrained import Pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from probes.inspection.inspected_rows import inspected_rows
from probes.measure import measure
from probes.own_rows import OwnRows, read_ids, read_own_rows
from probes.roles.trials import token_trials

SPEC = TransformerSpec(d_in=32, d_out=32, n_ctx=20, d_model=8, n_layers=1, n_heads=1, d_head=8)
IDS = [[3, 4, 5, 6], [4, 5, 6, 7], [5, 6, 7, 8], [6, 7, 8, 9], [9, 9]]


def read(path: Path, **options: Any) -> OwnRows:
    return read_own_rows(path, **{"vocabulary": 32, "rows": 8, "length": 16, **options})


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (IDS[:2], r"too few rows for nulls, which exchange rows: needs 4 .* got 2"),
        ([*IDS, [1, 32]], "row 6 of .* must be token ids from 0 to 31"),
        ([{"input_ids": [1, 2], "mask": [1]}] * 4, "mask of row 1 .* must be as many"),
        ([{"input_ids": [1, 2], "labels": [0, "x"]}] * 4, "labels of row 1 .* must be token ids"),
        ([{"input_ids": [1, 2], "answers": [0, -7]}] * 4, "answers of row 1 .* must be token ids"),
        (
            [{"input_ids": [1, 2], "answers": [0, 1], "labels": [0, 1]}] * 4,
            "answers of row 1 .* must stand without labels",
        ),
        ([{"input_ids": [1, 2], "mask": [1, 0]}] * 4, "must score some token"),
        ([{"tokens": [1, 2]}] * 4, "got the keys tokens and no input_ids"),
        ([{"text": "no ids"}] * 4, "row 1 of .* must be token ids"),
    ],
)
def test_what_is_wrong_with_rows_is_told(rows: list[Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=told):
        read(write_lines(tmp_path / "a.jsonl", rows))


def test_answers_stand_where_the_model_gives_them(tmp_path: Path) -> None:
    """A label at the token after a position, and an answer at the position, are the same; only an
    answer can stand at the last one."""
    ids = [[1, 2, 3, 4]] * 4
    labels = [{"input_ids": row, "labels": [-100, -100, 7, -100]} for row in ids]
    answers = [{"input_ids": row, "answers": [-100, 7, -100, -100]} for row in ids]
    last = [{"input_ids": row, "answers": [-100, -100, -100, 9]} for row in ids]
    one, same, end = (
        read(write_lines(tmp_path / f"{i}.jsonl", rows)).batch
        for i, rows in enumerate((labels, answers, last))
    )
    assert torch.equal(one.mask, same.mask)
    assert torch.equal(one.targets[one.mask], same.targets[same.mask])
    assert end.mask.nonzero()[:, 1].tolist() == [3] * 4
    assert end.targets[:, 3].tolist() == [9] * 4


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(ArgumentError, match=r"must be a \.jsonl, \.npy, \.safetensors or \.json"):
        read(tmp_path / "a.txt")
    np.save(tmp_path / "a.npy", np.zeros(3, dtype=int))
    with pytest.raises(ArgumentError, match=r"must hold input_ids \[row, pos\]"):
        read(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_text("no array")
    with pytest.raises(ArgumentError, match="cannot be read as an array"):
        read(tmp_path / "b.npy")
    with pytest.raises(ArgumentError, match="data"):
        read(tmp_path / "nowhere.jsonl")


def test_a_text_needs_to_know_how_long_rows_may_be(tmp_path: Path) -> None:
    (text := tmp_path / "text.txt").write_text("some words")
    with pytest.raises(ArgumentError, match=r"^length must be at least 1 for a text, got 0"):
        read_ids(text, 9, lambda words, **_: {"input_ids": [1, 2]})


def untrained(bos: int) -> Pretrained:
    model = SequenceTransformer(SPEC)
    return Pretrained("m", "gpt2", model=model, vocabulary=32, n_ctx=20, bos=bos)


@pytest.mark.parametrize("bos", [-1, 0, 11])
def test_random_rows_hold_known_tokens_alone(bos: int) -> None:
    model = untrained(bos)
    known = torch.tensor([2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31])
    counts = torch.zeros(32).index_fill(0, known, 1.0)
    for trial in token_trials(model, rows=8, counts=counts)[0]:
        for batch in (trial.batch, trial.control):
            assert batch is not None
            drawn = set(batch.inputs[:, int(bos >= 0) :].flatten().tolist())
            assert drawn <= set(known.tolist()) - {bos}
            if bos >= 0:
                assert set(batch.inputs[:, 0].tolist()) == {bos}
            before = batch.latents.get("previous")
            if before is not None:
                assert torch.equal(before[:, 1:], batch.inputs[:, :-1])
    whole = token_trials(model, rows=8)[0][0].batch
    same = token_trials(model, rows=8, counts=torch.ones(32))[0][0].batch
    assert torch.equal(whole.inputs, same.inputs)


def test_an_inspection_measures_on_the_rows_given(tmp_path: Path) -> None:
    model = untrained(bos=-1)
    rows = [[(start + step) % 12 for step in range(14)] for start in range(8)]
    file = write_lines(tmp_path / "a.jsonl", rows)
    options = {"data": file, "rows": 8, "length": 20}
    chosen = inspected_rows(model, **options)
    found = measure(model, chosen, chosen.profile)
    assert [trial.name for trial in chosen.trials][-2:] == ["rows", "passages"]
    given = found["trials"].set_index("trial").loc["rows"]
    inputs = torch.tensor(rows)
    with torch.no_grad():
        logits = model.model(inputs)[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, inputs[:, 1:].flatten())
    assert given["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert any("12 of 32 tokens" in note for note in found.about["notes"])
    assert any("random rows have 14 tokens, not 20" in note for note in found.about["notes"])
    assert chosen.trials[0].batch.inputs.shape[1] == 14
    heads = found["heads"]
    assert set(heads["trial"][heads["metric"] == "attention_mass"]) >= {"repeated", "rows"}
    assert "rows" in set(heads["trial"][heads["metric"] == "loss_increase"])
