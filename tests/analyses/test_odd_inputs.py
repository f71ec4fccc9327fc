"""The command line is given what nobody sane would give it, and answers in one line.

Every row of the table is one call. All run in children forked from this process, which has loaded
everything once, with little memory and time: none may end in a traceback, in exit code 70 (a
mistake of ours) or by a signal, none may take ten seconds of processor time, and none may leave
anything outside its output.
"""

import contextlib
import io
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
import torch

from analyses.cli.main import main
from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import extract

SECONDS, BYTES = 10, 1 << 30
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
NUMBERS = ("-1", "0", "9" * 19, "9" * 40, "1e3", "nan", "inf", "x", "", "١")


def _sites(root: Path) -> dict[str, Callable[[Path], tuple[str, ...]]]:
    """Where a file goes → the command that reads it."""
    out = ("--out", f"{root}/out")
    model = f"{root}/model"
    hooks = ("--hooks", "hook_embed")
    return {
        "train": lambda f: ("train", f"{f}", *out),
        "tokens": lambda f: ("extract", model, "--tokens", f"{f}", *hooks, *out),
        "crasp-run": lambda f: ("crasp", "run", f"{f}", "a"),
        "crasp-cases": lambda f: ("crasp", "run", f"{root}/p.cr", "--file", f"{f}"),
        "crasp-check": lambda f: ("crasp", "check", f"{f}"),
        "crasp-compile": lambda f: ("crasp", "compile", f"{f}", *out),
        "apply": lambda f: ("decompile", "apply", f"{f}", "--data", f"{f}"),
        "data": lambda f: ("decompile", model, "--data", f"{f}", *out),
        "certificate": lambda f: ("certify", model, "--check", f"{f}"),
        "mapping": lambda f: ("weights", model, "--mapping", f"{f}"),
        "weights": lambda f: ("weights", f"{f}"),
        "store": lambda f: ("store", "info", f"{f}"),
        "verify": lambda f: ("store", "verify", f"{f}"),
        "consolidate": lambda f: ("store", "consolidate", f"{f}", *out),
        "plot": lambda f: ("plot", f"{f}", *out),
        "model": lambda f: ("heads", f"{f}"),
    }


