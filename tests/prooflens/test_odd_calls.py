"""The command line is given what nobody sane would give it, and answers in one line.

Every row of a table is one call: a name, what is arranged, and the words. Each runs in a child
forked from this process, which has loaded everything once, in a fresh copy of a folder with a
model, a store, tokens, a program, a recipe and rows, with a gibibyte of memory and twenty seconds
of processor time. None may end in a traceback, in exit code 70 (a mistake of ours), by a signal or
for want of that memory, and none may leave or change anything outside its output. Names that a
file system allows have to work.

    files     what is no file, no text or no JSON, wherever a file goes
    values    sound files of odd values
    numbers   options that take a number
    places    odd things where a file is expected
    states    commands on files that are linked, looped, empty, exchanged
    words     lines of odd_words.txt, and words of odd letters
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_calls import RECIPE, SECONDS, call, contents, stray_changes

from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract
from prooflens.cli.main import main

MANY = 10**12
LONG: dict[str, Any] = {
    "n": MANY,
    "rows": [[0, MANY]],
    "shapes": {"row": [MANY], "inputs": [MANY, 3], "activations/hook_embed": [MANY, 3, 4]},
}
"""What the index may say of a part of more rows than any machine holds."""
DOUBLING = "".join(
    ('n0 = # "a"\n', *(f"n{i + 1} = n{i} + n{i}\n" for i in range(200)), "x = n200 > 1\n")
)
"""A program whose lines read the one before twice."""

Row = tuple[str, Callable[[], None], tuple[str, ...]]


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


def change(file: Path, within: str = "", **values: Any) -> Callable[[], None]:
    """Values of a JSON file, or of the first line of one."""

    def work() -> None:
        text = file.read_text()
        first, *rest = text.splitlines() if file.suffix == ".jsonl" else [text]
        data = json.loads(first)
        (data[within] if within else data).update(values)
        file.write_text("\n".join([json.dumps(data), *rest]) + "\n")

    return work


@pytest.fixture(scope="module")
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

        def ask_table(
            table: Callable[[Path], Iterator[Row]], good: tuple[int, ...], named: bool = False
        ) -> tuple[int, list[str]]:
            wrong, count = [], 0
            for name, prepare, words in table(home):
                shutil.rmtree(home, ignore_errors=True)
                shutil.copytree(root, home)
                before: dict[str, tuple[int, int]] = {}

                def prepare_and_note(prepare: Callable[[], None] = prepare) -> None:
                    prepare()
                    (Path(folder) / "before").write_text(json.dumps(contents(home)))

                code, said, seconds = call(home, prepare_and_note, words)
                told = json.loads((Path(folder) / "before").read_text())
                before = {name: tuple(entry) for name, entry in told.items()}
                beside = {p.name for p in Path(folder).iterdir()} - {"root", "before"}
                odd = [*beside, *stray_changes(home, before, words)]
                fine = code in good and "Traceback" not in said and seconds < SECONDS
                fine &= not named or name.partition("|")[0] in said
                if not fine or odd or "more memory than is free" in said:
                    wrong.append(f"{name!r}: {code}, {seconds:.1f} s {said[-300:]} {odd or ''}")
                count += 1
            return count, wrong

        yield ask_table


BAD_TEXT = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"7",
    "text": b'"words"',
    "object": b"{}",
    "half": b'{"format": ',
    "NaN": b'{"format": NaN}',
    "huge": b'{"format": ' + b"9" * 5000 + b"}",
    "deep": b"[" * 20_000 + b"]" * 20_000,
    "deep-toml": b"a = " + b"[" * 20_000 + b"]" * 20_000,
    "not-utf-8": b"\xff\xfe\x00\x80",
    "zeros": b"\0" * 4096,
    "marked": b"\xef\xbb\xbf{}",
}
SPECIAL = ("fifo", "zero", "folder", "missing", "loop")
NUMBERS = ("-1", "9" * 19, "9" * 40, "nan", "inf", "", "١")


def sites(root: Path) -> dict[str, Callable[[Path], tuple[str, ...]]]:
    """Where a file goes → the command that reads it."""
    out = ("--out", f"{root}/out")
    model = f"{root}/model"
    hooks = ("--hooks", "hook_embed")
    return {
        "train": lambda f: ("train", f"{f}", *out),
        "tokens": lambda f: ("extract", model, "--tokens", f"{f}", *hooks, *out),
        "crasp-run": lambda f: ("crasp", f"{f}", "a"),
        "crasp-cases": lambda f: ("crasp", f"{root}/p.cr", "--file", f"{f}"),
        "crasp-check": lambda f: ("crasp", f"{f}"),
        "crasp-compile": lambda f: ("crasp", "--compile", f"{f}", *out),
        "apply": lambda f: ("decompile", "apply", f"{f}", "--data", f"{f}"),
        "data": lambda f: ("decompile", model, "--data", f"{f}", *out),
        "certificate": lambda f: ("certify", model, "--check", f"{f}"),
        "mapping": lambda f: ("weights", model, "--mapping", f"{f}"),
        "weights": lambda f: ("weights", f"{f}"),
        "store": lambda f: ("store", f"{f}"),
        "verify": lambda f: ("store", "--verify", f"{f}"),
        "plot": lambda f: ("store", "--figures", f"{f}", *out),
        "model": lambda f: ("inspect", f"{f}", *out),
        "probe": lambda f: ("probe", f"{f}", *out),
        "inspect": lambda f: ("inspect", f"{f}", *out, "--json"),
        "inspect-data": lambda f: ("inspect", model, "--data", f"{f}", *out),
        "inspect-text": lambda f: ("inspect", model, "--text", f"{f}", *out),
        "certify": lambda f: ("certify", f"{f}", *out, "--json"),
    }  # fmt: skip


def in_place(root: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """A file of a checkpoint or store that is spoilt → the command that reads it."""
    hooks = ("--hooks", "hook_embed", "--tokens", f"{root}/t.txt", "--out", f"{root}/out")
    return {
        "model.json": ("model/model.json", ("extract", f"{root}/model", *hooks)),
        "model.json-weights": ("model/model.json", ("weights", f"{root}/model")),
        "safetensors": ("model/model.safetensors", ("extract", f"{root}/model", *hooks)),
        "safetensors-weights": ("model/model.safetensors", ("weights", f"{root}/model")),
        "manifest-info": ("st/manifest.json", ("store", f"{root}/st")),
        "manifest-verify": ("st/manifest.json", ("store", "--verify", f"{root}/st")),
        "manifest-repair": ("st/manifest.json", ("store", "--repair", f"{root}/st")),
        "manifest-inspect": ("st/manifest.json", ("inspect", f"{root}/st", f"--out={root}/out")),
        "index-info": ("st/index.jsonl", ("store", f"{root}/st")),
        "index-verify": ("st/index.jsonl", ("store", "--verify", f"{root}/st")),
        "index-repair": ("st/index.jsonl", ("store", "--repair", f"{root}/st")),
        "part-verify": ("st/part-00000.h5", ("store", "--verify", f"{root}/st")),
        "part-repair": ("st/part-00000.h5", ("store", "--repair", f"{root}/st")),
    }


def numbers_of(root: Path) -> dict[str, tuple[str, ...]]:
    """Options that take a number → the call without it."""
    out = ("--out", f"{root}/out")
    rows = ("extract", f"{root}/model", "--tokens", f"{root}/t.txt", "--hooks", "hook_embed", *out)
    train = ("train", f"{root}/none.toml", *out)
    gone = f"{root}/none/none"
    return {
        **{f"inspect --{n}": ("inspect", gone, *out) for n in ("rows", "length", "seed")},
        **{f"decompile --{n}": ("decompile", gone, *out) for n in ("lines", "rows", "seed")},
        **{f"probe --{n}": ("probe", gone, *out) for n in ("rows", "seed")},
        **{f"certify --{n}": ("certify", gone, *out) for n in ("length", "seed")},
        **{f"extract --{n}": rows for n in ("rows", "batch", "part-rows", "heads", "positions")},
        **{f"train --{n}": train for n in ("workers", "minutes", "seed")},
        "crasp --compile --longest": ("crasp", "--compile", f"{root}/p.cr", *out),
        "weights --top": ("weights", f"{root}/none"),
        "weights --seed": ("weights", f"{root}/none"),
        "weights --lag": ("weights", f"{root}/none"),
        "certify --box": ("certify", f"{root}/none"),
    }


def arrange(file: Path, kind: str) -> None:
    file.unlink(missing_ok=True)
    if kind in BAD_TEXT:
        file.write_bytes(BAD_TEXT[kind])
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind in ("zero", "loop"):
        file.symlink_to("/dev/zero" if kind == "zero" else file)


def files(root: Path) -> Iterator[Row]:
    """Several places share a reader, so each gets a third of the bad texts and special files, one
    these and the next those."""
    file = root / "odd"
    read = {site: (file, words(file)) for site, words in sites(root).items()}
    read |= {site: (root / name, words) for site, (name, words) in in_place(root).items()}
    for number, (site, (place, words)) in enumerate(read.items()):
        for kind in [*BAD_TEXT, *SPECIAL][number % 3 :: 3]:
            yield f"{site}:{kind}", partial(arrange, place, kind), words


def numbers(root: Path) -> Iterator[Row]:
    """Each option gets every second of the odd numbers, one these and the next those."""
    for at, (option, words) in enumerate(numbers_of(root).items()):
        for number in NUMBERS[at % 2 :: 2]:
            flag = option.split()[-1]
            yield f"{option} {number}", lambda: None, (*words, f"{flag}={number}")


BIG = 10**30
TEMPLATE = "{{ 7 }} $x$ %s"

SPECS: dict[str, Any] = {
    "d_model": 0, "n_heads": -1, "d_head": 1e308, "ffn": [[4]], "n_ctx": True, "n_layers": -0.0,
    "dtype": ["float32"], "positions": None, "norm": {"a": 1}, "activation": TEMPLATE,
}  # fmt: skip
CHECKPOINTS: list[tuple[str, Any]] = [
    ("task", [[]]), ("task", {"kind": "fixed_memory", "lags": [BIG]}),
    ("task", {"kind": "fixed_memory", "lags": [[1]], "length": 4}), ("about", [1]),
    ("name", {"a": []}), ("metrics", {"loss": "$x$"}), ("weights_sha256", 7),
    ("format", {"name": "prooflens-checkpoint", "version": 10**6}),
]  # fmt: skip
ROWS: list[tuple[str, Any]] = [
    ("vocabulary", {"a": 0.5}), ("vocabulary", {"a": True, "b": 1}),
    ("vocabulary", {f"w{i}": i for i in range(30_000)}), ("objective", ["next token"]),
    ("rows", [[[1]]]), ("rows", [{"tokens": [0] * 200_000, "label": [0] * 200_000}]),
    ("rows", [{"tokens": [0, 1], "label": [0, 1]}] * 30_000),
    ("rows", [{"tokens": [-0.0, 1e308], "label": [0, 1]}]), ("extra", {"a": [[[[]]]]}),
]  # fmt: skip
MANIFESTS: dict[str, Any] = {
    "rows": 2**62, "about": {"model": ["x"], "task": {"kind": {"a": 1}}},
    "hooks": {f"h{i}": {"shape": [1], "dtype": "f4", "labels": []} for i in range(20_000)},
}  # fmt: skip
FLAT = {"shapes": {"row": [2], "inputs": [2], "activations/hook_embed": [2, 3, 4]}}
RECIPES = {
    "steps": "1e308", "batch": "-0", "learning_rate": "1e308", "seed": str(BIG), "optimizer": "{}",
    "warmup": "2020-01-01", "name": "[[1]]",
}  # fmt: skip
PROGRAMS = {
    "deep": "n = # " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "not not": 'n = # "a"\nx = ' + "!" * 20_000 + "(n > 1)\n",
    "a long sum": 'n = # "a"\nx = ' + " + ".join(["n"] * 20_000) + " > 1\n",
    "large factors": f'n = # "a"\nx = {BIG} * n > {BIG}\n',
    "bits that double": 'n = # "a"\nf0 = n > 1\n'
    + "".join(f"f{i + 1} = f{i} && !f{i}\n" for i in range(200)),
    "doubling": DOUBLING,
}
LINES = {
    "deep": 'allow "a" if ' + "(" * 20_000 + 'token == "a"' + ")" * 20_000 + "\n",
    "many": "".join(f'x{i} = count(key.token == "<b>")\n' for i in range(3000)) + "next = token\n",
}
TASKS = (
    "fixed_memory:lags=" + "[" * 3000 + "]" * 3000, f"fixed_memory:lags=[{BIG}],length=4",
    "fixed_memory:lags=[1],length=1e308", "fixed_memory:lags=[1],length=1000000000",
    f"maximum:vocabulary={MANY},length=4", "{{7}}:$x$=%s", "fixed_memory:=",
)  # fmt: skip


def values(root: Path) -> Iterator[Row]:
    """Odd values in sound files."""
    spec, rows, recipe = root / "model/model.json", root / "rows.json", root / "r.toml"
    for key, value in SPECS.items():
        yield f"spec.{key}", change(spec, "spec", **{key: value}), ("weights", f"{root}/model")
    for key, value in CHECKPOINTS:
        words = ("inspect", f"{root}/model", "--rows=16", f"--out={root}/out")
        yield f"model.json {key} {value}", change(spec, **{key: value}), words
    for key, value in ROWS:
        words = split("decompile {m} {rows} {out} --lines=2", root)
        yield f"rows.json {key} {str(value)[:40]}", change(rows, **{key: value}), words
    for key, value in RECIPES.items():
        text = re.sub(rf"^{key} = .*\n", "", RECIPE, flags=re.MULTILINE)
        text = text.replace("[training]", f"[training]\n{key} = {value}")
        yield f"recipe {key}", write(recipe, text), split("train {root}/r.toml {out}", root)
    for key, value in MANIFESTS.items():
        for verb in ("store", "store --verify", "inspect {out}", "store --figures {out}"):
            words = split(f"{verb} {{st}}", root)
            yield (
                f"manifest {key}: {verb}",
                change(root / "st/manifest.json", **{key: value}),
                words,
            )
    for name, values in {"long": LONG, "flat": FLAT}.items():
        for verb in ("store", "store --verify", "inspect {out}", "probe"):
            words = split(f"{verb} {{st}}", root)
            yield f"index {name}: {verb}", change(root / "st/index.jsonl", **values), words
    for name, text in PROGRAMS.items():
        for given in ("", "a", "--compile {out}"):
            words = split(f"crasp {{root}}/p.cr {given}", root)
            yield f"program {name}: {given}", write(root / "p.cr", text), words
    for name, text in LINES.items():
        words = split("decompile apply {root}/p.txt {rows}", root)
        yield f"lines {name}", write(root / "p.txt", text), words


def other_store(root: Path) -> None:
    tokens = torch.tensor([[4, 4, 4], [4, 4, 4]])
    extract(load_checkpoint(root / "model"), tokens, ["hook_embed"], root / "other", batch=2)
    shutil.copy(root / "other/part-00000.h5", root / "st/part-00000.h5")
    shutil.rmtree(root / "other")


def part_elsewhere(root: Path) -> None:
    shutil.move(root / "st/part-00000.h5", root / "elsewhere.h5")
    (root / "st/part-00000.h5").symlink_to(root / "elsewhere.h5")


def odd_lock(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def work(root: Path) -> None:
        (root / "st/.lock").unlink(missing_ok=True)
        make(root / "st/.lock")

    return work


def odd_damaged(root: Path) -> None:
    (root / "st/damaged").write_text("x")
    (root / "st/part-00000.h5").write_bytes(b"x")


PLACES: dict[str, tuple[Callable[[Path], Any], str]] = {
    **{
        f"part of another store: {verb}": (other_store, f"store {verb} {{st}}")
        for verb in ("", "--verify", "--repair")
    },
    "a part is a link": (part_elsewhere, "store --repair {st}"),
    "damaged is a file": (odd_damaged, "store --repair {st}"),
    "a lock is a folder": (odd_lock(Path.mkdir), "store --repair {st}"),
    "a lock is a FIFO": (odd_lock(os.mkfifo), "store --repair {st}"),
    "a lock is a loop": (odd_lock(lambda p: p.symlink_to(p)), "store --repair {st}"),
    "rows of nothing": (
        lambda root: np.save(root / "d.npy", np.zeros((0, 0), int)),
        "inspect {m} --data={root}/d.npy {out}",
    ),
    "rows of large numbers": (
        lambda root: np.save(root / "d.npy", np.full((9, 4), 1e308)),
        "probe {m} --data={root}/d.npy",
    ),
    "rows in rows": (
        lambda root: (root / "d.jsonl").write_text("[[[1]]]\n" * 9),
        "inspect {m} --data={root}/d.jsonl {out}",
    ),
    "odd labels": (
        lambda root: (root / "l.csv").write_text("$x$,{{ }}\n1e308,-0\nnan,inf\n"),
        "probe {m} --labels={root}/l.csv --task=maximum:vocabulary=4,length=2",
    ),
    "a mapping is deep": (
        lambda root: (root / "map.json").write_text('{"a":' * 20_000),
        "weights {m} --mapping={root}/map.json",
    ),
    "tokens of other digits": (
        lambda root: (root / "t.txt").write_text("١ ٢ ٣\n"),
        "extract {m} --hooks=hook_embed {tokens} {out}",
    ),
    "a model file is a FIFO": (
        lambda root: os.mkfifo(root / "g.safetensors"),
        "weights {root}/g.safetensors",
    ),
}


def places(root: Path) -> Iterator[Row]:
    for name, (make, words) in PLACES.items():
        yield name, partial(make, root), split(words, root)


def link_files(root: Path) -> None:
    for name in ("model", "t.txt", "p.cr", "r.toml", "rows.json"):
        shutil.move(root / name, root / f"real-{name}")
        (root / name).symlink_to(f"real-{name}")


def loop_folders(root: Path) -> None:
    for name in ("model", "st"):
        (root / name / "again").symlink_to(root / name)
        (root / name / "up").symlink_to(root)


def parts_gone(root: Path) -> None:
    for name in ("model/model.safetensors", "st/part-00000.h5"):
        (root / name).unlink()
        (root / name).symlink_to(root / "none")


INPUTS = ("t.txt", "p.cr", "p.txt", "r.toml", "rows.json", "st/part-00000.h5")


def empty_files(root: Path) -> None:
    for name in INPUTS:
        (root / name).write_bytes(b"")


def folders(root: Path) -> None:
    for name in INPUTS:
        (root / name).unlink()
        (root / name).mkdir()


def remove_rights(root: Path) -> None:
    for name in ("model", "st", "t.txt", "p.cr"):
        (root / name).chmod(0)


def other_model(root: Path) -> None:
    """The model that the store names, with other weights of another shape."""
    shutil.rmtree(root / "model")
    spec = TransformerSpec(d_in=9, d_out=9, n_ctx=2, d_model=2, n_layers=2, n_heads=2, d_head=1)
    save_checkpoint(SequenceTransformer(spec, seed=3), root / "model")


def cut_pair(root: Path) -> None:
    """Manifest and part of two stores."""
    model = load_checkpoint(root / "model")
    extract(model, torch.tensor([[1, 1, 1]]), ["hook_embed"], root / "other", batch=2)
    shutil.copy(root / "other/manifest.json", root / "st/manifest.json")
    shutil.rmtree(root / "other")


def cross_files(root: Path) -> None:
    """A model's files in a store's folder, and the other way round."""
    shutil.copy(root / "model/model.json", root / "st/model.json")
    shutil.copy(root / "st/manifest.json", root / "model/manifest.json")


def half_weights(root: Path) -> None:
    file = root / "model/model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_names(root: Path) -> None:
    """A sound spec beside weights of other names."""
    change(root / "model/model.json", "spec", n_layers=2)()


STATES: dict[str, Callable[[Path], None]] = {
    "links": link_files, "loops": loop_folders, "links to nowhere": parts_gone,
    "empty": empty_files, "folders": folders, "closed": remove_rights, "another model": other_model,
    "pairs": cut_pair, "crossed": cross_files, "half": half_weights, "other names": other_names,
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
    for (name, make), verb in product(STATES.items(), VERBS):
        yield f"{name}: {verb}", lambda make=make: make(root), split(verb, root)


LONG_WORD, EDGE = "ж" * 40_000, "x" * 255
LISTED = [
    line
    for line in (Path(__file__).with_name("odd_words.txt")).read_text().splitlines()
    if line and not line.startswith("#")
]
REPEATED = (
    "weights {m} --out=" + "x" * 300, "extract {m} --hooks=" + "[" * 5000 + " {tokens} {out}",
    "extract {m} --hooks=" + "*" * 5000 + " {tokens} {out}",
)  # fmt: skip


def words(root: Path) -> Iterator[Row]:
    for line in (*LISTED, *REPEATED):
        given = tuple(
            "" if word == "''" else word.replace("=''", "=") for word in split(line, root)
        )
        yield " ".join(given)[-120:], lambda: None, given
    m, out = f"{root}/model", f"--out={root}/out"
    for number, odd in enumerate((LONG_WORD, EDGE + "x", "\u202eabc", "🏳️‍🌈" * 9)):
        for before in ("inspect", "weights", "store", "crasp"):
            yield f"name {number}: {before}", lambda: None, (before, odd)
        yield f"hook {number}", lambda: None, ("extract", m, f"--hooks={odd}", "--rows=1", out)
        yield f"task {number}", lambda: None, ("inspect", m, f"--task={odd}", out)
        yield f"prompt {number}", lambda: None, ("inspect", m, f"--prompt={odd}", out)
    for task in TASKS:
        yield f"task {task[:60]}", lambda: None, ("inspect", m, f"--task={task}", out)


TABLES = {
    files: 180, values: 70, numbers: 70, places: 10, states: 140, words: 150,
}  # fmt: skip
"""Each table, and the fewest rows that it has."""


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_odd_calls_are_answered_in_one_line(table: Any, ask: Any) -> None:
    count, wrong = ask(table, (0, 1, 2))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert count >= TABLES[table]


NAMES = (
    "with space", " lead", "ünï-Ж-漢字", "$x^2$", "$PATH", "{{ 7*7 }}", "{% raw %}", "~", "~root",
    "a'b\"c", "<b>&amp;", "%s %d", "back\\slash", "[a]*?", "two\nlines", "x" * 150, ".hidden",
    "a.b.c", "-dash", os.fsdecode(b"\xff\xfe"), "😀", "a;b|c",
    "x" * 251, "trailing. ", " . ", "dots...", "tab\t", "\n", "новый\nряд", "a\r", "\x01", "CON",
)  # fmt: skip
WORST = "$x^2$ {{ 7*7 }} <b> %s ünï"


def odd_names(root: Path) -> Iterator[Row]:
    """Calls whose inputs and outputs have odd names, which must work; in the current folder."""
    hooks = ("--hooks", "hook_embed")

    def renaming(old: str, new: str) -> Callable[[], None]:
        return lambda: os.rename(root / old, os.path.join(os.fspath(root), new))

    for number, name in enumerate(NAMES):  # each in two places of five
        given = f"./{name}" if name.startswith("-") else name
        calls: list[Row] = [
            (f"model {name}", renaming("model", name),
             ("extract", given, "--tokens=t.txt", *hooks, "--out=out")),
            (f"tokens {name}", renaming("t.txt", name),
             ("extract", "model", f"--tokens={name}", *hooks, f"--out={name[:200]}.store")),
            (f"store {name}", renaming("st", name), ("store", "--verify", given)),
            (f"program {name}", renaming("p.cr", name), ("crasp", given, "a", "--json")),
            (f"compile {name}", lambda: None, ("crasp", "--compile", "p.cr", f"--out={name}")),
        ]  # fmt: skip
        yield calls[number % 5]
        yield calls[(number + 2) % 5]
    for name in (WORST, os.fsdecode(b"\xff\xfe")):
        yield f"weights {name}", renaming("model", name), ("weights", name, f"--out={name}.csv")
        yield f"inspect {name}", renaming("model", name), (
            "inspect", name, "--prompt=0 1 2", "--rows=4", "--data=rows.json", f"--out={name}.out"
        )  # fmt: skip
        yield f"data {name}", renaming("rows.json", name), (
            "decompile", "apply", "p.txt", f"--data={name}", "--json"
        )  # fmt: skip
        yield f"recipe {name}", renaming("r.toml", name), ("train", name, f"--out={name}.out")


def huge_weights(folder: Path) -> Callable[[], None]:
    def change() -> None:
        spec = TransformerSpec(5, 5, 4, d_model=4, n_layers=1, n_heads=1, d_head=2)
        model = SequenceTransformer(spec, seed=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(3e38)
        save_checkpoint(model, folder, overwrite=True)

    return change


def past_faults(root: Path) -> Iterator[Row]:
    """Calls that once ended in an error of ours, hung, or took what is not theirs."""
    extracting = ("extract", f"{root}/model", "--hooks=hook_embed", f"--out={root}/out")
    tokens = (*extracting, f"--tokens={root}/t.txt")
    data = (*extracting, f"--dataset={root}/rows.jsonl")
    train = ("train", f"{root}/r.toml", f"--out={root}/out")
    weights = ("weights", f"{root}/model")
    spec = root / "model" / "model.json"
    squares = "must have squares that torch.float32 can hold"
    yield f"{squares}|huge weights", huge_weights(root / "model"), weights
    yield "positions|rows longer than the context", write(root / "t.txt", "0 1 2 3 4 0 1\n"), tokens
    yield "64 bits|ids beyond 64 bits", write(root / "t.txt", f"0 {2**70}\n"), tokens
    yield "device|no CUDA", lambda: None, (*train, "--device=cuda")
    yield "device|an unknown device", lambda: None, (*train, "--device=abacus:7")
    yield "ray|Ray is missing", lambda: None, (*train, "--backend=rey")
    for said, text in (
        ("rows.jsonl", "null\n"),
        ("rows.jsonl", '{"tokens": [1'),
        ("text", '{"input_ids": "x"}'),
    ):
        yield f"{said}|a line of a data set: {text}", write(root / "rows.jsonl", text), data
    for key in ("n_heads", "d_model", "n_layers", "d_in", "n_ctx"):
        for command in (tokens, weights):
            yield f"{key}|10⁹ of {key}: {command[0]}", change(spec, "spec", **{key: 10**9}), command
    for line in ("learning_rate = inf", "learning_rate = nan", "batch = 1000000000"):
        without = RECIPE.replace("batch = 4\n", "", "batch" in line)
        recipe = without.replace("steps = 2", f"steps = 2\n{line}")
        yield f"{line.split()[0]}|{line}", write(root / "r.toml", recipe), train
    values = ", ".join(map(str, range(1, 40)))
    names = ("steps", "batch", "seed", "warmup", "evaluate_every", "rows")
    grid = "".join(f'"training.{name}" = [{values}]\n' for name in names)
    yield "grid|10⁹ combinations", write(root / "r.toml", RECIPE + "[grid]\n" + grid), train
    seeds = ",".join(map(str, range(200_000)))
    yield "10,000 trainings|many seeds", lambda: None, (*train, f"--seeds={seeds}")
    compiling = split("crasp --compile {root}/p.cr {out}", root)
    yield "margin|a program that doubles", write(root / "p.cr", DOUBLING), compiling
    hook = {"shape": [1], "dtype": "float32", "labels": ["row"]}
    hooks = change(root / "st/manifest.json", hooks={"hook_embed": hook})
    yield "labels for|labels of too few axes", hooks, split("store {st}", root)
    for verb in ("inspect {out}", "probe"):
        long = change(root / "st/index.jsonl", **LONG)
        yield f"are free|10¹² rows: {verb}", long, split(f"{verb} {{st}}", root)

    yield "cannot train|no name", lambda: None, ("train", f"{root}/r.toml", "--out=/")
    for place in ("", "."):
        yield f"exists|a name that is {place}", lambda: None, (
            "train", f"{root}/r.toml", f"--out={place}"
        )  # fmt: skip
    for words in (
        "train {root}/r.toml", "weights {m}",
        "extract {m} --hooks=hook_embed {tokens}", "certify {m}",
        "inspect {m}", "store --figures {st}", "crasp --compile {root}/p.cr",
        "probe {m}", "decompile {m} {rows}",
    ):  # fmt: skip
        yield f"- is not written to|{words}", lambda: None, split(f"{words} --out=-", root)


@pytest.mark.slow
def test_odd_names_work(ask: Any) -> None:
    count, wrong = ask(odd_names, (0,))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert count >= 60


def test_what_was_found_once_is_refused_in_words(ask: Any, root: Path) -> None:
    """The words before the bar are in the refusal."""
    count, wrong = ask(past_faults, (2,), True)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert count >= 20
