"""Heads of real language models: what is kept of both sides agrees, and is what runs give."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from analyses.apart.heads import HeadsApart, random_sets, repeated_rows, summary
from analyses.benchmarks.heads_apart import (
    TABLES,
    apart_and_roles,
    disagreements,
    is_needed,
    load_apart,
)
from trained.packaged import PACKAGED

SIZE = {
    "vocab_size": 1100,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "attn_implementation": "eager",
}


def tiny(family: str) -> nn.Module:
    torch.manual_seed(0)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZE)).eval()
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(**SIZE, sliding_window=5, layer_types=types)
    return Gemma3ForCausalLM(config).eval()


def test_rows_repeat_and_are_scored_where_the_next_token_follows() -> None:
    tokens, scored = repeated_rows(1100, 3, rows=6, length=24)
    assert bool((tokens[:, 0] == 3).all())
    for row, where in zip(tokens.tolist(), scored.tolist(), strict=True):
        for place in range(1, 23):
            earlier = [i for i in range(1, place) if row[i] == row[place]]
            assert where[place] == bool(earlier)
            assert all(row[i + 1] == row[place + 1] for i in earlier)
        assert not where[23], "what follows the last is not known"


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_rises_are_those_of_whole_runs(family) -> None:
    model = tiny(family)
    tokens, scored = repeated_rows(1100, 3, rows=5, length=20)
    apart = HeadsApart(model, tokens, scored)

    def losses() -> torch.Tensor:
        with torch.no_grad():
            logs = model(tokens).logits.log_softmax(-1)
        each = -logs[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
        return torch.stack([r[s].mean() for r, s in zip(each, scored[:, :-1], strict=True)])

    clean, group = losses(), [(1, 0), (2, 1)]
    assert apart.clean == pytest.approx(float(clean.mean()), abs=1e-5)
    means = {}

    def read(layer: int):
        return lambda _, args: means.__setitem__(layer, args[0].mean(0, keepdim=True))

    def mean_hook(layer: int, head: int):
        def change(_, args):
            value = args[0].clone()
            value[..., 8 * head : 8 * head + 8] = means[layer][..., 8 * head : 8 * head + 8]
            return (value,)

        return change

    outs = [block.self_attn.o_proj for block in model.model.layers]
    hooks = [outs[layer].register_forward_pre_hook(read(layer)) for layer, _ in group]
    losses()
    for hook in hooks:
        hook.remove()
    for layer, head in group:
        outs[layer].register_forward_pre_hook(mean_hook(layer, head))
    whole = losses() - clean
    torch.testing.assert_close(apart.rises(group), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(apart.rises(group, 3), whole[:3], atol=1e-5, rtol=0)


def test_shares_of_attention_are_means_over_queries_that_have_such_keys() -> None:
    model = tiny("llama")
    tokens, scored = repeated_rows(1100, 3, rows=4, length=20)
    with torch.no_grad():
        patterns = model(tokens, output_attentions=True).attentions
    for layer, head, previous, followed in HeadsApart(model, tokens, scored).attention():
        pattern, before, after = patterns[layer][:, head], [], []
        for row, of in zip(tokens.tolist(), pattern, strict=True):
            before += [float(of[i, i - 1]) for i in range(1, 20)]
            for i in range(20):
                keys = [j + 1 for j in range(i) if row[j] == row[i]]
                after += [float(of[i, keys].sum())] if keys else []
        assert previous == pytest.approx(sum(before) / len(before), abs=1e-5)
        assert followed == pytest.approx(sum(after) / len(after), abs=1e-5)


def test_random_sets_have_as_many_heads_of_each_layer_and_none_of_the_group() -> None:
    group = [(0, 1), (0, 2), (2, 0)]
    for some in random_sets(group, 5):
        assert sorted(layer for layer, _ in some) == [0, 0, 2]
        assert not set(some) & set(group)


def test_disagreements_are_found_both_ways() -> None:
    def head(layer: int, share: float, loss: float) -> dict:
        numbers = {"loss": loss, "low": loss - 0.01, "high": loss + 0.01}
        return {"layer": layer, "head": 0, "previous": share, "followed": 0.0, **numbers}

    def role_row(layer: int, status: str, group: str = "") -> dict:
        about = {"component": "head", "layer": layer, "head": 0, "role": "previous-token"}
        return {**about, "status": status, "group": group}

    groups = [
        {"group": "L3H0+L4H0", "loss": 0.5, "low": 0.4, "random": [0.1, 0.2]},
        {"group": "L5H0+L6H0", "loss": 0.5, "low": 0.4, "random": [0.1, 0.6]},
    ]
    shares = [0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9]
    losses = [0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5, 0.5]
    heads = [head(i, s, x) for i, (s, x) in enumerate(zip(shares, losses, strict=True))]
    roles = [
        role_row(0, "confirmed"),
        role_row(1, "confirmed"),  # wrong: not needed
        role_row(3, "confirmed", "L3H0+L4H0"),
        role_row(5, "confirmed", "L5H0+L6H0"),  # wrong: random sets cost as much
        role_row(6, "rejected"),  # wrong: needed
        role_row(7, "necessary, not specific"),
    ]
    found = disagreements({"heads": heads, "groups": groups}, roles)
    assert [one["head"] for one in found] == ["L1H0", "L5H0", "L6H0"]


@pytest.mark.packaged
@pytest.mark.parametrize("name", ["gemma3-270m"])
def test_the_kept_numbers_of_a_few_heads_are_measured_again(name) -> None:
    if not PACKAGED[name].installed:
        pytest.skip(f"not installed: {PACKAGED[name].command}")
    apart = apart_and_roles(name)[0]
    model = load_apart(name)
    config = model.config
    heads = HeadsApart(model, *repeated_rows(config.vocab_size, config.bos_token_id))
    assert heads.clean == pytest.approx(apart["clean"], abs=1e-3)
    same_rows = [one for one in apart["heads"] if one["rows"] <= apart["rows"]]
    strongest = sorted(same_rows, key=lambda one: -one["loss"])[:2]
    idle = min(same_rows, key=lambda one: abs(one["loss"]))
    for one in (*strongest, idle):
        found = summary(heads.rises([(one["layer"], one["head"])], one["rows"]))
        assert found["loss"] == pytest.approx(one["loss"], abs=2e-3)
        assert is_needed({**one, **found}) == is_needed(one)


def test_what_is_confirmed_of_smollm2_is_what_transformers_alone_finds_needed() -> None:
    apart, roles = apart_and_roles("smollm2-135m")
    assert len(apart["heads"]) == 270
    assert disagreements(apart, roles) == []
    confirmed = [one for one in roles if one["status"] == "confirmed"]
    assert sum(one["component"] == "head" for one in confirmed) >= 12


def test_what_is_confirmed_of_gemma_is_what_transformers_alone_finds_needed() -> None:
    apart, roles = apart_and_roles("gemma3-270m")
    assert len(apart["heads"]) == 72
    inspected = json.loads((TABLES / "real-gemma3-270m.json").read_text())["roles"]
    assert disagreements(apart, roles) == disagreements(apart, inspected) == []
    sure = [one for one in inspected if one["component"] == "head" and one["status"] == "confirmed"]
    places = {(one["layer"], one["head"]) for one in sure if one["role"] == "induction"}
    assert {(11, 2), (5, 1), (5, 2)} <= places, "the most needed by transformers alone"


@pytest.mark.packaged
@pytest.mark.slow
def test_an_inspection_names_the_heads_that_transformers_alone_finds_needed(tmp_path) -> None:
    """Few rows, others than those measured apart: what is confirmed must look there and be missed
    there, alone or in its group, and the heads missed most must not be rejected."""
    name = "smollm2-135m"
    if not PACKAGED[name].installed:
        pytest.skip(f"not installed: {PACKAGED[name].command}")
    out = tmp_path / "out"
    few = ["--quick", "--rows", "8"]
    run = [sys.executable, "-m", "prooflens", "inspect", name, *few, "--out", str(out)]
    threads = {"OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1))}
    subprocess.run(run, check=True, env={**os.environ, **threads}, capture_output=True)
    roles = pd.read_csv(out / "roles.csv", keep_default_na=False)
    shares = {"previous-token": "previous", "induction": "followed"}
    sure = roles[(roles["status"] == "confirmed") & roles["role"].isin(shares)]
    sure = sure[sure["component"] == "head"]
    apart = {(one["layer"], one["head"]): one for one in apart_and_roles(name)[0]["heads"]}
    for row in sure.itertuples():
        one = apart[row.layer, row.head]
        assert one[shares[row.role]] >= 0.25, row
        assert one["loss"] >= 0.04 or row.group, row
    missed = [one for one in apart.values() if max(one["previous"], one["followed"]) >= 0.3]
    most = sorted(missed, key=lambda one: -one["loss"])[:2]
    held = roles[roles["status"].isin(["confirmed", "candidate"]) & roles["role"].isin(shares)]
    found = set(zip(held["layer"], held["head"], strict=True))
    assert {(one["layer"], one["head"]) for one in most} <= found
