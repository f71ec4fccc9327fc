"""Certificates: checked by what knows no strategy, written by the command, refused in one line."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certified_models import FIXED, maximum_model, one_lag, shaken
from typer.testing import CliRunner

from interp.errors import CheckpointError, ProoflensError
from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.tasks.depth import PrefixPrediction
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory
from probes.certify import check as checker
from probes.certify.certificate import read_certificate, sha256_of
from probes.certify.check import check
from probes.certify.run import certify
from prooflens.cli.main import app
from trained import zoo

_FORGERIES: tuple[Callable[[list[dict[str, Any]], int], Any], ...] = (
    lambda lemmas, k: lemmas[k].update(number=lemmas[k]["number"] * 0.99 - 1e-6),
    lambda lemmas, k: lemmas[k].update(number=lemmas[k]["number"] * 1.01 + 1e-6),
    lambda lemmas, k: lemmas[k].update(number=float("nan")),
    lambda lemmas, k: lemmas[k].update(number=None),
    lambda lemmas, k: lemmas[k].update(statement=lemmas[k]["statement"] + ", always"),
    lambda lemmas, k: lemmas[k].update(component="head 7.7"),
    lambda lemmas, k: lemmas[k].update(role="induction"),
    lambda lemmas, k: lemmas.append(lemmas[k]),
    lambda lemmas, k: lemmas.pop(k),
)


def address_model() -> Any:
    """Weights as drawn, of a model that reads an address and looks back by lags."""
    options: dict[str, Any] = {"n_heads": 1, "d_head": 2, "input": "real", "ffn": (2,)}
    options |= {"score": "none", "lag_bias": "relative_keys"}
    return shaken(TransformerSpec(3, 1, 3, 4, 1, **options), 0, 0.3)


def certify_and_check(model: Any, task: Any, **options: Any) -> tuple[Any, dict[str, Any], Any]:
    """A certificate as it is read from a file, which its checker agrees with; one of a single
    strategy is checked although it says less than a constant answer."""
    data = json.loads(json.dumps(certify(model, task, **options).to_dict()))
    if len(data["strategies"]) == 1:
        data["strategies"][0]["vacuous"] = ""
    verdicts = check(data, model, sha256_of(model))
    assert verdicts
    assert all(v.holds for v in verdicts), verdicts
    return model, data, verdicts


@pytest.mark.parametrize(
    ("name", "task", "options"),
    [
        ("fixed-memory-multiplexer", FIXED, {"lags": {(0, 1): 1, (0, 0): (1, 3)}}),
        ("depth-L3-layers1", PrefixPrediction("L_3", ((3, 6),)), {}),
        ("sparse-memory-light", KernelMemory(("light(6, 1.3)",), "waves", length=2), {}),
        ("addressed", AdaptiveMemory((1, 2), bits=2, length=3), {"strategies": ["mechanism"]}),
        ("maximum", Maximum(6, 3), {}),
    ],
)
def test_each_number_and_word_of_each_lemma_is_found_again(
    name: str, task: Any, options: dict[str, Any]
) -> None:
    made = {"addressed": address_model(), "maximum": maximum_model(6, 3, 1)}
    model = made[name] if name in made else zoo.load(name).model
    _, data, _ = certify_and_check(model, task, **options)
    for better in (0.99 if data["kind"] == "error" else 1.001, float("nan")):
        proofs = [proof | {"bound": proof["bound"] * better} for proof in data["strategies"]]
        assert not any(
            v.holds for v in check(data | {"strategies": proofs}, model, sha256_of(model))
        )
    told = [proof for proof in data["strategies"] if proof["lemmas"] and not proof["vacuous"]]
    assert told
    for proof in told:
        alone = data | {"strategies": [proof]}
        for k in range(len(proof["lemmas"])):
            for forge in _FORGERIES if k in (0, len(proof["lemmas"]) - 1) else _FORGERIES[:1]:
                forged = json.loads(json.dumps(alone))
                forge(forged["strategies"][0]["lemmas"], k)
                (verdict,) = check(forged, model, sha256_of(model))
                assert not verdict.holds, (proof["strategy"], k, verdict)


def test_the_checker_is_short_and_imports_nothing_of_the_strategies() -> None:
    text = Path(str(checker.__file__)).read_text()
    tree = list(ast.walk(ast.parse(text)))
    names = [node.module or "." for node in tree if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
    ours = {name.split(".")[0] for name in names} & {"analyses", "interp", "probes", "trained", ""}
    assert ours == {"interp"}
    assert "import_module" not in text
    assert "__import__" not in text
    assert len(text.splitlines()) <= 300


def test_command_writes_and_checks_a_certificate(tmp_path: Any) -> None:
    model = maximum_model(6, 3, 1)
    folder = save_checkpoint(model, tmp_path / "m", about={"task": Maximum(6, 3).to_dict()})
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["certify", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {p.name for p in out.iterdir()} >= {"certificate.json", "result.json", "index.html"}
    file = out / "certificate.json"
    assert read_certificate(file)["model"]["sha256"] == sha256_of(model)
    again = CliRunner().invoke(app, ["certify", "--check", str(file), str(folder)])
    assert again.exit_code == 0, again.output
    assert "holds  brute force" in again.output
    other = save_checkpoint(maximum_model(6, 3, 2), tmp_path / "other")
    wrong = CliRunner().invoke(app, ["certify", "--check", str(file), str(other)])
    assert isinstance(wrong.exception, CheckpointError)


def _forgeries(data: dict[str, Any]) -> Any:
    """Certificates that say something else, and what the refusal says."""

    def changed_copy(change: Any) -> dict[str, Any]:
        copy = json.loads(json.dumps(data))
        change(copy, copy["strategies"][0])
        return dict(copy)

    for cover in ("points", "cases", "pairs", "multisets", "caps"):  # of other domains
        other = {"cover": cover, "lags": [0], "heads": [], "pieces": 1}
        yield changed_copy(lambda d, p, other=other: p["data"].update(other)), ""
    yield changed_copy(lambda d, p: p["data"].update(slices=0)), "cannot be followed"
    yield changed_copy(lambda d, p: p.update(bound=None)), "cannot be followed"
    yield changed_copy(lambda d, p: p.pop("data")), "cannot be followed"
    yield changed_copy(lambda d, p: p.update(bound=p["bound"] * 0.9)), "does not hold: mechanism"
    yield changed_copy(lambda d, p: p["lemmas"][0].update(number=1e-5)), "does not hold: mechanism"
    yield changed_copy(lambda d, p: p["lemmas"].pop()), "does not hold: mechanism"
    yield changed_copy(lambda d, p: p.pop("lemmas")), "cannot be followed"
    yield (
        changed_copy(lambda d, p: d.update(trivial=0.5)),
        "it says that a constant answer reaches 0.5",
    )
    yield changed_copy(lambda d, p: p.update(kind="accuracy")), "its task has error"
    yield (
        changed_copy(lambda d, p: d["domain"].update(length=1)),
        "its domain is 'all sequences of 1",
    )
    yield changed_copy(lambda d, p: d["domain"].update(length=10**9)), "its domain is none"
    yield (
        changed_copy(lambda d, p: d["domain"].update(task={"kind": "magic"})),
        "its domain is none",
    )
    yield (
        changed_copy(lambda d, p: d.update(statement="every input there is")),
        "its domain is 'all",
    )
    yield changed_copy(lambda d, p: d["model"].update(sha256="0" * 64)), "does not hold: model"
    yield changed_copy(lambda d, p: d.pop("strategies")), "is damaged"
    yield changed_copy(lambda d, p: d["format"].update(version=99)), "upgrade prooflens"
    yield [], "no certificate"


def test_broken_certificates_are_refused_in_one_line(tmp_path: Any) -> None:
    shipped = zoo.load("sparse-memory-light")
    found = certify(
        shipped.model, shipped.task, name=shipped.name, length=2, strategies=["mechanism"]
    )
    file = tmp_path / "certificate.json"
    for data, words in _forgeries(json.loads(json.dumps(found.to_dict()))):
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
        (["sparse-memory-light", "--box", "0"], "box must be positive"),
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


def test_the_checker_refuses_a_type_that_the_proof_does_not_cover() -> None:
    task = FixedMemory((1,), "parity", length=3)
    for strategy, dtype, claimed, holds in (
        ("brute force", "float64", "float64", True),
        ("brute force", "float64", "float32", False),
        ("brute force", "float32", "float32", True),
        ("brute force", "float32", "real", True),
        ("black box", "float32", "real", True),
    ):
        model = shaken(one_lag(dtype), 0, 1e-3)
        data = certify(model, task, strategies=[strategy]).to_dict()
        data["strategies"][0] |= {"vacuous": "", "arithmetic": claimed}
        (found,) = check(data, model, sha256_of(model))
        assert found.holds == holds
        assert holds or "float32" in found.note
        assert (
            dtype != claimed or not holds or found.found == pytest.approx(found.claimed, rel=1e-6)
        )


def test_a_certificate_that_says_nothing_is_checked_too(tmp_path: Path) -> None:
    """It must say no more when it is bounded again, or else it was made to say nothing."""
    task, model = Maximum(6, 3), maximum_model(6, 3, 1)
    folder, file = tmp_path / "model", tmp_path / "certificate.json"
    save_checkpoint(model, folder, about={"name": "m", "task": task.to_dict()})

    def check_again(data: Any) -> tuple[int, str]:
        file.write_text(json.dumps(data))
        done = CliRunner().invoke(app, ["certify", "--check", str(file), str(folder)])
        return done.exit_code, done.output

    wide = certify(model, task, strategies=["black box"]).to_dict()
    sharp = certify(model, task, strategies=["brute force"]).to_dict()
    (one,), (box,) = sharp["strategies"], wide["strategies"]
    assert not one["vacuous"]
    assert box["vacuous"]
    code, said = check_again(wide)
    assert (code, "nothing is claimed" in said) == (0, True), said
    for forged in (
        sharp | {"strategies": [one | {"vacuous": "no better"}]},
        sharp | {"strategies": [one | {"vacuous": "no better", "bound": 0.1}]},
        sharp | {"strategies": [one | {"vacuous": "no better", "bound": None}]},
        wide | {"strategies": [box | {"bound": 0.9}]},
        wide | {"strategies": [box | {"data": {}}]},
        wide | {"strategies": []},
    ):
        code, said = check_again(forged)
        assert code not in (0, 70), said
        assert "nothing is claimed" not in said
