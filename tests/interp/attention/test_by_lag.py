from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp.attention.attention_to_keys import AttentionMass
from interp.attention.by_lag import LagMass, lag_table
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from interp.store.rows import AttentionMask
from interp.tasks.base import Batch

GEN = torch.Generator().manual_seed(0)
SPEC = TransformerSpec(
    d_in=7, d_out=7, n_ctx=10, d_model=8, n_layers=2, n_heads=(2, 1), d_head=4, positions="learned"
)


def random_pattern(rows: int, n: int, attention_mask: AttentionMask) -> torch.Tensor:
    values = torch.rand((rows, 2, n, n), generator=GEN, dtype=torch.float64)
    return values * attention_mask.keys(n) * 3


def rows_of(count: int) -> Batch:
    tokens = torch.randint(7, (count, 10), generator=GEN)
    return Batch(tokens, tokens, torch.rand(count, 10, generator=GEN) < 0.7)


def terms(
    pattern: torch.Tensor, mask: torch.Tensor, head: int, lag: int, attention_mask: AttentionMask
) -> list[tuple[float, np.ndarray]]:
    """(share at the lag, shares of all keys that may be attended to) of each counted query."""
    found = []
    n = pattern.shape[-1]
    for row in range(len(pattern)):
        for i in range(n):
            j = i - lag
            keys = [k for k in range(n) if attention_mask.keys(n)[i, k]]
            if mask[row, i] and j in keys:
                share = pattern[row, head, i] / pattern[row, head, i].sum()
                found.append((float(share[j]), share[keys].numpy()))
    return found


def test_visible_keys() -> None:
    for causal in (True, False):
        for mask_self in (True, False):
            keys = AttentionMask(causal, mask_self).keys(4)
            for i in range(4):
                for j in range(4):
                    assert keys[i, j] == ((j <= i or not causal) and (j != i or not mask_self))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask_self", [True, False])
def test_mass_and_null_equal_a_direct_loop(causal: bool, mask_self: bool) -> None:
    """Rows of two lengths, some queries masked."""
    attention_mask, lags = AttentionMask(causal, mask_self), (0, 2, 8, -1)
    found = LagMass(lags, resamples=10)
    batches = [(random_pattern(4, n, attention_mask), torch.rand(4, n, generator=GEN) < 0.7)
               for n in (6, 9)]  # fmt: skip
    for pattern, mask in batches:
        found.add({1: pattern}, mask)
    table = found.table().set_index(["head", "target"])
    for head in range(2):
        for lag in lags:
            row = table.loc[(head, f"lag {lag}")]
            rows = [terms(pattern[r : r + 1], mask[r : r + 1], head, lag, attention_mask)
                    for pattern, mask in batches for r in range(4)]  # fmt: skip
            rows = [found for found in rows if found]
            if not rows:
                assert np.isnan([row["score"], row["null_mean"], row["p"], row["low"]]).all()
                continue
            means = [np.mean([share for share, _ in every]) for every in rows]
            assert row["score"] == pytest.approx(np.mean(means))
            means = [np.mean([1 / len(p) for _, p in every]) for every in rows]
            assert row["null_mean"] == pytest.approx(np.mean(means))
            spread = [sum(np.var(p) for _, p in every) / len(every) ** 2 for every in rows]
            assert row["null_std"] == pytest.approx(np.sqrt(sum(spread)) / len(rows))


@pytest.mark.parametrize("attention_mask", [AttentionMask(), AttentionMask(False, True)])
def test_a_lag_is_a_class_of_keys(attention_mask: AttentionMask) -> None:
    """Read as a lag or as a class, the same number, null and interval, whatever rows count."""
    lags = (0, 1, 4, -2, 8)
    by_lag = LagMass(lags, seed=5, resamples=40)
    by_class = AttentionMass(5, 40)
    for n in (6, 9):
        pattern = random_pattern(5, n, attention_mask)
        mask = torch.rand(5, n, generator=GEN) < 0.4
        place = torch.arange(n)
        apart = (place[:, None] - place).expand(5, -1, -1)
        by_lag.add({1: pattern}, mask)
        by_class.add({1: pattern}, {f"lag {s}": apart == s for s in lags}, {}, mask)
    keys = ["component", "head", "target"]
    wanted = ["score", "null_mean", "null_std", "p", "effect", "low", "high"]
    lag_rows, class_rows = (m.table().set_index(keys)[wanted] for m in (by_lag, by_class))
    uniform = class_rows.index.get_level_values("target") == "uniform"
    pd.testing.assert_frame_equal(lag_rows.sort_index(), class_rows[~uniform].sort_index())


