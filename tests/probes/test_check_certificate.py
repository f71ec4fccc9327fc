"""The checker that lies beside a certificate: plain Python, right, sharp, and not to be fooled."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from certified_models import maximum_model, rows, shaken
from typer.testing import CliRunner

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.maximum import Maximum
from probes.certify import check_certificate as checker
from probes.certify.certificate import weights_of
from probes.certify.run import certify
from prooflens.cli.main import app
from trained import zoo

SMALL: dict[str, Any] = {
    "d_in": 4,
    "d_out": 3,
    "n_ctx": 7,
    "d_model": 6,
    "n_layers": 2,
    "d_head": 4,
}
SPECS = (
    TransformerSpec(**SMALL, n_heads=2),
    TransformerSpec(**SMALL, norm="layernorm", ffn=(5,), activation="gelu", positions="learned"),
    TransformerSpec(**SMALL, norm="rmsnorm", ffn=(5,), lag_bias="table"),
    TransformerSpec(**SMALL, n_heads=2, score="none", lag_bias="table", dtype="float64"),
)


def plain(model: Any, arithmetic: str) -> checker.Model:
    spec = json.loads(json.dumps(model.spec.to_dict()))
    return checker.Model(spec, checker.read_weights(weights_of(model), spec["dtype"]), arithmetic)


def write_certificate(model: Any, folder: Path, task: Any, **options: Any) -> Path:
    """The certificate and the weights, as the command lays them beside each other."""
    theorem = certify(model, task, **options)
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(theorem.weights)
    (folder / "certificate.json").write_text(json.dumps(theorem.to_dict()))
    return folder / "certificate.json"


def status_after_change(file: Path, change: Callable[[Any], Any], *, sealed: bool = True) -> int:
    """The checker's exit status for a certificate that somebody changed and sealed again."""
    before = file.read_text()
    told = json.loads(before)
    change(told)
    file.write_text(json.dumps(told | ({"digest": checker.digest(told)} if sealed else {})))
    status = checker.main([str(file)])
    file.write_text(before)
    return status


def test_it_is_one_short_file_of_plain_python() -> None:
    text = Path(str(checker.__file__)).read_text()
    nodes = list(ast.walk(ast.parse(text)))
    used = {n.module or "." for n in nodes if isinstance(n, ast.ImportFrom)}
    used |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    assert used <= sys.stdlib_module_names
    assert len(text.splitlines()) <= 400


