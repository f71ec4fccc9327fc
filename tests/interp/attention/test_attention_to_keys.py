from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from interp.attention.attention_to_keys import AttentionMass, attention_mass, attention_table
from interp.attention.key_sets import (
    lag_key_set,
    positional_key_sets,
    repeated_tokens,
    token_key_sets,
)
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from interp.store.rows import Rows
from interp.tasks.base import Batch

GEN = torch.Generator().manual_seed(0)
ROWS, HEADS, N = 6, 2, 9


def causal(rows: int = ROWS, heads: int = HEADS, n: int = N) -> torch.Tensor:
    return torch.rand((rows, heads, n, n), generator=GEN, dtype=torch.float64).tril() * 3


def one(table: pd.DataFrame, target: str, head: int = 0, null: str = "positions") -> pd.Series:
    found = table[(table["target"] == target) & (table["head"] == head) & (table["null"] == null)]
    assert len(found) == 1
    return found.iloc[0]


def mass_table(pattern: torch.Tensor, tokens: torch.Tensor, **options: object) -> pd.DataFrame:
    mask = torch.ones(tokens.shape, dtype=torch.bool)
    rows = Rows(tokens, mask, {}, {"blocks.3.attn.hook_pattern": pattern})
    return attention_mass([rows], **options)


@pytest.mark.parametrize("causal", [True, False])
def test_classes_equal_a_direct_loop(causal: bool) -> None:
    tokens = torch.randint(3, (4, 8), generator=GEN)
    lags = torch.randint(-3, 4, (4, 8), generator=GEN)
    found = token_key_sets(tokens, causal=causal) | positional_key_sets(4, 8, 3, causal=causal)
    found["t"] = lag_key_set(lags, causal=causal)
    for r in range(4):
        t = tokens[r].tolist()
        for i in range(8):
            for j in range(8):
                other = j < i or (j > i and not causal)
                assert found["same"][r, i, j] == (other and t[j] == t[i])
                after = j >= 1 and j - 1 != i and t[j - 1] == t[i]
                assert found["after_same"][r, i, j] == (after and (j <= i or not causal) and j != i)
                assert found["previous"][r, i, j] == (j == i - 1)
                near = abs(i - j) <= 2
                assert found["local"][r, i, j] == (near and (j <= i or not causal))
                assert found["first"][r, i, j] == (j == 0 < i)
                assert found["own"][r, i, j] == (j == i)
                at = j == i - int(lags[r, i])
                assert found["t"][r, i, j] == (at and (j <= i or not causal))


def test_a_latent_names_one_key_and_none_before_the_start() -> None:
    keys = lag_key_set(torch.tensor([[0.0, 2.0, 1.0, 2.5]]))
    assert keys.nonzero().tolist() == [[0, 0, 0], [0, 2, 1]]


def test_mass_equals_a_direct_loop() -> None:
    pattern, tokens = causal(), torch.randint(3, (ROWS, N), generator=GEN)
    table = mass_table(pattern, tokens, resamples=20)
    keys = token_key_sets(tokens)["same"]
    for head in range(HEADS):
        per_row = []
        for r in range(ROWS):
            masses = [
                (pattern[r, head, i] * keys[r, i]).sum() / pattern[r, head, i].sum()
                for i in range(N) if keys[r, i].any()
            ]  # fmt: skip
            per_row.append(float(np.mean(masses)))
        assert one(table, "same", head)["score"] == pytest.approx(np.mean(per_row))


def test_null_of_positions_is_that_of_permuted_attention() -> None:
    """Exact moments against 2500 draws that permute each query's weights over its prefix."""
    pattern, tokens = causal(4, 1, 7), torch.randint(2, (4, 7), generator=GEN)
    row = one(mass_table(pattern, tokens, resamples=20), "after_same")
    keys, rng, draws = token_key_sets(tokens)["after_same"].numpy(), np.random.default_rng(0), []
    share = (pattern / pattern.sum(-1, keepdim=True)).numpy()[:, 0]
    for _ in range(2500):
        means = []
        for r in range(4):
            masses = [
                rng.permutation(share[r, i, : i + 1]) @ keys[r, i, : i + 1]
                for i in range(7) if keys[r, i].any()
            ]  # fmt: skip
            means += [np.mean(masses)] if masses else []
        draws.append(np.mean(means))
    assert row["null_mean"] == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / 50)
    assert row["null_std"] == pytest.approx(np.std(draws), rel=0.06)
    assert row["p"] == pytest.approx(norm.sf((row["score"] - row["null_mean"]) / row["null_std"]))