def _in_place(root: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """A file of a checkpoint or store that is spoilt → the command that reads it."""
    hooks = ("--hooks", "hook_embed", "--tokens", f"{root}/t.txt", "--out", f"{root}/out")
    return {
        "model.json": ("model/model.json", ("extract", f"{root}/model", *hooks)),
        "model.json-weights": ("model/model.json", ("weights", f"{root}/model")),
        "safetensors": ("model/model.safetensors", ("extract", f"{root}/model", *hooks)),
        "safetensors-weights": ("model/model.safetensors", ("weights", f"{root}/model")),
        "manifest-info": ("st/manifest.json", ("store", "info", f"{root}/st")),
        "manifest-verify": ("st/manifest.json", ("store", "verify", f"{root}/st")),
        "manifest-repair": ("st/manifest.json", ("store", "repair", f"{root}/st")),
        "manifest-heads": ("st/manifest.json", ("heads", f"{root}/st")),
        "index-info": ("st/index.jsonl", ("store", "info", f"{root}/st")),
        "index-verify": ("st/index.jsonl", ("store", "verify", f"{root}/st")),
        "index-repair": ("st/index.jsonl", ("store", "repair", f"{root}/st")),
        "index-consolidate": (
            "st/index.jsonl",
            ("store", "consolidate", f"{root}/st", "--out", f"{root}/out"),
        ),
        "part-verify": ("st/part-00000.h5", ("store", "verify", f"{root}/st")),
        "part-repair": ("st/part-00000.h5", ("store", "repair", f"{root}/st")),
        "part-consolidate": (
            "st/part-00000.h5",
            ("store", "consolidate", f"{root}/st", "--out", f"{root}/out"),
        ),
    }


def _numbers(root: Path) -> dict[str, tuple[str, ...]]:
    """Options that take a number → the call without it."""
    out = ("--out", f"{root}/out")
    rows = ("extract", f"{root}/model", "--tokens", f"{root}/t.txt", "--hooks", "hook_embed", *out)
    fits = ("fits", "lag", *out)
    train = ("train", f"{root}/none.toml", *out)
    return {
        **{f"extract --{n}": rows for n in ("rows", "batch", "part-rows", "heads", "positions")},
        **{f"train --{n}": train for n in ("workers", "minutes", "seed")},
        **{f"fits --{n}": fits for n in ("lags", "heads")},
        "crasp compile --longest": ("crasp", "compile", f"{root}/p.cr", *out),
        "weights --top": ("weights", f"{root}/none"),
        "weights --seed": ("weights", f"{root}/none"),
        "weights --lag": ("weights", f"{root}/none"),
        "certify --box": ("certify", f"{root}/none"),
        "claims --seeds": ("claims", "run", "memory-none", *out),
    }


def cases(root: Path) -> Iterator[tuple[str, Callable[[], None], tuple[str, ...]]]:
    """Name, what is arranged, and the words of the call."""
    bad = [*BAD_TEXT, *SPECIAL]
    for (site, words), kind in product(_sites(root).items(), bad):
        file = root / "odd"
        yield f"{site}:{kind}", lambda file=file, kind=kind: arrange(file, kind), words(file)
    for (site, (name, words)), kind in product(_in_place(root).items(), bad):
        file = root / name
        yield f"{site}:{kind}", lambda file=file, kind=kind: arrange(file, kind), words
    for (option, words), number in product(_numbers(root).items(), NUMBERS):
        flag = option.split()[-1]
        yield f"{option} {number}", lambda: None, (*words, f"{flag}={number}")


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
    (folder / "p.cr").write_text('n = # "a"\n')
    for words in WARM:  # what is imported here, no child has to import
        sys.argv = ["prooflens", *(word.format(root=folder) for word in words)]
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            main()
    return folder


WARM = (
    ("extract", "{root}/model", "--tokens", "{root}/t.txt", "--hooks", "hook_embed", "--out",
     "{root}/out", "--dry-run"),
    ("store", "info", "{root}/st"),
    ("plot", "{root}/st", "--out", "{root}/out"),
    ("heads", "{root}/none/none"),
    ("weights", "{root}/model"),
    ("train", "{root}/none.toml"),
    ("crasp", "check", "{root}/p.cr"),
    ("decompile", "apply", "{root}/none", "--data", "{root}/none"),
    ("decompile", "{root}/none/none", "--out", "{root}/out"),
    ("certify", "{root}/none/none"),
    ("claims", "run", "memory-none"),
)  # fmt: skip


def call(home: Path, prepare: Callable[[], None], words: tuple[str, ...]) -> tuple[int, str]:
    """The exit code and what was said, of a child with little memory and time."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            code = 71
            try:
                os.chdir(home)
                prepare()
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                sys.stdout = io.TextIOWrapper(open(1, "wb", 0), write_through=True)  # noqa: SIM115
                sys.stderr = io.TextIOWrapper(open(2, "wb", 0), write_through=True)  # noqa: SIM115
                now = resource.getrusage(resource.RUSAGE_SELF)
                resource.setrlimit(resource.RLIMIT_CPU, (int(now.ru_utime) + SECONDS,) * 2)
                taken = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
                resource.setrlimit(resource.RLIMIT_DATA, (taken + BYTES,) * 2)
                sys.argv = ["prooflens", *words]
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")


def test_odd_inputs_are_answered_in_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PROOFLENS_TRACEBACK", raising=False)
    wrong, count = [], 0
    for name, prepare, words in list(cases(tmp_path / "root")):
        home = tmp_path / "root"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(root, home)
        code, said = call(home, prepare, words)
        count += 1
        beside = {p.name for p in tmp_path.iterdir()} - {"root"}
        good = code in (0, 1, 2) and "Traceback" not in said and not beside
        if not good or any(".draft" in p.name for p in home.iterdir()):
            wrong.append(f"{name}: {code} {said[-300:]} {beside or ''}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert count >= 600
