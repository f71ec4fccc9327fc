"""Commands that write are stopped after each file operation, and refused by the disk at each.

What must hold afterwards, :mod:`stopping` says; a store or a training that was only begun has
finished parts, which verify.

Commands that hold all of their writing in a draft until its end, as
:func:`interp.output.output_folder` does, are stopped at a few places in the draft and at each of
the last: a draft is one thing, and which of its files is half done makes no difference beside it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from forked_calls import RECIPE, command
from stopping import Case, Tree, finished_files, stop_everywhere, tree

from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.output import output_file, output_folder, replace_text
from interp.store import ActivationStore, extract, verify
from interp.store.measurements import write_measurement

PROGRAM = 'n = # "a"\nmany = n > 1\n'


ROWS = torch.tensor([[1, 2, 3], [4, 0, 1], [2, 2, 2]])


def sound_store(root: Path, before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """What the index names verifies; there is no index before there is a manifest."""
    folder = root / "st"
    if not (folder / "manifest.json").exists():
        return not (folder / "index.jsonl").exists()
    return verify(folder) == [] and set(finished_files(tree(root))) <= set(before) | set(after)


def sound_table(root: Path, before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    table = ActivationStore(root / "st").measurement("scores")
    return sound_store(root, before, after) and table["score"].tolist() in ([1.0], [2.0])


def is_only_begun(root: Path, before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """Older results stand; what is new is whole or in the training's own folder."""
    now = {n: d for n, d in finished_files(tree(root)).items() if not n.startswith("ck.partial")}
    return now in (before, after)


def words(*arguments: str) -> Callable[[Path], Callable[[], None]]:
    return lambda root: command(*(a.format(root=root) for a in arguments))


def sealing(root: Path) -> Callable[[], None]:
    table = pd.DataFrame({"score": [2.0]})
    return lambda: write_measurement(root / "st", "scores", table, {"seed": 0}, overwrite=True)


def one_file(root: Path) -> Callable[[], None]:
    def work() -> None:
        with output_file(root / "one.txt", overwrite=True) as draft:
            draft.write_text("new")
        replace_text(root / "two.txt", "new")

    return work


def one_folder(root: Path) -> Callable[[], None]:
    def work() -> None:
        with output_folder(root / "made", overwrite=True, marker="mark") as draft:
            (draft / "in").mkdir()
            (draft / "in" / "file.txt").write_text("new")

    return work


def pairs_of_files(*names: str) -> Callable[[Path, Tree, Tree], bool]:
    """Each file is the older one or the new one."""

    def sound(root: Path, before: Tree, after: Tree) -> bool:
        now = finished_files(tree(root))
        return all(now.get(name) in (before.get(name), after[name]) for name in names)

    return sound


def extracting(name: str, **options: bool) -> Callable[[Path], Callable[[], None]]:
    def work(root: Path) -> Callable[[], None]:
        model = load_checkpoint(root / "model")
        return lambda: extract(  # type: ignore[return-value]
            model, ROWS, ["hook_embed"], root / name, batch=2, part_rows=2, **options
        )

    return work


CASES = {
    "file": Case(one_file, sound=pairs_of_files("one.txt", "two.txt")),
    "folder": Case(one_folder),
    "extract": Case(extracting("st"), extracting("st", resume=True), sound_store),
    "extract-overwrite": Case(extracting("old", overwrite=True), tail=12),
    "seal": Case(sealing, sound=sound_table),
    "train": Case(
        words("train", "{root}/r.toml", "--out", "{root}/ck"),
        words("train", "{root}/r.toml", "--out", "{root}/ck", "--resume"),
        is_only_begun,
    ),
    "train-overwrite": Case(
        words("train", "{root}/r.toml", "--out", "{root}/ck", "--overwrite"),
        sound=is_only_begun,
        tail=14,
    ),
    "compile": Case(
        words("crasp", "--compile", "{root}/p.cr", "--out", "{root}/made", "--overwrite")
    ),
    "weights": Case(
        words("weights", "{root}/model", "--out", "{root}/w.csv", "--overwrite"),
        sound=pairs_of_files("w.csv", "w.environment.json"),
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, and older results to be replaced."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("world") / "root"
    (root / "tmp").mkdir(parents=True)
    spec = TransformerSpec(d_in=5, d_out=5, n_ctx=4, d_model=4, n_layers=1, n_heads=1, d_head=2)
    model = SequenceTransformer(spec, seed=1)
    save_checkpoint(model, root / "model")
    (root / "r.toml").write_text(RECIPE)
    (root / "p.cr").write_text(PROGRAM)
    rows = torch.tensor([[0, 1, 2], [3, 3, 3]])
    extract(model, rows, ["hook_embed"], root / "old", batch=2)
    for name in ("one.txt", "two.txt", "one.html", "w.csv"):
        (root / name).write_text("old")
    (root / "made").mkdir()
    for name in ("mark", "model.json"):
        (root / "made" / name).write_text("old")
    return root


@pytest.fixture
def start(world: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the world as one case finds it."""
    root = tmp_path / "start"
    shutil.copytree(world, root)
    name = request.node.callspec.params["name"]
    if name == "seal":
        shutil.copytree(root / "old", root / "st")
        write_measurement(root / "st", "scores", pd.DataFrame({"score": [1.0]}), {"seed": 0})
    if name == "train-overwrite":
        save_checkpoint(SequenceTransformer(TransformerSpec(5, 5, 4, 4, 1)), root / "ck")
    return root


LONG = ("extract", "extract-overwrite", "train", "train-overwrite")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CASES]
)
def test_stopped_after_any_file_operation(name: str, start: Path, tmp_path: Path) -> None:
    stop_everywhere(name, CASES[name], start, tmp_path / "root")
