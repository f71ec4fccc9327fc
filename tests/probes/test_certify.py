"""Theorems about models: never on the wrong side of brute force, whatever the roles say."""

import json
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from certified_models import FIXED, brackets, maximum_model, rows, shaken

from interp.bounds.affine import share
from interp.models.spec import TransformerSpec
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from interp.tasks.template import TemplateTask
from probes.certify.certificate import sha256_of
from probes.certify.check import check
from probes.certify.cover import _share, prove
from probes.certify.domains import Signs, Strings
from probes.certify.run import certify, domain_of, lags_of
from probes.certify.search import worst_error
from trained import zoo


@pytest.fixture(scope="module")
def multiplexer() -> Any:
    return zoo.load("fixed-memory-multiplexer").model


def worst(model: Any, task: FixedMemory, dtype: torch.dtype) -> float:
    """The largest error over all inputs, by running the model."""
    rows = torch.tensor(list(product((-1.0, 1.0), repeat=task.length)))
    x = [rows.roll(lag, 1) for lag in (0, *task.lags)]
    place = 2 ** torch.arange(len(x) - 1, -1, -1)
    table = torch.tensor(list(task.truth_table().values()), dtype=torch.float64)
    f = table[((torch.stack(x, -1) > 0) * place).sum(-1)]
    with torch.no_grad():
        out = model.to(dtype)(rows[..., None].to(dtype))[..., 0].double()
    model.float()
    return float((out - f)[:, max(task.lags) :].abs().max())


LAGS: dict[str, Any] = {"input": "real", "score": "none", "ffn": (4,)}
MODELS = [
    {"lag_bias": "table", "score": "none", "ffn": (8,)},
    {"lag_bias": "table", "score": "none", "ffn": (8,), "norm": "layernorm"},
    {"lag_bias": "lin", "score": "none", "normalizer": "none", "ffn": (8,)},
    {"lag_bias": "relative_keys", "score": "none", "n_layers": 2, "ffn": (4,), "norm": "rmsnorm"},
    {"positions": "learned", "ffn": (6,), "activation": "gelu"},
    {"lag_bias": "log", "score": "slope", "identity_ov": True},
    {"identity_qk": True, "positions": "sinusoidal", "norm": "layernorm", "ffn": (6,)},
    {"lag_bias": "bump", "score": "none", "n_layers": 2, "n_heads": 1, "ffn": (4,)},
]


@pytest.mark.parametrize("options", MODELS, ids=lambda o: "-".join(map(str, o.values())))
def test_no_strategy_is_below_the_true_worst_error(options: dict[str, Any]) -> None:
    task = FixedMemory((1, 2), "table", length=3)
    base: dict[str, Any] = {"d_in": 1, "d_out": 1, "n_ctx": 3, "d_model": 6, "n_layers": 1}
    spec = TransformerSpec(**base | {"n_heads": 2, "d_head": 3, "input": "real"} | options)
    for seed in range(10):  # two hundred models of all kinds: analyses.benchmarks.certify_truth
        model = shaken(spec, seed, (0.3, 1.0, 3.0, 30.0, 1e-3)[seed % 5])
        with torch.no_grad():
            model.unembed.W_U *= 1e6 if seed % 7 == 6 else 1.0
        lags = {(0, 0): 1 + seed % 3}  # right or wrong
        lags |= {(0, 1): 2} if spec.n_heads == 2 else {}
        strategies = ["brute force", "mechanism", "black box"]  # by brute force: no search
        found = certify(model, task, lags=lags, strategies=strategies)
        truth = worst(model, task, torch.float64)
        for proof in found.proofs:
            assert proof.bound >= truth * (1 - 1e-12), (proof.strategy, seed)
            if proof.arithmetic == "float32":
                assert proof.bound >= worst(model, task, torch.float32)


def test_by_mechanism_is_brute_force_to_ten_digits_at_a_hundredth_of_the_cost(
    multiplexer: Any,
) -> None:
    domain = Signs(FixedMemory((1, 3), "multiplexer", length=12), 12)
    common: dict[str, Any] = {"trivial": 1.0, "arithmetic": "real"}
    cases = (domain.cases(t, domain.lags) for t in domain.judged_positions)
    mechanism = prove(multiplexer, "mechanism", "error", cases, **common)
    last = [c for c in domain.points() if c.position == 11]
    brute = prove(multiplexer, "brute force", "error", last, budget=0, **common)
    task = FixedMemory((1, 3), "multiplexer", length=12)
    truth = worst(multiplexer, task, torch.float64)
    assert truth <= mechanism.bound <= truth * (1 + 1e-10)
    assert brute.bound <= mechanism.bound
    assert mechanism.multiplications < brute.multiplications / 5


