"""One door, ``import prooflens``: what it offers is a decision, kept in public_names.txt."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import prooflens as pl

ROOT = Path(__file__).parent.parent
STORED = (Path(__file__).parent / "public_names.txt").read_text().split()
PACKAGES = sorted(
    str(stub.parent.relative_to(ROOT)).replace("/", ".")
    for top in ("prooflens", "interp", "probes", "trained")
    for stub in (ROOT / top).rglob("__init__.pyi")
)
SUBMODULES = sorted(
    path.stem for path in (ROOT / "prooflens").glob("*.py") if not path.stem.startswith("_")
)


def test_names_are_the_stored_ones() -> None:
    assert pl.__all__ == STORED


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there_and_documented(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == dir(module)
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__, name
        if isinstance(value, type) or callable(value):
            assert value.__doc__ != dict.__doc__, name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_that_of_another_thing_than_the_submodule(package: str) -> None:
    """Once imported, the submodule would be found in the name's place."""
    folder = ROOT / package.replace(".", "/")
    inside = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if (path / "__init__.py").is_file()
    }
    for name in inside & set(import_module(package).__all__):
        assert getattr(import_module(package), name) is import_module(f"{package}.{name}"), name


@pytest.mark.parametrize("name", SUBMODULES)
def test_public_submodules_say_what_they_offer(name: str) -> None:
    module = import_module(f"prooflens.{name}")
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    for offered in module.__all__:
        assert hasattr(module, offered), offered


def test_importing_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "pandas", "matplotlib", "transformer_lens", "h5py")
    code = f"import sys, prooflens, trained; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'prooflens' has no attribute 'find_role'"):
        _ = pl.find_role
    assert not hasattr(pl, "numpy")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FixedMemory", "'FixedMemory': it is prooflens.tasks.FixedMemory$"),
        ("Component", "'Component': it is prooflens.interventions.Component$"),
        ("stats", "'stats': it is a module of its own, import prooflens.stats$"),
    ],
)
def test_a_name_that_a_submodule_offers_is_an_error_that_says_so(name: str, said: str) -> None:
    """Asked in a process of its own, as an imported submodule is an attribute like any other."""
    code = f"import prooflens as pl\ntry: pl.{name}\nexcept AttributeError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search(said, done.stdout.strip())


def test_version_is_the_packages() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert pl.__version__ == told
