"""The wheel holds everything that runs, nothing else, and needs no checkout around it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("prooflens", "interp", "probes", "trained")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without an environment of its own, so that nothing is fetched."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def tracked_files() -> set[str]:
    """The files of the packages that git knows."""
    done = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False,  # noqa: S607
    )  # fmt: skip
    if done.returncode:
        pytest.skip("not a git checkout: there is no list of files to compare with")
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert tracked_files() <= names
    needed = {
        "prooflens/pages/style.css",
        "prooflens/pages/tables.js",
        "prooflens/__init__.pyi",
        "prooflens/py.typed",
    }
    assert needed <= names


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    (info,) = tops - set(PACKAGES)
    assert info.endswith(".dist-info")


COMMAND = "import sys; from prooflens.cli.main import main; sys.argv = {}; main()"
LOAD = "model = prooflens.load('induction-attention'); print(type(model), model.card.task.name)"


@pytest.mark.parametrize(
    ("work", "printed"),
    [
        (COMMAND.format("['prooflens', 'models']"), "fixed-memory-multiplexer"),
        (
            COMMAND.format("'prooflens inspect induction-mlp --quick --out out'.split()"),
            "report.html",
        ),
        (LOAD, "SequenceTransformer"),
    ],
)
def test_it_runs_from_the_wheel(unpacked: Path, tmp_path: Path, work: str, printed: str) -> None:
    """In a folder without a checkout; the unpacked wheel comes before what is installed."""
    code = f"import prooflens; assert prooflens.__file__.startswith({str(unpacked)!r}); {work}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONPATH": str(unpacked)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


WITHOUT_POSIX = """
import errno, os, pkgutil, sys
import h5py, matplotlib.pyplot, pandas, psutil, rich.progress, scipy.stats, sklearn, torch, typer
import filelock, huggingface_hub, transformers, transformer_lens
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
for name in "O_NONBLOCK O_CLOEXEC fork getuid pwrite set_blocking sysconf uname".split():
    delattr(os, name)
del errno.EDQUOT
import interp, probes, prooflens, trained
for package in (interp, probes, trained, prooflens):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(("view_widget", "__main__")):  # extra; the command itself
            __import__(module.name)
from pathlib import Path
from interp.errors import ArgumentError
from interp.machine import free_bytes
from interp.output import output_file
from interp.reading import read_text
with output_file(Path("a.txt"), overwrite=False) as draft:
    draft.write_text("b")
assert read_text("a.txt", "file") == "b" and free_bytes() > 0
"""


def test_nothing_needs_posix(tmp_path: Path) -> None:
    """Every module is imported, and files are written and read, with what Windows lacks taken away.

    The libraries are imported first: what they need of the system is their own affair.
    """
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
