"""Every lemma's number against sampled inputs: none may beat it, whatever the weights."""

from typing import Any

import numpy as np
import pytest
import torch
from certified_models import maximum_model, shaken
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.models.spec import TransformerSpec
from interp.tasks.depth import PrefixPrediction
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory
from probes.certify.run import certify, domain_of

SMALL: dict[str, Any] = {"d_in": 1, "d_out": 1, "d_model": 6, "n_layers": 1, "d_head": 3}
SEEDS = st.integers(0, 2**16)
SIZES = st.sampled_from([0.1, 0.5, 1.0, 3.0])


def lemmas(model: Any, task: Any, role: str, **options: Any) -> list[Any]:
    found = certify(model, task, strategies=["mechanism"], **options)
    return [m for m in found.best.lemmas if m.role == role]


def hook_value(model: Any, x: torch.Tensor, name: str) -> torch.Tensor:
    net = model.double()
    with torch.no_grad():
        cache = net.run_with_cache(x.double() if x.is_floating_point() else x)[1]
    model.float()
    return cache[f"blocks.{model.spec.n_layers - 1}.attn.{name}"]


@pytest.mark.parametrize(
    "options",
    [
        {"lag_bias": "table", "score": "none"},
        {"positions": "learned"},
        {"lag_bias": "lin", "score": "slope", "norm": "layernorm"},
    ],
    ids=lambda o: "-".join(o),
)
@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, size=SIZES)
def test_no_input_attends_more_elsewhere(options: dict[str, Any], seed: int, size: float) -> None:
    task = FixedMemory((1, 2), "table", length=5)
    spec = TransformerSpec(**SMALL | {"n_ctx": 5, "n_heads": 2, "input": "real"} | options)
    model = shaken(spec, seed, size)
    said = {(0, 0): 1 + seed % 3, (0, 1): 2}
    x = torch.randint(2, (64, 5, 1), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1
    pattern = hook_value(model, x, "hook_pattern")
    found = lemmas(model, task, "memory-location", lags=said)
    assert len(found) == 2
    for lemma, ((_, head), lag) in zip(found, sorted(said.items()), strict=True):
        for t in range(2, 5):
            seen = pattern[:, head, t].sum(-1) - (pattern[:, head, t, t - lag] if lag <= t else 0)
            assert float(seen.max()) <= lemma.number + 1e-12


@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, size=SIZES)
def test_no_row_attends_more_than_was_said_beside_the_lag_it_names(seed: int, size: float) -> None:
    task = AdaptiveMemory((1, 2), bits=2, inputs="gaussian", length=5)
    options = {"d_in": 3, "n_ctx": 5, "n_heads": 1, "input": "real", "ffn": (4,)}
    spec = TransformerSpec(**SMALL | options, score="none", lag_bias="relative_keys")
    model, domain = shaken(spec, seed, size), domain_of(task)
    found = lemmas(model, task, "memory-location")
    assert len(found) == len(domain.codes)
    for cells in domain.sample(64, np.random.default_rng(seed)):
        x: Any = cells.inputs.centre
        row = hook_value(model, torch.tensor(x), "hook_pattern")[:, 0, -1].numpy()
        for code, lemma in enumerate(found):
            mine = (x[:, -1, 1:] == domain.codes[code]).all(-1)
            beside = 1 - row[mine, x.shape[1] - 1 - domain.lags[code]]
            assert beside.max(initial=0.0) <= lemma.number + 1e-12


@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, size=SIZES)
def test_counters_see_no_order_and_no_larger_scores(seed: int, size: float) -> None:
    spec = TransformerSpec(**SMALL | {"d_in": 3, "d_out": 2, "n_ctx": 8, "n_heads": 2, "ffn": (4,)})
    model = shaken(spec, seed, size)
    task = PrefixPrediction("L_2", ((2, 7),))
    order, spread = lemmas(model, task, "uniform") or lemmas(model, task, "counter")
    ids = task.sample(16, seed=seed).inputs
    scores = hook_value(model, ids, "hook_attn_scores")
    n = ids.shape[1]
    finite = torch.where(torch.isfinite(scores), scores, torch.nan)
    for t in range(n):
        row = finite[:, :, t, : t + 1]
        assert float((row.amax(-1) - row.amin(-1)).max()) <= spread.number + 1e-9
    mixed = ids.clone()
    mixed[:, 1:-1] = ids[:, 1:-1][:, torch.randperm(n - 2)]
    with torch.no_grad():
        a, b = (model.double()(rows)[:, -1] for rows in (ids, mixed))
    model.float()
    assert float((a - b).abs().max()) <= order.number + 1e-9 * (1 + float(a.abs().max()))


@settings(max_examples=4, deadline=None)
@given(seed=SEEDS, size=SIZES)
def test_what_is_passed_on_beside_the_average_is_the_share_said(seed: int, size: float) -> None:
    task = KernelMemory(("light(6, 1.3)",), "waves", length=4)
    options = {"n_ctx": 4, "n_heads": 2, "input": "real", "ffn": (4,)}
    spec = TransformerSpec(**SMALL | options, score="none", lag_bias="table")
    model, domain = shaken(spec, seed, size), domain_of(task)
    (lemma,) = lemmas(model, task, "memory-location")
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.uniform(-1, 1, (64, 4, 1)))
    units = torch.eye(4, dtype=torch.float64)[..., None]
    net = model.double()
    with torch.no_grad():
        passed = [
            net.run_with_cache(rows)[1]["blocks.0.hook_resid_mid"][:, -1].numpy()
            for rows in (x, units, torch.zeros(1, 4, 1, dtype=torch.float64))
        ]
    model.float()
    own, rho = passed[1] - passed[2], domain.rho[:4][::-1]
    direction = rho @ own / (rho @ rho)
    rest = passed[0] - passed[2] - np.outer(x[..., 0].numpy() @ rho, direction)
    assert np.abs(rest).sum(1).max() <= lemma.number * np.abs(own).sum() * (1 + 1e-9) + 1e-12


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 50))
def test_of_the_maximum_no_token_beats_a_lemma(seed: int) -> None:
    model = maximum_model(6, 3, seed % 9)
    proofs = certify(model, Maximum(6, 3), strategies=["cubic"]).proofs
    fall, range_, copy, noise, own = (m.number for m in proofs[0].lemmas)
    ids = torch.randint(6, (64, 3), generator=torch.Generator().manual_seed(seed))
    up = ids.clone()
    up[:, 0] = (ids[:, 0] + 1).clamp(max=5)
    first, second = (hook_value(model, rows, "hook_attn_scores")[:, 0, -1] for rows in (ids, up))
    assert float((first - second)[:, 0].max()) <= fall + 1e-9
    assert float((first.amax(-1) - first.amin(-1)).max()) <= range_ + 1e-9
    attn = model.blocks[0].attn
    with torch.no_grad():
        place = model.pos_embed.W_pos[:3] if model.pos_embed is not None else torch.zeros(3, 6)
        entered = model.embed.W_E + place[:, None]  # [position, token, width]
        values = entered @ attn.W_V[0] + attn.b_V[0]
        table = (values @ attn.W_O[0] @ model.unembed.W_U).double().numpy()
        direct = (entered[-1] + attn.b_O) @ model.unembed.W_U + model.unembed.b_U
        direct = direct.double().numpy()
    off = table[:, ~np.eye(6, dtype=bool)]
    assert (table.diagonal(axis1=1, axis2=2) - table.mean(2)).min() >= copy - 1e-4
    assert off.max() - off.min() <= noise + 1e-4
    assert np.ptp(direct, axis=1).max() <= own + 1e-4
