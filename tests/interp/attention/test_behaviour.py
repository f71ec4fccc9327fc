"""Copying and position against direct loops, sampled nulls, and heads built to do neither."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from interp.attention.behaviour import SCALE, copying_table, positional_table
from interp.attribution.unembedding import logit_offset, unembedding
from interp.errors import ArgumentError, HookError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from interp.store.rows import Rows, read_batches

SPEC = TransformerSpec(
    d_in=13, d_out=13, n_ctx=8, d_model=12, n_layers=2, n_heads=3, d_head=4,
    positions="learned", norm="layernorm",
)  # fmt: skip
HOOKS = [f"blocks.{i}.attn.hook_{kind}" for i in range(2) for kind in ("pattern", "z")] + [SCALE]


def noisy_model(**options: object) -> SequenceTransformer:
    model = SequenceTransformer(TransformerSpec(**{**vars(SPEC), **options}), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator)
    return model


def tokens(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 13, (rows, 8), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_copying_equals_a_direct_loop_over_tokens() -> None:
    model, x = noisy_model(), tokens(3)
    _, cache = model.run_with_cache(x)
    found = copying_table(model, read_batches(model, x, HOOKS, batch=3)).set_index(
        ["layer", "head"]
    )
    to_logits = unembedding(model)
    for layer in range(2):
        for head in range(3):
            paired = np.zeros((3, 3))
            for row in range(3):
                for other in range(3):
                    for i in range(8):
                        z = cache[f"blocks.{layer}.attn.hook_z"][row, i, head]
                        write = z @ model.W_O[layer, head] / cache[SCALE][row, i]
                        logits = write @ to_logits
                        for j in range(i + 1):
                            p = cache[f"blocks.{layer}.attn.hook_pattern"][row, head, i, j]
                            paired[row, other] += float(p * logits[x[other, j]]) / 8
            ways = [np.mean([paired[r, s] for r, s in enumerate(order)])
                    for order in permutations(range(3))]  # fmt: skip
            line = found.loc[(layer, head)]
            assert line["score"] == pytest.approx(np.trace(paired) / 3, abs=1e-5)
            assert line["null_mean"] == pytest.approx(np.mean(ways), abs=1e-5)
            assert line["null_std"] == pytest.approx(np.std(ways), abs=1e-5)


def test_a_head_that_writes_what_it_reads_copies_and_one_that_negates_does_not() -> None:
    model = SequenceTransformer(
        TransformerSpec(**{**vars(SPEC), "d_model": 16, "norm": "none", "n_layers": 1}), seed=0
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E.copy_(torch.eye(13, 16))
        model.unembed.W_U.copy_(torch.eye(16, 13))
        generator = torch.Generator().manual_seed(0)
        value = torch.randn(16, 4, generator=generator)
        for head, sign in ((0, 1.0), (1, -1.0)):
            model.blocks[0].attn.W_V[head] = value
            model.blocks[0].attn.W_O[head] = sign * value.T
    hooks = ["blocks.0.attn.hook_pattern", "blocks.0.attn.hook_z", SCALE]
    found = copying_table(model, read_batches(model, tokens(64), hooks, batch=32))
    assert found["score"][0] > 0.1
    assert found["score"][1] == pytest.approx(-found["score"][0])
    assert (found["q"][:2] < 1e-6).all()
    assert (found["score"][2], found["p"][2]) == (0, 1)


def test_the_positional_score_equals_a_loop_and_its_null_a_sample() -> None:
    model, x = noisy_model(), tokens(2)
    with torch.no_grad():
        _, cache = model.run_with_cache(x)
    found = positional_table(read_batches(model, x, HOOKS, batch=2)).set_index(["layer", "head"])
    rng = np.random.default_rng(0)
    for layer, head in ((0, 1), (1, 2)):
        one, two = cache[f"blocks.{layer}.attn.hook_pattern"][:, head].double().numpy()

        def alike(shuffle: bool, one: np.ndarray = one, two: np.ndarray = two) -> float:
            total = 0.0
            for i in range(1, 8):
                p, s = one[i, : i + 1], two[i, : i + 1]
                s = rng.permutation(s) if shuffle else s
                total += float(p @ s / np.sqrt((p @ p) * (s @ s))) / 7
            return total

        draws = np.array([alike(True) for _ in range(4000)])
        line = found.loc[(layer, head)]
        assert line["score"] == pytest.approx(alike(False), abs=1e-6)
        assert line["null_mean"] == pytest.approx(draws.mean(), abs=4 * draws.std() / 60)
        assert line["null_std"] == pytest.approx(draws.std(), rel=0.1)


def test_position_heads_are_told_from_content_heads_and_even_ones() -> None:
    n = 8
    previous = torch.eye(n).roll(-1, 1).tril() + torch.eye(n) * (torch.arange(n) == 0)
    even = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    generator = torch.Generator().manual_seed(0)
    content = torch.rand(64, n, n, generator=generator).pow(8).tril()
    content = content / content.sum(-1, keepdim=True)
    pattern = torch.stack((previous.expand(64, n, n), even.expand(64, n, n), content), dim=1)

    rows = Rows(
        tokens(64), torch.ones(64, n, dtype=torch.bool), {}, {"blocks.0.attn.hook_pattern": pattern}
    )
    found = positional_table([rows])
    assert found["score"][:2].tolist() == pytest.approx([1, 1])
    assert found["effect"][0] > 0.5
    assert found["q"][0] < 1e-9
    assert abs(found["effect"][1]) < 1e-9
    assert abs(found["effect"][2]) < 0.1
    assert found["q"][2] > 0.01


def test_kept_heads_copy_as_in_the_model_and_keep_their_names(tmp_path: Path) -> None:
    model, x = noisy_model(), tokens(8)
    live = copying_table(model, read_batches(model, x, HOOKS, batch=4)).set_index(["layer", "head"])
    also = positional_table(read_batches(model, x, HOOKS, batch=4)).set_index(["layer", "head"])
    for kept in ([2], [2, 0], [1, 2]):
        store = extract(model, x, HOOKS, tmp_path / f"{kept}", heads=kept)
        found = copying_table(model, read_batches(store, None, HOOKS, batch=4))
        assert found["head"].tolist() == kept * 2
        for line in found.itertuples():
            assert line.score == pytest.approx(live["score"][line.layer, line.head], abs=1e-6)
        for line in positional_table(read_batches(store, None, HOOKS, batch=4)).itertuples():
            assert line.score == pytest.approx(also["score"][line.layer, line.head], abs=1e-6)


def test_a_head_with_an_identity_term_is_read_after_it() -> None:
    """Where heads write b times what they attend to, z W_O alone is not what they write."""
    model, x = noisy_model(identity_ov=True, d_head=12, n_heads=1), tokens(6)
    result = [h.replace("hook_z", "hook_result") for h in HOOKS]
    found = copying_table(model, read_batches(model, x, result, batch=6))
    plain = noisy_model(d_head=12, n_heads=1)
    with torch.no_grad():
        for ours, other in zip(model.blocks, plain.blocks, strict=True):
            ours.attn.b.zero_()
            for name, value in other.attn.named_parameters():
                value.copy_(dict(ours.attn.named_parameters())[name])
        for name, value in plain.named_parameters():
            value.copy_(dict(model.named_parameters())[name])
    without = copying_table(model, read_batches(model, x, result, batch=6))
    expected = copying_table(plain, read_batches(plain, x, HOOKS, batch=6))
    assert without["score"].tolist() == pytest.approx(expected["score"].tolist(), abs=1e-6)
    assert (found["score"] - without["score"]).abs().max() > 0.01
    with pytest.raises(HookError, match=r"rows lack blocks\.0\.attn\.hook_result: read"):
        copying_table(model, read_batches(model, x, HOOKS, batch=6))


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "layernorm"},
        {"norm": "layernorm", "norm_final": False},
        {"norm": "rmsnorm"},
        {"norm": "none"},
    ],
)
@torch.no_grad()
def test_the_readout_and_its_offset_are_the_logits(options: dict[str, object]) -> None:
    model = noisy_model(**options)
    logits, cache = model.run_with_cache(tokens(3))
    stream = cache["blocks.1.hook_resid_post"] / cache[SCALE]
    for centred, expected in ((True, logits - logits.mean(-1, keepdim=True)), (False, logits)):
        offset = logit_offset(model, centred=centred).float()
        mine = stream @ unembedding(model, centred=centred) + offset
        assert torch.allclose(mine, expected, atol=2e-5)


def test_intervals_hold_the_effect_and_shrink_with_rows() -> None:
    model = noisy_model()
    for table in (lambda rows: copying_table(model, rows), positional_table):
        few, many = (table(read_batches(model, tokens(n), HOOKS, batch=n)) for n in (16, 256))
        for found in (few, many):
            assert ((found["low"] < found["effect"]) & (found["effect"] < found["high"])).all()
        ratio = (few["high"] - few["low"]) / (many["high"] - many["low"])
        assert 2 < ratio.median() < 8  # 4, as the root of 16


def test_the_copying_interval_is_that_of_the_rows_resampled_at_once() -> None:
    """An outer bootstrap that pairs nothing anew: rows' own excess, drawn with replacement."""
    model, x = noisy_model(), tokens(64)
    line = copying_table(model, read_batches(model, x, HOOKS, batch=64)).iloc[0]
    _, cache = model.run_with_cache(x)
    logits = torch.einsum(
        "rqd,dm,mv->rqv", cache["blocks.0.attn.hook_z"][:, :, 0], model.W_O[0, 0],
        unembedding(model),
    ) / cache[SCALE]  # fmt: skip
    pattern = cache["blocks.0.attn.hook_pattern"][:, 0]
    paired = torch.stack(
        [(pattern @ torch.nn.functional.one_hot(x[s], 13).float() * logits).sum((1, 2)) / 8
         for s in range(64)], dim=1,
    ).detach().double()  # fmt: skip
    excess = paired.diagonal() - (paired.mean(0) + paired.mean(1)) / 2
    draws = np.random.default_rng(1).choice(excess.numpy(), (4000, 64)).mean(1)
    width = line["high"] - line["low"]
    assert line["effect"] == pytest.approx(float(excess.mean()), abs=1e-5)
    assert width == pytest.approx(np.subtract(*np.quantile(draws, [0.975, 0.025])), rel=0.15)


