"""Whatever happens, sealed parts stay and resuming gives the same bytes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from store_killer import BATCH, HOOKS, PART_ROWS, ROWS, WAYS
from store_models import Echo, TinyTransformer

from interp.errors import OutputError, StoreError
from interp.store import ActivationStore, extract, hdf5, layout, repair, verify

HERE = Path(__file__).parent


def run(out, model=None, task=None, hooks=HOOKS, **options):
    options = {"rows": ROWS, "batch": BATCH, "part_rows": PART_ROWS} | options
    return extract(model or TinyTransformer(), task or Echo(), hooks, out, **options)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".h5", ".jsonl")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "s")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    path = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    done = subprocess.run(
        [sys.executable, str(HERE / "store_killer.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    codes = dict(line.split("=") for line in done.stdout.split("\n") if line)
    return folder, {way: int(code) for way, code in codes.items()}, done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_resuming_after_death_gives_the_same_bytes(killed, whole, way):
    folder, codes, messages = killed
    out = folder / way
    if way == "small disk":
        assert codes[way] == 3
        assert "small disk: writing failed: " in messages
        assert "File too large" in messages
    else:
        assert codes[way] == -signal.SIGKILL
    interrupted = ActivationStore(out)
    assert not interrupted.complete
    assert interrupted.rows < ROWS
    assert verify(out) == []
    for hook in interrupted.hooks if interrupted.rows else ():
        sealed = interrupted.activation(hook)
        assert np.array_equal(sealed, whole.activation(hook)[: interrupted.rows])
    resumed = run(out, resume=True)
    assert resumed.complete
    assert contents(out) == contents(whole.path)
    assert verify(out) == []


def failing(error):
    def arrange(monkeypatch, model):
        # a survey, a timed batch, then three batches a part: the 13th forward is in part 3
        calls, original = iter(range(1, 10_000)), model.forward

        def forward(x):
            if next(calls) == 13:
                raise error
            return original(x)

        monkeypatch.setattr(model, "forward", forward)

    return arrange


def full_disk(method):
    def arrange(monkeypatch, model):
        original = getattr(hdf5.PartFile, method)

        def full(self, *arguments):
            if self.number == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(self, *arguments)

        monkeypatch.setattr(hdf5.PartFile, method, full)

    return arrange


NO_SPACE = "No space left on device; sealed parts stay readable"
NO_LUCK = r"in part 3 \(rows 36\.\.47\): RuntimeError: no luck"


@pytest.mark.parametrize(
    ("arrange", "least", "seen", "match"),
    [
        (failing(KeyboardInterrupt()), 0, KeyboardInterrupt, None),
        (failing(RuntimeError("no luck")), 0, StoreError, NO_LUCK),
        (full_disk("write"), 3 * PART_ROWS, StoreError, NO_SPACE),
        (full_disk("seal"), 3 * PART_ROWS, StoreError, NO_SPACE),
    ],
    ids=["interrupt", "model", "write", "seal"],
)
def test_what_stops_an_extraction_keeps_sealed_parts(
    tmp_path, whole, monkeypatch, arrange, least, seen, match
):
    out, model = tmp_path / "s", TinyTransformer()
    arrange(monkeypatch, model)
    with pytest.raises(seen, match=match):
        run(out, model=model)
    monkeypatch.undo()
    assert least <= ActivationStore(out).rows <= 3 * PART_ROWS
    assert not list(out.glob(".*.draft"))
    run(out, model=model, resume=True)
    assert contents(out) == contents(whole.path)


def test_too_little_space_is_refused_before_work(tmp_path, monkeypatch):
    module = sys.modules["interp.store.extract"]
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OutputError, match=r"needs .* GB and 0\.00 GB are free"):
        run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": TinyTransformer(seed=1)}, r"model\.weights_sha256 was '\w+', is now"),
        ({"task": Echo(lag=3)}, r"source\.task\.lag was 1, is now 3"),
        ({"seed": 7}, "seed was 0, is now 7"),
        ({"hooks": HOOKS[:1]}, r"hooks was \[.*hook_pattern.*\], is now \["),
        ({"batch": 6}, "batch was 4, is now 6"),
        ({"dtype": "float16"}, "dtype was None, is now 'float16'"),
        ({"rows": 51}, "rows was 50, is now 51"),
    ],
)
def test_resuming_another_plan_names_the_difference(whole, change, match):
    before = contents(whole.path)
    with pytest.raises(StoreError, match=match):
        run(whole.path, resume=True, **change)
    assert contents(whole.path) == before


def test_resuming_another_thread_count_is_refused(whole):
    torch.set_num_threads(2)
    try:
        with pytest.raises(StoreError, match="threads was 1, is now 2"):
            run(whole.path, resume=True)
    finally:
        torch.set_num_threads(1)


def test_resuming_another_iterable_is_refused(tmp_path):
    blocks = [torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    options = {"rows": None, "part_rows": 8}
    run(tmp_path / "s", task=blocks, **options)
    run(tmp_path / "s", task=list(blocks), resume=True, **options)
    with pytest.raises(StoreError, match="part 1: the source gives other rows"):
        run(tmp_path / "s", task=[blocks[0], blocks[2], blocks[1]], resume=True, **options)


def flip(path, dataset):
    import h5py

    with h5py.File(path) as file:
        offset = file[dataset].id.get_chunk_info(0).byte_offset + 5
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_verify_names_and_repair_refills(tmp_path, whole):
    out = tmp_path / "s"
    run(out)
    hook = "activations/blocks.1.hook_resid_post"
    flip(out / "part-00001.h5", hook)
    (out / "part-00003.h5").unlink()
    (out / "part-00000.h5").write_bytes((out / "part-00000.h5").read_bytes()[:3000])
    said = [str(fault) for fault in verify(out)]
    assert any(s.startswith(f"part-00001.h5: {hook}: cannot be read") for s in said)
    assert "part-00003.h5: is missing" in said
    assert any(s.startswith("part-00000.h5: is 3000 bytes, was sealed with") for s in said)
    with pytest.raises(StoreError, match=r"part-00001\.h5.*cannot be read"):
        ActivationStore(out).activation("blocks.1.hook_resid_post", [13])
    assert repair(out) == ["part-00000.h5", "part-00001.h5", "part-00003.h5"]
    assert verify(out) == []
    left = ActivationStore(out)
    assert not left.complete
    assert left.row_ids.tolist() == [*range(24, 36), 48, 49]
    run(out, resume=True)
    assert contents(out) == contents(whole.path)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_store_that_was_begun_in_lanes_goes_on_or_says_why_not(tmp_path, whole, lanes):
    """Earlier versions ran forward passes at once and have their number in the plan."""
    out = tmp_path / "s"
    shutil.copytree(whole.path, out)
    layout.rewrite_index(out, list(layout.read_index(out))[:2])
    manifest = layout.read_manifest(out)
    manifest["plan"]["lanes"] = lanes
    manifest |= {"plan_digest": layout.digest(manifest["plan"]), "complete": False}
    layout.write_manifest(out, manifest)
    assert ActivationStore(out).rows == 2 * PART_ROWS
    if lanes == 1:
        run(out, resume=True)
        assert {p.name: p.read_bytes() for p in out.glob("part-*")} == {
            p.name: p.read_bytes() for p in whole.path.glob("part-*")
        }
        assert verify(out) == []
    else:
        with pytest.raises(StoreError, match="2 forward passes at once began it"):
            run(out, resume=True)
