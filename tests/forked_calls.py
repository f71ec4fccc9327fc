"""Calls of the command line in forked children, which have little memory and time.

What this process has loaded no child loads again, so a call costs what the command costs.
"""

import gc
import io
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

from analyses.cli.main import main

SECONDS, BYTES = 10, 1 << 30
RECIPE = """
name = "tiny"
about = "a test"
[task]
kind = "fixed_memory"
lags = [1]
length = 4
[spec]
input = "real"
d_in = 1
d_out = 1
n_ctx = 4
d_model = 2
n_layers = 1
n_heads = 1
d_head = 2
[training]
steps = 2
batch = 4
"""
"""The recipe of a training that takes no time."""


def speak_into(file: IO[bytes]) -> None:
    """Send all that this process says from now on, and what it runs, to a file."""
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    sys.stdout = io.TextIOWrapper(open(1, "wb", 0), write_through=True)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0), write_through=True)  # noqa: SIM115


def call(home: Path, prepare: Callable[[], None], words: tuple[str, ...]) -> tuple[int, str, float]:
    """The exit code, what was said and the seconds, of a child with little memory and time."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            code = 71
            gc.disable()  # it would copy the parent's memory, object by object
            try:
                os.chdir(home)
                prepare()
                speak_into(said)
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
                taken = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
                resource.setrlimit(resource.RLIMIT_DATA, (taken + BYTES,) * 2)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                signal.alarm(6 * SECONDS)  # what only waits takes no processor time
                sys.argv = ["prooflens", *words]
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        words_said = said.read().decode(errors="replace")
        return os.waitstatus_to_exitcode(status), words_said, used.ru_utime + used.ru_stime


def contents(home: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time, by its name."""
    found = {}
    for folder, _, files in os.walk(home):
        for name in files:
            path = os.path.join(folder, name)
            told = os.lstat(path)
            found[os.path.relpath(path, home)] = (told.st_size, told.st_mtime_ns)
    return found


def changed(home: Path, before: dict[str, tuple[int, int]], words: tuple[str, ...]) -> list[str]:
    """What a call left or changed besides its output; a store's own tables and damage may."""
    now = contents(home)
    out = [w.partition("=")[2] or after for w, after in zip(words, [*words[1:], ""], strict=True)
           if w.startswith(("--out", "--trace"))]  # fmt: skip
    out += [os.path.splitext(name)[0] + ".environment.json" for name in out]
    own = [os.path.relpath(os.path.join(home, name), home) for name in out]
    if words[0] in ("store", "heads", "probe"):
        own += ["st"]
    return [
        name
        for name in {*now, *before}
        if now.get(name) != before.get(name)
        and not any(name == one or name.startswith(f"{one}/") for one in own)
        and not name.endswith(".lock")
    ]