def test_positions_are_compared_over_the_keys_that_a_query_may_attend_to() -> None:
    """Even attention is 1 with effect 0 where attention looks both ways, too."""
    both = torch.full((4, 1, 5, 5), 1 / 5)
    mask = torch.ones(4, 5, dtype=torch.bool)
    rows = Rows(tokens(4)[:, :5], mask, {}, {"blocks.0.attn.hook_pattern": both})
    found = positional_table([rows]).iloc[0]
    assert (found["score"], found["effect"]) == (pytest.approx(1), pytest.approx(0, abs=1e-12))


def test_what_cannot_be_measured_is_refused() -> None:
    model = noisy_model()
    patterns = [h for h in HOOKS if h.endswith("pattern")]

    def rows(n: int, hooks: list[str], **changed: torch.Tensor) -> list[Rows]:
        found = list(read_batches(model, tokens(n), hooks, batch=n))
        for name, value in changed.items():
            found[0].activations[name.replace("__", ".")][0] = value
        return found

    nan, large = torch.tensor(float("nan")), torch.tensor(float("inf"))
    for use, error, text in (
        (lambda: copying_table(model, rows(1, HOOKS)), ArgumentError, "a batch of at least 2 rows"),
        (lambda: copying_table(model, []), ArgumentError, "a batch of at least 2 rows"),
        (lambda: positional_table(rows(1, HOOKS)), ArgumentError, "a batch of at least 2 rows"),
        (lambda: copying_table(model, rows(4, patterns)), HookError,
         r"lack blocks\.0\.attn\.hook_z or blocks\.0\.attn\.hook_result, ln_final\.hook_scale"),
        (lambda: positional_table(rows(4, HOOKS[1:2])), HookError, r"no hook blocks\.\*\.attn"),
        (lambda: copying_table(model, rows(4, HOOKS, blocks__1__attn__hook_z=nan)), ArgumentError,
         r"blocks\.1\.attn\.hook_z must be finite"),
        (lambda: copying_table(model, rows(4, HOOKS, ln_final__hook_scale=large)), ArgumentError,
         r"ln_final\.hook_scale must be finite"),
        (lambda: positional_table(rows(4, HOOKS, blocks__1__attn__hook_pattern=nan)), ArgumentError,
         r"blocks\.1\.attn\.hook_pattern must be finite, got 'layer 1"),
        (lambda: copying_table(noisy_model(d_out=5), rows(4, HOOKS)), ArgumentError,
         "must be tokens below 5, which the unembedding has, got 12"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            use()
