"""Shapes in signatures are checked at run time throughout the tests."""

import inspect
import re
from functools import partial
from typing import Any

import jaxtyping
from beartype import beartype

_with_shapes = jaxtyping.jaxtyped
_SHAPE = re.compile(r"""\b[A-Z]\w+\[[\w.]+, *['"]""")  # as Float[Tensor, "row pos"]


def _check_annotations(kind: Any = None, *, typechecker: Any) -> Any:
    """A function, or a class whose constructor is one, with annotations checked at each call.

    To remember shapes from one argument to the next costs some microseconds a call, and is done
    where an annotation names any. A function within a function is made anew at each call of the
    outer one, which costs some hundred: it is checked only if it names shapes.
    """
    if kind is None:
        return partial(_check_annotations, typechecker=typechecker)
    if not isinstance(kind, type):
        function = getattr(kind, "__func__", getattr(kind, "fget", kind))
        if "<locals>" in function.__qualname__ and not _SHAPE.search(str(function.__annotations__)):
            return kind
        try:
            if "jaxtyping" not in str(inspect.get_annotations(function, eval_str=True)):
                return beartype(kind)
        except (NameError, TypeError):  # a name that type checkers alone know
            pass
    return _with_shapes(kind, typechecker=typechecker)


jaxtyping.jaxtyped = _check_annotations
jaxtyping.install_import_hook(["interp", "probes"], "beartype.beartype")

import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
# Arrow's own allocator reserves a gibibyte, which is all that the children of forked_calls may use.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

import pytest  # noqa: E402
import torch  # noqa: E402

from interp.tasks.catalogue import KINDS  # noqa: E402

torch.set_num_threads(1)  # tiny models: more threads only wait for each other

LONGEST_FIRST = (
    "test_docs.py",
    "test_odd_calls.py",
    "test_demo.py",
    "test_stopped_anywhere.py",
    "test_two_at_once.py",
    "test_notebooks.py",
    "test_agreement_measured.py",
    "test_mechanisms.py",
    "test_cli_weights.py",
    "test_zoo.py",
    "test_role_detection.py",
    "test_roles.py",
    "test_role_circuits.py",
    "test_trained_roles.py",
    "test_store_cluster.py",
    "test_grid.py",
    "test_plugin.py",
    "test_report_page.py",
    "test_claims_in_miniature.py",
    "test_depth_claims.py",
    "test_packaging.py",
)
"""Files that take longest, in the order in which workers are to take them."""


def pytest_configure(config: pytest.Config) -> None:
    """Of two workers, one would wait while the other does a long file that was begun last: xdist
    begins with the files of most tests, which are the short ones."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; all others stay in their order."""
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(scope="session")
def gpt2_folder() -> Path:
    """Real GPT-2 attention weights, where the environment names them."""
    folder = os.environ.get("PROOFLENS_GPT2")
    if not folder:
        pytest.skip("PROOFLENS_GPT2 does not name a folder with GPT-2 weights")
    return Path(folder)


@pytest.fixture(autouse=True)
def only_shipped_tasks() -> Iterator[None]:
    """A task that one test (or a block of the docs) registers is gone for the next."""
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.fixture(scope="module")
def ray(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Ray on this machine with two workers, which can import what stands beside the test."""
    module = pytest.importorskip("ray", reason="Ray is an optional extra: prooflens[ray]")
    path = os.pathsep.join([str(request.path.parent), *filter(None, sys.path)])
    module.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )  # fmt: skip
    yield module
    module.shutdown()
