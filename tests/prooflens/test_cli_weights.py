"""``prooflens weights`` from the outside."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from analyses.benchmarks.weights import measure, synthetic_llama
from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.weights.head_weights import head_weights
from interp.weights.weight_table import weight_table
from prooflens.pages.weights import findings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers of three heads: 1.2 matches and 0.1 copies, the rest is random."""
    folder = tmp_path / "model"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(2):
        q, k, v = torch.randn(3, 3, 24, 8, generator=generator)
        o = torch.randn(3, 8, 24, generator=generator)
        if layer == 1:
            k[2] = q[2]
        else:
            o[1] = v[1].T
        fused = torch.cat([w.permute(1, 0, 2).reshape(24, 24) for w in (q, k, v)], dim=1)
        tensors[f"h.{layer}.attn.c_attn.weight"] = fused
        tensors[f"h.{layer}.attn.c_proj.weight"] = o.reshape(24, 24)
        tensors[f"h.{layer}.ln_1.weight"] = torch.ones(24)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tiny_gpt2(folder: Path, sizes: dict[str, int]) -> None:
    """A checkpoint in GPT-2's layout with random weights."""
    n, generator = sizes["n_embd"], torch.Generator().manual_seed(0)
    shapes = {"wte.weight": (sizes["vocab_size"], n), "wpe.weight": (8, n)}
    for layer in range(sizes["n_layer"]):
        shapes[f"h.{layer}.attn.c_attn.weight"] = (n, 3 * n)
        shapes[f"h.{layer}.attn.c_proj.weight"] = (n, n)
        shapes[f"h.{layer}.ln_1.weight"] = (n,)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | sizes))


def test_csv_has_the_columns_and_finds_what_was_planted(model, told) -> None:
    out = model.parent / "table.csv"
    said = told("weights", model, "--out", out)
    table = pd.read_csv(out)
    wanted = ["layer", "head", "circuit", "metric", "score", "null_mean", "null_std", "p", "q"]
    assert list(table.columns[:9]) == wanted
    for metric in (
        "trace_share",
        "diag_ratio",
        "identity_coefficient",
        "effective_rank",
        "copying_score",
    ):
        assert len(table[table["metric"] == metric]) == 12, metric
    shares = table[table["metric"] == "trace_share"].set_index(["circuit", "layer", "head"])
    assert shares["score"].idxmax() in (("QK", 1, 2), ("OV", 0, 1))
    for planted in (("QK", 1, 2), ("OV", 0, 1)):
        assert shares.loc[planted, "q"] < 1e-6
        assert shares.loc[planted, "score"] > 0.4
    assert (shares["q"] > 0.01).sum() >= 9
    assert (table["metric"] == "k_composition").sum() == 9
    assert "L1H2 (+0." in said
    assert "L0H1 (+0." in said


def test_folder_holds_tables_figures_and_findings(model, told) -> None:
    out = model.parent / "page"
    options = ("--metrics", "trace_share,effective_rank,composition,singular_value")
    told("weights", model, "--out", out, *options)
    names = {path.name for path in out.iterdir()}
    assert names >= {"report.html", "weights.csv", "compositions.csv", "singular_values.csv",
                     "weights.json", "findings.txt", "diagonals-QK.png", "diagonals-OV.svg",
                     "map-effective_rank.png", "histogram-trace_share.png"}  # fmt: skip
    about = json.loads((out / "weights.json").read_text())
    assert about["sizes"]["n_heads"] == 3
    assert len(about["heads"]) == 24
    assert about["findings"] == (out / "findings.txt").read_text().splitlines()
    assert not list(model.parent.glob(".page-*"))
    html = (out / "report.html").read_text()
    assert '<table class="sortable">' in html
    assert "<script>" in html
    assert "://" not in html, "numbers of pictures may spell anything else"
    for kind in ("q", "k", "v"):
        assert (out / f"pairs-{kind}_composition.png").stat().st_size > 1000


