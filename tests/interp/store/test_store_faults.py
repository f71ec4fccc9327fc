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
from interp.store import ActivationStore, extract, layout, repair, verify, writer
from interp.store.layout import INDEX, read_index, writing

HERE = Path(__file__).parent


def run(out, model=None, task=None, hooks=HOOKS, **options):
    options = {"rows": ROWS, "batch": BATCH, "part_rows": PART_ROWS} | options
    return extract(model or TinyTransformer(), task or Echo(), hooks, out, **options)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".h5", ".jsonl")}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.set_num_threads(1)
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


@pytest.mark.parametrize(
    ("error", "seen", "match"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (
            RuntimeError("no luck"),
            StoreError,
            r"in part 3 \(rows 36\.\.47\): RuntimeError: no luck",
        ),
    ],
)
def test_interrupts_and_model_errors_keep_sealed_parts(tmp_path, whole, error, seen, match):
    out, model = tmp_path / "s", TinyTransformer()
    # a survey, a timed batch, then three batches a part: the 13th forward is in part 3
    model.forward, original = _once(error, model.forward, 13), model.forward
    with pytest.raises(seen, match=match):
        run(out, model=model)
    assert ActivationStore(out).rows <= 36
    assert not list(out.glob(".*.draft"))
    model.forward = original
    run(out, model=model, resume=True)
    assert contents(out) == contents(whole.path)


def _once(error, function, at):
    calls = iter(range(1, 10_000))

    def replacement(x):
        if next(calls) == at:
            raise error
        return function(x)

    return replacement


@pytest.mark.parametrize("method", ["write", "seal"])
def test_full_disk_is_said_and_resumed(tmp_path, whole, monkeypatch, method):
    out, original = tmp_path / "s", getattr(writer.PartFile, method)

    def full(self, *arguments):
        if self.number == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, *arguments)

    monkeypatch.setattr(writer.PartFile, method, full)
    with pytest.raises(StoreError, match="No space left on device; sealed parts stay readable"):
        run(out)
    monkeypatch.undo()
    assert ActivationStore(out).rows == 2 * PART_ROWS
    assert not list(out.glob(".*.draft"))
    run(out, resume=True)
    assert contents(out) == contents(whole.path)


def test_too_little_space_is_refused_before_work(tmp_path, monkeypatch):
    module = sys.modules["interp.store.extract"]
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OutputError, match=r"needs .* GB and 0\.00 GB are free"):
        run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_second_process_is_refused_and_the_lock_dies_with_its_holder(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    hold = (
        "import sys; from pathlib import Path; from interp.store.layout import writing\n"
        f"with writing(Path({str(folder)!r})): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        message = rf"another process \(pid {holder.pid} on .+\) is writing"
        with pytest.raises(StoreError, match=message):
            run(folder)
    finally:
        holder.kill()
        holder.communicate()
    assert run(folder).complete


def test_a_second_writer_is_refused(tmp_path):
    run(tmp_path / "s", rows=4)
    with (
        writing(tmp_path / "s"),
        pytest.raises(StoreError, match=rf"another process \(pid {os.getpid()} on .+\) is writing"),
    ):
        run(tmp_path / "s", rows=4, resume=True)


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
    with pytest.raises(StoreError, match="threads was 1, is now 2"):
        run(whole.path, resume=True)


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


def test_damage_outside_chunks_is_found(tmp_path):
    out = tmp_path / "s"
    run(out)
    path = out / "part-00002.h5"
    data = bytearray(path.read_bytes())
    at = data.find(b"d_model")
    data[at] ^= 2
    path.write_bytes(data)
    assert [str(f) for f in verify(out)] == [
        "part-00002.h5: SHA-256 is not the sealed one (no dataset shows the damage)"
    ]


def test_verify_finds_rows_in_no_part(tmp_path):
    out = tmp_path / "s"
    run(out)
    lines = (out / INDEX).read_text().splitlines(keepends=True)
    (out / INDEX).write_text("".join(lines[:1] + lines[2:]))
    assert [str(f) for f in verify(out)] == ["index.jsonl: rows 12..23 are in no part"]
    assert len(read_index(out)) == len(lines) - 1


class FailsLate(TinyTransformer):
    """Refuses the last rows of the source."""

    def forward(self, x):
        if (x == 7).any():
            raise RuntimeError("seven")
        return super().forward(x)


def test_a_failing_model_keeps_the_parts_before_it(tmp_path):
    inputs = torch.randn(40, 6, 3, generator=torch.Generator().manual_seed(0))
    inputs[35] = 7
    with pytest.raises(StoreError, match=r"part 3 \(rows 30\.\.39\): RuntimeError: seven"):
        extract(FailsLate(), inputs, HOOKS, tmp_path / "s", batch=5, part_rows=10)
    assert ActivationStore(tmp_path / "s").rows == 30


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_store_that_was_begun_in_lanes_goes_on_or_says_why_not(tmp_path, whole, lanes):
    """Earlier versions ran forward passes at once and have their number in the plan."""
    out = tmp_path / "s"
    shutil.copytree(whole.path, out)
    layout.rewrite_index(out, layout.read_index(out)[:2])
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
