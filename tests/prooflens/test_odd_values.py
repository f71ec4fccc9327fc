"""Files that are sound JSON, HDF5 or text, and options that are numbers and words, of odd values.

Nested lists, numbers of 30 digits, sizes that no machine holds, tables of 20,000 keys, programs
that double at every line, parts of another store, locks that are FIFOs: each call is answered in
one line, as in :mod:`test_odd_inputs`.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_calls import RECIPE
from odd_calls import DOUBLING, LONG, Row, change, change_json, split, write

from interp.models.checkpoint import load_checkpoint
from interp.store import extract

BIG = 10**30
MANY = 10**12
WORDS = "{{ 7 }} $x$ %s"

SPECS: dict[str, Any] = {
    "d_model": 0, "n_heads": -1, "d_head": 1e308, "ffn": [[4]], "n_ctx": True, "n_layers": -0.0,
    "dtype": ["float32"], "positions": None, "norm": {"a": 1}, "activation": WORDS,
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
SHIPPED = "fixed-memory-multiplexer"
CALLS = (
    f"inspect {SHIPPED} --rows={MANY} {{out}}", f"probe {SHIPPED} --rows={MANY}",
    f"tasks {WORDS!r}",
    f"certify {SHIPPED} --length={MANY}", f"certify {SHIPPED} --box=1e308 --strategy=black-box",
    f"certify {SHIPPED} --box=-0.0 --strategy=black-box", "certify", "certify {m} --strategy=",
    "inspect {m} --prompt=9999999999999999999999 {out}", "inspect {m} --prompt=$x$ {out}",
    "inspect {m} --prompt= {out}", "inspect {m} {m} {m} {m} {out}",
    f"inspect {{m}} --rows={MANY} {{rows}} {{out}}",
    f"inspect {{m}} --length={MANY} {{rows}} {{out}}",
    "inspect {m} {rows} --out={m} --overwrite",
    "inspect {m} {rows} --out={root}/t.txt/x",
    "inspect {m} {rows} --out={root}/rows.json --overwrite",
    "inspect {m} {rows} --out=/dev/full --overwrite",
    "store --figures {st} --out={st} --overwrite", "store --figures {root}/t.txt {out}",
    f"decompile {{m}} {{rows}} {{out}} --lines={MANY}",
    f"decompile {SHIPPED} --rows={MANY} {{out}}",
    "decompile apply {m} {rows}", "decompile apply {rows}",
    f"crasp --compile {{root}}/p.cr --longest={MANY} {{out}}",
    "claims run depth-programs --out={root}/t.txt", "claims run depth-programs --option== {out}",
    "claims run depth-programs --option=blocks=[[1]] {out}",
    "claims run depth-programs --option=blocks=nan {out}",
    f"claims run depth-programs --seeds={MANY} {{out}}", "claims list --paper={{ 7 }}",
    "models extra", "fits phase --lags=1e308 {out}", "fits lag --heads=-0 --lags=1 {out}",
    "fits phase --lags=1 --most=1 --epsilon=0 {out}", f"fits phase --lags=1 --most={MANY} {{out}}",
    "fits kernel --out=/proc/x", "train {root}/r.toml --seeds=1,1,,x {out}",
    "train {root}/r.toml --out={root}/r.toml --overwrite", "weights {m} --revisions=../..,,%",
    "weights {m} --metrics=,,,$x$", f"weights {{m}} --top={BIG}", "weights {m} --out=/sys/x.csv",
    "weights {m} --out=/dev/null --overwrite", "weights {m} --out=", "weights {m} --out=..",
    "weights {m} --out=" + "x" * 300, "extract {m} --hooks=" + "[" * 5000 + " {tokens} {out}",
    "extract {m} --hooks=" + "*" * 5000 + " {tokens} {out}",
    "extract {m} --hooks=hook_embed --positions=::0 {tokens} {out}",
    f"extract {{m}} --hooks=hook_embed --positions={BIG}:{BIG}:{BIG} {{tokens}} {{out}}",
    "extract {m} --hooks=hook_embed --heads=0,0,,-1 {tokens} {out}",
    "extract {m} --hooks=hook_embed --dataset={m} {out}",
)  # fmt: skip


def files(root: Path) -> Iterator[Row]:
    """Odd values in sound files."""
    spec, rows, recipe = root / "model/model.json", root / "rows.json", root / "r.toml"
    for key, value in SPECS.items():
        yield f"spec.{key}", change_json(spec, **{key: value}), ("weights", f"{root}/model")
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


def odd_result(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def work(root: Path) -> None:
        (root / "out/depth-programs").mkdir(parents=True)
        make(root / "out/depth-programs/result.json")

    return work


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
    "a result is a list": (odd_result(lambda p: p.write_text("[]")), "claims report {out}"),
    "a result is deep": (odd_result(lambda p: p.write_text("[" * 20_000)), "claims report {out}"),
    "a result is a FIFO": (odd_result(os.mkfifo), "claims report {out}"),
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
    """Odd things where files are expected, odd arrays, and odd options."""
    for name, (make, words) in PLACES.items():
        yield name, lambda make=make: (make(root), None)[1], split(words, root)
    for words in CALLS:
        yield words, lambda: None, split(words, root)
    for task in TASKS:
        words = ("inspect", f"{root}/model", f"--task={task}", f"--out={root}/out")
        yield f"task {task[:60]}", lambda: None, words


@pytest.mark.slow
@pytest.mark.parametrize("table", [files, places])
def test_odd_values_are_answered_in_one_line(table: Any, ask: Any) -> None:
    count, wrong = ask(table, (0, 1, 2))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert count >= 70
