"""Two processes on one folder: each works, or the second is refused in a line that names the first.

One process holds a folder's lock as a running command does; commands that write there are refused
with its number and host, and readers work beside it. When it is killed, its lock is gone.
"""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import pandas as pd
import pytest
import torch
from forked_calls import RECIPE, Child, command

import trained.grid
from interp.errors import ArgumentError, StoreError
from interp.lock import LOCK, alone
from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import ActivationStore, extract, repair, verify
from interp.store.measurements import write_measurement
from trained.recipe import read_recipe

SPEC = TransformerSpec(d_in=5, d_out=5, n_ctx=4, d_model=4, n_layers=1, n_heads=1, d_head=2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A model, tokens and a store with a table."""
    folder = tmp_path / "root"
    (folder / "tmp").mkdir(parents=True)
    model = SequenceTransformer(SPEC, seed=1)
    save_checkpoint(model, folder / "model")
    extract(model, torch.tensor([[0, 1, 2], [3, 3, 3]]), ["hook_embed"], folder / "st", batch=2)
    write_measurement(folder / "st", "scores", pd.DataFrame({"score": [1.0]}), {"seed": 0})
    (folder / "r.toml").write_text(RECIPE)
    (folder / "t.txt").write_text("0 1 2\n3 3 3\n")
    return folder


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[int]:
    """A process that does the work, and is killed at the end if it still runs; its number."""
    ready, told = os.pipe()

    def telling() -> None:
        os.close(ready)
        os.environ["READY"] = str(told)
        work()

    child = Child(telling)
    os.close(told)
    try:
        os.read(ready, 1)
        yield child.pid
    finally:
        os.close(ready)
        child.kill()


def holding(folder: Path) -> Callable[[], None]:
    def work() -> None:
        with alone(folder, "working in this folder"):
            os.write(int(os.environ["READY"]), b"1")
            sleep(60)

    return work


def seal(root: Path) -> Callable[[], None]:
    table = pd.DataFrame({"score": [2.0]})
    return lambda: write_measurement(root / "st", "scores", table, {"seed": 0}, overwrite=True)


WRITERS = {
    "extract": ("st", "extract {root}/model --tokens {root}/t.txt --hooks hook_embed --batch 2 "
                      "--out {root}/st --resume"),
    "extract-overwrite": ("st", "extract {root}/model --tokens {root}/t.txt --hooks hook_embed "
                                "--batch 2 --out {root}/st --overwrite"),
    "repair": ("st", "store --repair {root}/st"),
    "inspect": ("new", "inspect {root}/model --out {root}/new --resume"),
    "train": ("zoo.partial", "train --all --out {root}/zoo"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_a_second_writer_is_told_who_is_first(name: str, root: Path) -> None:
    place, words = WRITERS[name]
    (root / place).mkdir(parents=True, exist_ok=True)
    if name == "inspect":
        (root / place / ".prooflens-inspect").touch()
    with beside(holding(root / place)) as first:
        found = Child(command(*words.format(root=root).split())).end()
    lines = found.said.splitlines()
    assert found.code == 2, found.said
    assert f"(pid {first} on {socket.gethostname()})" in lines[-1], found.said
    assert lines[-1].startswith("prooflens: ")
    assert "Traceback" not in found.said


def test_a_killed_holders_lock_is_free(root: Path) -> None:
    with beside(holding(root / "st")), pytest.raises(StoreError, match=r"another process \(pid"):
        seal(root)()
    assert (root / "st" / LOCK).exists()
    seal(root)()
    assert ActivationStore(root / "st").measurement("scores")["score"].tolist() == [2.0]


def test_readers_work_beside_a_holder(root: Path) -> None:
    with beside(holding(root / "st")):
        assert ActivationStore(root / "st").inputs().shape == (2, 3)
        assert verify(root / "st") == []
        with pytest.raises(StoreError, match=r"another process \(pid \d+ on .+\)"):
            repair(root / "st")


def test_readers_work_beside_a_writer(root: Path) -> None:
    """A table is replaced over and over: a reader sees one edition, and no damage."""

    def replacing() -> None:
        os.write(int(os.environ["READY"]), b"1")
        for number in range(10_000):
            table = pd.DataFrame({"score": [float(number)] * (1 + number % 3)})
            write_measurement(root / "st", "scores", table, {"n": number}, overwrite=True)

    with beside(replacing):
        for _ in range(25):
            store = ActivationStore(root / "st")
            assert len(set(store.measurement("scores")["score"])) == 1
            assert verify(root / "st") == []
    shutil.rmtree(root / "tmp")
    repair(root / "st")
    assert verify(root / "st") == []


def test_a_reader_beside_repairs(root: Path) -> None:
    """A part is damaged, moved aside and made again, over and over: what is read is right, or it is
    said that the part is not there or damaged."""
    model, rows = load_checkpoint(root / "model"), torch.tensor([[0, 1, 2], [3, 3, 3]])

    def mending() -> None:
        os.write(int(os.environ["READY"]), b"1")
        for _ in range(10_000):
            (root / "st/part-00000.h5").write_bytes(b"damaged")
            repair(root / "st", drop_damaged=True)
            extract(model, rows, ["hook_embed"], root / "st", batch=2, resume=True)
            verify(root / "st")  # so that it is sound for a while

    read, refused = [], 0
    with beside(mending):
        while len(read) < 3 or not refused:
            try:
                read.append(ActivationStore(root / "st").inputs().tolist())
            except (StoreError, ArgumentError):
                refused += 1
    assert [found for found in read if found != rows.tolist()] == []


def test_a_store_that_was_replaced_is_not_read_on(root: Path) -> None:
    """What was opened before would otherwise give rows of another store."""
    store = ActivationStore(root / "st")
    extract(
        SequenceTransformer(SPEC, seed=2), torch.tensor([[4, 4, 4]]), ["hook_embed"], root / "st",
        batch=2, overwrite=True,
    )  # fmt: skip
    with pytest.raises(StoreError, match="was replaced since it was opened: open it again"):
        store.inputs()
    assert ActivationStore(root / "st").inputs().shape == (1, 3)


CALLS = {
    "extract": "extract {root}/model --tokens {root}/t.txt --hooks hook_embed --out {root}/two",
    "repair": "store --repair {root}/st",
    "train": "train {root}/r.toml --out {root}/trained",
    "train-all": "train --all --out {root}/zoo",
}


REFUSED = r"another process \((pid \d+ on|unknown\))|already| exists: choose another name"
"""The other is at work, and may not have said who it is; or it was done before this one looked."""


@pytest.mark.parametrize("name", CALLS)
def test_of_two_at_the_same_time_one_works(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trained.recipe.recipes", lambda: [read_recipe(root / "r.toml")])
    words = CALLS[name].format(root=root).split()
    children = [Child(command(*words)) for _ in range(2)]
    found = [child.end() for child in children]
    assert 0 in {one.code for one in found}, found
    for one in found:
        assert one.code in (0, 2), one
        assert "Traceback" not in one.said
        last = one.said.splitlines()[-1]
        assert one.code == 0 or re.search(REFUSED, last), one
    if name == "extract":
        assert verify(root / "two") == []


@pytest.mark.parametrize("more", ["", " --resume"])
def test_one_that_starts_as_the_other_ends_finds_its_work(
    more: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has the folder until the second, which had looked before, has it."""
    monkeypatch.setattr("trained.recipe.recipes", lambda: [read_recipe(root / "r.toml")])
    words = f"train --all --out {root}/zoo{more}".split()
    place = trained.grid.training_place

    def wait_for_first(folder: Path) -> Any:
        trained.grid.training_place = place
        if not (first := os.fork()):
            with contextlib.suppress(SystemExit):
                command(*words)()
            os._exit(0)
        os.waitpid(first, 0)
        monkeypatch.setattr("trained.grid.train_unit", lambda *_: 1 / 0)
        return place(folder)

    monkeypatch.setattr("trained.grid.training_place", wait_for_first)
    second = Child(command(*words)).end()
    said = "nothing is left to train" if more else "exists: choose another name"
    assert (second.code, said in second.said) == (0 if more else 2, True), second
    assert sorted(path.name for path in root.iterdir() if "zoo" in path.name) == ["zoo"]
