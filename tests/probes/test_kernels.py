from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp.attention.by_lag import lag_table
from interp.errors import ArgumentError, HookError
from interp.models.pretrained import load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.store import ActivationStore, extract
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory
from probes.kernels import (
    DirectionSums,
    LayerKernels,
    LayerRows,
    kernel_null,
    kernel_table,
    layer_kernels,
)
from probes.linear import direction

N, ROWS = 9, 30
SPEC = TransformerSpec(
    d_in=1, d_out=1, n_ctx=N, d_model=6, n_layers=2, n_heads=(2, 3), d_head=3, ffn=(8,),
    input="real", positions="learned", identity_ov=True, dtype="float64",
)  # fmt: skip
PLACES = {"x1": 1, "xt": "t"}
HOOKS = ["*attn.hook_pattern", "*attn.hook_v", "*hook_resid_mid", "*ln1.hook_normalized"]


def model_and_rows() -> tuple[SequenceTransformer, Batch]:
    model = SequenceTransformer(SPEC, seed=1)
    gen = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.b.copy_(torch.tensor([0.7, -0.4, 0.2]))
    x = torch.randn(ROWS, N, 1, generator=gen, dtype=torch.float64)
    lags = torch.randint(0, 3, (ROWS, N), generator=gen)
    lags = torch.minimum(lags, torch.arange(N))
    latents = {
        "x1": x[..., 0].roll(1, 1), "t": lags.double(),
        "xt": x[..., 0].gather(1, torch.arange(N) - lags),
    }  # fmt: skip
    mask = (torch.arange(N) >= 3).expand(ROWS, -1).clone()
    mask[0, 5] = False
    return model, Batch(x, x, mask, latents)


def store_of(model: SequenceTransformer, rows: Batch, folder: Path) -> ActivationStore:
    return extract(model, rows, HOOKS, folder / "store", batch=10)


def same(one: LayerKernels, other: LayerKernels) -> None:
    np.testing.assert_allclose(one.mass, other.mass, rtol=1e-9)
    for name in PLACES:
        np.testing.assert_allclose(one.kernels[name], other.kernels[name], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(one.draws[name], other.draws[name], rtol=1e-6, atol=1e-9)


def writing(model: SequenceTransformer, rows: Batch, layer: int, w: np.ndarray) -> list[np.ndarray]:
    """Pattern, and what each head would write along w from each key, key by key."""
    _, cache = model.run_with_cache(rows.inputs)
    attn = model.blocks[layer].attn
    pattern, v = cache["pattern", layer].detach(), cache["v", layer].detach()
    x = cache[f"blocks.{layer}.ln1.hook_normalized"].detach()
    values = np.zeros((ROWS, N, SPEC.heads[layer]))
    for r in range(ROWS):
        for j in range(N):
            for h in range(SPEC.heads[layer]):
                result = v[r, j, h] @ attn.W_O[h] + attn.b[h] * x[r, j]
                values[r, j, h] = float(result.detach().numpy() @ w)
    return [pattern[:, : SPEC.heads[layer]].numpy(), values]


def test_the_first_layer_equals_a_direct_loop() -> None:
    """A given direction, identity terms included; by lag and around a latent's lags."""
    model, rows = model_and_rows()
    w = np.random.default_rng(0).normal(size=6)
    found = layer_kernels(model, rows, 0, PLACES, directions={"x1": w, "xt": w})
    pattern, values = writing(model, rows, 0, w)
    centred = values - values.mean((0, 1))
    scaled = (centred / np.abs(centred).max((0, 1))).reshape(-1, 2)
    signal = (scaled @ np.linalg.svd(scaled, full_matrices=False)[2][0]).reshape(ROWS, N)
    signal /= np.sqrt((signal**2).mean())
    for name, of in (("x1", np.zeros((ROWS, N))), ("xt", rows.latents["t"].numpy())):
        expected = np.zeros((2, 2 * N - 1))
        for h in range(2):
            for offset in range(1 - N, N):
                terms = [
                    pattern[r, h, i, j] * centred[r, j, h] * signal[r, j]
                    for r in range(ROWS) for i in range(N) for j in range(i + 1)
                    if rows.mask[r, i] and i - j - of[r, i] == offset
                ]  # fmt: skip
                expected[h, offset + N - 1] = np.mean(terms) if terms else 0.0
        expected = expected if name == "xt" else expected[:, N - 1 :]
        together = expected.sum(0)
        expected *= np.sign(together[np.abs(together).argmax()])
        np.testing.assert_allclose(found.kernels[name], expected, atol=1e-10)
        share = abs(expected.sum(0)[N - 1 if name == "xt" else 1]) / np.abs(expected.sum(0)).sum()
        lag = 0 if name == "xt" else 1
        assert found.concentration(name, lag) == pytest.approx(share)


def test_a_deeper_layer_is_the_regression_of_what_is_written() -> None:
    model, rows = model_and_rows()
    w = np.random.default_rng(0).normal(size=6)
    found = layer_kernels(model, rows, 1, {"x1": 1}, directions={"x1": w}).kernels["x1"]
    pattern, values = writing(model, rows, 1, w)
    x = rows.inputs[..., 0].numpy()
    past, written = [], []
    for r in range(ROWS):
        for i in range(3, N):
            if rows.mask[r, i]:
                past.append([1.0, *(x[r, i - s] for s in range(4))])
                written.append([pattern[r, h, i] @ values[r, :, h] for h in range(3)])
    slopes = np.linalg.lstsq(np.array(past), np.array(written), rcond=None)[0][1:].T
    sign = np.sign((slopes * found).sum())
    np.testing.assert_allclose(found, sign * slopes, rtol=1e-7)
    assert found.sum(0)[np.abs(found.sum(0)).argmax()] > 0


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1])
def test_batches_and_stores_change_nothing(layer: int, tmp_path: Path) -> None:
    model, rows = model_and_rows()
    store = store_of(model, rows, tmp_path)
    whole = layer_kernels(model, rows, layer, PLACES, batch=ROWS, resamples=20)
    for batch in (1, 7):
        for source in (rows, store):
            same(layer_kernels(model, source, layer, PLACES, batch=batch, resamples=20), whole)