def test_tokens_are_no_basis_where_no_embedding_is(model, refused) -> None:
    assert "holds no embedding" in refused("weights", model, "--basis", "token")


def test_a_folder_may_have_a_version_in_its_name(model, told) -> None:
    out = model.parent / "model-1.5"
    told("weights", model, "--out", out, "--metrics", "trace_share")
    assert (out / "report.html").is_file()


def test_noise_is_not_named(tmp_path: Path, told) -> None:
    synthetic_llama(tmp_path, width=64, heads=4, layers=2)
    said = told("weights", tmp_path)
    for circuit in ("QK", "OV"):
        assert re.search(rf"{circuit}: 0 of 8 heads .* None is above the null\.", said)
    for kind in "qkv":
        assert f"Strongest {kind}-composition: none of 16 pairs is 1.5 times that of random" in said
    assert "L0H" not in said
    assert "L1H" not in said


def test_signs_of_untied_embeddings_are_not_called_copying(tmp_path, told) -> None:
    """A head whose OV is −I on the residual stream, and W_U = −W_Eᵀ: it copies tokens."""
    size = {"d_in": 24, "d_out": 24, "n_ctx": 8, "d_model": 24, "n_layers": 1, "n_heads": 1}
    model = SequenceTransformer(TransformerSpec(**size, d_head=24))
    with torch.no_grad():
        model.blocks[0].attn.W_V.copy_(torch.eye(24))
        model.blocks[0].attn.W_O.copy_(-torch.eye(24))
        model.embed.W_E.copy_(torch.eye(24))
        model.unembed.W_U.copy_(-torch.eye(24))
    folder = save_checkpoint(model, tmp_path / "untied")
    said = told("weights", folder, "--metrics", "trace_share")
    assert "OV that would write its negative: L0H0 (-1.000)." in said
    assert "copying" not in said
    assert "not of tokens: embedding and unembedding are two matrices" in said
    said = told("weights", folder, "--metrics", "trace_share", "--basis", "token")
    assert "OV that would raise the token they read (copying): L0H0 (+1.000)." in said
    assert "residual directions" not in said
    tied = SequenceTransformer(TransformerSpec(**size, d_head=24, tied_unembedding=True))
    tied.load_state_dict({n: v for n, v in model.state_dict().items() if n != "unembed.W_U"})
    said = told("weights", save_checkpoint(tied, tmp_path / "tied"), "--metrics", "basic")
    assert "OV that would write its negative (anti-copying): L0H0" in said


def test_lag_and_token_basis_of_a_rotary_model(tmp_path: Path) -> None:
    synthetic_llama(tmp_path, width=16, heads=2, layers=2)
    plain, turned = (
        weight_table(head_weights(tmp_path), ["trace_share"], lag=lag) for lag in (0, 3)
    )
    same = plain["score"] == turned["score"]
    assert same[plain["circuit"] == "OV"].all()
    assert not same[plain["circuit"] == "QK"].any()


def test_token_basis_null_covers_random_heads(tmp_path: Path) -> None:
    synthetic_llama(tmp_path, width=16, heads=8, layers=2)
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(5))
    embedding[:, :2] *= 6  # correlated tokens: random heads have a diagonal
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "embed.safetensors")
    index["weight_map"]["model.embed_tokens.weight"] = "embed.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    table = weight_table(
        head_weights(tmp_path), ["identity_coefficient", "diag_ratio"], basis="token"
    )
    z = (table["score"] - table["null_mean"]) / table["null_std"]
    ratio = table["metric"] == "diag_ratio"
    assert table.loc[ratio, "null_mean"].min() > 1.05
    assert z.abs().mean() < 1.6


@pytest.mark.slow
def test_benchmark_measures_what_it_names(tmp_path: Path) -> None:
    synthetic_llama(tmp_path, width=32, heads=2, layers=1)
    found = measure(tmp_path, None, repeats=1)
    assert found["gpt2_seconds"] is None
    for key in ("speedup_basic", "speedup_all", "peak_memory_ratio"):
        assert found[key] > 0


