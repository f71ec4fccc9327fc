"""Attention from the last tokens alone, against short rows run one by one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import prooflens as pl
from analyses.benchmarks.family_cases import CASES, write
from analyses.benchmarks.last_tokens import patterns_of_last_tokens, spans_of
from prooflens.architectures import TransformerSpec, build
from prooflens.errors import ArgumentError
from prooflens.run import Run, Site, next_tokens

SITES = [Site(layer, "pattern", head) for layer in range(3) for head in range(2)]


def _run(positions: str = "rope") -> tuple[Run, Tensor]:
    spec = TransformerSpec(
        d_in=7, d_out=7, n_ctx=9, d_model=8, n_layers=3, n_heads=2, d_head=4, ffn=(6,),
        positions=positions, norm="rmsnorm",
    )  # fmt: skip
    model = build(spec, seed=3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)  # attention that is far from even
    tokens = torch.randint(1, 7, (5, 9), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 0
    return Run(model, next_tokens(tokens)), tokens


def test_spans_are_the_first_token_and_the_last_ones() -> None:
    spans, numbers = spans_of(torch.tensor([[0, 5, 6, 5, 6]]), 2)
    assert [spans[n] for n in numbers[0].tolist()] == [
        (0,),
        (0, 5),
        (0, 5, 6),
        (0, 6, 5),
        (0, 5, 6),
    ]


def test_one_layer_sees_tokens_alone_and_long_windows_everything() -> None:
    run, _ = _run()
    own = run.at(SITES)
    whole, one = (patterns_of_last_tokens(run, SITES, window) for window in (9, 1))
    for site in SITES:
        torch.testing.assert_close(whole[site], own[site])
    for site in SITES[:2]:
        torch.testing.assert_close(one[site], own[site])
    assert not torch.allclose(one[SITES[2]], own[SITES[2]], atol=0.05)


@torch.no_grad()
def test_agrees_with_short_rows_one_by_one() -> None:
    run, tokens = _run()
    model, found, layer = run.model, patterns_of_last_tokens(run, SITES, 2), 2
    _, cache = model.run_with_cache(tokens)
    stream = torch.empty_like(cache[f"blocks.{layer}.hook_resid_pre"])
    for number, row in enumerate(tokens.tolist()):
        for place in range(9):
            short = torch.tensor([[0, *row[1:][max(0, place - 2) : place]]])
            stream[number, place] = model(short, stop_at_layer=layer)[0, -1]
    assert not torch.allclose(stream, cache[f"blocks.{layer}.hook_resid_pre"])
    patterns: list[Tensor] = []
    hooks = [
        (f"blocks.{layer}.hook_resid_pre", lambda value, hook: stream),
        (f"blocks.{layer}.attn.hook_pattern", lambda value, hook: patterns.append(value)),
    ]
    model.run_with_hooks(tokens, fwd_hooks=hooks)
    for head in range(2):
        torch.testing.assert_close(found[Site(layer, "pattern", head)], patterns[0][:, head])


def test_a_llama_of_transformers_is_seen_so(tmp_path: Path) -> None:
    write(next(case for case in CASES if case.name == "Llama"), tmp_path)
    tokens = torch.randint(3, 60, (3, 7), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = 1
    run = Run(pl.load(str(tmp_path)), next_tokens(tokens))
    sites = [Site(layer, "pattern", 1) for layer in range(2)]
    own = run.at(sites)
    whole, one = (patterns_of_last_tokens(run, sites, window) for window in (7, 1))
    for site in sites:
        torch.testing.assert_close(whole[site], own[site], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(one[sites[0]], own[sites[0]], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(one[sites[1]], own[sites[1]], atol=1e-3)


def test_what_cannot_be_seen_so_is_refused() -> None:
    run, _ = _run()
    with pytest.raises(ArgumentError, match="window must be at least 1"):
        patterns_of_last_tokens(run, SITES, 0)
    with pytest.raises(ArgumentError, match="must not add positions"):
        patterns_of_last_tokens(_run("learned")[0], SITES, 1)