def test_null_of_tokens_is_that_of_permuted_rows() -> None:
    pattern, tokens = causal(5, 1, 8), torch.randint(3, (5, 8), generator=GEN)
    row = one(mass_table(pattern, tokens, resamples=20), "same", null="tokens")
    keys = token_key_sets(tokens)["same"].double()
    share = (pattern / pattern.sum(-1, keepdim=True))[:, 0]
    rng, draws = np.random.default_rng(1), []
    for _ in range(2500):
        other = keys[rng.permutation(5)]
        mass, there = (share * other).sum(-1), other.any(-1)
        draws.append(float((mass.sum(1) / there.sum(1)).mean()))
    # A permutation leaves one row in five in its place: with that taken out, 5/4 as far off.
    mean = row["score"] - (row["score"] - np.mean(draws)) * 5 / 4
    assert row["null_mean"] == pytest.approx(mean, abs=5 * np.std(draws) / 50)
    assert row["null_std"] == pytest.approx(np.std(draws) * 5 / 4, rel=0.06)


def test_null_of_uniformity_is_flat_weights() -> None:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(6), size=40000)
    close = np.minimum(rows, 1 / 6).sum(1)
    from interp.attention.attention_to_keys import _flat_moments

    mean, variance = _flat_moments(torch.tensor([1.0, 6.0], dtype=torch.float64))
    assert mean[1] == pytest.approx(close.mean(), abs=1e-3)
    assert variance[1] == pytest.approx(close.var(), rel=0.03)
    assert (mean[0], variance[0]) == (1.0, 0.0)
    even = torch.ones(3, 1, 7, 7).tril()
    assert one(mass_table(even, torch.zeros(3, 7, dtype=torch.long)), "uniform")[
        "score"
    ] == pytest.approx(1)


def test_a_positional_head_is_no_induction_head() -> None:
    """A head at a fixed lag has induction mass on rows of one period; against other rows' tokens
    only the head that follows the content has an excess."""
    tokens = repeated_tokens(16, 24, 40, seed=3)
    after = token_key_sets(tokens)["after_same"].double()
    follows = torch.where(after.any(-1, keepdim=True), after, torch.eye(24, dtype=torch.float64))
    lag = torch.zeros(24, 24, dtype=torch.float64).fill_diagonal_(1.0).roll(-7, 1).tril()
    lag[:7, 0] = 1.0
    pattern = torch.stack((follows, lag.expand(16, -1, -1)), dim=1)
    table = mass_table(pattern, tokens)
    real, fixed = (one(table, "after_same", head, "tokens") for head in (0, 1))
    assert real["effect"] > 0.7  # other rows of the same period share the place
    assert real["q"] < 1e-6
    assert 0.6 < real["low"] < real["effect"] < real["high"] <= 1
    assert abs(fixed["effect"]) < 0.06
    assert fixed["p"] > 0.05


def test_where_nothing_is_to_be_found_p_is_uniform() -> None:
    """Random attention that ignores the content: p of 200 heads is spread over [0, 1]."""
    gen = torch.Generator().manual_seed(5)
    pattern = torch.rand((12, 200, 16, 16), generator=gen).pow(4).tril()
    table = mass_table(pattern, torch.randint(5, (12, 16), generator=gen), resamples=20)
    for null in ("positions", "tokens"):
        p = table[(table["target"] == "same") & (table["null"] == null)]["p"]
        assert 0.35 < p.mean() < 0.65
        assert (p < 0.01).mean() < 0.05


