import numpy as np
import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError, HookError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Construction
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory
from probes.activations import collect
from probes.controls import control_latent, raw_input
from probes.linear import decode, logistic
from probes.probe_table import COLUMNS, first_decodable, layer_map, probe_table

RNG = np.random.default_rng(0)
TASK = FixedMemory((1,), "parity", 10)
HOOKS = ["hook_embed", "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post"]


@pytest.fixture(scope="module")
def construction() -> Construction:
    return construct_fixed_memory(TASK)


@pytest.fixture(scope="module")
def table(construction: Construction) -> pd.DataFrame:
    return probe_table(construction.model, TASK.sample(60, seed=1), HOOKS)


def cell(table: pd.DataFrame, hook: int, latent: str) -> pd.Series:
    return table[(table["hook"] == HOOKS[hook]) & (table["latent"] == latent)].iloc[0]


def test_a_constructed_memory_is_where_the_proof_says(table: pd.DataFrame) -> None:
    assert tuple(table.columns) == COLUMNS
    assert (table["kind"] == "categorical").all()
    scores = [cell(table, hook, "x[t-1]")["score"] for hook in range(3)]
    assert scores[0] < 0.2
    assert scores[1] == 1.0
    answer = [cell(table, hook, "f")["score"] for hook in range(3)]
    assert max(answer[:2]) < 0.3
    assert answer[2] == 1.0
    found = cell(table, 1, "x[t-1]")
    assert found["q"] < 1e-6
    assert min(found["selectivity"], found["over_input"]) > 0.5
    # Random ReLUs hold some of a product of two: the baseline is not zero.
    assert 0.1 < cell(table, 2, "f")["over_untrained"] < 0.9


def test_the_map_is_latents_by_hooks_in_order(table: pd.DataFrame) -> None:
    wide = layer_map(table)
    assert list(wide.columns) == HOOKS
    assert list(wide.index) == ["x[t]", "x[t-1]", "f"]
    assert wide.loc["f", HOOKS[2]] == 1.0


def test_nothing_is_found_where_there_is_nothing(construction: Construction) -> None:
    """Latents drawn anew: p of 12 of them is no smaller than chance has it."""
    batch = TASK.sample(200, seed=1)
    noise = {f"n{i}": torch.from_numpy(RNG.integers(0, 2, (200, 10))) * 1.0 for i in range(12)}
    batch = Batch(batch.inputs, batch.targets, batch.mask, noise)
    found = probe_table(construction.model, batch, HOOKS[1:2], untrained=construction.model)
    assert (found["q"] > 0.01).all()
    assert abs(found["score"]).mean() < 0.15


def test_control_labels_belong_to_tokens_or_else_to_positions() -> None:
    tokens, latent = RNG.integers(0, 12, (50, 6)), RNG.integers(0, 2, (50, 6)).astype(float)
    labels = control_latent(tokens, latent, seed=1)
    assert all(len(np.unique(labels[tokens == token])) == 1 for token in range(12))
    by_place = control_latent(RNG.normal(size=(50, 6, 2)), latent, seed=1)
    assert (by_place == by_place[:1]).all()
    two = control_latent(tokens % 2, latent, seed=1)
    assert all(len(np.unique(two[tokens[:, i] % 2 == k, i])) == 1 for i in range(6) for k in (0, 1))
    assert len(np.unique(two[tokens % 2 == 0])) == 2


def test_a_probe_that_memorises_tokens_has_no_selectivity() -> None:
    tokens = RNG.integers(0, 10, (80, 6))
    one_hot, latent = np.eye(10)[tokens], (tokens % 2).astype(float)
    labels = control_latent(tokens, latent, seed=3)
    assert decode(one_hot, latent, probe=logistic()).score == 1.0
    assert decode(one_hot, labels, probe=logistic()).score == 1.0


def test_raw_input_is_the_token_and_the_position() -> None:
    tokens = np.array([[5, 7, 7], [7, 5, 9]])
    features = raw_input(tokens)
    assert features.shape == (2, 3, 6)
    np.testing.assert_array_equal(features[0, 1, 3:], [0, 1, 0])
    np.testing.assert_array_equal(features[0, 1, :3], features[1, 0, :3])
    assert raw_input(tokens, most=2).shape == (2, 3, 5)
    assert raw_input(RNG.normal(size=(2, 3, 4))).shape == (2, 3, 7)


def test_heads_are_joined_and_latents_split_by_channel() -> None:
    spec = TransformerSpec(d_in=3, d_out=3, n_ctx=6, d_model=4, n_layers=1, n_heads=2, d_head=2)
    tokens = torch.randint(3, (7, 6))
    latents = {"two": torch.randn(7, 6, 2), "one": torch.randn(7, 6)}
    batch = Batch(tokens, tokens, torch.ones(7, 6, dtype=torch.bool), latents)
    found = collect(SequenceTransformer(spec), batch, ["blocks.0.attn.hook_z"], batch=3,
                    positions=np.arange(6))  # fmt: skip
    assert found.features["blocks.0.attn.hook_z"].shape == (7, 6, 4)
    assert list(found.latents) == ["two[0]", "two[1]", "one"]


def test_rows_without_latents_ask_for_labels(construction: Construction) -> None:
    rows = TASK.sample(60, seed=1)
    with pytest.raises(ArgumentError, match=r"give labels of your own .*--labels FILE"):
        probe_table(construction.model, Batch(rows.inputs, rows.targets, rows.mask), HOOKS)


def test_latents_that_no_probe_can_read_are_refused_and_rare_names_are_told(
    construction: Construction,
) -> None:
    batch, model = TASK.sample(40, seed=0), construction.model
    batch.latents["hole"] = torch.full((40, 10), float("nan"))
    batch.latents["row"] = torch.arange(40)[:, None].expand(-1, 10)
    with pytest.raises(ArgumentError, match=r"latents must be finite .*, got \['hole'\]: drop"):
        probe_table(model, batch, HOOKS[:1])
    with pytest.raises(HookError, match="hook_resid_mid"):
        probe_table(model, batch, ["blocks.0.hook_resid_mids"])
    with pytest.raises(ArgumentError, match=r"positions of every row, 0 to 9, got \[99\]"):
        probe_table(model, batch, HOOKS[:1], ["f"], positions=np.array([3, 99]))
    with pytest.raises(ArgumentError, match=r"rows must hold distinct ones for 5 folds"):
        probe_table(model, batch[:4], HOOKS[:1], ["f"])
    found = probe_table(model, batch, HOOKS[1:2], ["row", "f"]).set_index("latent")
    assert found.loc["row", "kind"] == "rare"
    assert found.loc["row", ["score", "control", "p"]].tolist() == [0, 0, 1]
    assert found.loc["row", "dropped"] >= 25
    assert found.loc["f", "dropped"] == 0


def test_the_first_place_is_the_first_clear_one() -> None:
    table = pd.DataFrame(
        {
            "hook": ["h0", "h1", "h2"] * 2,
            "latent": ["a"] * 3 + ["b"] * 3,
            "score": [0.95, 0.95, 0.99, 0.1, 0.2, 0.3],
            "q": [0.5, 0.001, 0.001, 0.001, 0.001, 0.001],
        }
    )
    assert first_decodable(table).to_numpy().tolist() == [["a", "h1", 0.95], ["b", "", 0.3]]
