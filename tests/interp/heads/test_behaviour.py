"""Copying and position against direct loops, sampled nulls, and heads built to do neither."""

from itertools import permutations

import numpy as np
import pytest
import torch

from interp.heads.behaviour import SCALE, copying_table, positional_table, readout
from interp.heads.reading import Rows, read_batches
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=13, d_out=13, n_ctx=8, d_model=12, n_layers=2, n_heads=3, d_head=4,
    positions="learned", norm="layernorm",
)  # fmt: skip
HOOKS = [f"blocks.{i}.attn.hook_{kind}" for i in range(2) for kind in ("pattern", "z")] + [SCALE]


def scrambled(**options: object) -> SequenceTransformer:
    model = SequenceTransformer(TransformerSpec(**{**vars(SPEC), **options}), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator)
    return model


def tokens(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 13, (rows, 8), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "none"])
@torch.no_grad()
def test_the_readout_gives_the_logits_up_to_a_constant(norm: str) -> None:
    model = scrambled(norm=norm)
    logits, cache = model.run_with_cache(tokens(4))
    mine = cache["blocks.1.hook_resid_post"] / cache[SCALE] @ readout(model)
    rest = (logits - logits.mean(-1, keepdim=True)) - mine
    assert torch.allclose(rest, rest[:1, :1].expand_as(rest), atol=2e-5)


@torch.no_grad()
def test_copying_equals_a_direct_loop_over_tokens() -> None:
    model, x = scrambled(), tokens(3)
    _, cache = model.run_with_cache(x)
    found = copying_table(model, read_batches(model, x, HOOKS, batch=3)).set_index(
        ["layer", "head"]
    )
    unembedding = readout(model)
    for layer in range(2):
        for head in range(3):
            paired = np.zeros((3, 3))
            for row in range(3):
                for other in range(3):
                    for i in range(8):
                        z = cache[f"blocks.{layer}.attn.hook_z"][row, i, head]
                        write = z @ model.W_O[layer, head] / cache[SCALE][row, i]
                        logits = write @ unembedding
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
    model, x = scrambled(), tokens(2)
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


def test_one_row_alone_has_no_copying_null() -> None:
    batch = Batch(tokens(1), tokens(1), torch.ones(1, 8, dtype=torch.bool))
    assert copying_table(scrambled(), read_batches(scrambled(), batch, HOOKS)).empty
