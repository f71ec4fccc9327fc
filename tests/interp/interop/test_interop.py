"""What is handed to other tools says what the store, the table or the model says."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from interp.environment import environment
from interp.errors import ArgumentError, HookError, OutputError
from interp.interop import (
    _column,
    activation_batches,
    circuit_of_roles,
    hugging_face_dataset,
    read_parquet,
    write_circuit,
    write_parquet,
)
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store.extract import extract
from interp.store.reader import ActivationStore
from interp.tasks.relation import TokenRelation

SPEC = TransformerSpec(
    d_in=9, d_out=9, n_ctx=13, d_model=8, n_layers=2, n_heads=2, d_head=4, positions="learned"
)
RESID, HEADS = "blocks.0.hook_resid_post", "blocks.1.attn.hook_z"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ActivationStore:
    task = TokenRelation("induction", "copy", symbols=8, length=13)
    folder = tmp_path_factory.mktemp("interop") / "store"
    hooks = [RESID, HEADS, "blocks.0.attn.hook_pattern"]
    return extract(
        SequenceTransformer(SPEC, seed=0), task, hooks, folder, rows=40, batch=8, part_rows=16
    )


def test_a_data_set_holds_what_the_store_holds(store: ActivationStore, tmp_path: Path) -> None:
    rows = [3, 17, 39]
    hugging_face_dataset(store, rows=rows).save_to_disk(tmp_path / "set")
    found = datasets.load_from_disk(tmp_path / "set").with_format("numpy")
    assert found["row"][:].tolist() == rows
    assert found.features[RESID].shape == (13, 8)
    for hook in store.hooks:
        np.testing.assert_array_equal(found[hook][:], store.activation(hook, rows))
    np.testing.assert_array_equal(found["token_ids"][:], store.inputs(rows))
    np.testing.assert_array_equal(found["mask"][:], store.mask(rows))


def test_arrow_has_the_array_itself_and_no_copy() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    column = _column(values).storage.flatten().flatten()
    assert column.buffers()[1].address == values.ctypes.data


def test_rows_of_two_lengths_are_refused(tmp_path: Path) -> None:
    model = SequenceTransformer(SPEC, seed=0)
    batches = [torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, 6, dtype=torch.long)]
    store = extract(model, batches, [RESID], tmp_path / "store")
    with pytest.raises(ArgumentError, match="rows must be of one length"):
        hugging_face_dataset(store)
    assert sum(len(one) for one in activation_batches(store, RESID, 7, repeat=False)) == 44


def test_batches_in_order_are_the_store(store: ActivationStore) -> None:
    found = torch.cat(list(activation_batches(store, HEADS, 50, block=7, repeat=False)))
    wanted = store.activation(HEADS).reshape(40 * 13, 8)
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_mixed_batches_hold_every_position_once_a_pass(store: ActivationStore) -> None:
    passes = [
        list(activation_batches(store, RESID, 52, shuffle=s, repeat=False)) for s in (0, 0, 1)
    ]
    whole = [torch.cat(batches).numpy() for batches in passes]
    assert [len(batch) for batch in passes[0]] == [52] * 10
    np.testing.assert_array_equal(whole[0], whole[1])
    assert not np.array_equal(whole[0], whole[2])
    wanted = store.activation(RESID).reshape(-1, 8)
    for one in whole:
        np.testing.assert_array_equal(one[np.lexsort(one.T)], wanted[np.lexsort(wanted.T)])


def test_an_endless_source_goes_on_in_another_order(store: ActivationStore) -> None:
    source = activation_batches(store, RESID, 40 * 13, shuffle=0)
    first, second = (next(source).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first[np.lexsort(first.T)], second[np.lexsort(second.T)])


def test_a_batch_within_a_block_is_a_view(store: ActivationStore) -> None:
    one, two = (b for b, _ in zip(activation_batches(store, RESID, 13), range(2), strict=False))
    assert two.data_ptr() - one.data_ptr() == 13 * 8 * 4


@pytest.mark.parametrize(
    ("hook", "size", "error", "told"),
    [
        (
            "blocks.0.attn.hook_pattern",
            8,
            HookError,
            "has no position axis: its axes are row, head",
        ),
        ("blocks.9.hook_resid_post", 8, HookError, "is not in"),
        (RESID, 0, ArgumentError, "size must be at least 1, got 0"),
    ],
)
def test_wrong_batches_are_refused_before_any_is_read(
    store: ActivationStore, hook: str, size: int, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        activation_batches(store, hook, size)


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    import pyarrow.parquet

    table = pd.DataFrame(
        {
            "layer": [0, -1],
            "target": ["x[t-1]", ""],
            "q": [1e-300, float("nan")],
            "on": [True, False],
        }
    )
    table.attrs["lacks"] = {"role": object()}
    path = write_parquet(table, tmp_path / "table.parquet")
    assert_frame_equal(read_parquet(path), table)
    told = json.loads(pyarrow.parquet.read_metadata(path).metadata[b"prooflens"])
    assert told == json.loads(json.dumps(environment()))
    with pytest.raises(OutputError, match="exists"):
        write_parquet(table, path)
    (tmp_path / "other").write_text("no")
    with pytest.raises(ArgumentError, match="is not a Parquet file"):
        read_parquet(tmp_path / "other")


def roles_of(*rows: tuple[str, int, int, str, str, float]) -> pd.DataFrame:
    columns = ["component", "layer", "head", "role", "status", "effect"]
    return pd.DataFrame(rows, columns=columns)


def test_a_circuit_is_what_is_confirmed(tmp_path: Path) -> None:
    model = SequenceTransformer(SPEC, seed=0)
    roles = roles_of(
        ("head", 0, 1, "previous-token", "confirmed", 0.5),
        ("head", 1, 0, "induction", "confirmed", 2.0),
        ("head", 1, 0, "copying", "confirmed", float("nan")),
        ("head", 1, 1, "sink", "candidate", 9.0),
        ("ffn", 1, -1, "readout", "confirmed", 0.1),
        ("layer", 0, -1, "layer", "confirmed", 3.0),
    )
    write_circuit(model, roles, tmp_path / "circuit.json")
    found = json.loads((tmp_path / "circuit.json").read_text())
    assert found == circuit_of_roles(model, roles)
    inside = {name for name, node in found["nodes"].items() if node["in_graph"]}
    assert inside == {"input", "a0.h1", "a1.h0", "m1", "logits"}
    assert found["nodes"]["a1.h0"] == {
        "in_graph": True, "score": 2.0, "roles": ["induction", "copying"]
    }  # fmt: skip
    edges = found["edges"]
    assert edges["a0.h1->a1.h0<k>"] == {"in_graph": True, "score": 0.0}
    assert not edges["a0.h0->a1.h0<k>"]["in_graph"]
    assert found["cfg"] == {
        "n_layers": 2, "n_heads": 2, "d_model": 8, "parallel_attn_mlp": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "heads", "parallel"), [(1, 1, False), (3, 2, False), (3, 2, True)]
)
def test_edges_run_from_what_was_written_to_what_reads_it(
    layers: int, heads: int, parallel: bool
) -> None:
    class Config:
        n_layers, n_heads, d_model, parallel_attn_mlp = layers, heads, 8, parallel

    class Model:
        cfg: Any = Config()

    circuit = circuit_of_roles(Model(), roles_of())
    place = {name: i for i, name in enumerate(circuit["nodes"])}
    ends = [name.partition("<")[0].split("->") for name in circuit["edges"]]
    assert all(place[a] < place[b] for a, b in ends)
    assert not any(a.split(".")[0] == b.split(".")[0] for a, b in ends)
    written = [1 + layer * (heads + 1) for layer in range(layers)]
    own = 0 if parallel else heads
    counted = sum(3 * heads * n + n + own for n in written) + 1 + layers * (heads + 1)
    assert len(ends) == counted


def test_what_are_no_roles_of_the_model_is_refused() -> None:
    model = SequenceTransformer(SPEC, seed=0)
    with pytest.raises(ArgumentError, match=r"one without \['component'"):
        circuit_of_roles(model, pd.DataFrame({"a": [1]}))
    with pytest.raises(ArgumentError, match=r"got one of a7\.h0"):
        circuit_of_roles(model, roles_of(("head", 7, 0, "sink", "confirmed", 1.0)))
