"""``pl.probes.null``: any head score beside models that nobody trained."""

import numpy as np
import pytest
import torch

import prooflens as pl
from probes.fresh_models import fresh_models

SIZES = {"d_in": 7, "d_out": 7, "n_ctx": 8, "d_model": 12, "n_layers": 2, "d_head": 4}
SPEC = pl.TransformerSpec(**SIZES, n_heads=(2, 3), positions="learned")
MODEL = pl.SequenceTransformer(SPEC, seed=11).eval()


def first(model, rows=None):
    """The share of attention on the first position, in a loop over heads."""
    tokens = rows.inputs if rows is not None else torch.arange(7)[None]
    _, cache = model.run_with_cache(tokens)
    found = np.full((2, 3), np.nan)
    for layer in range(2):
        for head in range(SPEC.heads[layer]):
            found[layer, head] = float(cache["pattern", layer][:, head, :, 0].mean())
    return found


def test_the_null_is_the_score_of_fresh_models() -> None:
    table = pl.probes.null(first, MODEL, draws=24, seed=5)
    assert table[["layer", "head"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]]
    assert table["score"].to_numpy() == pytest.approx([x for x in first(MODEL).ravel() if x == x])
    drawn = []
    for seed in range(1005, 1017):
        model = pl.SequenceTransformer(SPEC, seed=seed).eval()
        drawn.append(first(model)[0, :2])
    assert table["null_mean"][0] == pytest.approx(np.mean(drawn))
    assert table["null_std"][0] == pytest.approx(np.std(drawn))
    assert table["draws"].tolist() == [24] * 5
    assert set(table["null"]) == {"fresh weights"}
    assert set(table["metric"]) == {"first"}


def test_untrained_models_are_rarely_beyond_their_null() -> None:
    p = []
    for seed in range(12):
        model = pl.SequenceTransformer(SPEC, seed=seed).eval()
        p += pl.probes.null(first, model, draws=20, seed=10_000 + 100 * seed)["p"].tolist()
    assert (np.array(p) < 0.1).mean() < 0.2
    assert 0.35 < np.mean(p) < 0.65


def test_a_planted_score_is_beyond_it_and_the_model_is_left_as_it_is() -> None:
    model = pl.SequenceTransformer(SPEC, seed=0).train()
    with torch.no_grad():
        marked = torch.tensor([1.0, -1.0] * 6)
        model.pos_embed.W_pos[0] = 50 * marked
        model.blocks[1].attn.W_K[2] = marked[:, None].expand(12, 4)
        model.blocks[1].attn.b_Q[2] = 1.0
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = pl.Batch(
        *[torch.randint(7, (4, 8), generator=torch.Generator().manual_seed(2))] * 2,
        torch.ones(4, 8).bool(),
    )
    table = pl.probes.null(first, model, batch, name="sink", draws=100, seed=1).set_index(
        ["layer", "head"]
    )
    assert table.loc[(1, 2), "q"] < 0.01
    assert set(table["metric"]) == {"sink"}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training


def test_without_a_spec_matrices_are_shuffled() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MODEL

        def forward(self, tokens):
            return self.inner(tokens)

    net = Net()
    fresh = next(fresh_models(net, 1, seed=3))
    for (name, mine), theirs in zip(net.named_parameters(), fresh.parameters(), strict=True):
        same = torch.equal(mine, theirs)
        assert same == (mine.ndim < 2 or mine.numel() < 2 or not mine.any()), name
        assert torch.equal(mine.flatten().sort().values, theirs.flatten().sort().values)


def test_what_is_no_score_is_refused() -> None:
    with pytest.raises(pl.errors.ArgumentError, match=r"shape \(2, 3\) for this model, got shape"):
        pl.probes.null(lambda model: torch.zeros(4), MODEL)
    with pytest.raises(pl.errors.ArgumentError, match=r"must be finite for every head.*L1H2"):
        pl.probes.null(lambda model: [[0, 0, 0], [0, 0, float("nan")]], MODEL)
    with pytest.raises(pl.errors.ArgumentError, match=r"must give \[layer, head\] numbers: "):
        pl.probes.null(lambda model: "high", MODEL, name="mood")
    with pytest.raises(pl.errors.ArgumentError, match="draws must be at least 20, got 3"):
        pl.probes.null(first, MODEL, draws=3)
