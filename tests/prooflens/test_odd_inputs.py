"""The command line is given what nobody sane would give it, and answers in one line.

Every row of the tables is one call. All run in children forked from this process, which has loaded
everything once, with a gibibyte of memory and twenty seconds of processor time: none may end in a
traceback, in exit code 70 (a mistake of ours), by a signal or for want of that memory, and none may
leave or change anything outside its output. Names that a file system allows have to work.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_calls import RECIPE, call
from odd_calls import DOUBLING, LONG, Row, change, change_json, split, write

from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

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
NAMES = (
    "with space", " lead", "ünï-Ж-漢字", "$x^2$", "$PATH", "{{ 7*7 }}", "{% raw %}", "~", "~root",
    "a'b\"c", "<b>&amp;", "%s %d", "back\\slash", "[a]*?", "two\nlines", "x" * 150, ".hidden",
    "a.b.c", "-dash", os.fsdecode(b"\xff\xfe"), "😀", "a;b|c",
)  # fmt: skip
WORST = "$x^2$ {{ 7*7 }} <b> %s ünï"


def _sites(root: Path) -> dict[str, Callable[[Path], tuple[str, ...]]]:
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


def _in_place(root: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
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


def _numbers(root: Path) -> dict[str, tuple[str, ...]]:
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


def cases(root: Path) -> Iterator[Row]:
    """Name, what is arranged, and the words of the call.

    Several places share a reader, so each gets every second bad text, one these and the next those.
    """
    file = root / "odd"
    for number, (site, words) in enumerate(_sites(root).items()):
        for kind in [*list(BAD_TEXT)[number % 2 :: 2], *SPECIAL]:
            yield f"{site}:{kind}", partial(arrange, file, kind), words(file)
    for number, (site, (name, given)) in enumerate(_in_place(root).items()):
        for kind in [*list(BAD_TEXT)[number % 2 :: 2], *SPECIAL]:
            yield f"{site}:{kind}", partial(arrange, root / name, kind), given
    for (option, words), number in product(_numbers(root).items(), NUMBERS):
        flag = option.split()[-1]
        yield f"{option} {number}", lambda: None, (*words, f"{flag}={number}")


def named(root: Path) -> Iterator[Row]:
    """Calls whose inputs and outputs have odd names, which must work; in the current folder."""
    hooks = ("--hooks", "hook_embed")

    def moved(old: str, new: str) -> Callable[[], None]:
        return lambda: os.rename(root / old, os.path.join(os.fspath(root), new))

    for name in NAMES:
        given = f"./{name}" if name.startswith("-") else name
        yield f"model {name}", moved("model", name), (
            "extract", given, "--tokens=t.txt", *hooks, "--out=out"
        )  # fmt: skip
        yield f"tokens {name}", moved("t.txt", name), (
            "extract", "model", f"--tokens={name}", *hooks, f"--out={name}.store"
        )  # fmt: skip
        yield f"store {name}", moved("st", name), ("store", "--verify", given)
        yield f"program {name}", moved("p.cr", name), (
            "crasp", given, "a", "--json"
        )  # fmt: skip
        yield f"compile {name}", lambda: None, (
            "crasp", "--compile", "p.cr", f"--out={name}"
        )  # fmt: skip
    for name in (WORST, NAMES[-3]):
        yield f"weights {name}", moved("model", name), ("weights", name, f"--out={name}.csv")
        yield f"inspect {name}", moved("model", name), (
            "inspect", name, "--prompt=0 1 2", "--rows=4", "--data=rows.json", f"--out={name}.out"
        )  # fmt: skip
        yield f"data {name}", moved("rows.json", name), (
            "decompile", "apply", "p.txt", f"--data={name}", "--json"
        )  # fmt: skip
        yield f"recipe {name}", moved("r.toml", name), ("train", name, f"--out={name}.out")


def huge_weights(folder: Path) -> Callable[[], None]:
    def change() -> None:
        spec = TransformerSpec(5, 5, 4, d_model=4, n_layers=1, n_heads=1, d_head=2)
        model = SequenceTransformer(spec, seed=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(3e38)
        save_checkpoint(model, folder, overwrite=True)

    return change


def found(root: Path) -> Iterator[Row]:
    """Calls that once ended in an error of ours, hung, or took what is not theirs."""
    extracting = ("extract", f"{root}/model", "--hooks=hook_embed", f"--out={root}/out")
    tokens = (*extracting, f"--tokens={root}/t.txt")
    data = (*extracting, f"--dataset={root}/rows.jsonl")
    train = ("train", f"{root}/r.toml", f"--out={root}/out")
    weights = ("weights", f"{root}/model")
    spec = root / "model" / "model.json"
    yield "positions|rows longer than the context", write(root / "t.txt", "0 1 2 3 4 0 1\n"), tokens
    yield "64 bits|ids beyond 64 bits", write(root / "t.txt", f"0 {2**70}\n"), tokens
    yield "device|no CUDA", lambda: None, (*train, "--device=cuda")
    yield "device|an unknown device", lambda: None, (*train, "--device=abacus:7")
    yield "ray|Ray is missing", lambda: None, (*train, "--backend=rey")
    for name, text in (
        ("null", "null\n"),
        ("half", '{"tokens": [1'),
        ("text", '{"input_ids": "x"}'),
    ):
        yield (
            f"{'text' if name == 'text' else 'rows.jsonl'}|a line of a data set: {name}",
            write(root / "rows.jsonl", text),
            data,
        )
    for key in ("n_heads", "d_model", "n_layers", "d_in", "n_ctx"):
        for command in (tokens, weights):
            yield f"{key}|10⁹ of {key}: {command[0]}", change_json(spec, **{key: 10**9}), command
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


@pytest.mark.slow
def test_odd_inputs_are_answered_in_one_line(ask: Any) -> None:
    count, wrong = ask(cases, (0, 1, 2))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert count >= 550


@pytest.mark.slow
def test_odd_names_work(ask: Any) -> None:
    count, wrong = ask(named, (0,))
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert count >= 115


def test_what_was_found_once_is_refused_in_words(ask: Any, root: Path) -> None:
    """The words before the bar are in the refusal."""
    count, wrong = ask(found, (2,), True)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert count >= 20


def test_weights_near_the_largest_number(root: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(root, tmp_path / "root"))
    code, said, _ = call(home, huge_weights(home / "model"), ("weights", "model"))
    assert code == 2, said
    assert "must have squares that torch.float32 can hold" in said
