"""Rows that a model can handle: steps by a direct loop, tokens that never moved, passages."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from interp.models.export import export_gpt2
from interp.models.pretrained import Pretrained, load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from probes.inspection.inspected_rows import inspected_rows
from probes.inspection.usable import (
    largest_step,
    learned_tokens,
    positions_learned,
    tokens_repeated,
)
from probes.roles.trials import passage_trial, token_trials
from prooflens.inspection import inspect
from trained import zoo

SPEC = TransformerSpec(d_in=32, d_out=32, n_ctx=40, d_model=32, n_layers=1, n_heads=1, d_head=8)


def noise(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_where_a_loop_over_all_places_finds_it(seed: int) -> None:
    values = noise(6, 20, seed)
    counted = torch.rand(6, 20, generator=torch.Generator().manual_seed(seed)) < 0.7
    values[:, 13:] += 2
    errors = {}
    for place in range(2, 19):
        late = torch.arange(20) >= place
        sides = [values[counted & side] for side in (late, ~late)]
        errors[place] = sum(float((side - side.mean()).square().sum()) for side in sides)
    found = largest_step(values, counted)
    assert found is not None
    assert found.position == min(errors, key=errors.__getitem__)
    late = torch.arange(20) >= found.position
    assert found.after == pytest.approx(float(values[counted & late].mean()))
    assert found.p < 0.01


def test_only_a_loss_that_rises_in_a_step_ends_what_is_usable() -> None:
    scored = torch.ones(16, 64, dtype=torch.bool)
    flat, falling = noise(16, 64), noise(16, 64) - torch.arange(64) / 8
    assert positions_learned(flat, scored) == 64
    assert positions_learned(falling, scored) == 64
    risen = falling + 6.0 * (torch.arange(64) >= 40)
    assert positions_learned(risen, scored) == 40
    twice = risen + 6.0 * (torch.arange(64) >= 56)
    assert positions_learned(twice, scored) == 40
    assert largest_step(flat[:, :3], scored[:, :3]) is None


def embedding(weights: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Module()
    model.embed = torch.nn.Module()
    model.embed.W_E = torch.nn.Parameter(weights)
    return model


def test_tokens_are_left_out_only_if_their_embeddings_never_moved() -> None:
    drawn = 0.02 * noise(32, 64).float()
    moved = drawn.clone()
    moved[:24] *= 3
    found = learned_tokens(embedding(moved))
    assert found is not None
    assert found.tolist() == list(range(24))
    assert learned_tokens(embedding(drawn)) is None  # all alike: nothing says which
    alike = moved.clone()
    alike[24:] = drawn[24] + drawn[24:] / 4  # small, and not as drawn: they share a direction
    alike[24:28] *= -1
    assert learned_tokens(embedding(alike)) is None
    assert learned_tokens(embedding(drawn[:6])) is None
    assert learned_tokens(embedding(moved[:, :1])) is None  # sizes of one number tell nothing
    assert learned_tokens(SequenceTransformer(SPEC)) is None


def test_tokens_that_are_never_repeated_are_told_by_their_loss() -> None:
    targets = torch.arange(20).repeat(8, 2)
    scored = torch.ones_like(targets, dtype=torch.bool)
    losses = noise(8, 40).abs() + 9.0 * (targets >= 15)
    losses[:, 35:] = 9.0  # as at positions that were never trained
    found = tokens_repeated(losses, targets, scored)
    assert found is not None
    assert found.tolist() == list(range(15))
    assert tokens_repeated(noise(8, 40).abs(), targets, scored) is None
    assert tokens_repeated(losses, targets, scored & (torch.arange(8)[:, None] == 0)) is None


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pretrained, Path]:
    """A trained induction model with 16 more positions than it was trained on."""
    place = tmp_path_factory.mktemp("longer") / "model"
    export_gpt2(zoo.load("induction-attention").model, place, bos=0)
    tensors = load_file(place / "model.safetensors")
    name = next(name for name in tensors if name.endswith("wpe.weight"))
    known = tensors[name]
    tensors[name] = torch.cat([known, float(known.std()) * noise(16, known.shape[1]).float()])
    save_file(tensors, place / "model.safetensors")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"n_positions": len(known) + 16}))
    return load_pretrained(place), place


def test_roles_are_confirmed_though_positions_were_never_trained(
    longer: tuple[Pretrained, Path],
) -> None:
    _, place = longer
    found = inspect(place, count=16)
    settings = found.measured.about["settings"]
    assert (settings["length"], settings["asked"]) == (48, 64)
    assert any(note.startswith("rows have 48 tokens, not 64: from position 48") for note in
               found.notes)  # fmt: skip
    roles = found.roles.set_index(["role", "layer"])
    assert roles.loc[("induction", 1), "status"] == "confirmed"
    assert roles.loc[("previous-token", 0), "status"] == "confirmed"
    assert roles.loc[("induction", 1), "strength"] > 0.95
    assert "before position 48, 0." in roles.loc[("induction", 1), "by_position"]


def test_with_rows_given_passages_repeat_and_tokens_follow_their_frequency(
    longer: tuple[Pretrained, Path], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    weights = np.array([40, 20, 10, *[1] * 12])
    ids = 1 + rng.choice(15, size=(40, 30), p=weights / weights.sum())
    file = tmp_path / "rows.npy"
    np.save(file, ids)
    small = replace(longer[0], n_ctx=48)
    found = inspected_rows(small, data=file, rows=16, length=48, seed=0)
    names = {trial.name: trial for trial in found.trials}
    assert set(names) >= {"repeated", "rows"}
    assert {"passages", "random"} & set(names)
    assert found.tokens == 15
    assert any("15 of 32 tokens of the rows given" in note for note in found.notes)
    only = inspected_rows(small, tokens_from=file, rows=8, length=48, seed=0)
    drawn = only.trials[0].batch.inputs[:, 1:]
    assert set(drawn.unique().tolist()) <= set(range(1, 16))
    assert any("tokens of rows.npy" in note for note in only.notes)


def test_passages_are_the_given_ones_over_and_over() -> None:
    model = Pretrained("m", "gpt2", model=SequenceTransformer(SPEC), vocabulary=32, n_ctx=40, bos=0)
    given = torch.arange(1, 31)[None]
    trial = passage_trial(model, given, rows=8, length=40)
    assert trial is not None
    assert trial.control is not None
    for row, target, mask in zip(trial.batch.inputs, trial.batch.targets, trial.batch.mask,
                                 strict=True):  # fmt: skip
        start = int(mask.nonzero()[0])
        period = start - 1
        body = row[1:].tolist()
        assert body[:period] == list(range(body[0], body[0] + period))
        assert all(body[i] == body[i - period] for i in range(period, len(body)))
        assert torch.equal(target[:-1], row[1:])
    repeats = trial.control.inputs[:, 1:]
    assert not torch.equal(repeats, trial.batch.inputs[:, 1:])
    assert passage_trial(model, given[:, :6], rows=8, length=40) is None


def test_random_tokens_are_drawn_in_proportion() -> None:
    model = Pretrained(
        "m", "gpt2", model=SequenceTransformer(SPEC), vocabulary=32, n_ctx=40, bos=-1
    )
    counts = torch.tensor([0] * 2 + [1000] * 15 + [1] * 15)
    batch = token_trials(model, rows=64, length=12, counts=counts)[0][0].batch
    often = (batch.inputs < 17).double().mean()
    assert batch.inputs.min() >= 2
    assert often > 0.45