def test_wrong_roles_make_large_numbers_and_true_theorems(multiplexer: Any) -> None:
    right = certify(multiplexer, FIXED, lags={(0, 1): 1, (0, 0): 3}, strategies=["mechanism"])
    wrong = certify(multiplexer, FIXED, lags={(0, 1): 2, (0, 0): 5}, strategies=["mechanism"])
    truth = worst(multiplexer, FIXED, torch.float64)
    assert truth <= right.best.bound < 1.05 * truth
    assert wrong.best.bound > 1
    assert wrong.best.vacuous
    assert max(m.number for m in right.best.lemmas) < 0.05
    assert max(m.number for m in wrong.best.lemmas) > 0.9


@pytest.mark.parametrize("seed", [0, 2, 5, 6])
def test_of_the_maximum_no_accuracy_is_above_the_true_one(seed: int) -> None:
    v, k = 6, 3
    model = maximum_model(v, k, seed) if seed < 6 else rows(seed, v, k, positions="learned")
    every = torch.tensor(list(product(range(v), repeat=k)))
    right = {}
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            out = model.to(dtype)(every)[:, -1]
            right[dtype] = float((out.argmax(-1) == every.amax(1)).double().mean())
    model.float()
    found = certify(model, Maximum(v, k))
    assert {p.strategy for p in found.proofs} >= {"brute force", "cubic"}
    by = {p.strategy: p.bound for p in found.proofs}
    assert max(by.values()) <= min(right.values()) + 1e-9
    assert by["brute force"] >= by["cubic"]
    assert found.measured == pytest.approx(right[torch.float64])
    if seed == 0:
        assert by["cubic"] > 0.7


def test_shares_are_one_only_if_all_is_right() -> None:
    assert share(2**70, 2**70) == 1.0
    assert share(2**70 - 1, 2**70) < 1.0
    assert share(0, 3) == 0.0
    many = Strings(PrefixPrediction("L_12", ((12, 300),)), 300)
    assert many.size > 2**60
    assert _share(float(many.size), 1.0, float(many.size)) < 1.0


def test_shipped_max_of_4_reaches_the_papers_numbers() -> None:
    shipped = zoo.load("max-of-4")
    assert certify(shipped.model, shipped.task, strategies=["cubic"]).best.bound >= 0.97


@pytest.mark.parametrize("k", [2, 3, 4])
def test_counts_of_strings_are_those_of_a_direct_enumeration(k: int) -> None:
    task = PrefixPrediction(f"L_{k}", ((k, 7),))
    domain = Strings(task, 7)
    pairs = 0
    for n in range(k, 8):
        for word in product("ab", repeat=n):
            blocks = 1 + sum(a != b for a, b in pairwise(word))
            pairs += n * (word[0] == "a" and blocks == k)
    assert domain.size == pairs
    for cover in (domain.points(), domain.multisets(), domain.boxes()):
        assert sum(cells.weight.sum() for cells in cover) == pairs


@pytest.mark.parametrize("language", ["dyck-1", "L_3", "anbncn"])
def test_every_string_is_a_member_or_not(language: str) -> None:
    domain = domain_of(Membership(language, ((1, 3), (6, 6))))
    size = len(domain.spoken.letters)
    assert domain.size == size + size**2 + size**3 + size**6
    for cover in (domain.points(), domain.boxes(), domain.sample(4, np.random.default_rng(0))):
        cells = list(cover)
        assert sum(one.weight.sum() for one in cells) == pytest.approx(domain.size)
        yes = sum(one.weight[one.targets == 1].sum() for one in cells)
        assert yes == pytest.approx(sum(domain.spoken.size(n) for n in (1, 2, 3, 6)))


def test_membership_is_proved_of_every_string() -> None:
    model, task = brackets(8), Membership("dyck-1", ((1, 8),))
    found = certify(model, task, strategies=["brute force", "mechanism"])
    assert (found.best.bound, found.measured_on) == (1.0, "every input")
    assert found.statement == "whether in dyck-1, every string of ( ) of length 1 to 8"
    assert "each string is a case" in found.skipped["mechanism"]
    assert all(v.holds for v in check(found.to_dict(), model, sha256_of(model)))


def test_a_recogniser_that_errs_is_proved_no_better_than_it_is() -> None:
    model, task = brackets(7), Membership("dyck-1", ((5, 7),))
    with torch.no_grad():
        model.blocks[0].attn.b_V += 0.3
    right = []
    for string in (s for n in (5, 6, 7) for s in product("()", repeat=n)):
        heights = [string[:k].count("(") - string[:k].count(")") for k in range(1 + len(string))]
        ids = torch.tensor([[0, *(1 + "()".index(c) for c in string)]])
        said = bool(model(ids)[0, -1].argmax())
        right.append(said == (min(heights) >= 0 and heights[-1] == 0))
    found = certify(model, task, strategies=["brute force"])
    assert found.best.bound == pytest.approx(np.mean(right))
    assert 0 < found.best.bound < 1
    forged = json.loads(json.dumps(found.to_dict()))
    forged["strategies"][0] |= {"vacuous": "", "bound": found.best.bound + 1e-3}
    assert not any(v.holds for v in check(forged, model, sha256_of(model)))


