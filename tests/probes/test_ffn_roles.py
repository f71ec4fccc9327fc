"""FFNs beside fresh ones, by path patching with hooks by hand, and as tables."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from interp.errors import ArgumentError
from interp.interventions.components import read_by_ffn
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import Mean, Run, Site
from interp.tasks.base import Batch
from probes.roles import TASK, find_roles
from probes.roles.detectors.passing import passing_roles
from probes.roles.effects import Effects
from probes.roles.examined import Examined
from probes.roles.explanation import explain
from probes.roles.ffn_tables import can_read, ffn_table, halves
from probes.roles.fitting import Fitting
from probes.roles.fresh_ffns import FreshFFNs, has_own_ffns
from probes.roles.gathering import evidence_of
from probes.roles.key_classes import pair_classes
from trained import zoo

SPEC = TransformerSpec(
    d_in=5, d_out=3, n_ctx=9, d_model=12, n_layers=2, n_heads=2, d_head=4, ffn=(16,), norm="rmsnorm"
)


def _model(seed: int = 3) -> tuple[SequenceTransformer, Batch]:
    model = SequenceTransformer(SPEC, seed=seed).eval()
    tokens = torch.randint(5, (24, 9), generator=torch.Generator().manual_seed(seed))
    return model, Batch(tokens, tokens % 3, torch.ones(24, 9, dtype=torch.bool))


def _streams(model: SequenceTransformer, inputs: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    names = [read_by_ffn(model, layer).name, Site(layer, "mlp_out").name]
    _, cache = model.run_with_cache(inputs, names_filter=names)
    return cache[names[0]], cache[names[1]]


def test_an_ffn_run_apart_writes_what_it_writes_in_the_model() -> None:
    model, batch = _model()
    assert has_own_ffns(model)
    for layer in range(2):
        stream, written = _streams(model, batch.inputs, layer)
        torch.testing.assert_close(FreshFFNs(model).ffn_output(layer, stream), written)


def test_the_change_of_the_output_is_that_of_path_patching_by_hand() -> None:
    """What layer 0's FFN writes without what it reads of the tokens; all else stays."""
    model, batch = _model()
    stream, _ = _streams(model, batch.inputs, 0)
    lost = model.embed(batch.inputs) - model.embed(batch.inputs).mean(0)
    without = FreshFFNs(model).ffn_output(0, stream - lost)

    def write(value: Tensor, hook: Any) -> Tensor:
        return without

    with torch.no_grad():
        clean = model(batch.inputs)
        with model.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", write)]):
            changed = model(batch.inputs)
    expected = (changed - clean).double().square().sum()
    found, same = FreshFFNs(model).compare_change(0, batch.inputs, stream, lost, batch.mask)
    gone = (stream - lost + without).detach()
    with torch.no_grad():
        there = model.unembed(model.ln_final(model.blocks[1](gone))) - clean
    change = (changed - clean).double()
    assert same == pytest.approx(float((change * there).sum() / change.square().sum()), rel=1e-3)
    assert found.score == pytest.approx(float(expected), rel=1e-4)
    evidence = evidence_of(model, batch, TASK)
    told = list(passing_roles(Examined(evidence, Effects(evidence))))
    mine = next(one for one in told if (one.layer, one.target) == (0, "token"))
    spread = (clean - clean.mean((0, 1))).double().square().sum()
    assert mine.strength == pytest.approx(float(expected / spread), rel=1e-3)


def test_an_ffn_that_shuffling_does_not_change_is_not_beyond_fresh_ones() -> None:
    model, batch = _model()
    with torch.no_grad():
        for weight in model.blocks[0].mlp.parameters():
            weight.fill_(0.1)
    stream, _ = _streams(model, batch.inputs, 0)
    latent = batch.inputs.double()
    found = FreshFFNs(model).compare_latent(0, stream, latent, torch.arange(24) % 5)
    assert found.p == 1.0


def test_an_untrained_model_passes_nothing_on() -> None:
    for seed in range(4):
        model, batch = _model(seed)
        evidence = evidence_of(model, batch, TASK)
        for one in passing_roles(Examined(evidence, Effects(evidence))):
            assert one.behaviour[-1].p > 0.001, one


def test_a_trained_ffn_runs_as_a_table_of_few_numbers() -> None:
    shipped = zoo.load("depth-L3-layers1")
    run = Run(shipped.model, shipped.task.sample(96, seed=1))
    other = Run(shipped.model, shipped.task.sample(96, seed=2))
    found = ffn_table(run, 0, [], run.batch.latents)
    assert found is not None
    words, table = found
    assert "what L0H0 wrote" in words
    mean = other.with_(Mean(Site(0, "mlp_out")))
    clean, none = (float(other.by_row(one.value()).mean()) for one in (other, mean))
    kept = float(other.with_(table).by_row(other.with_(table).value()).mean())
    assert kept - clean < 0.02 * (none - clean)


def test_an_ffn_of_many_numbers_has_no_table() -> None:
    spec = TransformerSpec(
        d_in=12, d_out=3, n_ctx=6, d_model=24, n_layers=1, ffn=(64,), input="real", n_heads=1
    )
    model = SequenceTransformer(spec, seed=1).eval()
    mlp = model.blocks[0].mlp
    with torch.no_grad():  # as much for u as for −u: no line explains anything
        mlp.W_in.mul_(20.0)
        mlp.W_in[:, 32:] = -mlp.W_in[:, :32]
        mlp.W_out[32:] = mlp.W_out[:32]
    inputs = torch.randn(64, 6, 12, generator=torch.Generator().manual_seed(2))
    mask = torch.ones(64, 6, dtype=torch.bool)
    run = Run(model, Batch(inputs, torch.zeros(64, 6, 3), mask))
    assert ffn_table(run, 0, [], {}) is None


