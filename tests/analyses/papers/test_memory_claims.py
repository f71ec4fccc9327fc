"""Memory claims: rules on made-up numbers, and parts with oracles."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.__main__ import app as laboratory
from analyses.papers.base import Setting
from analyses.papers.experiment import status_of
from analyses.papers.ledger import read_ledger
from analyses.papers.memory.corpus import _WORDS, Corpus
from analyses.papers.memory.lags import bound_shape, heads_needed
from analyses.papers.memory.language import dot_product
from analyses.papers.memory.manifold import ManifoldMemory
from analyses.papers.memory.nested import in_order
from analyses.papers.memory.projection import descend, project, search
from analyses.papers.memory.retrievals import Maxima
from analyses.papers.memory.tails import _beyond, statements
from interp.errors import ArgumentError
from interp.models.kinds import build
from interp.models.spec import TransformerSpec
from interp.proofs.memory import construct_adaptive_memory
from interp.tasks.memory import AdaptiveMemory
from prooflens.commands import run_app


def test_slopes_descend_with_the_linear_part_solved() -> None:
    """Two exponentials hold x[t−1] in the limit of equal slopes; one start is far from there."""
    target = np.eye(8)[1]
    start = np.array([1.0, 0.5])
    found = descend(target, start, "lin", steps=300, learning_rate=0.05)
    assert found.error < 0.01 < project(target, start, "lin").error
    again = project(target, found.slopes, "lin")
    assert again.error == pytest.approx(found.error)
    assert found.error >= search(target, 2, "lin").error - 1e-9


def test_projection_is_exact_where_a_sum_exists_and_least_squares_elsewhere() -> None:
    s = np.arange(20.0)
    slopes = np.array([0.3, 1.1])
    held = project(2 * np.exp(-0.3 * s) - np.exp(-1.1 * s), slopes, "lin")
    assert held.error < 1e-20
    assert np.allclose(held.coefficients, [2, -1])
    lag = np.eye(20)[2]
    left = lag - np.exp(-np.outer(s, slopes)) @ project(lag, slopes, "lin").coefficients
    assert np.allclose(left @ np.exp(-np.outer(s, slopes)), 0, atol=1e-12)  # normal equations
    assert search((1 + s) ** -1.7, 1, "log").error < 1e-12
    errors = [search(lag, heads, "lin").error for heads in (1, 2, 4)]
    assert errors[0] > errors[1] > errors[2]


def test_sums_of_heads_are_valued_at_every_lag() -> None:
    s = np.arange(90.0)
    one = project(np.exp(-0.3 * s) - 0.5 * np.exp(-0.02 * s), np.array([0.3, 0.02]), "lin")
    assert np.allclose(one.values(90, "lin"), np.exp(-0.3 * s) - 0.5 * np.exp(-0.02 * s))
    far = project((1 + s) ** -1.5, np.array([5.0]), "lin")
    assert _beyond((1 + s) ** -1.5, far, "lin") == pytest.approx(1)  # nothing of the tail is held


def test_the_bound_falls_faster_than_powers_and_rises_with_the_lag() -> None:
    heads = np.array([2, 4, 8, 16])
    shape = np.log([bound_shape(h, 1, "log") for h in heads])
    slopes = np.diff(shape) / np.diff(np.log(heads))
    assert (np.diff(slopes) <= 0).all()
    assert slopes[-1] < slopes[0] - 1
    assert bound_shape(8, 4, "lin") > bound_shape(8, 1, "lin")


def test_heads_needed_are_read_from_medians() -> None:
    rows = [(1, h, s, e) for h, es in ((1, (0.5, 0.6, 0.01)), (2, (0.05, 0.04, 0.9)))
            for s, e in enumerate(es)]  # fmt: skip
    rows += [(2, h, 0, 0.5) for h in (1, 2)]
    table = pd.DataFrame(rows, columns=["lag", "heads", "seed", "error"])
    assert heads_needed(table, 0.1) == {1: 2, 2: None}


def test_tail_statements_compare_every_number_of_heads() -> None:
    rows = []
    for error in ("fit, ℓ1 over all lags", "best sum, mean square", "trained, mean square"):
        rows += [("log", 1, error, 0.05), ("log", 2, error, 0.01)]
        rows += [("lin", 1, error, 0.3), ("lin", 2, error, 0.02 if "fit" in error else 0.1)]
    table = pd.DataFrame(rows, columns=["positions", "heads", "error of", "error"])
    found = statements(table, "log")
    assert [name for name, good in found.items() if not good] == [
        "fit, ℓ1 over all lags: one head of log beats lin of any H"
    ]
    assert not any(statements(table, "lin").values())


def test_status_follows_what_is_needed() -> None:
    assert status_of({"a": True, "b": True}) == "reproduced"
    assert status_of({"a": False, "b": True}) == "partly"
    assert status_of({"a": False, "b": True}, needed=["a"]) == "not reproduced"


def test_the_nested_proof_is_in_order_and_an_untrained_model_is_not() -> None:
    task = AdaptiveMemory((1, 2), rounds=2, readout="parity", length=12)
    assert in_order(construct_adaptive_memory(task).model, task)
    spec = TransformerSpec(
        input="real", d_in=3, d_out=1, n_ctx=12, d_model=8, n_layers=2, n_heads=1, d_head=4,
        ffn=(8,), score="none", lag_bias="bump",
    )  # fmt: skip
    assert not in_order(build(spec, seed=0), task)


def test_manifolds_have_their_dimensions() -> None:
    ranks = {}
    for shape, k in (("plane", 2), ("curved", 2), ("full", 6)):
        batch = ManifoldMemory(shape, k, channels=6).sample(50, seed=1)
        x = batch.inputs.reshape(-1, 6)
        ranks[shape] = int(torch.linalg.matrix_rank(x))
        assert float(x.square().mean()) == pytest.approx(1, abs=0.3)
        again = ManifoldMemory(shape, k, channels=6).embed(batch.latents["z"])
        assert torch.equal(again, batch.inputs)
        assert not batch.mask[:, 0].any()
    assert ranks == {"plane": 2, "curved": 6, "full": 6}
    with pytest.raises(ArgumentError, match="dimension"):
        ManifoldMemory("full", 2)


def test_recalled_words_are_those_that_the_story_said() -> None:
    """A slow reader, which keeps who has what and who went where, predicts every scored word."""
    rows = Corpus(40).testing(recalled=True).sample(60, seed=4)
    scored = 0
    for inputs, targets, mask in zip(rows.inputs, rows.targets, rows.mask, strict=True):
        words = [_WORDS[i] for i in inputs]
        owned, places = {}, {}
        for i, word in enumerate(words):
            if word == "has" and i + 2 < len(words):
                owned[words[i - 1]] = words[i + 2]
            if word == "goes" and i + 3 < len(words):
                places[words[i - 1]] = words[i + 3]
            known = owned.get(words[i - 1]) if word == "is" and words[i - 2] == "of" else None
            if words[i - 2 : i + 1] == ["is", "in", "the"]:
                known = places[words[i - 3]]
            assert bool(mask[i]) == (known is not None)
            assert known is None or _WORDS[targets[i]] == known
            scored += known is not None
    assert scored > 30
    with pytest.raises(ArgumentError, match="recalled is not known of a file"):
        Corpus(10, "book.txt", recalled=True)


def test_stories_remember_and_files_are_split(tmp_path: Path) -> None:
    rows = Corpus(40).sample(20, seed=3)
    assert torch.equal(rows.inputs[:, 1:], rows.targets[:, :-1])
    for row in rows.inputs:
        words = [_WORDS[i] for i in row]
        owned: dict[str, str] = {}
        for i in range(len(words) - 5):
            if words[i + 1] == "has":
                owned[words[i]] = words[i + 3]
            if words[i + 1] == "of":  # "key of Ada is red"
                assert owned[words[i + 2]] == words[i + 4]
    file = tmp_path / "text.txt"
    file.write_text("ab" * 1000 + "cd" * 120)
    train, test = Corpus(10, str(file), words=3), Corpus(10, str(file), words=3).testing()
    assert set(train.sample(30, seed=0).inputs.unique().tolist()) <= {1, 2, 0}
    assert test.sample(30, seed=0).inputs.unique().tolist() == [0]


def test_the_language_claims_read_a_file(tmp_path: Path) -> None:
    file, small = tmp_path / "pangram.txt", tmp_path / "small"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    options = {
        **read_ledger()["memory-dot-language"].profiles["quick"],
        "steps": 2, "batch": 4, "d_model": 8, "d_head": 2, "ffn": 4, "length": 10,
        "layers": [2], "all_heads": 2, "all_neurons": 8, "text": str(file),
    }  # fmt: skip
    verdict = dot_product(Setting("quick", (100, 101), options, small))
    assert set(verdict.tables["loss"]["corpus"]) == {"the text pangram"}
    assert "the text pangram" in verdict.words
    losses = sorted(verdict.numbers["loss"]["with dot product"])
    assert f"({losses[0]:.3f} … {losses[-1]:.3f})" in verdict.words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"absent\.txt cannot be read: No such file"),
        (b"", r"must have at least 16000 characters, got 0: take a longer one"),
        (b"short", r"must have at least 16000 characters, got 5"),
        (bytes(range(256)) * 40, "is no text in UTF-8"),
        (bytes(9000), "holds zero bytes"),
    ],
)
def test_files_without_text_are_refused_in_a_line_before_any_work(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file, out = tmp_path / "absent.txt", tmp_path / "out"
    if content is not None:
        file.write_bytes(content)
    order = ["memory-more-heads", "memory-dot-language", "--option", f"text={file}"]
    monkeypatch.setattr(
        "sys.argv", ["python -m analyses", "claims", "run", *order, "--out", str(out)]
    )
    with pytest.raises(SystemExit) as caught:
        run_app(laboratory, "python -m analyses")
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert re.search(words, told)
    assert told.count("\n") == 1
    assert not any(out.glob("memory-*"))


def test_maxima_are_those_of_a_loop() -> None:
    batch = Maxima(3, 5).sample(4, seed=0)
    for row in range(4):
        for coordinate in range(3):
            largest = max(float(batch.inputs[row, t, coordinate]) for t in range(5))
            assert float(batch.targets[row, -1, coordinate]) == largest
    assert batch.mask.sum(1).tolist() == [1] * 4
    with pytest.raises(ArgumentError, match=r"coordinates must be at least 1, got 0.*length"):
        Maxima(0, 0)
