"""Parts as Ray tasks: the same bytes as a local run, also when a worker dies."""

import sys
import threading

import numpy as np
import pytest
import torch
from store_models import DiesOnce, Echo, TinyTransformer

from interp.errors import MissingDependencyError, StoreError
from interp.store import extract, verify

HOOKS = ["blocks.*.hook_resid_post", "blocks.*.attn.hook_pattern"]
OPTIONS = {"rows": 50, "batch": 4, "part_rows": 12}


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sealed(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".h5", ".jsonl")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_bytes_of_a_local_run(ray, one_thread, tmp_path):
    local = extract(TinyTransformer(), Echo(), HOOKS, tmp_path / "local", **OPTIONS)
    far = extract(TinyTransformer(), Echo(), HOOKS, tmp_path / "ray", backend="ray", **OPTIONS)
    assert sealed(local.path) == sealed(far.path)
    built = extract(
        TinyTransformer(), Echo(), HOOKS, tmp_path / "built", backend="ray",
        loader=TinyTransformer, **OPTIONS,
    )  # fmt: skip
    assert sealed(local.path) == sealed(built.path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_killed_in_mid_run_is_replaced(ray, one_thread, tmp_path):
    marker = tmp_path / "died"
    store = extract(DiesOnce(marker), Echo(), HOOKS, tmp_path / "s", backend="ray", **OPTIONS)
    assert marker.exists()
    assert store.complete
    assert verify(store.path) == []
    local = extract(TinyTransformer(), Echo(), HOOKS, tmp_path / "local", **OPTIONS)
    for hook in local.hooks:
        assert np.array_equal(store.activation(hook), local.activation(hook))
    assert not list(store.path.glob("*.draft"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_sent_or_is_another_model_is_refused(ray, tmp_path):
    model = TinyTransformer()
    model.lock = threading.Lock()
    with pytest.raises(StoreError, match=r"cannot send a TinyTransformer.*give loader="):
        extract(model, Echo(), HOOKS, tmp_path / "s", backend="ray", **OPTIONS)
    with pytest.raises(StoreError, match="has other weights"):
        extract(
            TinyTransformer(), Echo(), HOOKS, tmp_path / "t", backend="ray",
            loader=OtherWeights(), **OPTIONS,
        )  # fmt: skip


class OtherWeights:
    def __call__(self):
        return TinyTransformer(seed=5)


def test_without_ray_the_line_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'prooflens\[ray\]'"):
        extract(TinyTransformer(), Echo(), HOOKS, tmp_path / "s", backend="ray", **OPTIONS)
    assert not (tmp_path / "s").exists()