@pytest.mark.parametrize("layer", [0, 1])
def test_coefficients_are_what_heads_write_of_their_signal(layer: int) -> None:
    """Regression of each head's values on the heads' first principal component."""
    model, rows = model_and_rows()
    w = np.random.default_rng(0).normal(size=6)
    found = layer_kernels(model, rows, layer, {"x1": 1}, directions={"x1": w}, batch=7)
    values = writing(model, rows, layer, w)[1].reshape(ROWS * N, -1)
    scaled = (values - values.mean(0)) / np.abs(values - values.mean(0)).max(0)
    signal = scaled @ np.linalg.svd(scaled, full_matrices=False)[2][0]
    slopes = np.polyfit(signal / signal.std(), values, 1)[0]
    sign = np.sign(slopes @ found.coefficients["x1"])
    np.testing.assert_allclose(found.coefficients["x1"], sign * slopes, rtol=1e-8)


def test_a_constructed_memory_is_selected_together_and_by_no_head() -> None:
    task = FixedMemory((1, 3), "multiplexer", 10)
    model, rows = construct_fixed_memory(task).model, task.sample(40, seed=0)
    lags = dict(zip(task.arguments[1:], task.lags, strict=True))
    found = layer_kernels(model, rows, 0, lags)
    options = {"combinations": {0: found.coefficients}, "resamples": 0}
    table = lag_table(model, rows, lags=[0, 1, 2, 3], **options)
    heads = table[table["component"] == "head"].set_index(["head", "target"])["score"].unstack()
    assert (heads.idxmax(axis=1) == "lag 0").all()
    together = table[table["component"] == "group"].set_index(["group", "target"])["score"]
    for name, lag in lags.items():
        assert together[name, f"lag {lag}"] > 0.95


def test_directions_are_those_of_the_probe() -> None:
    """A constant feature, and features of very different size and mean, included."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 5, 6)) * [1, 1e5, 1e-4, 1, 0, 1] + [0, 1e6, 3, 0, 7, 0]
    latent = features[..., 0] - 1e-5 * features[..., 1] + rng.normal(size=(40, 5))
    for size in (1, 7, 40):
        sums = DirectionSums()
        for at in range(0, 40, size):
            sums.add(features[at : at + size], latent[at : at + size])
        held = sums.size
        np.testing.assert_allclose(sums.direction(), direction(features, latent), rtol=1e-6)
    sums.add(features, latent)
    assert sums.size == held


def test_intervals_are_of_effects_and_hold_the_score() -> None:
    model, rows = model_and_rows()
    measured = layer_kernels(model, rows, 0, PLACES, resamples=200)
    null = kernel_null(model, rows, 0, PLACES, draws=10)
    table = kernel_table(measured, PLACES, null)
    kernels = table[table["metric"] != "lag_mass"]
    assert set(table[table["metric"] == "lag_mass"]["target"]) == {"x1"}
    assert kernels["effect"].between(kernels["low"], kernels["high"]).mean() > 0.8
    assert (kernels["high"] > kernels["low"]).all()
    plain = kernel_table(layer_kernels(model, rows, 0, PLACES), PLACES, null)
    assert plain["low"].isna().all()
    assert plain["score"].to_numpy() == pytest.approx(table["score"].to_numpy())


@pytest.mark.parametrize("layer", [0, 1])
def test_the_null_is_the_measurement_of_fresh_models_one_by_one(
    layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In stacks of two, in a layer with fewer heads than the other and in the wider one."""
    model, rows = model_and_rows()
    monkeypatch.setattr("probes.kernels._AT_ONCE", 2 * ROWS * N * (3 * N + 6))
    null = kernel_null(model, rows, layer, PLACES, seed=7, draws=5)
    wanted: dict[tuple[str, str], list[float]] = defaultdict(list)
    for seed in range(7, 12):
        found = layer_kernels(SequenceTransformer(SPEC, seed=seed), rows, layer, PLACES)
        for name, lag in (("x1", 1), ("xt", 0)):
            wanted["kernel_concentration", name].append(found.concentration(name, lag))
            wanted["kernel_share", name] += found.shares(name).tolist()
            wanted["kernel_part", name] += found.parts(name, lag).tolist()
        wanted["lag_mass", "x1"] += found.mass[:, 1].tolist()
    assert set(null) == set(wanted)
    for key, scores in wanted.items():
        np.testing.assert_allclose(null[key], scores, rtol=1e-8, err_msg=str(key))


