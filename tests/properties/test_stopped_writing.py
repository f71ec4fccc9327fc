"""Commands that compute for long are stopped after the file operations of their writing.

What they compute is kept from a first run (:mod:`replay`); everything that they write, they write
each time. See :mod:`stopping` for what must hold.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from forked_calls import command
from replay import keep, keep_figures
from stopping import Case, Tree, finished, stop_everywhere, tree

import prooflens.demo.run
import prooflens.pages.certify
import prooflens.pages.decompiled
import prooflens.pages.head_figures
import prooflens.pages.inspection  # noqa: F401  (what is loaded now draws once)
from interp.models.export import export_gpt2
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract, verify
from probes.measure import Measurements
from probes.roles.decision import no_roles
from prooflens.demo.run import Subject
from prooflens.inspection import Inspected
from trained import zoo

MODEL, REAL = "fixed-memory-multiplexer", "--task=fixed_memory:lags=[1],length=4"
PATTERN = "blocks.0.attn.hook_pattern"


def words(*arguments: str) -> Callable[[Path], Callable[[], None]]:
    return lambda root: command(*(a.format(root=root) for a in arguments))


def beside_a_store(root: Path, before: Tree, after: Tree) -> bool:
    """The store verifies; what is beside it is the older result or the new one."""
    now = {name: data for name, data in finished(tree(root)).items() if name[:2] != "st"}
    parts = ({n: d for n, d in files.items() if n[:2] != "st"} for files in (before, after))
    return verify(root / "st") == [] and now in tuple(parts)


def inspected_so_far(root: Path, before: Tree, after: Tree) -> bool:
    """A store that is finished verifies; every other file is whole."""
    now = finished(tree(root))
    stores = (root / "new").glob("store/manifest.json")
    whole = all(verify(file.parent) == [] for file in stores if b'"complete": true' in
                file.read_bytes())  # fmt: skip
    return whole and all(
        data == after[name] for name, data in now.items() if name.endswith((".csv", ".png", "html"))
    )


CASES = {
    "inspect-store": Case(
        words("inspect", "{root}/st", "--out={root}/out", "--overwrite"),
        sound=beside_a_store,
        tail=3,
        every=40,
    ),
    "probe": Case(
        words("probe", MODEL, REAL, "--rows=20", "--out={root}/out", "--overwrite"), draft=True
    ),
    "probe-store": Case(
        words("probe", "{root}/st", "--out={root}/out", "--overwrite"),
        sound=beside_a_store,
        every=10,
        tail=4,
    ),
    "plot": Case(
        words("store", "--figures", "{root}/st", "--out={root}/out", "--overwrite"), draft=True
    ),
    "inspect": Case(
        words("inspect", "{root}/gpt2", "--out={root}/new", "--rows=16"),
        words("inspect", "{root}/gpt2", "--out={root}/new", "--rows=16", "--resume"),
        inspected_so_far,
        tail=3,
        every=60,
    ),
    "inspect-overwrite": Case(
        words("inspect", "{root}/gpt2", "--out={root}/out", "--rows=16", "--overwrite"), draft=True
    ),
    "certify": Case(
        words("certify", MODEL, "--strategy=black-box", "--out={root}/out", "--overwrite"),
        draft=True,
    ),
    "decompile": Case(
        words("decompile", MODEL, "--out={root}/out", "--overwrite"), draft=True
    ),
    "demo": Case(words("demo", "--out={root}/out", "--overwrite"), draft=True),
}  # fmt: skip


DRAWN = [
    ("prooflens.pages.inspection", "wide_table", "beside_nulls"),
    ("prooflens.pages.head_figures", "behaviour_figures", "weight_maps", "crop_figure",
     "reading_figure"),
]  # fmt: skip
HEAVY = {
    "probe": [("prooflens.cli.loading", "load"), ("probes.probe_table", "probe_source")],
    "probe-store": [("probes.probe_table", "probe_source")],
    "inspect": [
        ("prooflens.inspection", "load", "head_weights"),
        ("probes.measure", "evidence_of", "decided", "weight_table", "performance"),
        ("probes.inspection.losses", "ablate"),
        ("interp.store.plan", "survey"),
        *DRAWN,
    ],
    "inspect-store": [("prooflens.inspection", "model_of", "measure"), *DRAWN],
    "certify": [("prooflens.cli.loading", "load"), ("probes.certify.run", "certify")],
    "decompile": [("trained.loading", "load"), ("probes.decompile.workflow", "decompile")],
}
HEAVY["inspect-overwrite"] = [*HEAVY["inspect"], ("prooflens.inspection", "measure")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, and older results to be replaced."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("world") / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "page.html").write_text("old")
    shipped = zoo.load(MODEL)
    store = extract(
        shipped.model, shipped.task, [PATTERN, "blocks.0.hook_resid_post"], root / "st", rows=16,
        about={"model": MODEL},
    )  # fmt: skip
    sites = {"site": ["hook_embed"], "latent": ["x"], "score": [0.5]}
    store.write_measurement("decodability", pd.DataFrame(sites), {"seed": 0})
    spec = TransformerSpec(
        d_in=16, d_out=16, n_ctx=16, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(8,),
        norm="layernorm", positions="learned", activation="gelu",
    )  # fmt: skip
    export_gpt2(SequenceTransformer(spec, seed=1), root / "gpt2")
    return root


MARKERS = {
    "probe": ".prooflens-probes",
    "plot": ".prooflens-figures",
    "inspect": ".prooflens-inspect",
    "certify": "certificate.json",
    "decompile": "program.txt",
    "demo": ".prooflens-demo",
}


def light_subject(name: str, model: Any, task: Any, out: Path) -> Subject:
    """A model of the demo, whose page is a word, and without what nothing here reads."""
    out.mkdir(parents=True)
    (out / "report.html").write_text(name)
    table, one = pd.DataFrame({"score": [1.0]}), {"accuracy": 1.0, "loss": 0.0, "worst": 0.0}
    tables = {"roles": no_roles(), "heads": table, "trials": pd.DataFrame([one])}
    found = Inspected(Measurements(tables, {}))
    return Subject(name, model, task, found, None)  # type: ignore[arg-type]


@pytest.fixture
def light(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, world: Path) -> None:
    """What the command computes is kept."""
    name = request.node.callspec.params["name"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PROOFLENS_GPT2", raising=False)
    monkeypatch.setattr("probes.fresh_models._DRAWS", 40)
    keep_figures(monkeypatch)
    for module, *names in HEAVY.get(name, ()):
        keep(monkeypatch, module, *names)
    if name == "demo":
        table = pd.DataFrame({"statement": ["It is so."], "holds": [True], "model": ["trained"]})
        monkeypatch.setattr("prooflens.demo.run.compared", light_subject)
        monkeypatch.setattr("prooflens.demo.run.findings", lambda comparison: ["It is so."])
        monkeypatch.setattr("prooflens.demo.run.sections", lambda comparison, folder: [])
        monkeypatch.setattr("prooflens.demo.run.doubts", lambda comparison: [])
        monkeypatch.setattr("prooflens.demo.run.lead_picture", lambda comparison, folder: None)
        monkeypatch.setattr("prooflens.demo.run.Comparison.agreement", table)
        keep(monkeypatch, "prooflens.demo.run", "construct_fixed_memory")
        keep(monkeypatch, "trained.zoo", "load")


@pytest.fixture
def start(world: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the world as one case finds it: with an older result, where one is replaced."""
    root = tmp_path / "start"
    shutil.copytree(world, root)
    marker = MARKERS.get(request.node.callspec.params["name"].partition("-")[0])
    if marker:
        (root / "out").mkdir()
        (root / "out" / marker).write_text("old")
        (root / "out" / "old.txt").write_text("old")
    return root


LONG = ("certify", "decompile", "demo", "inspect", "inspect-store")
LONG += ("inspect-overwrite", "probe", "probe-store")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CASES]
)
def test_stopped_while_it_writes(name: str, light: None, start: Path, tmp_path: Path) -> None:
    stop_everywhere(name, CASES[name], start, tmp_path / "root")