def test_interval_covers_the_spread_over_rows() -> None:
    pattern, tokens = causal(64, 1, 8), torch.randint(4, (64, 8), generator=GEN)
    row = one(mass_table(pattern, tokens), "own")
    per_row = torch.diagonal((pattern / pattern.sum(-1, keepdim=True))[:, 0], dim1=1, dim2=2)
    error = float(per_row.mean(1).std() / 8)
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.15)


@pytest.mark.parametrize("batch", [1, 4])
def test_batches_add_up(batch: int) -> None:
    pattern, tokens = causal(8, 1, 6), torch.randint(3, (8, 6), generator=GEN)
    tables = []
    for size in (8, batch):
        found = AttentionMass(seed=3, resamples=50)
        for rows in torch.arange(8).split(size):
            mask = torch.ones(len(rows), 6, dtype=torch.bool)
            keys = token_key_sets(tokens[rows]) if batch > 1 else {}
            found.add({0: pattern[rows]}, positional_key_sets(len(rows), 6, 2), keys, mask)
        tables.append(found.table())
    whole, parts = (t[t["null"] == "positions"].reset_index(drop=True) for t in tables)
    pd.testing.assert_frame_equal(whole, parts)
    assert (whole["low"] < whole["high"]).any()
    assert tables[0]["score"].to_numpy() == pytest.approx(tables[1]["score"].to_numpy())


def test_a_class_that_never_occurs_is_not_a_number() -> None:
    table = mass_table(causal(), torch.arange(N).expand(ROWS, -1).clone())
    row = one(table, "same", null="tokens")
    assert np.isnan(row[["score", "p", "q", "low"]].astype(float)).all()


SPEC = TransformerSpec(
    d_in=7, d_out=7, n_ctx=12, d_model=8, n_layers=2, n_heads=(2, 1), d_head=4, ffn=(5,)
)


def test_a_store_and_its_model_give_the_same_table(tmp_path: Path) -> None:
    model, tokens = SequenceTransformer(SPEC, seed=1), repeated_tokens(10, 12, 7, seed=1)
    store = extract(model, tokens, ["*hook_pattern"], tmp_path / "store", batch=5)
    live, read = attention_table(model, tokens, batch=4), attention_table(store, batch=4)
    assert live.groupby("layer")["head"].nunique().tolist() == [2, 1]
    pd.testing.assert_frame_equal(live, read)


def test_some_heads_of_a_store_keep_their_names(tmp_path: Path) -> None:
    spec = TransformerSpec(d_in=7, d_out=7, n_ctx=12, d_model=8, n_layers=1, n_heads=3, d_head=4)
    model, tokens = SequenceTransformer(spec), repeated_tokens(8, 12, 7)
    store = extract(model, tokens, ["*hook_pattern"], tmp_path / "s", batch=4, heads=[2, 0])
    found, whole = attention_table(store), attention_table(model, tokens)
    assert found["head"].unique().tolist() == [2, 0]
    assert one(found, "own", 2)["score"] == pytest.approx(one(whole, "own", 2)["score"])


def test_refusals() -> None:
    model = SequenceTransformer(SPEC)
    with pytest.raises(ArgumentError, match="batch must be at least 2, got 1"):
        attention_table(model, repeated_tokens(4, 12, 7), batch=1)
    with pytest.raises(ArgumentError, match="inputs must be given for a model"):
        attention_table(model)
    with pytest.raises(ArgumentError, match="latent 't' is not in the rows: they have none"):
        attention_table(model, repeated_tokens(4, 12, 7), lags=["t"])
    with pytest.raises(ArgumentError, match="batches must hold rows"):
        attention_mass([])
    with pytest.raises(ArgumentError, match=r"length must be at least 9.*vocabulary must be"):
        repeated_tokens(2, 4, 2)


def test_repeated_tokens_repeat_with_their_own_period() -> None:
    tokens = repeated_tokens(20, 41, 1000, seed=1, bos=0)
    assert (tokens[:, 0] == 0).all()
    periods = set()
    for row in tokens[:, 1:]:
        fits = [p for p in range(1, 21) if torch.equal(row[p:], row[:-p])]
        periods.add(fits[0])
    assert len(periods) > 4
    assert min(periods) >= 10


