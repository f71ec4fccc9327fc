"""Diagonals of models in memory against direct loops, and where there is nothing to find."""

import math

import pytest
import torch

from analyses.papers.template.diagonals import diagonal_table, effective_circuits
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


def model(**options: object) -> SequenceTransformer:
    sizes = {"d_in": 12, "d_out": 12, "n_ctx": 4, "d_model": 16, "n_layers": 2, "n_heads": 3,
             "d_head": 4, "identity_qk": True, "identity_ov": True, "identity_multiplier": 10.0,
             **options}  # fmt: skip
    made = SequenceTransformer(TransformerSpec(**sizes), seed=1)  # type: ignore[arg-type]
    with torch.no_grad():
        for block in made.blocks:
            if made.spec.identity_qk:
                block.attn.terms["identity"].a.copy_(torch.tensor([0.0, 0.3, -0.5]))
            if made.spec.identity_ov:
                block.attn.b.copy_(torch.tensor([0.0, -0.2, 0.4]))
    return made


def test_scores_are_those_of_a_direct_loop() -> None:
    made, symbols = model(), slice(2, 10)
    table = diagonal_table(made, symbols=symbols, draws=20)
    attn = made.blocks[1].attn
    e, u = made.W_E[symbols].detach().double(), made.W_U[:, symbols].detach().double()
    q, k, v, o = (w[2].detach().double() for w in (attn.W_Q, attn.W_K, attn.W_V, attn.W_O))
    eye = torch.eye(16, dtype=torch.float64)
    dense = {
        ("QK", "residual"): q @ k.T / 2,
        ("QK+aI", "residual"): q @ k.T / 2 - 5 * eye,
        ("QK+aI", "symbols"): e @ (q @ k.T / 2 - 5 * eye) @ e.T,
        ("OV+bI", "symbols"): e @ (v @ o + 4 * eye) @ u,
    }
    for (circuit, target), m in dense.items():
        n = len(m)
        trace = sum(float(m[i, i]) for i in range(n))
        energy = sum(float(x) ** 2 for x in m.flatten())
        own = sum(float(m[i, i]) ** 2 for i in range(n))
        rest = m - trace / n * torch.eye(n, dtype=torch.float64)
        expected = {
            "trace_share": trace / math.sqrt(n * energy),
            "diagonal_energy": own / (energy - own),
            "identity_coefficient": trace / n,
            "identity_residual": math.sqrt(float(rest.square().sum()) / energy),
        }
        rows = table[(table["layer"] == 1) & (table["head"] == 2) & (table["target"] == target)]
        rows = rows[rows["circuit"] == circuit]
        assert dict(zip(rows["metric"], rows["score"], strict=True)) == pytest.approx(
            expected, rel=1e-4
        )


def test_the_null_is_that_of_random_heads() -> None:
    """Untrained heads lie in the null; their scores' spread is the null's."""
    made = model(n_heads=64, identity_qk=False, identity_ov=False, identity_multiplier=1.0)
    table = diagonal_table(made, symbols=slice(0, 12), draws=300)
    for _, rows in table.groupby(["circuit", "metric", "target"]):
        assert (rows["q"] < 0.01).mean() < 0.02
    shares = table.query("metric == 'trace_share' and target == 'residual'")
    z = (shares["score"] - shares["null_mean"]) / shares["null_std"]
    assert 0.85 < float(z.std()) < 1.15


def test_scalars_stand_out_with_their_sign() -> None:
    table = diagonal_table(model(), symbols=slice(0, 12)).set_index(
        ["layer", "head", "circuit", "target", "metric"]
    )
    for target in ("residual", "symbols"):
        up = table.loc[(0, 1, "QK+aI", target, "trace_share")]
        down = table.loc[(0, 1, "OV+bI", target, "trace_share")]
        assert up["score"] > 0.4
        assert up["q"] < 1e-3
        assert target == "symbols" or (down["score"] < -0.4 and down["q"] < 1e-3)
    assert table.loc[(0, 1, "QK", "residual", "trace_share")]["q"] > 0.01


def test_a_model_without_dot_product_has_the_scalar_alone() -> None:
    made = model(score="none", n_heads=3)
    found = effective_circuits(made, 0)
    assert "QK" not in found
    assert torch.allclose(found["QK+aI"][1], 3 * torch.eye(16, dtype=torch.float64))


def test_draws_are_told_and_no_p_is_below_what_they_support() -> None:
    for draws, least in ((20, 2 / 21), (1000, 1 / 10_000)):
        options = {} if draws == 1000 else {"draws": draws}
        table = diagonal_table(model(), **options)  # type: ignore[arg-type]
        assert set(table["draws"]) == {draws}
        assert table["p"].min() == pytest.approx(least)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ArgumentError, match="draws must be at least 2"):
        diagonal_table(model(), draws=1)
    with pytest.raises(ArgumentError, match="need a model with token input"):
        diagonal_table(model(input="real"), symbols=slice(0, 4))


def test_without_a_token_output_only_scores_are_seen_through_the_embedding() -> None:
    table = diagonal_table(model(d_out=1), symbols=slice(0, 4), draws=5)
    circuits = table.groupby("target", sort=False)["circuit"].unique()
    assert set(circuits["symbols"]) == {"QK", "QK+aI"}
    assert set(circuits["residual"]) == {"QK", "QK+aI", "OV", "OV+bI"}
