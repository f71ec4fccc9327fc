"""Theorems about models: never on the wrong side of brute force, whatever the roles say."""

import json
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from analyses.cli.main import app
from interp.errors import ArgumentError, CheckpointError, ProoflensError
from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.depth import PrefixPrediction
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory
from interp.tasks.template import TemplateTask
from probes.certify.certificate import read_certificate, sha256_of
from probes.certify.check import check
from probes.certify.cover import prove
from probes.certify.domains.signs import Signs
from probes.certify.domains.strings import Strings
from probes.certify.maximum import caps_of
from probes.certify.run import certify, domain_of
from probes.certify.search import worst_error, wrong_rows
from trained import zoo

FIXED = FixedMemory((1, 3), "multiplexer", length=7)


@pytest.fixture(scope="module")
def multiplexer() -> Any:
    return zoo.load("fixed-memory-multiplexer").model


def shaken(spec: TransformerSpec, seed: int, size: float) -> Any:
    model = SequenceTransformer(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
            weight *= size
    return model


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
    task = FixedMemory((1, 2), "table", length=4)
    base: dict[str, Any] = {"d_in": 1, "d_out": 1, "n_ctx": 4, "d_model": 6, "n_layers": 1}
    spec = TransformerSpec(**base | {"n_heads": 2, "d_head": 3, "input": "real"} | options)
    for seed in range(25):
        model = shaken(spec, seed, (0.3, 1.0, 3.0, 30.0, 1e-3)[seed % 5])
        with torch.no_grad():
            model.unembed.W_U *= 1e6 if seed % 7 == 6 else 1.0
        lags = {(0, 0): 1 + seed % 3}  # right or wrong
        lags |= {(0, 1): 2} if spec.n_heads == 2 else {}
        found = certify(model, task, lags=lags, strategies=["mechanism", "black box"])
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
    cases = (domain.cases(t, domain.lags) for t in domain.judged)
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


def rows(spec_seed: int, v: int, k: int, **options: Any) -> Any:
    spec = TransformerSpec(
        **{"d_in": v, "d_out": v, "n_ctx": k, "d_model": 8, "n_layers": 1, "d_head": 8} | options
    )
    return SequenceTransformer(spec, seed=spec_seed)


def trained_maximum(v: int, k: int, seed: int) -> Any:
    """A model that is right by construction of its weights, then shaken."""
    model = rows(seed, v, k, d_model=v, d_head=v)
    size = torch.arange(v, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E.copy_(torch.eye(v))
        model.blocks[0].attn.b_Q[0].fill_(1.0)
        model.blocks[0].attn.W_K[0] = torch.diag(size * (2.0 + seed) / v**0.5)
        model.blocks[0].attn.W_V[0] = torch.eye(v)
        model.blocks[0].attn.W_O[0] = 8 * torch.eye(v)
        model.unembed.W_U.copy_(torch.eye(v))
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight += 0.02 * seed * torch.randn(weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("seed", range(8))
def test_of_the_maximum_no_accuracy_is_above_the_true_one(seed: int) -> None:
    v, k = 6, 3
    model = trained_maximum(v, k, seed) if seed < 6 else rows(seed, v, k, positions="learned")
    every = torch.tensor(list(product(range(v), repeat=k)))
    right = {}
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            out = model.to(dtype)(every)[:, -1]
            right[dtype] = float((out.argmax(-1) == every.amax(1)).double().mean())
    model.float()
    found = certify(model, Maximum(v, k))
    assert {p.strategy for p in found.proofs} >= {"brute force", "cubic", "quadratic", "rank one"}
    by = {p.strategy: p.bound for p in found.proofs}
    assert max(by.values()) <= min(right.values()) + 1e-9
    assert by["brute force"] >= by["cubic"] >= by["quadratic"] >= by["rank one"] - 1e-12
    assert found.measured == pytest.approx(right[torch.float64])
    if seed == 0:
        assert by["cubic"] > 0.7


def test_shipped_max_of_4_reaches_the_papers_numbers() -> None:
    shipped = zoo.load("max-of-4")
    found = certify(shipped.model, shipped.task, strategies=["quadratic"])
    assert found.best.bound >= 0.80
    rng = np.random.default_rng(0)
    caps = np.array(found.best.data["caps"])
    inside = 0
    ids = rng.integers(64, size=(4096, 4))
    out = shipped.model(torch.from_numpy(ids))[:, -1].argmax(-1).numpy()
    from probes.certify.maximum import subsets

    for row, answer in zip(ids, out, strict=True):
        m, q = row.max(), row[-1]
        copies = tuple(np.flatnonzero(row[:-1] == m).tolist())
        cap = caps[q, m, subsets(4).index(copies)]
        others = [t for t in row[:-1] if t != m]
        if cap >= 0 and all(t < cap for t in others):
            inside += 1
            assert answer == m
    assert abs(inside / 4096 - found.best.bound) < 0.03


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


def test_a_one_layer_model_without_positions_counts() -> None:
    model = zoo.load("depth-L3-layers1").model
    task = PrefixPrediction("L_3", ((3, 9),))
    found = certify(model, task, strategies=["mechanism", "brute force"])
    assert [p.bound for p in found.proofs] == [1.0, 1.0]
    assert found.best.strategy == "mechanism"
    assert found.best.cells < found.proofs[1].cells


def test_boxes_of_real_inputs_are_never_beaten_by_search() -> None:
    kernel = zoo.load("sparse-memory-light")
    found = certify(kernel.model, kernel.task, length=3, strategies=["mechanism"])
    assert found.measured <= found.best.bound
    assert not found.best.vacuous
    task = AdaptiveMemory((1, 2), bits=2, inputs="gaussian", length=4)
    spec = TransformerSpec(
        3,
        1,
        4,
        6,
        2,
        n_heads=1,
        d_head=3,
        input="real",
        score="none",
        lag_bias="relative_keys",
        ffn=(4,),
    )
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


def test_a_certificate_is_checked_by_what_knows_no_strategy(
    multiplexer: Any, tmp_path: Any
) -> None:
    cases = [
        (multiplexer, FIXED, {"lags": {(0, 1): 1, (0, 0): 3}}),
        (zoo.load("depth-L3-layers1").model, PrefixPrediction("L_3", ((3, 6),)), {}),
        (trained_maximum(6, 3, 1), Maximum(6, 3), {}),
        (
            zoo.load("sparse-memory-light").model,
            KernelMemory(("light(6, 1.3)",), "waves", length=2),
            {},
        ),
    ]
    for model, task, options in cases:
        data = json.loads(json.dumps(certify(model, task, **options).to_dict()))
        verdicts = check(data, model, sha256_of(model))
        assert verdicts
        assert all(v.holds for v in verdicts), verdicts
        better = 0.99 if data["kind"] == "error" else 1.001
        for proof in data["strategies"]:
            proof["bound"] *= better
        assert not any(v.holds for v in check(data, model, sha256_of(model)))
        assert not check(data, model, "0" * 64)[0].holds


def test_the_checker_imports_no_strategy() -> None:
    import ast
    from pathlib import Path

    import probes.certify.check as checker

    text = Path(str(checker.__file__)).read_text()
    tree = ast.walk(ast.parse(text))
    modules = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
    assert not [m for m in modules if m.startswith("probes")]
    assert len(text.splitlines()) <= 300


def test_what_is_not_covered_is_refused_in_one_line(multiplexer: Any) -> None:
    with pytest.raises(ArgumentError, match="length must lie between 4 and the task's 7"):
        certify(multiplexer, FIXED, length=3)
    with pytest.raises(ArgumentError, match="strategies must be one of"):
        certify(multiplexer, FIXED, strategies=["magic"])
    with pytest.raises(ArgumentError, match="box must be positive"):
        domain_of(FIXED, box=0.0)
    with pytest.raises(ArgumentError, match="whose right answers it knows"):
        domain_of(zoo.load("induction-attention").task)


def test_command_writes_and_checks_a_certificate(tmp_path: Any) -> None:
    model = trained_maximum(6, 3, 1)
    folder = save_checkpoint(model, tmp_path / "m", about={"task": Maximum(6, 3).to_dict()})
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["certify", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {p.name for p in out.iterdir()} >= {"certificate.json", "result.json", "index.html"}
    result = json.loads((out / "result.json").read_text())
    for key in ("kind", "bound", "measured", "strategy", "multiplications", "seconds"):
        assert key in result
        assert all(key in row for row in result["strategies"])
    file = out / "certificate.json"
    assert read_certificate(file)["model"]["sha256"] == sha256_of(model)
    again = CliRunner().invoke(app, ["certify", "--check", str(file), str(folder)])
    assert again.exit_code == 0, again.output
    assert "holds  brute force" in again.output
    other = save_checkpoint(trained_maximum(6, 3, 2), tmp_path / "other")
    wrong = CliRunner().invoke(app, ["certify", "--check", str(file), str(other)])
    assert isinstance(wrong.exception, CheckpointError)


def _tampered(data: dict[str, Any]) -> Any:
    """Certificates that say something else, and what the refusal says."""

    def changed(change: Any) -> dict[str, Any]:
        copy = json.loads(json.dumps(data))
        change(copy, copy["strategies"][0])
        return dict(copy)

    yield changed(lambda d, p: p["data"].update(slices=0)), "cannot be followed"
    yield changed(lambda d, p: p.update(bound=None)), "cannot be followed"
    yield changed(lambda d, p: p.pop("data")), "cannot be followed"
    yield changed(lambda d, p: p.update(bound=p["bound"] * 0.9)), "does not hold: mechanism"
    yield changed(lambda d, p: p.update(kind="accuracy")), "its task has error"
    yield changed(lambda d, p: d["domain"].update(length=1)), "its domain is 'all sequences of 1"
    yield changed(lambda d, p: d["domain"].update(length=10**9)), "its domain is none"
    yield changed(lambda d, p: d["domain"].update(task={"kind": "magic"})), "its domain is none"
    yield changed(lambda d, p: d.update(statement="every input there is")), "its domain is 'all"
    yield changed(lambda d, p: d["model"].update(sha256="0" * 64)), "does not hold: model"
    yield changed(lambda d, p: d.pop("strategies")), "is damaged"
    yield changed(lambda d, p: d["format"].update(version=99)), "upgrade prooflens"
    yield [], "no certificate"


def test_broken_certificates_are_refused_in_one_line(tmp_path: Any) -> None:
    shipped = zoo.load("sparse-memory-light")
    found = certify(
        shipped.model, shipped.task, name=shipped.name, length=2, strategies=["mechanism"]
    )
    file = tmp_path / "certificate.json"
    for data, words in _tampered(json.loads(json.dumps(found.to_dict()))):
        file.write_text(json.dumps(data))
        done = CliRunner().invoke(app, ["certify", "--check", str(file), "sparse-memory-light"])
        assert isinstance(done.exception, CheckpointError), (words, done.exception)
        assert words in str(done.exception), words
        assert "\n" not in str(done.exception)
    file.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_certificate(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "MODEL must be given"),
        (["no-such-model"], "no-such-model"),
        (["max-of-4", "--strategy", "magic"], "strategies must be one of"),
        (["max-of-4", "--length", "3"], "length must be left out"),
        (["max-of-4", "--task", "maximum:vocabulary=32"], "d_in 64 and d_out 64"),
        (["fixed-memory-multiplexer", "--length", "0"], "length must lie between"),
        (
            ["fixed-memory-multiplexer", "--length", "1000000000"],
            "length must be a number of at most",
        ),
        (["fixed-memory-multiplexer", "--task", "maximum"], "takes real where the task gives"),
        (["sparse-memory-light", "--box", "nan"], "box must be a number"),
        (["nested-memory-2"], "whose right answers it knows"),
        (["coupling-order-rnn"], "whose right answers it knows"),
    ],
)
def test_what_cannot_be_proved_is_refused_in_one_line(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["certify", *arguments])
    assert isinstance(done.exception, ProoflensError), done.exception
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)


def test_the_checker_refuses_a_cover_that_does_not_fit_the_model() -> None:
    model = zoo.load("depth-L4-layers2").model
    task = PrefixPrediction("L_4", ((4, 6),))
    data = certify(model, task, strategies=["brute force"]).to_dict()
    (right,) = check(data, model, sha256_of(model))
    assert right.holds
    data["strategies"][0]["data"]["cover"] = "multisets"
    (wrong,) = check(data, model, sha256_of(model))
    assert not wrong.holds
    assert "order" in wrong.note


def test_black_boxes_are_checked_too() -> None:
    spec = TransformerSpec(
        1, 1, 3, 4, 1, n_heads=1, d_head=2, input="real", score="none", lag_bias="table", ffn=(3,)
    )
    model = shaken(spec, 0, 1e-3)
    task = FixedMemory((1,), "parity", length=3)
    data = certify(model, task, strategies=["black box"]).to_dict()
    data["strategies"][0]["vacuous"] = ""
    (found,) = check(data, model, sha256_of(model))
    assert found.holds
    assert found.found == pytest.approx(found.claimed, rel=1e-6)


def test_addressed_memories_are_proved_by_the_lag_the_token_names() -> None:
    task = AdaptiveMemory((1, 2), bits=2, inputs="gaussian", length=5)
    spec = TransformerSpec(
        3,
        1,
        5,
        5,
        2,
        n_heads=(0, 1),
        d_head=3,
        input="real",
        score="none",
        lag_bias="relative_keys",
        ffn=(4,),
    )
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


def test_no_covered_row_of_the_shipped_maximum_is_wrong() -> None:
    shipped = zoo.load("max-of-4")
    found = certify(shipped.model, shipped.task, strategies=["quadratic", "rank one"])
    quadratic, rank_one = found.proofs
    assert quadratic.bound >= 0.80 > rank_one.bound > 0.7
    assert rank_one.multiplications < quadratic.multiplications
    for proof in found.proofs:
        for dtype in (torch.float32, torch.float64):
            assert wrong_rows(shipped.model, caps_of(proof), seed=0, rows=24, dtype=dtype) == 0
    wider = np.where(caps_of(quadratic) >= 0, 60, -1)  # rows that are not covered: some are wrong
    assert wrong_rows(shipped.model, wider, seed=0, rows=24) > 0


def test_an_infinite_bound_is_written_as_null() -> None:
    spec = TransformerSpec(
        1,
        1,
        4,
        6,
        1,
        n_heads=1,
        d_head=3,
        input="real",
        score="none",
        lag_bias="lin",
        normalizer="none",
        ffn=(4,),
    )
    model = shaken(spec, 0, 1e18)
    task = FixedMemory((1,), "parity", length=3)
    found = certify(model, task, lags={(0, 0): 1}, strategies=["mechanism", "black box"])
    text = json.dumps([found.to_dict(), found.result()], allow_nan=False)
    assert found.best.vacuous
    assert "vacuous" in text
