"""Programs found in models: constructions and shipped models give back what they do."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import prooflens as pl
from interp.errors import ArgumentError
from interp.models.transformer import SequenceTransformer
from interp.program.decision_parser import parse
from interp.program.evaluation import NONE, Vocabulary, run
from probes.decompile.decisions import TokenTable, decide, output_decisions, outputs_of
from probes.decompile.features import Question
from probes.decompile.primitives import ideal, lag, primitives
from probes.decompile.rows import TokenRows, off_task, rows_of_task, split
from probes.decompile.search import Questions, grow
from probes.decompile.workflow import decompile
from probes.own_rows import read_rows
from prooflens.cli.main import app

CLI = CliRunner()


@pytest.fixture(scope="module")
def counting():
    model = pl.load("depth-L4-layers2")
    return decompile(model, count=200)


def test_training_found_what_the_proof_decides_also_on_longer_strings(counting) -> None:
    assert counting.far is not None
    assert counting.far.match == 1.0, "on strings of up to four times the length"
    assert counting.proof is not None
    assert set(counting.proof.model.values()) == {1.0}
    wanted = pl.load("depth-L4-layers2").card.task.program.deciding("1", "0")
    assert counting.proof.program == wanted
    program = counting.best.program
    assert program.size <= 3
    assert counting.heads[counting.best.sources[program.lines[0].name]].head.name == "L0H0"
    rows = rows_of_task(pl.load("depth-L4-layers2").card.task, count=60, seed=9)
    found = decide(run(program, rows.tokens, rows.vocabulary), rows)
    assert np.array_equal(found, rows.labels[rows.asked]), "rows of a seed that was not fitted"


def test_scores_ffns_and_norms_are_accounted_for(counting) -> None:
    shown = counting.evidence
    named = {one.head.name for one in shown.scores}
    assert named == {part.name for part in counting.kept.parts if part.kind == "head"}
    for one in shown.scores:
        assert one.explained == pytest.approx(1.0, abs=1e-4), "pairs add up to the score"
        assert 0 <= one.overlap <= 1 + 1e-6
    assert [one.part for one in shown.ffns] == [p for p in counting.kept.parts if p.kind == "ffn"]
    assert all(one.gain > 0.9 for one in shown.ffns), "tables do what the FFNs do"
    assert shown.norms.per_token <= 1.0
    record = counting.record()
    assert {"scores", "ffns", "norms", "heads"} <= set(record)
    json.dumps(record)


def test_a_fixed_memory_gives_back_its_two_lags() -> None:
    model = pl.load("fixed-memory-multiplexer")
    found = decompile(model, rows_of_task(model.card.task, count=60))
    assert found.answer == "found"
    assert {one.primitive.words for one in found.heads} >= {
        "the token before",
        "the token 3 before",
    }
    wanted = parse(
        "one = last(key.token where key.position == position - 1)\n"
        "three = last(key.token where key.position == position - 3)\n"
        'next = one if token == "+1" else three'
    )
    rows = found.data.held
    both = [
        decide(run(p, rows.tokens, rows.vocabulary), rows) for p in (found.best.program, wanted)
    ]
    assert np.array_equal(*both)


def test_induction_is_found_as_two_heads_that_compose() -> None:
    model = pl.load("induction-attention")
    found = decompile(model, rows_of_task(model.card.task, count=60))
    assert found.answer == "found"
    assert [part.name for part in found.kept.parts] == ["L0H0", "L1H0"]
    assert found.heads[0].primitive.words == "the token before"
    second = next(one for one in found.heads if one.head.name == "L1H0")
    assert "follow one like this" in second.primitive.words


@pytest.mark.parametrize("seed", range(2))
def test_random_weights_give_no_program(seed: int) -> None:
    shipped = pl.load("depth-L4-layers2")
    model = SequenceTransformer(shipped.spec, seed=100 + seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    found = decompile(model, rows_of_task(shipped.card.task, count=120))
    assert found.answer != "found"


def test_ideal_patterns_are_rows_of_shares() -> None:
    tokens = np.array([[0, 1, 2, 1, NONE], [0, 2, 2, 1, 1]])
    rows = TokenRows(tokens, tokens >= 0, None, Vocabulary(("<bos>", "a", "b")), "sets")
    for one in primitives(rows, deep=True):
        pattern = ideal(one, rows)
        assert np.allclose(pattern.sum(-1), 1.0), one.words
        assert not np.triu(pattern[1], 1).any(), one.words
    before = ideal(lag(1), rows)[1]
    assert np.array_equal(before.argmax(-1), [0, 0, 1, 2, 3])


def test_gain_is_nothing_for_the_table_and_one_for_the_model() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 3, (20, 8))
    rows = TokenRows(
        tokens, np.ones_like(tokens, dtype=bool), None, Vocabulary(("a", "b", "c")), "next token"
    )
    decisions = ((tokens + np.arange(8)) % 3)[rows.asked]
    table = TokenTable(rows, decisions)
    assert table.fidelity(rows, decisions, table(rows)).gain == 0
    assert table.fidelity(rows, decisions, decisions).gain == 1
    for token in range(3):
        assert table.fidelity(rows, decisions, table(rows)).match >= np.mean(decisions == token)


def test_splits_hold_out_rows_and_the_longest_third() -> None:
    rng = np.random.default_rng(0)
    tokens = np.full((30, 12), NONE)
    for i in range(30):
        tokens[i, : 3 + i % 10] = rng.integers(0, 4, 3 + i % 10)
    tokens = np.concatenate([tokens, tokens[:7]])
    rows = TokenRows(tokens, tokens >= 0, None, Vocabulary(tuple("abcd")), "sets")
    found = split(rows)
    parts = [
        set(map(tuple, part.tokens.tolist())) for part in (found.fit, found.held, found.longer)
    ]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 30, "equal rows count once"
    assert found.longer.lengths.min() >= max(found.fit.lengths.max(), found.held.lengths.max())
    assert len(found.off_task) == len(found.queries) == 200
    with pytest.raises(ArgumentError, match="at least 8 different ones that ask something, got 3"):
        split(rows[:3])


def test_off_task_rows_keep_what_does_not_vary() -> None:
    tokens = np.array([[0, 1, 2, 1, 3], [0, 2, 1, 2, 3], [0, 1, 1, 2, 3]])
    rows = TokenRows(tokens, tokens > 0, None, Vocabulary(("<bos>", "a", "b", "<sep>")), "sets")
    assert rows.content().tolist() == [1, 2]
    made = off_task(rows, rows.content(), 50, seed=0)
    assert (made.tokens[:, 0] == 0).all()
    assert (made.tokens[:, -1] == 3).all()
    assert set(np.unique(made.tokens[:, 1:-1])) == {1, 2}


def test_trees_find_a_threshold_and_prefer_the_simpler_question() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, 300)
    wanted = counts >= 4
    columns = [
        Question(
            counts, parse("n = 1\nnext = token").lines[0].expression, (), cost=1.0, number=True
        ),
        Question(
            wanted.astype(np.int64), parse('allow "a" if true').outputs[0].condition, (), cost=9.0
        ),
    ]
    trees = grow(Questions(columns), wanted, 4)
    assert [tree.wrong for tree in trees] == [min(wanted.sum(), (~wanted).sum()), 0]
    assert trees[1].columns[0].cost == 1.0


def rows_file(tmp_path, rows: TokenRows):
    words = {text: code for code, text in enumerate(rows.vocabulary.texts)}
    words["<pad>"] = len(words)
    told = []
    for tokens, asked, labels in zip(rows.tokens, rows.asked, rows.labels, strict=True):
        kept = tokens[tokens >= 0].tolist()
        label = [words["<pad>"]] * len(kept)
        for t in range(len(kept) - 1):
            if asked[t]:
                label[t + 1] = int(labels[t])
        told.append({"tokens": kept, "label": label})
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"vocabulary": words, "objective": "next token", "rows": told}))
    return path


def asked_mask(rows: TokenRows) -> np.ndarray:
    """What is asked at a row's last position has no token after it to carry the label."""
    asked = rows.asked.copy()
    asked[np.arange(len(rows)), rows.lengths - 1] = False
    return asked


