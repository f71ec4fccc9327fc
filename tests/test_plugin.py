"""The example package is installed, and what it adds is there like our own."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import prooflens as pl
from interp.plugins import PluginWarning, Registry
from interp.tasks.catalogue import KINDS
from interp.weights.head_weights import ARCHITECTURES
from probes import fresh_models
from probes.head_scores import SCORES
from probes.roles import ROLES
from prooflens.cli.main import app, main
from prooflens.cli.usage import App

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "plugin"
REGISTRIES: tuple[Registry[Any], ...] = (KINDS, ROLES, SCORES, ARCHITECTURES)


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(folder)]
    subprocess.run([*command, str(EXAMPLE)], check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for registry in REGISTRIES:
            patch.setattr(registry, "_read", False)
            patch.setattr(registry, "_known", dict(registry._known))
        yield
    for name in [name for name in sys.modules if name.startswith("prooflens_example")]:
        del sys.modules[name]


def json_output(*command: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = import_module("prooflens_example.role").plant_case(passing=True, seed=3)
    folder = tmp_path_factory.mktemp("models") / "planted"
    pl.architectures.save_checkpoint(case.model, folder)
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy"
    folder.mkdir()
    torch.manual_seed(0)
    module = import_module("prooflens_example.model").Toy(11, 16, 8, 2)
    config = {"model_type": "toy_attention", "vocab_size": 11, "n_positions": 16}
    (folder / "config.json").write_text(json.dumps(config | {"width": 8, "heads": 2}))
    save_file(dict(module.state_dict()), folder / "model.safetensors")
    return folder


def test_the_task_is_a_task() -> None:
    assert "first token" in json_output("tasks")["tasks"]["first_copy"]
    assert set(json_output("tasks", "first_copy")["arguments"]) == {"symbols", "length"}


def test_inspect_finds_the_role_and_the_score(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 200)
    out = tmp_path / "out"
    options = ("--task", "first_copy:symbols=6,length=10", "--rows", "64", "--out", str(out))
    found = json_output("inspect", str(planted), *options)
    mine = [one for one in found["roles"] if one["role"] == "own-token"]
    assert [(one["head"], one["status"]) for one in mine] == [(0, "candidate")]
    assert "the model cannot do these rows" in mine[0]["missing"]  # nobody trained it on them
    table = pd.read_csv(out / "heads.csv")
    added = table[table["metric"] == "own-share"]
    score = {one["head"]: one for one in added.to_dict("records")}
    model, rows = pl.load(planted), pl.tasks.task_from_dict({"kind": "first_copy"})
    told = pl.find_roles(model, rows.sample(64, seed=0), targets=False)
    sure = told[(told["role"] == "own-token") & (told["status"] == "confirmed")]
    assert sure["head"].tolist() == [0]
    assert sure["q"].between(0, 0.01).all()
    _, cache = model.run_with_cache(rows.sample(64, seed=0).inputs)
    direct = cache["pattern", 0].diagonal(dim1=-2, dim2=-1).mean((0, 2))
    assert score[0]["score"] == pytest.approx(float(direct[0]), abs=1e-6)
    assert score[0]["q"] < 0.01 < score[1]["q"]


def test_the_benchmark_judges_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    score = import_module("analyses.benchmarks.plugin_roles").score_role
    monkeypatch.setattr(fresh_models, "_DRAWS", 60)
    found = score("own-token", decoys=2)
    assert (found["f1"], found["decoy_rate"]) == (1.0, 0.0)
    assert (found["cases"], found["decoys"]) == (5, 7)
    with pytest.raises(pl.errors.ArgumentError, match="role sink must give cases"):
        score("sink")


def test_the_architecture_is_loaded_and_inspected(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pl.load(toy)
    module = import_module("prooflens_example.model").Toy(11, 16, 8, 2)
    module.load_state_dict(load_file(toy / "model.safetensors"))
    tokens = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), module.eval()(tokens))
    first = module.layers[0].attention
    circuit = first.query.weight[:4].T @ first.key.weight[:4]
    layer = next(iter(pl.head_weights(toy)))
    torch.testing.assert_close(layer.W_Q[0] @ layer.W_K[0].T, circuit.detach())
    assert json_output("weights", str(toy), "--out", str(tmp_path / "weights"))
    monkeypatch.setattr(fresh_models, "_DRAWS", 60)
    found = pl.inspect(toy, count=4, length=12)
    assert found.measured.about["family"] == "toy_attention"
    own = found.heads[found.heads["metric"] == "own-share"]
    assert own[["layer", "head", "draws"]].to_numpy().tolist() == [[0, 0, 60], [0, 1, 60]]


def test_a_broken_package_is_named_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    lines = ["[prooflens.tasks]", "lost = nowhere_to_be_found:Task", "maximum = json:loads"]
    lines += ["no_class = json:loads", "[prooflens.roles]", "sink = json:loads"]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for registry in (KINDS, ROLES):
        monkeypatch.setattr(registry, "_read", False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        known, roles = list(KINDS), list(ROLES)
    text = "; ".join(str(one.message) for one in told if one.category is PluginWarning)
    assert "lost" not in known
    assert "maximum" in known
    assert "sink" in roles
    assert "of broken 1.0 is left out: it cannot be imported (ModuleNotFoundError" in text
    for name in ("tasks maximum", "roles sink"):
        assert f"prooflens.{name} of broken 1.0 is left out: the name is taken" in text
    assert "must be a frozen dataclass" in text


def test_a_plug_in_that_is_left_out_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own form would name a line of ours."""
    small = App()

    @small.command("warn")
    def warn() -> None:
        warnings.warn(
            "prooflens.roles broken of mine 1 is left out: why", PluginWarning, stacklevel=1
        )

    @small.command("other")
    def other() -> None:
        typer.echo("said")

    monkeypatch.setattr("prooflens.cli.main.app", small)
    monkeypatch.setattr("sys.argv", ["prooflens", "warn"])
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda *a, **_: shown.append(_line(*a)))
        with pytest.raises(SystemExit):
            main()
    assert shown == ["note: prooflens.roles broken of mine 1 is left out: why\n"]


def _line(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> str:
    return warnings.formatwarning(message, category, filename, lineno)
