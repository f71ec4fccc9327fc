"""Reading: slices against whole arrays, caches, data sets, measurements."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_models import Echo, TinyTransformer
from torch.utils.data import DataLoader

from interp.errors import ArgumentError, HookError, StoreError
from interp.store import ActivationStore, extract, verify
from interp.store.reader import Files

PATTERN, RESID = "blocks.0.attn.hook_pattern", "blocks.0.hook_resid_post"
LENGTHS = [4, 6, 4, 5, 6, 6, 4, 5, 4, 4]


@pytest.fixture(scope="module")
def model():
    return TinyTransformer()


@pytest.fixture(scope="module")
def store(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("r") / "s"
    hooks = ["blocks.*.attn.hook_pattern", "blocks.*.attn.hook_z", "*.hook_resid_*"]
    return extract(model, Echo(), hooks, out, rows=23, batch=4, part_rows=8)


@pytest.fixture(scope="module")
def ragged(model, tmp_path_factory):
    generator = torch.Generator().manual_seed(3)
    source = [torch.randn(1, length, 3, generator=generator) for length in LENGTHS]
    hooks = [PATTERN, RESID]
    return extract(model, source, hooks, tmp_path_factory.mktemp("q") / "s", batch=2, part_rows=2)


indices = st.lists(st.integers(-23, 22), min_size=1, max_size=30)
slices = st.builds(slice, st.none() | st.integers(0, 10), st.none() | st.integers(12, 30))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=indices | slices, heads=st.none() | st.lists(st.integers(-2, 1), min_size=1))
def test_slices_are_numpys(store, rows, heads):
    whole = store.activation(PATTERN)
    got = store.activation(PATTERN, rows, heads=heads, positions=[5, 0])
    expected = whole[rows] if heads is None else whole[rows][:, heads]
    assert np.array_equal(got, expected[:, :, [5, 0]])


def test_only_the_parts_asked_for_are_opened(store, monkeypatch):
    seen, original = set(), Files.get
    monkeypatch.setattr(Files, "get", lambda s, p: seen.add(p.name) or original(s, p))
    opened = ActivationStore(store.path)
    assert (opened.rows, opened.lengths, PATTERN in opened.hooks) == (23, {6: 23}, True)
    assert not seen
    opened.activation(PATTERN, [9, 10, 20])
    assert seen == {"part-00001.h5", "part-00002.h5"}


def test_requests_that_cannot_be_met_are_refused(store):
    with pytest.raises(HookError, match="'nope' is not in"):
        store.activation("nope")
    with pytest.raises(ArgumentError, match=r"rows must be in 0\.\.22, got \[23\]"):
        store.activation(PATTERN, [23])
    with pytest.raises(ArgumentError, match="heads cannot be picked from"):
        store.activation(RESID, heads=[0])
    with pytest.raises(ArgumentError, match="rows must pick at least one row"):
        store.activation(RESID, [])
    with pytest.raises(ArgumentError, match="rows must be a slice or integers"):
        store.activation(RESID, np.array([0.5]))


def test_rows_of_different_length_keep_their_ids(ragged, model):
    assert ragged.lengths == {4: 5, 5: 2, 6: 3}
    assert ragged.row_ids.tolist() == list(range(10))
    with pytest.raises(ArgumentError, match="rows must be of one length"):
        ragged.activation(RESID)
    seen = []
    for batch in ragged.batches(2):
        inputs = batch.inputs()
        assert {LENGTHS[row] for row in batch.rows} == {inputs.shape[1]}
        with torch.no_grad():
            cache = model.run_with_cache(torch.from_numpy(inputs))[1]
        np.testing.assert_allclose(batch.activation(RESID), cache[RESID].numpy(), atol=1e-6)
        seen += batch.rows.tolist()
    assert sorted(seen) == list(range(10))
    assert verify(ragged.path) == []


def test_cache_is_transformerlens_own(store, model):
    rows = [3, 17, 4]
    cache = store.cache(rows, model)
    with torch.no_grad():
        _, direct = model.run_with_cache(torch.from_numpy(store.inputs(rows)))
    for name in (*store.hooks, *store.aliases):
        torch.testing.assert_close(cache[name], direct[name])
    assert cache["pattern", 1].shape == (3, 2, 6, 6)
    stack = cache.stack_activation("resid_post")
    torch.testing.assert_close(stack[1], direct["blocks.1.hook_resid_post"])
    resid = cache.accumulated_resid(layer=2, incl_mid=True)
    torch.testing.assert_close(resid[0], direct["blocks.0.hook_resid_pre"])
    torch.testing.assert_close(resid[-1], direct["blocks.1.hook_resid_post"])


def test_cache_reads_only_what_is_used(store, monkeypatch):
    seen, original = [], ActivationStore.read_raw
    monkeypatch.setattr(
        ActivationStore, "read_raw", lambda s, d, *a, **k: seen.append(d) or original(s, d, *a, **k)
    )
    cache = store.cache([0])
    assert PATTERN in cache.cache_dict
    assert seen == []
    cache[PATTERN], cache[PATTERN]
    assert seen == [f"activations/{PATTERN}"]


def test_bfloat16_and_float16(model, tmp_path):
    exact = extract(model, Echo(), [RESID], tmp_path / "a", rows=5).activation(RESID)
    store = extract(model, Echo(), [RESID], tmp_path / "b", rows=5, dtype="bfloat16")
    expected = torch.from_numpy(exact).to(torch.bfloat16)
    assert torch.equal(store.cache()[RESID], expected)
    assert store.cache()[RESID].dtype == torch.bfloat16
    assert np.array_equal(store.activation(RESID), expected.float().numpy())
    assert store.torch_dataset()[3][RESID].dtype == torch.bfloat16
    huge = torch.full((6, 5, 3), 1e6)
    half = extract(model, huge, ["hook_embed"], tmp_path / "c", dtype="float16")
    with torch.no_grad():
        direct = model.embed(huge)
    lost = (direct.half().isinf() & direct.isfinite()).sum().item()
    assert lost > 0
    assert half.overflows == {"hook_embed": lost}
    assert half.activation("hook_embed").dtype == np.float16


@pytest.mark.parametrize("pickled", [False, True])
def test_dataset_in_worker_processes(store, pickled):
    """Files that are open here are opened again there, and do not travel with a pickle."""
    dataset = store.torch_dataset([PATTERN, RESID], shuffle=5)
    assert len(dataset[0][PATTERN])
    if pickled:
        dataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    rows = torch.cat([batch["row"] for batch in batches])
    assert rows.tolist() == dataset.order.tolist()
    pattern = torch.cat([batch[PATTERN] for batch in batches])
    assert np.array_equal(pattern.numpy(), store.activation(PATTERN, rows.numpy()))


def test_dataset_order_is_seeded_and_recorded(store, ragged):
    first, again = (store.torch_dataset(shuffle=1) for _ in range(2))
    other, later = store.torch_dataset(shuffle=2), store.torch_dataset(shuffle=1, epoch=1)
    assert first.provenance == again.provenance
    digests = {d.provenance["order_sha256"] for d in (first, other, later)}
    assert len(digests) == 3
    assert sorted(first.order.tolist()) == list(range(23))
    assert store.torch_dataset().order.tolist() == list(range(23))
    entries = ragged.torch_dataset([RESID]).__getitems__([1, 0, 1])
    assert [e["row"].item() for e in entries] == [1, 0, 1]
    assert [len(e[RESID]) for e in entries] == [6, 4, 6]


def test_reading_imports_neither_torch_nor_transformerlens(store):
    code = (
        "import sys; from interp.store import ActivationStore;"
        f"s = ActivationStore({str(store.path)!r}); s.activation({PATTERN!r}, [1, 2]); s.latents();"
        "heavy = {'torch', 'transformer_lens', 'pandas'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_measurements_round_trip(store, tmp_path):
    table = pd.DataFrame(
        {
            "layer": [0, 1],
            "score": [0.5, np.nan],
            "role": ["sink", None],
            "causal": [True, False],
            "small": np.array([1, 2], np.float32),
        }
    )
    store.write_measurement("roles", table, {"analysis": "test", "seeds": [1, 2]})
    again = ActivationStore(store.path)
    pd.testing.assert_frame_equal(again.measurement("roles"), table)
    assert again.provenance("roles")["seeds"] == [1, 2]
    assert again.measurements == ("roles",)
    assert verify(store.path) == []
    with pytest.raises(StoreError, match="'roles' is there already"):
        store.write_measurement("roles", table, {})
    store.write_measurement("roles", table.iloc[:1], {}, overwrite=True)
    assert len(store.measurement("roles")) == 1
    store.write_measurement("empty", table.iloc[:0], {})
    pd.testing.assert_frame_equal(store.measurement("empty"), table.iloc[:0])
    with pytest.raises(StoreError, match="has no measurement 'none'"):
        store.measurement("none")
    path = store.path / "measurements-roles.h5"
    path.write_bytes(path.read_bytes()[:-9])
    assert str(verify(store.path)[0]).startswith("measurements-roles.h5: is ")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(
    st.lists(
        st.tuples(st.floats(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text("aβ/\n ")),
        max_size=5,
    )
)
def test_any_table_round_trips(store, rows):
    table = pd.DataFrame(rows, columns=["f", "i", "b", "s"]).astype(
        {"f": float, "i": "int64", "b": bool, "s": "str"}
    )
    store.write_measurement("any", table, {}, overwrite=True)
    pd.testing.assert_frame_equal(store.measurement("any"), table)


def test_tables_that_cannot_be_stored_are_refused(store):
    with pytest.raises(ArgumentError, match=r"name must be letters.*column a must be float"):
        store.write_measurement("a/b", pd.DataFrame({"a": [1j]}), {})
    with pytest.raises(ArgumentError, match=r"default index.*provenance must be JSON"):
        store.write_measurement("x", pd.DataFrame({"a": [1]}, index=["r"]), {"x": object()})