def test_every_row_counts_alike() -> None:
    """One query of a row that looks back, against many of a row that does not."""
    at = torch.eye(6, dtype=torch.float64)
    back = at.roll(-1, 1).tril()
    back[0, 0] = 1.0
    pattern = torch.stack((back, at))[:, None]
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[0, 3], mask[1, 1:] = True, True
    found = LagMass((1,), resamples=0)
    found.add({0: pattern}, mask)
    assert found.by_lag(0)[0, 0] == 0.5


def test_a_head_at_one_lag_has_its_mass_there_and_a_random_one_has_not() -> None:
    n = 12
    at = torch.eye(n, dtype=torch.float64).roll(-2, 1).tril()
    at[:2, 0] = 1.0
    random = torch.rand((20, n, n), generator=GEN, dtype=torch.float64).pow(3).tril()
    pattern = torch.stack((at.expand(20, -1, -1), random), dim=1)
    found = LagMass(range(4))
    found.add({0: pattern}, torch.arange(n).expand(20, -1) >= 2)
    table = found.table().set_index(["head", "target"])
    real, other = table.loc[(0, "lag 2")], table.loc[(1, "lag 2")]
    assert real["score"] == pytest.approx(1.0)
    assert real["q"] < 1e-8  # p is cut at 1e-10
    assert other["p"] > 1e-3
    assert other["low"] < other["effect"] < other["high"]
    assert other["high"] - other["low"] < 0.1


@pytest.mark.parametrize("causal", [True, False])
def test_batches_and_a_store_change_nothing(causal: bool, tmp_path: Path) -> None:
    model = SequenceTransformer(TransformerSpec(**{**SPEC.to_dict(), "causal": causal}), seed=1)
    rows = rows_of(15)
    store = extract(model, rows, ["*hook_pattern"], tmp_path / "store", batch=5)
    whole = lag_table(model, rows, batch=15, resamples=30)
    for batch in (1, 7):
        pd.testing.assert_frame_equal(lag_table(model, rows, batch=batch, resamples=30), whole)
        pd.testing.assert_frame_equal(lag_table(store, batch=batch, resamples=30), whole)
    lags = range(10) if causal else range(-9, 10)
    assert set(whole["target"]) <= {f"lag {s}" for s in lags}
    assert ("lag -3" in set(whole["target"])) != causal
    assert whole.groupby("layer")["head"].nunique().tolist() == [2, 1]


def test_memory_does_not_grow_with_rows() -> None:
    sizes = []
    for count in (1, 50):
        found = LagMass(range(5), resamples=10)
        for _ in range(count):
            found.add({0: random_pattern(3, 6, AttentionMask())}, torch.ones(3, 6).bool())
        sizes.append(found.size)
    assert sizes[0] == sizes[1]


def test_lag_refusals(tmp_path: Path) -> None:
    model, rows = SequenceTransformer(SPEC), rows_of(4)
    with pytest.raises(ArgumentError, match="lags must be different whole numbers"):
        lag_table(model, rows, lags=[1, 1])
    with pytest.raises(ArgumentError, match="inputs must be given for a model"):
        lag_table(model)
    with pytest.raises(ArgumentError, match="must be zero on the keys that are masked"):
        found = LagMass((0,), resamples=0, attention_mask=AttentionMask())
        found.add({0: torch.ones(2, 2, 5, 5)}, torch.ones(2, 5).bool())
    store = extract(model, rows, ["*hook_pattern"], tmp_path / "store", batch=4)
    with pytest.raises(ArgumentError, match="inputs must be None for a store"):
        lag_table(store, rows)
    with torch.no_grad():
        model.blocks[1].attn.W_Q[0] = float("nan")
    words = r"blocks\.1\.attn\.hook_pattern must be finite, got 'layer 1, head 0'"
    with pytest.raises(ArgumentError, match=words):
        lag_table(model, rows)
