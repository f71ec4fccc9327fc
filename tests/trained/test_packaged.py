"""Language models of other packages: by name, checked, or one line on how to get them."""

import hashlib
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import prooflens as pl
from analyses.benchmarks.gguf_writer import decoder, write_gguf
from interp.errors import CheckpointError, MissingDependencyError
from prooflens.cli.main import app
from trained import packaged
from trained.packaged import PACKAGED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No package is installed, and the cache is empty."""

    def version(package: str) -> str:
        raise packaged.PackageNotFoundError(package)

    monkeypatch.setenv("PROOFLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "version", version)
    return tmp_path


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", PACKAGED)
def test_without_the_package_one_line_says_how_to_get_it(name: str) -> None:
    with pytest.raises(MissingDependencyError, match=f"^{name} is not installed") as caught:
        pl.load(name)
    assert str(caught.value).endswith(PACKAGED[name].command)
    for command in ("inspect", "weights"):
        done = CliRunner().invoke(app, [command, name])
        assert done.exit_code == 2 or isinstance(done.exception, MissingDependencyError)


@pytest.mark.usefixtures("apart")
def test_they_are_listed_with_what_they_need() -> None:
    assert set(PACKAGED) <= set(pl.models())
    done = CliRunner().invoke(app, ["models"])
    for name, model in PACKAGED.items():
        line = next(one for one in done.output.splitlines() if one.startswith(f"{name} "))
        assert model.licence in line
        assert model.quantisation in line
        assert model.command in line


def test_the_extras_bring_the_pinned_packages() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for model in PACKAGED.values():
        assert "prooflens[gguf]" in extras[model.extra]
        (package,) = (one for one in extras[model.extra] if "prooflens" not in one)
        named, _, version = package.partition("==")
        assert version == model.version
        assert all(one.startswith(named) for one in model.parts)
    assert extras["models"] == ["prooflens[smollm2,gemma3]"]


def test_parts_are_joined_and_a_changed_one_is_refused(
    apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two made-up packages that hold a file of ours in two parts."""
    pytest.importorskip("gguf", reason="GGUF files need the extra: pip install 'prooflens[gguf]'")
    write_gguf(decoder(), apart / "whole.gguf")
    data = (apart / "whole.gguf").read_bytes()
    held = {"made-up-1": "made_up_1/a.part0", "made-up-2": "made_up_2/a.part1"}
    for file, part in zip(held.values(), (data[:999], data[999:]), strict=True):
        (apart / file).parent.mkdir()
        (apart / file).write_bytes(part)

    class Inside(str):
        def locate(self) -> Path:
            return apart / self

    monkeypatch.setattr(packaged, "version", lambda package: "1.0")
    monkeypatch.setattr(packaged, "files", lambda package: ["other", Inside(held[package])])
    digest = hashlib.sha256(data).hexdigest()
    model = replace(PACKAGED["gemma3-270m"], parts=held, version="1.0", sha256=digest)
    monkeypatch.setattr(packaged, "PACKAGED", {"gemma3-270m": model})
    tokens = torch.arange(10)[None] + 3
    loaded = pl.load("gemma3-270m")
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens), decoder()(tokens).logits, atol=1e-4, rtol=0)
    assert loaded.card.name == "gemma3-270m"
    (apart / "made_up_2/a.part1").write_bytes(data[999:-1] + b"x")
    with pytest.raises(CheckpointError, match="gemma3-270m has the SHA-256"):
        pl.load("gemma3-270m")


@pytest.mark.packaged
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("smollm2-135m", "The capital of Germany is"),
        ("gemma3-270m", "Germany's capital city is called"),
    ],
)
def test_it_knows_a_capital(name: str, asked: str) -> None:
    if not PACKAGED[name].installed:
        pytest.skip(f"{name} is not installed: {PACKAGED[name].command}")
    model = pl.load(name)
    words = model.card.tokenizer
    tokens = torch.tensor([words(asked)["input_ids"]])
    with torch.no_grad():
        answer = int(model(tokens)[0, -1].argmax())
    assert words.decode(answer) == " Berlin"
    said = model.card.analysed + model.card.about
    assert PACKAGED[name].licence in said
    assert f"GGUF {PACKAGED[name].quantisation} (" in said
