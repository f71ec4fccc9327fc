"""Calls that name the wrong thing in the right place: an output for an input, a folder for a file,
a store of another model, options twice or of no meaning, links, and names at a file system's limit.

Each is answered in one line, as in :mod:`test_odd_inputs`.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from odd_calls import Row, split

from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract

LONG, EDGE = "ж" * 40_000, "x" * 255

CALLS = [
    line
    for line in (Path(__file__).with_name("odd_words.txt")).read_text().splitlines()
    if line and not line.startswith("#")
]


def words(root: Path) -> Iterator[Row]:
    """Calls of files that are sound."""
    for call in CALLS:
        for name, place in {
            "{hook}": "--hooks=hook_embed",
            "{c}": f"{root}/p.cr",
            "{p}": f"{root}/p.txt",
            "{r}": f"{root}/r.toml",
        }.items():
            call = call.replace(name, place)
        given = tuple(
            "" if word == "''" else word.replace("=''", "=") for word in split(call, root)
        )
        yield " ".join(given)[-120:], lambda: None, given
    m, out = f"{root}/model", f"--out={root}/out"
    for number, odd in enumerate(
        (LONG, EDGE, EDGE + "x", "\u202eabc", "a\tb", "﷽" * 60, "🏳️‍🌈" * 9)
    ):
        for before in (
            ("inspect",),
            ("weights",),
            ("store",),
            ("crasp",),
            ("claims", "run"),
        ):
            yield f"name {number}: {before}", lambda: None, (*before, odd)
        yield f"hook {number}", lambda: None, ("extract", m, f"--hooks={odd}", "--rows=1", out)
        yield f"task {number}", lambda: None, ("inspect", m, f"--task={odd}", out)
        yield f"prompt {number}", lambda: None, ("inspect", m, f"--prompt={odd}", out)


def _linked(root: Path) -> None:
    for name in ("model", "t.txt", "p.cr", "r.toml", "rows.json"):
        shutil.move(root / name, root / f"real-{name}")
        (root / name).symlink_to(f"real-{name}")


def _looped(root: Path) -> None:
    for name in ("model", "st"):
        (root / name / "again").symlink_to(root / name)
        (root / name / "up").symlink_to(root)


def _parts_gone(root: Path) -> None:
    for name in ("model/model.safetensors", "st/part-00000.h5"):
        (root / name).unlink()
        (root / name).symlink_to(root / "none")


def _emptied(root: Path) -> None:
    for name in ("t.txt", "p.cr", "p.txt", "r.toml", "rows.json", "st/part-00000.h5"):
        (root / name).write_bytes(b"")


def _folders(root: Path) -> None:
    for name in ("t.txt", "p.cr", "p.txt", "r.toml", "rows.json", "st/part-00000.h5"):
        (root / name).unlink()
        (root / name).mkdir()


def _closed(root: Path) -> None:
    for name in ("model", "st", "t.txt", "p.cr"):
        (root / name).chmod(0)


def _other_model(root: Path) -> None:
    """The model that the store names, with other weights of another shape."""
    shutil.rmtree(root / "model")
    spec = TransformerSpec(d_in=9, d_out=9, n_ctx=2, d_model=2, n_layers=2, n_heads=2, d_head=1)
    save_checkpoint(SequenceTransformer(spec, seed=3), root / "model")


def _cut_pair(root: Path) -> None:
    """Manifest and part of two stores."""
    model = load_checkpoint(root / "model")
    extract(model, torch.tensor([[1, 1, 1]]), ["hook_embed"], root / "other", batch=2)
    shutil.copy(root / "other/manifest.json", root / "st/manifest.json")
    shutil.rmtree(root / "other")


def _crossed(root: Path) -> None:
    """A model's files in a store's folder, and the other way round."""
    shutil.copy(root / "model/model.json", root / "st/model.json")
    shutil.copy(root / "st/manifest.json", root / "model/manifest.json")


def _half_weights(root: Path) -> None:
    file = root / "model/model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flipped_recipe(root: Path) -> None:
    """A sound spec beside weights of other names."""
    file = root / "model/model.json"
    data = json.loads(file.read_text())
    data["spec"] |= {"n_layers": 2}
    file.write_text(json.dumps(data))


STATES: dict[str, Callable[[Path], None]] = {
    "links": _linked, "loops": _looped, "links to nowhere": _parts_gone, "empty": _emptied,
    "folders": _folders, "closed": _closed, "another model": _other_model, "pairs": _cut_pair,
    "crossed": _crossed, "half": _half_weights, "other names": _flipped_recipe,
}  # fmt: skip
VERBS = (
    "extract {m} --hooks=hook_embed {tokens} {out}",
    "extract {m} --hooks=hook_embed --tokens={root}/t.txt --out={st} --resume",
    "inspect {st} {out}", "probe {st}", "store --figures {st} {out}",
    "store {st}", "store --verify {st}", "store --repair {st}",
    "weights {m}", "decompile {m} {rows} {out} --lines=1", "crasp {root}/p.cr a",
    "decompile apply {root}/p.txt {rows}", "train {root}/r.toml {out}",
)  # fmt: skip


def states(root: Path) -> Iterator[Row]:
    """Commands on files in odd states: linked, looped, empty, exchanged, of something else."""
    for (name, make), verb in product(STATES.items(), VERBS):
        yield f"{name}: {verb}", lambda make=make: make(root), split(verb, root)


NAMES = (
    "x" * 251, "trailing. ", " . ", "dots...", "tab\t", "\n", "новый\nряд", "a\r", "\x01", "CON",
)  # fmt: skip
WRITERS = (
    "weights {m} --out={root}/out/NAME", "train {root}/r.toml --out={root}/out/NAME",
    "extract {m} --hooks=hook_embed {tokens} --out={root}/out/NAME",
    "crasp --compile {root}/p.cr --out={root}/out/NAME",
    "inspect {m} --rows=4 {rows} --out={root}/out/NAME",
)  # fmt: skip


def outputs(root: Path) -> Iterator[Row]:
    """Outputs whose names are at the file system's limits, which have to work."""
    for number, (name, verb) in enumerate(product(NAMES, WRITERS)):
        if (number // len(WRITERS) + number) % 2:
            continue  # every command gets every second name, and every name every second command
        given = tuple(word.replace("NAME", name) for word in split(verb, root))
        yield f"{name!r}: {verb}", lambda: None, given


@pytest.mark.slow
@pytest.mark.parametrize("table", [words, states])
def test_odd_words_are_answered_in_one_line(table: Any, ask: Any) -> None:
    count, wrong = ask(table, (0, 1, 2))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:60])
    assert count >= 140


@pytest.mark.slow
def test_outputs_of_odd_names_work(ask: Any) -> None:
    count, wrong = ask(outputs, (0,))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:60])
    assert count >= 30
