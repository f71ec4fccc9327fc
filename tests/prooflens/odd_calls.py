"""What tables of odd inputs share: where a call is made, and what may come of it.

A row is a name, what is arranged, and the words of a call. Every call runs in a child forked from
this process, in a fresh copy of a folder with a model, a store, tokens, a program, a recipe and
rows.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_calls import RECIPE, SECONDS, call, changed, contents

from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from prooflens.cli.main import main

__all__ = ["DOUBLING", "LONG", "Row", "change", "change_json", "split", "write"]

_MANY = 10**12
LONG: dict[str, Any] = {
    "n": _MANY,
    "rows": [[0, _MANY]],
    "shapes": {"row": [_MANY], "inputs": [_MANY, 3], "activations/hook_embed": [_MANY, 3, 4]},
}
"""What the index may say of a part of more rows than any machine holds."""
DOUBLING = "".join(
    ('n0 = # "a"\n', *(f"n{i + 1} = n{i} + n{i}\n" for i in range(200)), "x = n200 > 1\n")
)
"""A program whose lines read the one before twice."""

Row = tuple[str, Callable[[], None], tuple[str, ...]]


def change_json(file: Path, **values: Any) -> Callable[[], None]:
    """Numbers of a checkpoint's spec."""

    def change() -> None:
        data = json.loads(file.read_text())
        data["spec"] |= values
        file.write_text(json.dumps(data))

    return change


def write(file: Path, text: str) -> Callable[[], None]:
    return lambda: (file.write_text(text), None)[1]


def split(words: str, root: Path) -> tuple[str, ...]:
    """The words of a call with the places of its files."""
    places = {
        "m": f"{root}/model",
        "st": f"{root}/st",
        "root": f"{root}",
        "out": f"--out={root}/out",
    }
    places |= {"rows": f"--data={root}/rows.json", "tokens": f"--tokens={root}/t.txt"}
    places["page"] = f"--no-ablate --out={root}/out.html"
    for name, place in places.items():
        words = words.replace(f"{{{name}}}", place)
    return tuple(words.split(" "))


def change(file: Path, **values: Any) -> Callable[[], None]:
    """Values of a JSON file, or of the first line of one."""

    def work() -> None:
        first, *rest = (
            file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        )
        file.write_text("\n".join([json.dumps({**json.loads(first), **values}), *rest]) + "\n")

    return work


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("odd") / "root"
    folder.mkdir()
    spec = TransformerSpec(d_in=5, d_out=5, n_ctx=4, d_model=4, n_layers=1, n_heads=1, d_head=2)
    model = SequenceTransformer(spec, seed=1)
    save_checkpoint(model, folder / "model")
    extract(model, torch.tensor([[0, 1, 2], [3, 3, 3]]), ["hook_embed"], folder / "st", batch=2)
    (folder / "t.txt").write_text("0 1 2\n")
    (folder / "p.cr").write_text('n = # "a"\nmany = n > 1\n')
    (folder / "p.txt").write_text("next = token\n")
    (folder / "r.toml").write_text(RECIPE)
    row = {"tokens": [0, 1, 2], "label": [4, 0, 1]}
    words = {"<b>": 0, "$x$": 1, "{{ 7 }}": 2, "ü": 3, "<pad>": 4}
    rows = {"vocabulary": words, "objective": "next token", "rows": [row] * 4}
    (folder / "rows.json").write_text(json.dumps(rows))
    for warm in WARM:  # what is imported here, no child has to import
        sys.argv = ["prooflens", *(word.format(root=folder) for word in warm)]
        quiet = io.StringIO()
        with (
            contextlib.suppress(SystemExit),
            contextlib.redirect_stderr(quiet),
            contextlib.redirect_stdout(quiet),
        ):
            main()
    for made in ("out", "out.html"):
        shutil.rmtree(folder / made, ignore_errors=True)
        (folder / made).unlink(missing_ok=True)
    return folder


WARM = (
    ("extract", "{root}/model", "--tokens", "{root}/t.txt", "--hooks", "hook_embed", "--out",
     "{root}/out", "--dry-run"),
    ("store", "{root}/st"),
    ("store", "--figures", "{root}/st", "--out", "{root}/out"),
    ("weights", "{root}/model", "--out", "{root}/out"),
    ("train", "{root}/none.toml"),
    ("crasp", "{root}/p.cr", "a"),
    ("crasp", "{root}/p.cr"),
    ("decompile", "apply", "{root}/none", "--data", "{root}/none"),
    ("decompile", "{root}/none/none", "--out", "{root}/out"),
    ("certify", "{root}/none/none"),
    ("probe", "{root}/none/none"),
    ("inspect", "{root}/none/none", "--out", "{root}/out"),
    ("inspect", "{root}/model", "--data", "{root}/rows.json", "--out", "{root}/out", "--overwrite"),
    ("fits", "phase", "--out", "{root}/out", "--lags=0"),
    ("claims", "run", "memory-none"),
)  # fmt: skip


@pytest.fixture
def ask(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, list[str]]]]:
    """Make every call of a table; how many there were, and those that went wrong."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PROOFLENS_TRACEBACK", raising=False)
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=place) as folder:
        home = Path(folder) / "root"

        def asked(
            table: Callable[[Path], Iterator[Row]], good: tuple[int, ...], named: bool = False
        ) -> tuple[int, list[str]]:
            wrong, count = [], 0
            for name, prepare, words in table(home):
                shutil.rmtree(home, ignore_errors=True)
                shutil.copytree(root, home)
                before: dict[str, tuple[int, int]] = {}

                def arranged(prepare: Callable[[], None] = prepare) -> None:
                    prepare()
                    (Path(folder) / "before").write_text(json.dumps(contents(home)))

                code, said, seconds = call(home, arranged, words)
                told = json.loads((Path(folder) / "before").read_text())
                before = {name: tuple(entry) for name, entry in told.items()}
                beside = {p.name for p in Path(folder).iterdir()} - {"root", "before"}
                odd = [*beside, *changed(home, before, words)]
                fine = code in good and "Traceback" not in said and seconds < SECONDS
                fine &= not named or name.partition("|")[0] in said
                if not fine or odd or "more memory than is free" in said:
                    wrong.append(f"{name!r}: {code}, {seconds:.1f} s {said[-300:]} {odd or ''}")
                count += 1
            return count, wrong

        yield asked