def test_an_ffn_that_a_line_explains_runs_as_a_linear_map() -> None:
    """A large bias keeps every neuron open: the FFN is linear, and depends on twelve numbers."""
    spec = TransformerSpec(
        d_in=12, d_out=3, n_ctx=6, d_model=24, n_layers=1, ffn=(64,), input="real", n_heads=1
    )
    model = SequenceTransformer(spec, seed=1).eval()
    with torch.no_grad():
        model.blocks[0].mlp.b_in.fill_(50.0)
    batches = [
        Batch(
            torch.randn(64, 6, 12, generator=torch.Generator().manual_seed(seed)),
            torch.zeros(64, 6, 3),
            torch.ones(64, 6, dtype=torch.bool),
        )
        for seed in (2, 3)
    ]
    found = ffn_table(Run(model, batches[0]), 0, [], {})
    assert found is not None
    words, program = found
    assert words.startswith("what it writes is a linear map of what it reads")
    other, site = Run(model, batches[1]), Site(0, "mlp_out")
    made, own = other.with_(program).at([site])[site], other.at([site])[site]
    assert (made - own).square().mean() < 1e-4 * own.var()


def test_what_a_line_reads_is_what_a_least_squares_fit_explains() -> None:
    rng = np.random.default_rng(0)
    stream = rng.normal(size=(400, 6))
    for noise, expected in ((0.2, True), (0.5, False)):
        values = stream @ rng.normal(size=6) + 2.0
        values = values + noise * values.std() * rng.normal(size=400)
        fit, *_ = np.linalg.lstsq(np.c_[stream, np.ones(400)], values, rcond=None)
        left = values - np.c_[stream, np.ones(400)] @ fit
        assert (1 - left.var() / values.var() >= 0.9) == expected
        half = torch.arange(400) % 2 == 0
        assert can_read(torch.from_numpy(stream), torch.from_numpy(values), half) == expected


def test_a_line_through_few_places_reads_nothing() -> None:
    """As many numbers as places: a fit is exact, and says nothing of other places."""
    generator = torch.Generator().manual_seed(1)
    stream = torch.randn(24, 24, generator=generator, dtype=torch.float64)
    coins = torch.randint(2, (24,), generator=generator).double()
    assert not can_read(stream, coins, torch.arange(24) % 2 == 0)


def test_halves_are_of_rows_that_have_scored_places() -> None:
    scored = torch.tensor([[True, True], [False, False], [False, True], [True, True]])
    assert halves(scored).tolist() == [True, True, False, True, True]


def test_models_without_heads_and_rows_scored_late_are_asked() -> None:
    spec = TransformerSpec(d_in=5, d_out=5, n_ctx=9, d_model=12, n_layers=2, n_heads=0, ffn=(16,))
    tokens = torch.randint(5, (24, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(24, 9, dtype=torch.bool)
    model = SequenceTransformer(spec, seed=1).eval()
    rows = Batch(tokens, tokens % 3, mask, {"even": (tokens % 2).double()})
    assert find_roles(model, rows, profile="task").empty
    assert not find_roles(model, rows, answers={"even": ()}).attrs["lacks"].get("readout")
    with pytest.raises(ArgumentError, match="attention heads for profile 'language'"):
        find_roles(model, tokens, profile="language")
    shipped = zoo.load("depth-L3-layers1")
    batch = shipped.task.sample(48, seed=1)
    late = batch.mask.clone()
    late[:16] = False
    rows = Batch(batch.inputs, batch.targets, late)
    roles = find_roles(shipped.model, rows, profile="task")
    assert ("passing-on", "confirmed") in {*zip(roles["role"], roles["status"], strict=True)}


def test_lines_need_no_latents_where_an_explanation_is_judged() -> None:
    """They are read off the stream, so that nothing is known that the programs do not carry."""
    shipped = zoo.load("depth-L4-layers2")
    rows, other = (shipped.task.sample(96, seed=seed) for seed in (1, 2))
    roles = pd.DataFrame(
        [("head", layer, 0, "counting") for layer in (0, 1)] + [("ffn", 0, -1, "passing-on")],
        columns=["component", "layer", "head", "role"],
    ).assign(status="confirmed", target="", group="")
    blind = Batch(other.inputs, other.targets, other.mask)
    kept = [explain(shipped.model, roles, rows, judged=one).kept.share for one in (other, blind)]
    assert kept[0] == kept[1] > 0.95
    alone = explain(shipped.model, roles[1:2], rows, judged=other)
    assert alone.kept.share < 0.6  # the first layer is at its mean: nobody counted


def test_a_head_behind_the_first_layer_sees_lines_of_the_program() -> None:
    """Classes of pairs of states against a loop over positions."""
    shipped = zoo.load("depth-L4-layers2")
    batch = shipped.task.sample(16, seed=3)
    role = type("Row", (), {"layer": 1, "head": 0})()
    run = Run(shipped.model, batch)
    classes = pair_classes(Fitting(role, run, run))
    assert any("E2" in words for words in classes)
    lines = {name: batch.latents[name] > 0 for name in ("E2",)}
    for words, keys in classes.items():
        query, key = words.split(" sees ")
        found = keys(run)
        for row in range(4):
            for q in range(0, batch.inputs.shape[1], 7):
                for k in range(0, q + 1, 3):
                    expected = all(
                        _is(batch, lines, row, at, state) for at, state in ((q, query), (k, key))
                    )
                    assert bool(found[row, q, k]) == expected


def _is(batch: Batch, lines: dict[str, Tensor], row: int, at: int, state: str) -> bool:
    token, *holding = state.split(" and ")
    same = int(batch.inputs[row, at]) == int(token)
    return same and {name for name, holds in lines.items() if holds[row, at]} == set(holding)