def even_model(*, causal: bool, mask_self: bool) -> SequenceTransformer:
    """Every query attends evenly to all the keys that it may attend to."""
    spec = TransformerSpec(
        d_in=5, d_out=5, n_ctx=12, d_model=6, n_layers=2, n_heads=2, d_head=3,
        causal=causal, mask_self=mask_self,
    )  # fmt: skip
    model = SequenceTransformer(spec)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.zero_()
    return model


class Foreign(torch.nn.Module):
    """A model without a spec, hooked as another library would."""

    def __init__(self, model: SequenceTransformer) -> None:
        super().__init__()
        self.inner, self.cfg, self.hook_dict = model, model.cfg, model.hook_dict

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask_self", [True, False])
@pytest.mark.parametrize("through", ["live", "store", "foreign"])
def test_even_attention_is_what_the_nulls_expect(
    causal: bool, mask_self: bool, through: str, tmp_path: Path
) -> None:
    model = even_model(causal=causal, mask_self=mask_self)
    tokens = torch.randint(5, (9, 12), generator=GEN)
    batch = Batch(tokens, tokens, torch.ones_like(tokens).bool(), {"t": tokens.double()})
    source: object = Foreign(model) if through == "foreign" else model
    if through == "store":
        source, batch = extract(model, batch, ["*hook_pattern"], tmp_path / "s", batch=4), None
    table = attention_table(source, batch, batch=4, lags=["t"], resamples=20)
    uniform = table["target"] == "uniform"
    assert table[uniform]["score"].to_numpy() == pytest.approx(1)
    rest = table[~uniform].dropna(subset="score")
    key_sets = {"previous", "first", "local", "same", "after_same", "t"}
    assert set(rest["target"]) == key_sets | (set() if mask_self else {"own"})
    assert np.abs(rest["effect"]).max() < 1e-7
    assert (rest["p"] > 0.4).all()


def test_attention_that_is_not_a_number_is_an_error() -> None:
    model, tokens = SequenceTransformer(SPEC), repeated_tokens(8, 12, 7)
    with torch.no_grad():
        model.blocks[0].attn.W_Q[1] = float("nan")
    words = r"blocks\.0\.attn\.hook_pattern must be finite, got 'layer 0, head 1'"
    with pytest.raises(ArgumentError, match=words):
        attention_table(model, tokens)
    with pytest.raises(ArgumentError, match="layer 3, heads 0, 1"):
        mass_table(causal() * torch.inf, torch.zeros(ROWS, N, dtype=torch.long))


def test_attention_on_masked_keys_is_an_error() -> None:
    """Also where the first batch looks causal and a later one is not."""
    pattern, tokens = causal(), torch.zeros(ROWS, N, dtype=torch.long)
    mask = torch.ones(ROWS, N, dtype=torch.bool)
    keys = positional_key_sets(ROWS, N, 2)
    found = AttentionMass(resamples=0)
    found.add({0: pattern}, keys, token_key_sets(tokens), mask)
    looks = pattern.clone()
    looks[2, 1, 3, 5] = 0.1
    words = "must be zero on the keys that are masked, got 'layer 0, head 1'"
    with pytest.raises(ArgumentError, match=words):
        found.add({0: looks}, keys, token_key_sets(tokens), mask)


def test_a_query_that_attends_to_nothing_is_no_evidence() -> None:
    """Attention that is not normalised can be zero: no mass, and none expected."""
    pattern = causal()
    pattern[:, 0] = 0.0
    rows = mass_table(pattern, torch.randint(3, (ROWS, N), generator=GEN), resamples=0)
    fixed = rows[(rows["head"] == 0) & (rows["null"] == "positions")]
    for row in fixed[fixed["target"] != "uniform"].itertuples():
        assert (row.score, row.null_mean, row.p) == (0.0, 0.0, 1.0)
