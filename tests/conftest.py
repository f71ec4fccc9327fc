"""Shapes in signatures are checked at run time throughout the tests."""

import jaxtyping

jaxtyping.install_import_hook(["interp", "probes"], "beartype.beartype")

import os  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

import pytest  # noqa: E402
import torch  # noqa: E402

from interp.tasks.catalogue import KINDS  # noqa: E402

torch.set_num_threads(1)  # tiny models: more threads only wait for each other


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