def test_rows_are_read_as_they_are_written(tmp_path) -> None:
    model = pl.load("induction-attention")
    rows = rows_of_task(model.card.task, count=12)
    read = read_rows(rows_file(tmp_path, rows))
    assert np.array_equal(read.tokens, rows.tokens)
    assert np.array_equal(read.asked, asked_mask(rows))
    outputs = outputs_of(model, rows)
    assert np.array_equal(output_decisions(outputs, rows), outputs.argmax(-1))
    codes = torch.from_numpy(rows.tokens.clip(0))
    expected = model(codes).detach().numpy()[rows.asked]
    assert outputs == pytest.approx(expected, abs=1e-4)


def test_the_command_writes_program_result_and_page(tmp_path) -> None:
    out = tmp_path / "found"
    told = CLI.invoke(app, ["decompile", "depth-L3-layers1", "--out", str(out), "--rows", "150"])
    assert told.exit_code == 0, told.output
    assert "decides as the model does" in told.output
    result = json.loads((out / "result.json").read_text())
    assert result["gain"] == result["gain_longer"] == 1.0
    assert result["lines"] <= 2
    page = (out / "report.html").read_text()
    assert "data:image/png" in page
    led = set(re.findall(r'<td[^>]*><a href="#([^"]*)"', page))
    assert led >= {"part-L0H0", "map-of-the-rest"}
    assert led <= set(re.findall(r'id="([^"]*)"', page))
    assert "count(key.token" in (out / "program.txt").read_text()