def test_gpt2_findings_name_the_known_heads(gpt2_folder: Path) -> None:
    table = weight_table(head_weights(gpt2_folder), ["trace_share", "k_composition"])
    said = "\n".join(findings(table))
    for head in ("L0H1 (+0.214)", "L0H10 (+0.236)", "L5H1 (+0.140)"):  # duplicate-token; induction
        assert head in said
    assert "L4H11 → L5H1" in said  # previous-token head into induction head


def test_documented_gpt2_numbers_are_those_of_the_weights(gpt2_folder: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "gpt2-heads.md"
    table = weight_table(head_weights(gpt2_folder), ["trace_share"])
    shares = table.set_index(["circuit", "layer", "head"])["score"]
    number = r"\| L(\d+)H(\d+) \| ([+−][\d.]+)"
    qk, ov = page.read_text(encoding="utf-8").split("## Copying")
    for circuit, text, least in (("QK", qk, 8), ("OV", ov, 16)):
        rows = re.findall(number, text)
        assert len(rows) == least
        for layer, head, told in rows:
            share = shares[circuit, int(layer), int(head)]
            assert float(told.replace("−", "-")) == pytest.approx(share, abs=6e-4)


def test_weights_of_ours_that_are_not_those_described_are_refused(tmp_path, told, refused):
    spec = TransformerSpec(d_in=5, d_out=5, n_ctx=4, d_model=8, n_layers=1, d_head=4)
    folder = save_checkpoint(SequenceTransformer(spec), tmp_path / "ours")
    told("weights", folder)
    weights = load_file(folder / "model.safetensors")
    weights["blocks.0.attn.W_Q"] += 1
    save_file(weights, folder / "model.safetensors")
    assert "does not match the weights_sha256 in model.json" in refused("weights", folder)


SMALLEST = {
    "one layer, one head": {"n_layer": 1, "n_head": 1, "n_embd": 4},
    "two tokens": {"n_layer": 1, "n_head": 2, "n_embd": 4, "vocab_size": 2},
    "width 1": {"n_layer": 2, "n_head": 1, "n_embd": 1, "vocab_size": 2},
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_models_get_a_table_or_a_true_sentence(name, tmp_path, run) -> None:
    sizes = {"vocab_size": 5, "n_positions": 8} | SMALLEST[name]
    tiny_gpt2(tmp_path / "tiny", sizes)
    metrics = "trace_share,diag_ratio,composition"
    basis = "token" if name == "two tokens" else "residual"
    options = ("--out", tmp_path / "page", "--metrics", metrics, "--basis", basis)
    ended = run("weights", tmp_path / "tiny", *options)
    said = ended.out + ended.err
    assert ended.code == 0
    assert ("no compositions" in said) == (sizes["n_layer"] == 1)
    assert ("a circuit is one number" in said) == (sizes["n_embd"] == 1)
    table = pd.read_csv(tmp_path / "page" / "weights.csv").set_index(["circuit", "metric"])
    assert len(table) == 2 * 2 * sizes["n_layer"] * sizes["n_head"]
    if sizes["n_embd"] == 1:
        assert table["p"].isna().all(), "no rotation changes a number"
        assert table.loc[("OV", "diag_ratio"), "score"].isna().all()
        assert set(table.loc[("QK", "trace_share"), "score"].abs().round(6)) == {1.0}
    json.loads((tmp_path / "page" / "weights.json").read_text())


def test_compositions_of_one_layer_are_an_empty_table_of_numbers(tmp_path) -> None:
    tiny_gpt2(tmp_path / "tiny", {"n_layer": 1, "n_head": 2, "n_embd": 4, "vocab_size": 5})
    found = weight_table(head_weights(str(tmp_path / "tiny")), ["trace_share", "composition"])
    assert found["effect"].dtype == float
    assert set(found["metric"]) == {"trace_share"}
