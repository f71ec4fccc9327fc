"""What is handed to other tools says what the store, the table or the model says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError, HookError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store.extract import extract
from interp.store.reader import ActivationStore
from interp.store.tensors import activation_batches
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


def test_rows_of_two_lengths_are_positions_alike(tmp_path: Path) -> None:
    model = SequenceTransformer(SPEC, seed=0)
    batches = [torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, 6, dtype=torch.long)]
    store = extract(model, batches, [RESID], tmp_path / "store")
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