def test_a_program_is_found_of_a_model_that_runs_in_half_precision(tmp_path) -> None:
    words = ["decompile", "depth-L3-layers1", "--out", str(tmp_path / "half"), "--rows", "60"]
    told = CLI.invoke(app, [*words, "--dtype", "bfloat16"])
    assert told.exit_code == 0, told.output
    assert "count(key.token" in (tmp_path / "half" / "program.txt").read_text()
    refused = CLI.invoke(app, [*words, "--device", "cuda:77", "--overwrite"])
    assert refused.exit_code != 0


def test_a_program_runs_without_its_model(tmp_path) -> None:
    rows = rows_of_task(pl.load("induction-attention").card.task, count=20)
    program = tmp_path / "program.txt"
    program.write_text(
        "before = last(key.token where key.position == position - 1)\n"
        "next = last(key.token where key.before == token)\n"
    )
    told = CLI.invoke(
        app, ["decompile", "apply", str(program), "--data", str(rows_file(tmp_path, rows))]
    )
    record = json.loads(told.output)
    assert record["right"] == 1.0
    assert record["decisions"] == int(asked_mask(rows).sum())


def test_a_program_for_other_questions_is_refused(tmp_path) -> None:
    rows = rows_of_task(pl.load("induction-attention").card.task, count=8)
    program = tmp_path / "program.txt"
    program.write_text('allow "t1" if true\n')
    told = CLI.invoke(
        app, ["decompile", "apply", str(program), "--data", str(rows_file(tmp_path, rows))]
    )
    assert told.exit_code != 0
    assert "objective must be sets" in str(told.exception)


def test_models_that_cannot_be_asked_are_refused() -> None:
    model = pl.load("sparse-memory-light")
    with pytest.raises(ArgumentError, match="tokens or ±1 as inputs"):
        decompile(model)
    bare = SequenceTransformer(replace(model.spec), seed=0)
    with pytest.raises(ArgumentError, match="knows no task of its own"):
        decompile(bare)