def test_kernel_refusals(tmp_path: Path) -> None:
    model, rows = model_and_rows()
    store = store_of(model, rows, tmp_path)
    with pytest.raises(ArgumentError, match="latent 'y' is not in the rows: they have x1, t, xt"):
        layer_kernels(model, rows, 0, {"y": 1})
    with pytest.raises(ArgumentError, match=r"layer must be one that has heads.*batch must be at"):
        layer_kernels(model, rows, 2, PLACES, batch=0)
    with pytest.raises(ArgumentError, match="rows must be of this model's activations"):
        layer_kernels(SequenceTransformer(SPEC, seed=2), store, 0, PLACES)
    some = extract(model, rows, HOOKS[:2], tmp_path / "some", batch=10)
    with pytest.raises(HookError, match="hook_resid_mid"):
        layer_kernels(model, some, 0, PLACES)
    part = extract(model, rows, HOOKS, tmp_path / "part", batch=10, heads=[0])
    with pytest.raises(ArgumentError, match="rows must hold all heads of the layer"):
        layer_kernels(model, part, 0, PLACES)
    both_ways = SequenceTransformer(TransformerSpec(**{**SPEC.to_dict(), "causal": False}))
    with pytest.raises(ArgumentError, match="model must have causal attention"):
        layer_kernels(both_ways, rows, 0, PLACES)
    with torch.no_grad():
        model.blocks[0].attn.W_V[1] = float("nan")
    with pytest.raises(
        ArgumentError, match=r"blocks\.0\.attn\.hook_v must be finite, got 'head 1'"
    ):
        layer_kernels(model, rows, 0, PLACES)


def bridge(folder: Path, kind: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 6, "n_positions": 12}
        model = GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=1, **sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
            intermediate_size=20, vocab_size=6, max_position_embeddings=12, bos_token_id=1,
        ))  # fmt: skip
    model.save_pretrained(folder / "model")
    return load_pretrained(folder / "model").model


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_pretrained_model_is_read_too(kind: str, tmp_path: Path) -> None:
    """What all heads put along w from all keys is what the layer writes, shared values included."""
    model = bridge(tmp_path, kind)
    gen = torch.Generator().manual_seed(0)
    tokens = torch.randint(6, (12, 9), generator=gen)
    lags = torch.ones(12, 9)
    rows = Batch(tokens, tokens, torch.arange(9).expand(12, -1) > 0, {"t": lags})
    w = np.random.default_rng(0).normal(size=model.cfg.d_model)
    read = LayerRows(model, rows, 1, batch=5)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    attn = cache["blocks.1.hook_attn_out"].double().numpy()
    bias = getattr(model.blocks[1].attn, "b_O", None)
    wanted = (attn - (0 if bias is None else bias.detach().double().numpy())) @ w
    got = np.concatenate([
        np.einsum("rhqk,rkh->rq", part.pattern, read.values(part, w)) for part in read
    ])  # fmt: skip
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    options: dict[str, Any] = {"directions": {"w": w}, "resamples": 5}
    live = layer_kernels(model, rows, 1, {"w": "t"}, batch=5, **options)
    hooks = [f"blocks.1.{hook}" for hook in ("attn.hook_pattern", "attn.hook_v", "hook_resid_mid")]
    store = extract(model, rows, hooks, tmp_path / "store", batch=4)
    kept = layer_kernels(model, store, 1, {"w": "t"}, batch=12, **options)
    np.testing.assert_allclose(live.kernels["w"], kept.kernels["w"], rtol=1e-4, atol=1e-7)
    with pytest.raises(ArgumentError, match="rows must have real inputs"):
        layer_kernels(model, rows, 1, {"w": 1}, **options)
    with pytest.raises(ArgumentError, match="model must have a spec"):
        kernel_null(model, rows, 1, {"w": 1})
