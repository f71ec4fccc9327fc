"""Composition scores against dense products, and their null against random rotations."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.weights.composition import COMPOSITIONS, composition_table
from interp.weights.head_weights import HeadWeights, head_weights

MAPPING = {
    "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_model": 20, "d_head": 3,
    "W_Q": {"name": "{layer}.q", "pattern": "h d k -> h d k"},
    "W_K": {"name": "{layer}.k", "pattern": "g d k -> g d k"},
    "W_V": {"name": "{layer}.v", "pattern": "g d k -> g d k"},
    "W_O": {"name": "{layer}.o", "pattern": "h k d -> h k d"},
}  # fmt: skip


def random_model(folder: Path, seed: int = 0) -> HeadWeights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (4, 20, 3), "k": (2, 20, 3), "v": (2, 20, 3), "o": (4, 3, 20)}
    tensors = {
        f"{layer}.{name}": torch.randn(shape, generator=generator)
        for layer in range(3)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / f"{seed}.safetensors")
    return head_weights(folder / f"{seed}.safetensors", mapping=MAPPING)


def test_scores_are_those_of_the_dense_products(tmp_path: Path) -> None:
    factors = random_model(tmp_path)
    table = composition_table(factors).set_index(["metric", "layer", "head", "target"])["score"]
    assert len(table) == 3 * 3 * 16
    dense = {
        (name, layer.index, head): layer.circuit(name).dense(head).double()
        for layer in factors
        for name in ("QK", "OV")
        for head in range(4)
    }
    for (metric, layer, head, target), score in table.items():
        l1, h1 = map(int, target[1:].split("H"))
        wrote = dense["OV", l1, h1]
        read = dense["OV" if metric == "v_composition" else "QK", layer, head]
        read = read.T if metric == "k_composition" else read
        wanted = (wrote @ read).norm() / wrote.norm() / read.norm()
        assert score == pytest.approx(float(wanted), rel=1e-4)


def test_null_is_that_of_random_models(tmp_path: Path) -> None:
    tables = [composition_table(random_model(tmp_path, seed)) for seed in range(8)]
    scores = np.concatenate([t["score"] for t in tables])
    means, stds = (np.concatenate([t[c] for t in tables]) for c in ("null_mean", "null_std"))
    z = (scores - means) / stds
    assert abs(z.mean()) < 0.15
    assert z.std() == pytest.approx(1, abs=0.15)
    p = np.concatenate([t["p"] for t in tables])
    assert 0.02 < (p < 0.05).mean() < 0.09


def test_a_planted_composition_is_found(tmp_path: Path) -> None:
    factors = random_model(tmp_path)
    tensors = {n: factors.files.read(n, torch.float32) for n in factors.files.names}
    tensors["2.k"][1] = tensors["0.o"][1].T  # group 1: heads 2 and 3 of layer 2 read what 0.1 wrote
    save_file(tensors, tmp_path / "planted.safetensors")
    planted = composition_table(
        head_weights(tmp_path / "planted.safetensors", mapping=MAPPING), ["k_composition"]
    )
    top = planted.nlargest(2, "score")
    assert set(zip(top["layer"], top["head"], top["target"], strict=True)) == {
        (2, 2, "L0H1"), (2, 3, "L0H1"),
    }  # fmt: skip
    assert (top["q"] < 0.01).all()
    assert set(COMPOSITIONS) >= set(planted["metric"])


def test_layers_without_heads_are_passed_over() -> None:
    """Of three layers, the middle one without heads: the last reads the first, and no other."""
    spec = TransformerSpec(
        d_in=5, d_out=5, n_ctx=6, d_model=8, n_layers=3, n_heads=(2, 0, 1), d_head=4, ffn=(8,)
    )
    table = composition_table(SequenceTransformer(spec, seed=0), ["k_composition"])
    pairs = table[["layer", "head", "target"]].to_numpy().tolist()
    assert pairs == [[2, 0, "L0H0"], [2, 0, "L0H1"]]
