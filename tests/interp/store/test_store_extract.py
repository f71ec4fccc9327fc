"""Extraction against the model itself, run directly."""

import numpy as np
import pytest
import torch
from store_models import Echo, TinyTransformer

from interp.errors import ArgumentError, HookError, OutputError, StoreError
from interp.store import extract, verify

ALL_PATTERNS = "blocks.*.attn.hook_pattern"


def run(model, inputs):
    with torch.no_grad():
        return model.run_with_cache(torch.from_numpy(inputs))[1]


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_stores_what_the_model_computes(tmp_path, batch):
    model = TinyTransformer()
    store = extract(
        model, Echo(), ["blocks.*.hook_resid_post", ALL_PATTERNS], tmp_path / "s", rows=20,
        batch=batch,
    )  # fmt: skip
    cache = run(model, store.inputs())
    assert store.hooks == (
        "blocks.0.attn.hook_pattern",
        "blocks.0.hook_resid_post",
        "blocks.1.attn.hook_pattern",
        "blocks.1.hook_resid_post",
    )
    for hook in store.hooks:
        np.testing.assert_allclose(store.activation(hook), cache[hook].numpy(), atol=1e-6)
    assert store.complete
    assert store.rows == 20
    assert verify(store.path) == []


def test_rows_do_not_depend_on_batch_part_or_number_of_rows(tmp_path):
    model = TinyTransformer()
    few = extract(model, Echo(), ["hook_embed"], tmp_path / "a", rows=30, batch=4)
    many = extract(model, Echo(), ["hook_embed"], tmp_path / "b", rows=600, batch=25, part_rows=50)
    assert np.array_equal(few.inputs(), many.inputs(slice(0, 30)))
    assert len(np.unique(many.inputs()[:, 0, 0])) == 600


def test_task_columns_are_stored(tmp_path):
    store = extract(TinyTransformer(), Echo(lag=2), ["hook_embed"], tmp_path / "s", rows=9)
    assert np.array_equal(store.targets()[:, 2:], store.inputs()[:, :-2, :2])
    assert store.mask()[0].tolist() == [False, False, True, True, True, True]
    latents = store.latents()
    assert set(latents) == {"lag", "content"}
    assert (latents["lag"] == 2).all()
    assert np.array_equal(latents["content"], store.targets())


def test_stops_before_the_unembedding(tmp_path):
    model = TinyTransformer()
    extract(model, Echo(), ["blocks.0.*"], tmp_path / "s", rows=20, batch=10)
    surveyed = model.unembedded
    assert surveyed <= 4
    extract(model, Echo(), ["hook_unembed"], tmp_path / "t", rows=20, batch=10)
    assert model.unembedded >= surveyed + 20


def test_leaves_no_hooks_and_restores_training_mode(tmp_path):
    model = TinyTransformer().train()
    extract(model, Echo(), ["*"], tmp_path / "s", rows=4)
    assert model.training
    assert all(not point.fwd_hooks and not point._forward_hooks for point in model.hook_points())


def test_aliases_are_written_once(tmp_path):
    hooks = ["hook_embed", "*.hook_resid_pre", "blocks.0.hook_resid_post"]
    store = extract(TinyTransformer(), Echo(), hooks, tmp_path / "s", rows=4)
    assert store.hooks == ("hook_embed", "blocks.0.hook_resid_post")
    assert store.aliases == {
        "blocks.0.hook_resid_pre": "hook_embed",
        "blocks.1.hook_resid_pre": "blocks.0.hook_resid_post",
    }
    same = store.activation("blocks.1.hook_resid_pre")
    assert np.array_equal(same, store.activation("blocks.0.hook_resid_post"))


def test_unknown_and_silent_hooks_are_refused_before_any_work(tmp_path):
    out = tmp_path / "s"
    with pytest.raises(HookError, match=r"'blocks\.\*\.hook_nothing' matches none"):
        extract(TinyTransformer(), Echo(), ["blocks.*.hook_nothing"], out, rows=4)
    with pytest.raises(HookError, match="does not fire hook_unused"):
        extract(TinyTransformer(), Echo(), ["hook_unused"], out, rows=4)
    with pytest.raises(HookError, match="does not fire hook_unused"):
        extract(TinyTransformer(), Echo(), ["hook_*"], out, rows=4)
    assert not out.exists()
    store = extract(TinyTransformer(), Echo(), ["hook_*", "!hook_unused"], out, rows=4)
    assert "hook_unembed" in store.hooks


def test_positions_and_heads(tmp_path):
    model = TinyTransformer()
    hooks = ["blocks.1.attn.hook_pattern", "blocks.1.attn.hook_q", "blocks.1.hook_resid_post"]
    full = extract(model, Echo(), hooks, tmp_path / "a", rows=8)
    last = extract(model, Echo(), hooks, tmp_path / "b", rows=8, positions="last", heads=[1])
    pattern = full.activation(hooks[0])
    assert np.array_equal(last.activation(hooks[0]), pattern[:, 1:, -1:, :])
    assert np.array_equal(last.activation(hooks[1]), full.activation(hooks[1])[:, -1:, 1:])
    assert np.array_equal(last.activation(hooks[2]), full.activation(hooks[2])[:, -1:])
    some = extract(model, Echo(), hooks, tmp_path / "c", rows=8, positions="1:5:2")
    assert np.array_equal(some.activation(hooks[0]), pattern[:, :, 1:5:2])


def test_all_problems_are_named_at_once(tmp_path):
    with pytest.raises(ArgumentError, match=r"batch must be.*part_rows must be.*dtype must be"):
        extract(
            TinyTransformer(), Echo(), ["*"], tmp_path / "s", rows=4, batch=0, part_rows=3,
            dtype="int3",
        )  # fmt: skip
    with pytest.raises(ArgumentError, match=r"heads must be 0\.\.1 for .*got \(0, 5\)"):
        extract(TinyTransformer(), Echo(), [ALL_PATTERNS], tmp_path / "s", rows=4, heads=[0, 5])
    with pytest.raises(ArgumentError, match="compression must be one of gzip, lzf"):
        extract(TinyTransformer(), Echo(), ["*"], tmp_path / "s", rows=4, compression="zip")
    with pytest.raises(ArgumentError, match="rows must be given for a task"):
        extract(TinyTransformer(), Echo(), ["*"], tmp_path / "s")


def test_existing_output_is_refused(tmp_path):
    model = TinyTransformer()
    extract(model, Echo(), ["hook_embed"], tmp_path / "s", rows=4)
    with pytest.raises(OutputError, match="there is a store already"):
        extract(model, Echo(), ["hook_embed"], tmp_path / "s", rows=4)
    (tmp_path / "s" / "thesis.tex").touch()
    with pytest.raises(OutputError, match=r"has files that are no store's \(thesis\.tex\)"):
        extract(model, Echo(), ["hook_embed"], tmp_path / "s", rows=4, overwrite=True)
    (tmp_path / "s" / "thesis.tex").unlink()
    store = extract(model, Echo(), ["hook_unembed"], tmp_path / "s", rows=4, overwrite=True)
    assert store.hooks == ("hook_unembed",)


def test_model_error_names_the_rows(tmp_path):
    with pytest.raises(StoreError, match="the model fails on rows"):
        extract(TinyTransformer(d_in=4), Echo(), ["*"], tmp_path / "s", rows=4)
