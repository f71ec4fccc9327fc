"""Work in forked children: calls of the command line with little memory and time, and others.

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from prooflens.cli.main import main

SECONDS, BYTES, BROKEN = 20, 1 << 30, 71
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


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (below 0: by that signal), what it said, its seconds."""

    code: int
    said: str
    seconds: float = 0.0


class Child:
    """A forked child at work, which shares nothing with this process but what was loaded.

    Its exit code is that of the ``SystemExit`` that ends the work, 0 if nothing does, and
    :data:`BROKEN` after any other exception, whose traceback it says.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = BROKEN
            gc.disable()  # it would copy the parent's memory, object by object
            try:
                _speak_into(self._said)
                # A child's first threads would each replace the pool of threads that the parent
                # had, and one that comes between finds none ("Invalid thread pool!").
                torch.set_num_threads(torch.get_num_threads())
                work()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def kill(self) -> Ended:
        """Kill it, if it still works."""
        os.kill(self.pid, signal.SIGKILL)
        return self.end()

    def end(self) -> Ended:
        """Wait until it ends."""
        _, status, used = os.wait4(self.pid, 0)
        with self._said as said:
            said.seek(0)
            words = said.read().decode(errors="replace")
        return Ended(os.waitstatus_to_exitcode(status), words, used.ru_utime + used.ru_stime)


def _speak_into(file: IO[bytes]) -> None:
    """Send all that this process says from now on, and what it runs, to a file."""
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    sys.stdout = io.TextIOWrapper(open(1, "wb", 0), write_through=True)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0), write_through=True)  # noqa: SIM115


def command(*words: object) -> Callable[[], None]:
    """The command line, as work."""

    def work() -> None:
        sys.argv = ["prooflens", *map(str, words)]
        main()

    return work


def limit_resources() -> None:
    """Take from this process all but a gibibyte of memory and twenty seconds of processor time."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
    resource.setrlimit(resource.RLIMIT_DATA, (taken + BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(6 * SECONDS)  # what only waits takes no processor time


def call(home: Path, prepare: Callable[[], None], words: tuple[str, ...]) -> tuple[int, str, float]:
    """The exit code, what was said and the seconds, of a command with little memory and time."""

    def work() -> None:
        os.chdir(home)
        prepare()
        limit_resources()
        command(*words)()

    ended = Child(work).end()
    return ended.code, ended.said, ended.seconds


def contents(home: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time, by its name."""
    found = {}
    for folder, _, files in os.walk(home):
        for name in files:
            path = os.path.join(folder, name)
            told = os.lstat(path)
            found[os.path.relpath(path, home)] = (told.st_size, told.st_mtime_ns)
    return found


def stray_changes(
    home: Path, before: dict[str, tuple[int, int]], words: tuple[str, ...]
) -> list[str]:
    """What a call left or changed besides its output; a store's own tables and damage may."""
    now = contents(home)
    out = [w.partition("=")[2] or after for w, after in zip(words, [*words[1:], ""], strict=True)
           if w.startswith("--out")]  # fmt: skip
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
