"""The format: what plain h5py sees, what a golden store holds, what is refused."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from store_models import Echo, TinyTransformer

from interp.errors import StoreError
from interp.store import ActivationStore, extract, verify
from interp.store.hdf5 import CHUNK_BYTES, PartFile, chunk_shape
from interp.store.layout import INDEX, MANIFEST
from interp.store.pipeline import weights_sha256
from interp.store.sources import PartRows

GOLDEN = Path(__file__).parent / "golden"
HOOKS = ["blocks.0.attn.hook_pattern", "blocks.1.hook_resid_post"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return extract(
        TinyTransformer(), Echo(), HOOKS, tmp_path_factory.mktemp("f") / "s", rows=10, batch=4,
        part_rows=8,
    )  # fmt: skip


def test_plain_h5py_reads_a_part(store):
    with h5py.File(store.path / "part-00001.h5") as file:
        assert sorted(file) == ["activations", "inputs", "latents", "mask", "row", "targets"]
        assert file["row"][:].tolist() == [8, 9]
        pattern = file["activations"][HOOKS[0]]
        assert [dim.label for dim in pattern.dims] == ["row", "head", "query", "key"]
        assert pattern.fletcher32
        assert np.isnan(pattern.fillvalue)
        assert pattern.compression is None
        assert pattern.chunks[1:] == pattern.shape[1:]
        assert np.array_equal(pattern[:], store.activation(HOOKS[0], [8, 9]))
        assert file.libver[0] == "earliest"


def test_golden_store_reads_as_it_always_did():
    store = ActivationStore(GOLDEN)
    assert verify(GOLDEN) == []
    assert store.rows == 5
    assert store.lengths == {2: 3, 3: 2}
    expected = np.arange(24.0).reshape(3, 2, 2, 2) / 8
    assert np.array_equal(store.activation("blocks.0.attn.hook_pattern", [0, 2, 3]), expected)
    assert store.activation("hook_embed", [4])[0, :, 0].tolist() == [1.5, -2.0, np.inf]
    assert store.dtype("hook_embed") == "bfloat16"
    assert store.canonical("blocks.0.hook_resid_pre") == "hook_embed"
    assert store.inputs([1, 4]).tolist() == [[7, 8, 9], [4, 5, 6]]
    assert store.measurement("heads")["role"].tolist()[0] == "induction"
    assert store.provenance("heads") == {"analysis": "by hand"}


def test_golden_bytes_are_still_written(tmp_path):
    """The same content gives the same file, so that digests are comparable across versions."""
    from golden_store import golden_parts

    for number, (rows, columns) in enumerate(golden_parts()):
        part = PartFile(tmp_path, number, rows, 2, None, "")
        part.write(0, columns)
        part.seal()
        name = f"part-{number:05d}.h5"
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


@pytest.fixture
def changed(store, tmp_path):
    """A copy of the store whose manifest says something else."""
    shutil.copytree(store.path, tmp_path / "s")

    def change(**changes):
        manifest = json.loads((store.path / MANIFEST).read_text())
        (tmp_path / "s" / MANIFEST).write_text(json.dumps(manifest | changes))
        return tmp_path / "s"

    return change


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": "2.0"}, r"store version 2\.0 is newer than 1\.x.*install a newer prooflens"),
        ({"version": "x"}, "is not MAJOR.MINOR"),
        ({"format": "zarr"}, "not an activation store"),
    ],
)
def test_other_versions_are_refused(changed, changes, match):
    with pytest.raises(StoreError, match=match):
        ActivationStore(changed(**changes))


def test_a_newer_minor_version_is_read(changed):
    assert ActivationStore(changed(version="1.7", new=1)).rows == 10


def test_torn_and_damaged_index_lines(store, tmp_path):
    shutil.copytree(store.path, tmp_path / "s")
    index = tmp_path / "s" / INDEX
    index.write_bytes(index.read_bytes()[:-20])
    assert ActivationStore(tmp_path / "s").rows == 8
    index.write_bytes(b"nonsense\n" + index.read_bytes())
    with pytest.raises(StoreError, match="line 1 cannot be read"):
        ActivationStore(tmp_path / "s")


@given(
    row=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    rows=st.integers(1, 5000),
    batch=st.integers(1, 300),
    itemsize=st.sampled_from([1, 2, 4, 8]),
)
def test_chunks_are_whole_rows_of_at_most_a_mebibyte(row, rows, batch, itemsize):
    chunk = chunk_shape((rows, *row), itemsize, batch)
    size = int(np.prod(chunk)) * itemsize
    assert size <= CHUNK_BYTES
    assert 1 <= chunk[0] <= rows
    if int(np.prod(row)) * itemsize <= CHUNK_BYTES:
        assert chunk[1:] == tuple(row)
        assert size >= CHUNK_BYTES // 4 or chunk[0] == rows or chunk[0] >= batch


def test_rows_beyond_a_mebibyte_are_cut_along_heads():
    assert chunk_shape((8, 12, 1024, 1024), 4, 8) == (1, 1, 256, 1024)
    assert chunk_shape((8, 12, 256, 256), 4, 8) == (1, 4, 256, 256)


def test_part_digest_sees_every_column():
    inputs = torch.zeros(2, 3)
    part = PartRows(0, np.arange(2), {"inputs": inputs, "mask": torch.ones(2, 3, dtype=torch.bool)})
    other = PartRows(
        0, np.arange(2), {"inputs": inputs, "mask": torch.zeros(2, 3, dtype=torch.bool)}
    )
    shifted = PartRows(0, np.arange(1, 3), part.columns)
    assert len({p.sha256() for p in (part, other, shifted)}) == 3


def test_a_file_is_no_store(store):
    with pytest.raises(StoreError, match="is a file: a store is a folder"):
        ActivationStore(store.path / "part-00000.h5")


def test_the_digest_of_one_number_does_not_depend_on_its_stride():
    class Model(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.register_buffer("w", number)

    sliced = torch.arange(3.0).view(1, 3)[:, 1]
    assert sliced.stride() == (3,)
    assert weights_sha256(Model(sliced)) == weights_sha256(Model(torch.tensor([1.0])))
    assert weights_sha256(Model(sliced)) != weights_sha256(Model(torch.tensor([2.0])))
