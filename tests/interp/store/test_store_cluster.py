"""Parts as Ray tasks: the same bytes as a local run, also when a worker dies."""

import sys
import threading
from functools import partial

import pytest
from store_models import DiesOnce, Echo, TinyTransformer

from interp.errors import MissingDependencyError, StoreError
from interp.store import extract, verify

HOOKS = ["blocks.*.hook_resid_post", "blocks.*.attn.hook_pattern"]
OPTIONS = {"rows": 50, "batch": 4, "part_rows": 12}


def sealed_files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".h5", ".jsonl")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_bytes_of_a_local_run(ray, tmp_path):
    """One worker is killed on the way; another run has workers that build the model."""
    model = DiesOnce(tmp_path / "died")
    local = extract(model, Echo(), HOOKS, tmp_path / "local", **OPTIONS)
    assert not model.marker.exists()
    far = extract(model, Echo(), HOOKS, tmp_path / "ray", backend="ray", **OPTIONS)
    assert model.marker.exists()
    assert sealed_files(local.path) == sealed_files(far.path)
    assert verify(far.path) == []
    assert not list(far.path.glob("*.draft"))
    built = extract(
        model, Echo(), HOOKS, tmp_path / "built", backend="ray",
        loader=partial(DiesOnce, model.marker), **OPTIONS,
    )  # fmt: skip
    assert sealed_files(local.path) == sealed_files(built.path)


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
            loader=partial(TinyTransformer, 5), **OPTIONS,
        )  # fmt: skip


def test_without_ray_the_line_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'prooflens\[ray\]'"):
        extract(TinyTransformer(), Echo(), HOOKS, tmp_path / "s", backend="ray", **OPTIONS)
    assert not (tmp_path / "s").exists()
