"""Positions that are scored in some rows only, hooks that no probe can read, constant latents."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from interp.errors import ArgumentError, HookError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from interp.tasks.base import Batch
from interp.tasks.walks import SuccessorWalk
from probes.activations import collect, sampled_positions
from probes.controls import control_latent, raw_input
from probes.linear import decode
from probes.probe_table import probe_table
from trained import zoo

WALK = SuccessorWalk(20, 24, symbols=6)
SPEC = TransformerSpec(d_in=20, d_out=20, n_ctx=24, d_model=8, n_layers=1, n_heads=2, ffn=(8,))
MID = "blocks.0.hook_resid_mid"


def walk(rows: int, *, empty: int = 0) -> Batch:
    batch = WALK.sample(rows, seed=3)
    batch.mask[:empty] = False
    return batch


def flat(mask: Tensor) -> Batch:
    tokens = torch.arange(mask.numel()).view(mask.shape) % 20
    return Batch(tokens, tokens, mask, {"n": torch.arange(mask.numel()).view(mask.shape)})


def test_each_row_has_positions_of_its_own_where_none_is_scored_in_all() -> None:
    batch = walk(150, empty=1)
    with pytest.raises(ArgumentError, match="scored in every row"):
        sampled_positions(batch.mask.numpy())
    model = SequenceTransformer(SPEC)
    found = collect(model, batch, [MID], batch=64)
    there = found.places.rows
    assert set(there) <= set(np.flatnonzero(batch.mask.any(1).numpy()))
    assert 90 < len(there) < 150
    assert found.positions.shape == (len(there), len(found.positions[0]))
    _, cache = model.run_with_cache(batch.inputs)
    for number, (row, places) in enumerate(zip(there, found.positions, strict=True)):
        scored = np.flatnonzero(batch.mask[row].numpy())
        assert set(places) <= set(scored)
        assert (np.diff(places) > 0).all()
        expected = batch.latents["previous"][row, places]
        assert found.latents["previous"][number].tolist() == expected.tolist()
    stream, at = cache[MID].detach().numpy(), (there[:, None], found.positions)
    np.testing.assert_allclose(found.features[MID], stream[at], atol=1e-5)
    np.testing.assert_array_equal(found.inputs, batch.inputs.numpy()[at])


def test_positions_scored_in_every_row_are_taken_for_all() -> None:
    mask = torch.ones(70, 24, dtype=torch.bool)
    mask[:, :5], mask[-1, 7] = False, False
    found = collect(SequenceTransformer(SPEC), flat(mask), [MID], batch=32)
    expected = sampled_positions(mask.numpy())
    assert 7 not in expected
    assert (found.positions == expected).all()
    assert found.positions.shape == (70, 8)
    given = collect(SequenceTransformer(SPEC), flat(mask), [MID], positions=np.array([2, 9]))
    assert given.latents["n"][3].tolist() == [3 * 24 + 2, 3 * 24 + 9]


def test_a_store_has_the_positions_of_its_rows(tmp_path: Path) -> None:
    batch, model = walk(40), SequenceTransformer(SPEC, seed=2)
    store = extract(model, batch, ["hook_embed", MID], tmp_path / "store", batch=16)
    live = probe_table(model, batch, [MID], ["previous"])
    fresh = SequenceTransformer(SPEC, seed=1)
    read = probe_table(store, None, [MID], ["previous"], untrained=fresh)
    pd.testing.assert_frame_equal(live, read)


def test_baselines_know_the_position_and_not_the_number_of_the_sample() -> None:
    rng = np.random.default_rng(0)
    positions = np.sort(np.argsort(rng.random((90, 12)), axis=1)[:, :4], axis=1)
    latent = rng.integers(0, 3, 12)[positions].astype(float)
    tokens = rng.integers(0, 9, positions.shape)
    features = raw_input(tokens, positions=positions)
    assert features.shape == (90, 4, 9 + 12)
    assert decode(features, latent).score == pytest.approx(1, abs=1e-6)
    assert decode(raw_input(tokens), latent).score < 0.7
    many = rng.integers(0, 10**6, positions.shape)
    labels = control_latent(many, latent, positions=positions)
    assert all(len(np.unique(labels[positions == place])) == 1 for place in range(12))


def test_hooks_without_positions_after_the_rows_are_refused(tmp_path: Path) -> None:
    model, batch = SequenceTransformer(SPEC), walk(10)
    hook = "blocks.0.attn.hook_pattern"
    text = r"read hooks of \[row, pos, …\], got .*hook_pattern \[row, head, query, key\]: name"
    with pytest.raises(HookError, match=text):
        probe_table(model, batch, [MID, hook])
    store = extract(model, batch, [hook], tmp_path / "store", batch=5)
    with pytest.raises(HookError, match=text):
        collect(store, None, [hook])


def test_a_latent_of_one_value_is_called_constant() -> None:
    batch = walk(40)
    batch.latents["one"] = torch.ones(40, 24)
    found = probe_table(SequenceTransformer(SPEC), batch, [MID]).set_index("latent")
    assert found.loc["one", "kind"] == "constant"
    assert found.loc["one", ["score", "control", "input", "p"]].tolist() == [0, 0, 0, 1]
    assert found.loc["previous", "kind"] in ("categorical", "rare")


@pytest.mark.parametrize("name", zoo.names())
def test_every_shipped_task_can_be_sampled(name: str) -> None:
    shipped = zoo.load(name)
    found = collect(shipped.model, shipped.task.sample(12, seed=0), ["hook_embed"])
    assert 5 <= len(found.positions) <= 12
    assert found.features["hook_embed"].shape[:2] == found.positions.shape