def test_the_command_lays_it_beside_the_certificate(tmp_path: Path) -> None:
    out = tmp_path / "theorem"
    arguments = ["certify", "fixed-memory-multiplexer", "--length", "6", "--out", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    command = [sys.executable, "-I", "-S", "check_certificate.py", "certificate.json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("holds: error, multiplexer of lags (0, 1, 3)")
    assert ran.stdout.count("\n") == 1


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("size", [0.3, 1.5])
def test_balls_hold_what_torch_computes_and_are_small(spec: TransformerSpec, size: float) -> None:
    model = shaken(spec, 3, size)
    real, rounded = plain(model, "real"), plain(model, spec.dtype)
    ids = torch.randint(4, (20, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = model(ids).double()
        exact = model.double()(ids)
    for row, outputs, most in zip(ids.tolist(), own.tolist(), exact.tolist(), strict=True):
        caches: list[Any] = [[[] for _ in real.layers] for _ in range(2)]
        for place, token in enumerate(row):
            for arithmetic, cache, wanted in zip(
                (real, rounded), caches, (most, outputs), strict=True
            ):
                x = arithmetic.step(arithmetic.enter(token, place), cache)
                x = arithmetic.linear(
                    arithmetic.normalize(arithmetic.final, x), arithmetic.unembedding
                )
                for (value, radius), seen in zip(x, wanted[place], strict=True):
                    assert abs(value - seen) <= radius + 1e-12 * (1 + abs(value))
                    sharp = 1e-9 if arithmetic is real else 0.05
                    assert radius <= sharp * (1 + abs(value)) or size > 1


def exact_share(model: Any, v: int, n: int) -> Fraction:
    ids = torch.tensor(list(product(range(v), repeat=n)))
    with torch.no_grad():
        right = model.double()(ids)[:, -1].argmax(-1) == ids.max(1).values
    return Fraction(int(right.sum()), len(ids))


@pytest.mark.parametrize(
    ("v", "n", "seed"), [(6, 3, 1), (5, 3, 3), (4, 4, 2), (7, 2, 4), (3, 2, 1)]
)
def test_rows_of_a_maximum_are_counted_exactly(v: int, n: int, seed: int) -> None:
    model = maximum_model(v, n, seed)
    real, rounded = plain(model, "real"), plain(model, "float32")
    told = {"kind": "rows", "task": Maximum(v, n).to_dict()}
    split, every = (
        checker.split_rows(real, v, n),
        checker.run_through(real, checker.domain_of(told)),
    )
    assert split == every == exact_share(model, v, n)
    assert checker.split_rows(rounded, v, n) <= split


def brackets() -> Any:
    """Right on one or two brackets: the last closes, and one before it opens."""
    model = SequenceTransformer(TransformerSpec(4, 2, 3, 3, 1, d_head=1), seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E[1, 0] = model.embed.W_E[2, 1] = 1
        model.blocks[0].attn.W_V[0, 0, 0] = model.blocks[0].attn.W_O[0, 0, 2] = 1
        model.unembed.W_U[:, 1] = torch.tensor([0.0, 2.0, 3.0])
        model.unembed.b_U[1] = -2.5
    return model


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: Any) -> list[Path]:
    """Certificates of every domain that is covered."""
    folder = tmp_path_factory.mktemp("certificates")
    multiplexer, blocks = zoo.load("fixed-memory-multiplexer"), zoo.load("depth-L3-layers1")
    task = Membership("dyck-1", ((1, 2),))
    return [
        write_certificate(multiplexer.model, folder / "signs", multiplexer.task, length=6),
        write_certificate(blocks.model, folder / "strings", blocks.task, length=6),
        write_certificate(brackets(), folder / "brackets", task, strategies=["brute force"]),
        write_certificate(maximum_model(6, 3, 1), folder / "rows", Maximum(6, 3)),
    ]


def numbers(told: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the numbers of JSON data stand."""
    if isinstance(told, dict | list):
        for key, part in told.items() if isinstance(told, dict) else enumerate(told):
            yield from numbers(part, (*at, key))
    elif isinstance(told, int | float):
        yield at


def put(told: Any, at: tuple[Any, ...], change: Callable[[Any], Any]) -> None:
    for key in at[:-1]:
        told = told[key]
    told[at[-1]] = change(told[at[-1]])


def test_certificates_hold_and_no_number_may_be_changed(certificates: list[Path]) -> None:
    for file in certificates:
        assert checker.main([str(file)]) == 0
        for at in numbers(json.loads(file.read_text())):
            status = status_after_change(
                file, lambda told, at=at: put(told, at, lambda n: n + 1), sealed=False
            )
            assert status == (2 if at[0] == "format" else 1), at


def test_who_seals_a_changed_certificate_again_is_found_out(
    certificates: list[Path], capsys: Any
) -> None:
    """All that bears on the claim is found again; costs, lemmas and what was seen bear on none."""
    for file in certificates:
        checker.main([str(file)])
        line, told = capsys.readouterr().out, json.loads(file.read_text())
        claims = [k for k, proof in enumerate(told["strategies"]) if not proof["vacuous"]]
        better = 0.9 if told["kind"] == "error" else 1 + 1e-9
        for k in claims:
            at = ("strategies", k, "bound")
            assert (
                status_after_change(
                    file, lambda told, at=at, by=better: put(told, at, lambda n: n * by)
                )
                == 1
            )
            for value in (float("nan"), None, "0"):
                put_value = lambda told, at=at, v=value: put(told, at, lambda _: v)  # noqa: E731
                assert status_after_change(file, put_value) in (1, 2)
            at = ("strategies", k, "arithmetic")
            assert (
                status_after_change(file, lambda told, at=at: put(told, at, lambda _: "float16"))
                == 1
            )
        capsys.readouterr()
        for at in numbers(told):
            if at[0] in ("model", "domain") and at[-1] not in ("table_seed", "norm_eps"):
                change = lambda told, at=at: put(told, at, lambda n: n + 1)  # noqa: E731
                status = status_after_change(file, change)
                other = capsys.readouterr().out != line  # of another domain it may be true
                assert status or other or at[-1] == "n_ctx" or at == ("domain", "task", "length"), (
                    at
                )
        assert (
            status_after_change(file, lambda told: told["model"]["spec"].update(rotary=True)) == 2
        )
        assert status_after_change(file, lambda told: told["format"].update(version=2)) == 2


def test_other_weights_are_refused_and_worse_ones_are_found_out(certificates: list[Path]) -> None:
    for file in certificates:
        weights = file.with_name("model.safetensors")
        before = weights.read_bytes()
        for place in range(len(before) - 1, len(before) - 40, -7):
            data = bytearray(before)
            data[place] ^= 1
            weights.write_bytes(data)
            assert checker.main([str(file)]) == 1
        size = 8 + int.from_bytes(before[:8], "little")
        data = bytearray(before)
        for place in range(size + 3, len(data), 4):
            data[place] ^= 128  # the sign of every number
        weights.write_bytes(data)
        sha = checker.hashlib.sha256(data).hexdigest()
        assert status_after_change(
            file, lambda told, sha=sha: told["model"].update(sha256=sha)
        ) in (1, 2)
        weights.write_bytes(before)
        assert checker.main([str(file)]) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {"strategies": ["brute force"]}),
        ("adaptive-memory-gated", {"length": 11, "strategies": ["black box"]}),
        ("fixed-memory-multiplexer", {"length": 28, "lags": {(0, 1): 1, (0, 0): 3}}),
    ],
)
def test_what_cannot_be_told_is_said_in_one_line(
    name: str, options: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    if name:
        shipped = zoo.load(name)
        file = write_certificate(shipped.model, tmp_path, shipped.task, **options)
    else:
        model = maximum_model(4, 3, 1)
        unusual = rows(1, 4, 3, d_model=4, d_head=4, identity_qk=True)
        unusual.load_state_dict(model.state_dict(), strict=False)
        file = write_certificate(unusual, tmp_path, Maximum(4, 3), **options)
    assert checker.main([str(file)]) == 2
    told = capsys.readouterr().out
    assert told.startswith("cannot tell: ")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("damage", ["", "{}", "[]", "null", '{"format": 1}'])
def test_a_damaged_file_is_no_traceback(damage: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "certificate.json"
    for arguments in ([str(file)], [], [str(file), "more"]):
        assert checker.main(arguments) == 2
    file.write_text(damage)
    assert checker.main([str(file)]) == 2
    assert capsys.readouterr().out.count("\n") == 4


def test_the_right_answers_are_those_of_the_tasks() -> None:
    """Words, answers and weights against the tasks themselves, by counting strings."""
    for task, n in ((PrefixPrediction("L_3", ((3, 5), (7, 7))), 7), (Membership("L_3"), 6)):
        told = {"kind": "strings", "task": json.loads(json.dumps(task.to_dict())), "length": n}
        _, start, letters, longest, ask = checker.domain_of(told)
        batch = task.sample(400, seed=1)
        for row, target, mask in zip(
            batch.inputs.tolist(), batch.targets.tolist(), batch.mask.tolist(), strict=True
        ):
            assert row[0] == start[0]
            for place in (p for p, asked in enumerate(mask) if asked and p <= longest):
                assert set(row[1 : place + 1]) <= set(letters)
                assert ask(tuple(row[1 : place + 1]))[1] == target[place]
    told = {"kind": "strings", "task": PrefixPrediction("L_3", ((3, 5), (7, 7))).to_dict()}
    _, _, _, longest, ask = checker.domain_of(told | {"length": 7})
    every = [word for n in range(1, 8) for word in product((1, 2), repeat=n)]
    members = [w for w in every if len(w) in (3, 4, 5, 7) and (found := ask(w)) and found[1]]
    for word in every:
        ways = sum(m[: len(word)] == word for m in members)
        assert (ask(word) or (0, 0))[0] == ways
