"""Nothing that is not the store's own is touched, and nothing wrong passes for sound."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from store_models import Echo, TinyTransformer
from typer.testing import CliRunner

from interp.errors import StoreError
from interp.output import append_line
from interp.store import ActivationStore, extract, repair, verify
from interp.store.layout import INDEX, MANIFEST, read_index, rewrite_index, settle_replacements
from interp.store.measurements import write_measurement
from prooflens.cli.main import app

HOOKS = ["blocks.0.attn.hook_pattern", "blocks.1.hook_resid_post"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("repair") / "st"
    extract(TinyTransformer(), Echo(), HOOKS, out, rows=8, batch=4, part_rows=4)
    write_measurement(out, "scores", pd.DataFrame({"score": [1.0, 2.0]}), {"seed": 0})
    return out


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "st"))


def change_manifest(store: Path, change: Callable[[Any], Any]) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    change(manifest)
    (store / MANIFEST).write_text(json.dumps(manifest))


def change_line(store: Path, number: int, change: Callable[[Any], Any]) -> None:
    lines = (store / INDEX).read_text().splitlines()
    entry = json.loads(lines[number])
    change(entry)
    lines[number] = json.dumps(entry)
    (store / INDEX).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "name", ["../victim.h5", "{folder}/victim.h5", "..", "a/b.h5", "manifest.json"]
)
def test_a_line_cannot_name_what_is_not_a_part(store: Path, name: str) -> None:
    victim = store.parent / "victim.h5"
    victim.write_bytes(b"mine")
    before = (store / "manifest.json").read_bytes()
    change_line(store, 0, lambda e: e.update(file=name.format(folder=store.parent)))
    with pytest.raises(StoreError, match=r"file must be part-00000\.h5"):
        ActivationStore(store)
    assert any("file must be part-00000.h5" in str(fault) for fault in verify(store))
    assert repair(store, drop_damaged=True) == []
    assert victim.read_bytes() == b"mine"
    assert json.loads(before)["plan"] == json.loads((store / "manifest.json").read_text())["plan"]
    assert [e["file"] for e in read_index(store)] == ["part-00001.h5", "measurements-scores.h5"]
    assert not ActivationStore(store).complete


def test_a_wrong_manifest_costs_no_sound_part(store: Path) -> None:
    def rename(manifest: Any) -> None:
        manifest["hooks"]["blocks.9.hook_z"] = manifest["hooks"].pop(HOOKS[0])

    change_manifest(store, rename)
    assert {fault.file for fault in verify(store)} == {MANIFEST}
    with pytest.raises(StoreError, match=r"its manifest cannot be mended: .*hooks are not those"):
        repair(store, drop_damaged=True)
    assert (store / "part-00000.h5").is_file()


def test_what_is_damaged_is_moved_and_deleted_only_on_request(store: Path) -> None:
    (store / "part-00000.h5").write_bytes(b"broken")
    assert repair(store) == ["part-00000.h5"]
    assert (store / "damaged" / "part-00000.h5").read_bytes() == b"broken"
    assert verify(store) == []
    extract(TinyTransformer(), Echo(), HOOKS, store, rows=8, batch=4, part_rows=4, resume=True)
    (store / "part-00000.h5").write_bytes(b"again")
    assert repair(store) == ["part-00000.h5"]
    assert (store / "damaged" / "part-00000.h5.2").read_bytes() == b"again"
    said = CliRunner().invoke(app, ["store", "--repair", str(store), "--drop"])
    names = ("part-00000.h5", "part-00000.h5.2")
    told = "".join(f"deleted from damaged/: {name}\n" for name in names)
    assert (said.exit_code, said.output) == (0, f"{told}{store}: nothing to move\n")
    assert not (store / "damaged").exists()


def test_what_verify_advises_mends_it(store: Path) -> None:
    index = store / "index.jsonl"
    index.write_text(index.read_text() * 2)
    said = CliRunner().invoke(app, ["store", "--verify", str(store)])
    assert (said.exit_code, f"prooflens store {store} --repair" in said.output) == (1, True)
    said = CliRunner().invoke(app, ["store", "--repair", str(store)])
    assert said.output == f"{store}: nothing to move; 3 lines left the index\n"
    assert verify(store) == []
    change_manifest(store, lambda manifest: manifest.update(plan_digest="0" * 64))
    said = CliRunner().invoke(app, ["store", "--verify", str(store)])
    assert "put back the manifest that was written" in said.output


def test_damaged_is_no_way_out_of_the_store(store: Path) -> None:
    (store.parent / "elsewhere").mkdir()
    (store / "damaged").symlink_to(store.parent / "elsewhere")
    (store / "part-00000.h5").write_bytes(b"broken")
    with pytest.raises(StoreError, match="leads out of the store"):
        repair(store)
    assert not list((store.parent / "elsewhere").iterdir())


def rewrite(**change: Any) -> Callable[[Path], None]:
    return lambda store: change_line(store, 0, lambda e: e.update(change))


def manifest(**change: Any) -> Callable[[Path], None]:
    return lambda store: change_manifest(store, lambda m: m.update(change))


def without(key: str) -> Callable[[Path], None]:
    return lambda store: change_manifest(store, lambda m: m.pop(key))


def twice(store: Path) -> None:
    first = (store / INDEX).read_bytes().splitlines()[0]
    append_line(store / INDEX, first)


def replace_plan(store: Path) -> None:
    change_manifest(store, lambda m: m["plan"].update(seed=7))


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "no plan": (without("plan"), "has no 'plan'"),
    "no hooks": (without("hooks"), "has no 'hooks'"),
    "plan of text": (manifest(plan="x"), r"plan must be a table"),
    "another plan": (replace_plan, "plan_digest is not that of the plan"),
    "wrong digest": (manifest(plan_digest="0" * 64), "plan_digest is not that of the plan"),
    "digest of text": (manifest(plan_digest="x"), "plan_digest must be a SHA-256"),
    "complete as text": (manifest(complete="yes"), "complete must be true or false"),
    "rows as text": (manifest(rows="8"), "rows must be a whole number"),
    "negative rows": (manifest(rows=-8), "rows must be at least 0, got -8"),
    "too many rows": (manifest(rows=2**70), "64 bits"),
    "fewer rows": (manifest(rows=4), "its parts have more"),
    "more rows": (manifest(rows=10), "rows 8..9 are in no part"),
    "complete without rows": (manifest(rows=None), "does not say how many rows"),
    "alias to nowhere": (manifest(aliases={"a": "b"}), "aliases lead to no hook: a → b"),
    "alias of a number": (manifest(aliases={"a": 3}), "aliases.a must be text"),
    "shape of -1": (rewrite(shapes={"row": [4], "inputs": [4, -1]}), r"\[1\] must be at least 0"),
    "negative row": (rewrite(rows=[[-4, 0]]), "must be two row ids"),
    "rows backwards": (rewrite(rows=[[4, 0]]), "must be two row ids"),
    "other number of rows": (rewrite(n=3), "rows must hold n = 3"),
    "no shapes": (rewrite(shapes={}), "must have row and inputs"),
    "part of text": (rewrite(part="0"), "part must be a whole number"),
    "hash of text": (rewrite(sha256=7), "sha256 must be text, got 7"),
    "another hash": (rewrite(sha256="0" * 64), "SHA-256 is not the sealed one"),
    "another size": (rewrite(bytes=1, sha256="0" * 64), "bytes, was sealed with 1"),
    "a line twice": (twice, "line 4 names part-00000.h5, as line 1 does"),
    "no line": (lambda s: (s / INDEX).write_bytes(b"null\n"), "is not an index entry"),
    "no JSON": (lambda s: append_line(s / INDEX, b"{"), "line 4 cannot be read"),
    "NaN": (lambda s: append_line(s / INDEX, b'{"kind": NaN}'), "NaN is no number"),
    "deep": (lambda s: append_line(s / INDEX, b"[" * 20_000 + b"]" * 20_000), "nested deeper"),
    "a FIFO for a part": (
        lambda s: ((s / "part-00000.h5").unlink(), os.mkfifo(s / "part-00000.h5")),  # type: ignore[func-returns-value, dict-item]
        "is no regular file",
    ),
    "a folder for a part": (
        lambda s: ((s / "part-00000.h5").unlink(), (s / "part-00000.h5").mkdir()),  # type: ignore[func-returns-value, dict-item]
        "Is a directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not_verify(store: Path, name: str) -> None:
    """``verify`` says it, and no command ends in a mistake of ours."""
    import re

    spoil, said = WRONG[name]
    spoil(store)
    try:
        found = "; ".join(map(str, verify(store)))
    except StoreError as error:
        found = str(error)
    assert re.search(said, found), found
    for words in (("info",), ("verify",), ("repair",)):
        done = CliRunner().invoke(app, ["store", *words, str(store)])
        assert done.exception is None or isinstance(done.exception, SystemExit | StoreError)


def test_lines_that_repeat_a_file_are_mended(store: Path) -> None:
    before = (store / INDEX).read_bytes()
    twice(store)
    with pytest.raises(StoreError, match=r"line 4 names part-00000\.h5, as line 1 does"):
        ActivationStore(store)
    assert repair(store) == []
    assert (store / INDEX).read_bytes() == before
    assert verify(store) == []


def test_a_table_that_was_being_replaced_is_whichever_is_there(store: Path) -> None:
    entries = list(read_index(store))
    (old,) = (e for e in entries if e["kind"] == "measurement")
    sealed = {key: old[key] for key in ("n", "bytes", "sha256")}
    new = {**old, "n": 9, "sha256": "0" * 64, "replaces": sealed}
    rewrite_index(store, [*entries[:2], new])
    assert verify(store) == []
    settle_replacements(store)
    assert list(read_index(store)) == entries
