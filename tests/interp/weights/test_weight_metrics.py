"""Weight metrics against the dense matrices, and their nulls against sampled rotations."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import ArgumentError
from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.stats.head_table import adjust
from interp.weights.head_weights import HeadWeights, head_weights
from interp.weights.low_rank_circuit import low_rank_circuit
from interp.weights.metrics import BASIC, METRICS, choose, effective_rank
from interp.weights.weight_nulls import SpectrumNull, WeightNull, mean_modulus
from interp.weights.weight_table import (
    GROUPS,
    BasisNull,
    circuit_crop,
    weight_table,
)

Array = NDArray[np.float64]


def dense_scores(m: Array) -> dict[str, float]:
    """Every metric by its definition, from the matrix itself."""
    n = len(m)
    diagonal, off = np.diag(m), m[~np.eye(n, dtype=bool)]
    sigma, eigen = np.linalg.svd(m, compute_uv=False), np.linalg.eigvals(m)
    share = sigma[sigma > 0] / sigma.sum()
    return {
        "trace_share": np.trace(m) / np.sqrt(n) / np.linalg.norm(m),
        "diag_ratio": np.sqrt((diagonal**2).mean() / (off**2).mean()),
        "identity_coefficient": np.vdot(np.eye(n), m) / n,
        "frobenius_norm": np.linalg.norm(m),
        "spectral_norm": sigma[0],
        "spectral_share": sigma[0] ** 2 / (sigma**2).sum(),
        "effective_rank": np.exp(-(share * np.log(share)).sum()),
        "copying_score": eigen.real.sum() / np.abs(eigen).sum(),
        "symmetric_share": np.linalg.norm((m + m.T) / 2) ** 2 / np.linalg.norm(m) ** 2,
    }


def factors_of(n: int, r: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(n, r, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, r, generator=generator, dtype=torch.float64)
    return left, 0.3 * left + noise


@pytest.mark.parametrize("identity", [0.0, -0.7])
@pytest.mark.parametrize(("n", "r"), [(12, 3), (7, 7), (5, 8), (9, 6)])
def test_every_metric_is_that_of_the_dense_matrix(n: int, r: int, identity: float) -> None:
    left, right = factors_of(n, r, seed=n)
    expected = dense_scores((left @ right.T).numpy() + identity * np.eye(n))
    found = low_rank_circuit(left, right, identity, spectrum=True)
    for name, value in expected.items():
        assert METRICS[name].score(found) == pytest.approx(value, rel=1e-6, abs=1e-8), name
    assert found.fourth == pytest.approx((np.array(found.singular) ** 4).sum())


def test_a_multiple_of_the_identity_is_all_diagonal() -> None:
    eye = torch.eye(6, dtype=torch.float64)
    found = low_rank_circuit(eye, -2 * eye, spectrum=True)
    wanted = {"trace_share": -1, "identity_coefficient": -2, "copying_score": -1,
              "effective_rank": 6, "diag_ratio": np.inf}  # fmt: skip
    for name, value in wanted.items():
        assert METRICS[name].score(found) == pytest.approx(value)


def test_key_bias_energy_is_a_share_of_score_variance() -> None:
    left, right = factors_of(10, 4, seed=1)
    bias = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    found = low_rank_circuit(left, right, bias=bias)
    constant, content = (right @ bias).norm() ** 2, (left @ right.T).norm() ** 2
    assert METRICS["key_bias_energy"].score(found) == pytest.approx(
        float(constant / (constant + content))
    )


def random_frame(n: int, r: int, rng: np.random.Generator) -> Array:
    q, upper = np.linalg.qr(rng.standard_normal((n, r)))
    return q * np.sign(np.diag(upper))  # without the signs the frame is not uniform


@pytest.fixture(scope="module")
def rotated() -> tuple[dict[str, Array], dict[str, WeightNull]]:
    """Scores of one circuit under 1500 random rotations, and the nulls that are claimed."""
    n, r, rng = 24, 5, np.random.default_rng(0)
    core = np.diag([3.0, 2.0, 1.5, 1.0, 0.4])
    drawn: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(1500):
        u, v = (random_frame(n, r, rng) for _ in range(2))
        found = low_rank_circuit(torch.from_numpy(u @ core), torch.from_numpy(v), spectrum=True)
        for name in drawn:
            drawn[name].append(METRICS[name].score(found))
    spectrum = SpectrumNull(n, r)
    nulls = {name: metric.null(found, spectrum) for name, metric in METRICS.items()}
    return {name: np.array(scores) for name, scores in drawn.items()}, nulls


@pytest.mark.parametrize(
    "name",
    ["trace_share", "diag_ratio", "identity_coefficient", "symmetric_share", "copying_score"],
)
def test_rotation_nulls_have_the_sampled_moments(
    name: str, rotated: tuple[dict[str, Array], dict[str, WeightNull]]
) -> None:
    scores, null = rotated[0][name], rotated[1][name]
    error = scores.std() / np.sqrt(len(scores))
    # Exact moments agree within sampling; the delta method and the large-rank limit (Σ|λ| at
    # rank 5) are allowed a few per cent.
    assert null.mean == pytest.approx(scores.mean(), abs=4 * error + 0.02 * abs(null.mean))
    assert null.std == pytest.approx(scores.std(), rel=0.15)


@pytest.mark.parametrize("name", ["trace_share", "diag_ratio", "symmetric_share"])
def test_p_values_are_rarely_small_under_the_null(
    name: str, rotated: tuple[dict[str, Array], dict[str, WeightNull]]
) -> None:
    p = np.array([rotated[1][name].against(score).p for score in rotated[0][name]])
    assert 0.02 < (p < 0.05).mean() < 0.09
    assert (p < 0.001).mean() < 0.006


@pytest.mark.parametrize(("n", "r"), [(30, 6), (4, 9)])
def test_spectrum_null_is_that_of_gaussian_factors(n: int, r: int) -> None:
    rng, sampled = np.random.default_rng(1), SpectrumNull(n, r, draws=400).singular
    direct = []
    for _ in range(400):
        left, right = rng.standard_normal((n, r)), rng.standard_normal((n, r))
        sigma = np.linalg.svd(left @ right.T, compute_uv=False)[: min(n, r)]
        direct.append(sigma / np.linalg.norm(left) / np.linalg.norm(right))
    wanted = np.array(direct)
    np.testing.assert_allclose(sampled.mean(0), wanted.mean(0), atol=4 * wanted.std() / 20)
    assert effective_rank(sampled).mean() == pytest.approx(effective_rank(wanted).mean(), rel=0.02)


def test_mean_modulus_of_a_wide_corner_matches_eigenvalues() -> None:
    n, r, rng = 300, 60, np.random.default_rng(2)
    sigma = np.linspace(3, 0.2, r)
    moduli = [
        np.abs(np.linalg.eigvals(sigma[:, None] * rng.standard_normal((r, r)) / np.sqrt(n))).sum()
        for _ in range(8)
    ]
    assert mean_modulus(n, sigma) == pytest.approx(np.mean(moduli), rel=0.03)


def test_tails_and_adjustment() -> None:
    assert WeightNull(0.0, 1.0).against(1.96).p == pytest.approx(0.05, abs=1e-3)
    assert WeightNull(0.0, 1.0).against(-1.96).p == pytest.approx(0.05, abs=1e-3)
    chi_square = WeightNull(1.0, math.sqrt(2), "gamma")
    assert chi_square.against(3.841).p == pytest.approx(0.05, abs=1e-3)
    assert np.isnan(WeightNull(math.nan, math.nan).against(1.0).p)
    q = adjust(np.array([0.01, np.nan, 0.04, 0.03]))
    np.testing.assert_allclose(q, [0.03, np.nan, 0.04, 0.04])


def test_no_p_is_below_what_its_tail_supports() -> None:
    drawn = np.random.default_rng(0).normal(0.5, 0.1, 1000)
    for tail in ("two-sided", "gamma"):
        for null, least in (
            (WeightNull(0.5, 0.1, tail), 1e-10),
            (WeightNull.of(drawn, tail), 1e-4),
        ):
            assert null.against(60.0).p == least
            assert null.against(0.55).p > 0.2
    assert WeightNull.of(drawn).against(-0.5).p == 1e-4
    assert WeightNull.of(drawn, "gamma").against(0.0).p == 1.0


def test_unknown_metrics_are_refused_together() -> None:
    with pytest.raises(ArgumentError, match=r"\['trase', 'x'\]"):
        choose(["trace_share", "trase", "x"], GROUPS)
    chosen = ["basic", "copying_score", "trace_share"]
    assert choose(chosen, GROUPS) == [*BASIC, "copying_score"]


def test_gpt2_table_is_that_of_the_dense_matrices(gpt2_folder: Path) -> None:
    factors = head_weights(gpt2_folder)
    table = weight_table(factors)
    scores = table.set_index(["layer", "head", "circuit", "metric"])["score"]
    for layer, head, circuit in ((0, 1, "QK"), (5, 1, "OV"), (11, 10, "OV")):
        left, right = factors.layer(layer).circuit(circuit).pair(head)
        dense = left.double() @ right.double().T
        expected = dense_scores(dense.numpy())
        for name, value in expected.items():
            found = scores[layer, head, circuit, name]
            assert found == pytest.approx(value, rel=1e-4, abs=1e-4), (layer, head, name)
        crop = circuit_crop(factors, layer, head, circuit)
        np.testing.assert_allclose(crop, dense[:100, :100], rtol=1e-4, atol=1e-4)
    assert len(table[table["metric"] == "trace_share"]) == 288
    assert table["q"].between(0, 1).all()


def test_gpt2_singular_values_are_listed(gpt2_folder: Path) -> None:
    factors = head_weights(gpt2_folder)
    listed = weight_table(factors, ["singular_value"])
    left, right = factors.layer(3).circuit("OV").pair(2)
    dense = (left.double() @ right.double().T).numpy()
    mine = listed[(listed["circuit"] == "OV") & (listed["layer"] == 3) & (listed["head"] == 2)]
    expected = np.linalg.svd(dense, compute_uv=False)[:64]
    rounding = 4 * np.finfo(np.float32).eps * expected[0]  # of the float32 factors, by processor
    np.testing.assert_allclose(mine["score"], expected, rtol=0, atol=rounding)
    assert mine["target"].tolist() == [str(k) for k in range(1, 65)]


def embedded(folder: Path, vocabulary: int = 90) -> HeadWeights:
    """Two layers of three random heads of eight dimensions, with correlated embeddings."""
    spec = TransformerSpec(d_in=vocabulary, d_out=vocabulary, n_ctx=4, d_model=12, n_layers=2,
                           n_heads=3, d_head=8, input="tokens", norm="rmsnorm")  # fmt: skip
    model = SequenceTransformer(spec, seed=4)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        shared = 3 * torch.randn(1, 12, generator=generator)
        model.embed.W_E.copy_(shared + torch.randn(vocabulary, 12, generator=generator))
        for block in model.blocks:
            block.ln1.w.copy_(torch.rand(12, generator=generator) + 0.5)
    return head_weights(save_checkpoint(model, folder / str(vocabulary)))


@pytest.mark.parametrize(("vocabulary", "circuit"), [(90, "QK"), (90, "OV"), (9, "OV")])
def test_token_nulls_are_those_of_dense_random_heads(
    vocabulary: int, circuit: str, tmp_path: Path
) -> None:
    factors = embedded(tmp_path, vocabulary)
    stack = factors.layer(1).circuit(circuit, basis="token", fold_norm=True)
    names = [name for name in METRICS if name != "key_bias_energy"]
    found = BasisNull.sample(stack, names, 400, seed=0)
    gain = factors.layer(1).read("norm_gain").double()
    into = factors.token_matrix("embedding").double() * gain
    out = into if circuit == "QK" else factors.token_matrix("unembedding").double()
    rng, scores = np.random.default_rng(1), []
    for _ in range(400):
        left, right = (rng.standard_normal((12, 8)) for _ in range(2))
        product = left @ right.T / np.linalg.norm(left) / np.linalg.norm(right)
        scores.append(dense_scores(into.numpy() @ product @ out.numpy().T))
    for name in names:
        wanted = np.array([score[name] for score in scores])
        drawn = found.found[name]
        assert drawn.mean() == pytest.approx(wanted.mean(), abs=5 * wanted.std() / 20), name
        assert drawn.std() == pytest.approx(wanted.std(), rel=0.3), name


def test_draws_are_pooled_over_heads_and_layers_and_told(tmp_path: Path) -> None:
    factors = embedded(tmp_path)
    table = weight_table(factors, ["trace_share", "copying_score"], basis="token")
    for _, rows in table.groupby(["circuit", "metric"]):
        assert rows["null_mean"].nunique() == 1
    assert set(table["draws"]) == {1000}
    assert table["p"].min() >= 1e-4
    folded = weight_table(factors, ["trace_share"], basis="token", fold_norm=True, draws=20)
    assert folded.groupby("circuit")["null_mean"].nunique().tolist() == [2, 2]
    residual = weight_table(factors, ["trace_share", "effective_rank", "k_composition"])
    assert residual.groupby("metric")["draws"].unique().map(list).to_dict() == {
        "effective_rank": [1000], "k_composition": [0], "trace_share": [0],
    }  # fmt: skip
    assert residual["p"].min() >= 1e-10
