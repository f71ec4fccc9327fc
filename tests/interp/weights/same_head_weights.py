"""Two sources of the same factors: every tensor and circuit equal, bit by bit."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from interp.weights.head_weights import HeadWeights

PARTS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "norm_gain", "norm_bias",
         "out_gain", "q_gain", "k_gain", "identity_a", "identity_b")  # fmt: skip


def shard(folder: Path) -> None:
    """Lay a GPT-2's tensors in two files: part-2 holds those of layer 1."""
    tensors = load_file(folder / "model.safetensors")
    where = {n: f"part-{1 + n.startswith('h.1')}.safetensors" for n in tensors}
    for file in set(where.values()):
        save_file({n: t for n, t in tensors.items() if where[n] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def assert_same(live: HeadWeights, saved: HeadWeights) -> None:
    """Every part of every layer, every circuit in every basis, and the token matrices."""
    assert live.layout.sizes == saved.layout.sizes
    assert live.layout.rope == saved.layout.rope
    for mine, theirs in zip(live, saved, strict=True):
        assert mine.circuits == theirs.circuits
        for part in PARTS:
            assert mine.has(part) == theirs.has(part), part
            if mine.has(part):
                assert torch.equal(mine.read(part), theirs.read(part)), part
        for name in mine.circuits:
            lag = 2 if live.layout.rope is not None and name == "QK" else 0
            one, two = (f.circuit(name, fold_norm=True, lag=lag) for f in (mine, theirs))
            assert one.n_heads == two.n_heads
            for head in range(one.n_heads):
                assert torch.equal(one.dense(head), two.dense(head)), (name, head)
    if saved.layout.tokens is not None:
        tied = [t.embedding == t.unembedding for f in (live, saved) if (t := f.layout.tokens)]
        assert len(set(tied)) == 1
        for which in ("embedding", "unembedding"):
            assert torch.equal(live.token_matrix(which), saved.token_matrix(which))