def test_boxes_of_real_inputs_are_never_beaten_by_search() -> None:
    kernel = zoo.load("sparse-memory-light")
    found = certify(kernel.model, kernel.task, length=3, strategies=["mechanism"])
    assert found.measured <= found.best.bound
    assert not found.best.vacuous
    task = AdaptiveMemory((1, 2), bits=2, inputs="gaussian", length=4)
    spec = TransformerSpec(3, 1, 4, 6, 2, n_heads=1, d_head=3, lag_bias="relative_keys", **LAGS)
    adaptive = certify(shaken(spec, 0, 1.0), task, length=3, strategies=["black box", "mechanism"])
    assert all(p.bound >= adaptive.measured for p in adaptive.proofs)


def test_templates_are_counted_and_bounded() -> None:
    task = TemplateTask(("αα", "αβ"), (1.0, -1.0), train=(0, 6), test=(6, 12))
    spec = TransformerSpec(12, 1, 2, 8, 1, d_head=4, positions="learned", ffn=(6,))
    model = shaken(spec, 0, 1.0)
    found = certify(model, task)
    pairs = torch.tensor(list(product(range(6), repeat=2)))
    labels = torch.where(pairs[:, 0] == pairs[:, 1], 1.0, -1.0).double()
    with torch.no_grad():
        truth = float((model.double()(pairs)[:, -1, 0] - labels).abs().max())
    assert found.measured == pytest.approx(truth, rel=1e-9)
    assert all(p.bound >= truth for p in found.proofs)


@pytest.mark.slow
def test_addressed_memories_are_proved_by_the_lag_the_token_names() -> None:
    task = AdaptiveMemory((1, 2), bits=2, inputs="gaussian", length=5)
    options: dict[str, Any] = {"n_heads": (0, 1), "d_head": 3, "lag_bias": "relative_keys"}
    spec = TransformerSpec(3, 1, 5, 5, 2, **options, **LAGS)
    for seed in range(2):
        model = shaken(spec, seed, (0.3, 1.0)[seed])
        with torch.no_grad():
            model.blocks[0].attn.W_O.zero_()
        found = certify(model, task, strategies=["mechanism", "black box"])
        assert {p.strategy for p in found.proofs} == {"mechanism", "black box"}
        domain = domain_of(task)
        worst_seen = max(
            worst_error(model, domain, seed=s, dtype=d)
            for s in (1, 2)
            for d in (torch.float32, torch.float64)
        )
        assert all(p.bound >= worst_seen for p in found.proofs)
        data = found.to_dict()
        for proof in data["strategies"]:
            proof["vacuous"] = ""
        assert all(v.holds for v in check(data, model, sha256_of(model)))


def test_an_infinite_bound_is_written_as_null() -> None:
    options: dict[str, Any] = {"d_head": 3, "lag_bias": "lin", "normalizer": "none"}
    spec = TransformerSpec(1, 1, 4, 6, 1, n_heads=1, **options, **LAGS)
    model = shaken(spec, 0, 1e18)
    task = FixedMemory((1,), "parity", length=3)
    found = certify(model, task, lags={(0, 0): 1}, strategies=["mechanism", "black box"])
    text = json.dumps([found.to_dict(), found.result()], allow_nan=False)
    assert found.best.vacuous
    assert "vacuous" in text


def test_heads_that_look_at_a_mixture_of_memories_make_cases_too() -> None:
    shipped = zoo.load("fixed-memory-multiplexer-mixed")
    names = [m.name for m in shipped.task.memories()]
    columns = ["layer", "head", "role", "target", "group", "status", "strength"]
    mixture = [0, 0, "memory-mixture", "", " + ".join(names), "confirmed", 0.9]
    location = [0, 1, "memory-location", names[1], "", "confirmed", 0.9]
    said = lags_of(pd.DataFrame([mixture, location], columns=columns), shipped.task)
    assert said == {(0, 0): (1, 3), (0, 1): (3,)}
    found = certify(shipped.model, FIXED, lags=said, strategies=["mechanism"]).best
    assert found.bound < 0.1
    roles = [(m.role, m.number) for m in found.lemmas[:2]]
    assert roles[0][0] == "memory-mixture"
    assert roles[0][1] < 0.1 < roles[1][1]
    assert "outside lag 1 and 3" in found.lemmas[0].statement
