"""``prooflens extract`` and ``prooflens store`` from the command line."""

import json

import h5py
import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from interp.errors import ArgumentError, CheckpointError
from interp.models.card import ModelCard
from interp.models.checkpoint import read_metadata, save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import ActivationStore
from interp.tasks.memory import FixedMemory
from prooflens.cli.loading import task_of
from trained.loading import folder_of, load, model_of

NOBODY = ModelCard("nobody")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    spec = TransformerSpec(d_in=9, d_out=9, n_ctx=8, d_model=8, n_layers=2, n_heads=2, d_head=4)
    return save_checkpoint(SequenceTransformer(spec), tmp_path_factory.mktemp("m") / "model")


@pytest.fixture
def tokens(tmp_path):
    (tmp_path / "t.txt").write_text("1 2 3 4\n5 6 7 8\n1 2 3\n" * 4)
    return tmp_path / "t.txt"


def test_extract_info_verify_repair(told, run, refused, model, tokens, tmp_path):
    out = tmp_path / "s"
    words = ["extract", model, "--tokens", tokens, "--out", out, "--batch", 2, "--part-rows", 4]
    words += ["--hooks", "blocks.*.attn.hook_pattern", "--hooks", "*.hook_resid_post"]
    plan = told(*words, "--dry-run")
    assert not out.exists()
    assert "blocks.0.attn.hook_pattern  2 × 4 × 4  float32  (head, query, key)" in plan
    assert "on disk" in plan
    assert "time" in plan
    said = told(*words)
    assert said.startswith(plan.split("time")[0])
    assert "12 rows of 4 hooks" in said
    info = told("store", out)
    assert "12 in 3 parts, complete" in info
    assert "3 (4 rows), 4 (8 rows)" in info
    assert "sound" in told("store", "--verify", out)
    part = out / "part-00001.h5"
    with h5py.File(part) as file:
        dataset = file["activations/blocks.1.hook_resid_post"]
        at = dataset.id.get_chunk_info(0).byte_offset
    data = bytearray(part.read_bytes())
    data[at] ^= 255
    part.write_bytes(data)
    bad = run("store", "--verify", out)
    assert bad.code == 1
    assert "part-00001.h5: activations/blocks.1.hook_resid_post: cannot be read" in bad.out
    assert "moved to damaged/: part-00001.h5" in told("store", "--repair", out)
    assert "not complete" in told("store", out)
    assert "12 rows" in told(*words, "--resume")
    assert "sound" in told("store", "--verify", out)
    assert "batch was 2, is now 4" in refused(*words, "--batch", 4, "--resume")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_extract_from_a_data_set_file(told, model, tmp_path):
    rows = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told(
        "extract", model, "--dataset", path, "--hooks", "hook_embed", "--out", tmp_path / "s",
        "--stored-dtype", "float16", "--heads", "0", "--hooks", "*.hook_q",
    )  # fmt: skip
    store = ActivationStore(tmp_path / "s")
    assert store.inputs().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert store.activation("blocks.0.attn.hook_q").shape == (2, 3, 1, 4)


def test_a_store_finds_its_model_in_the_precision_that_it_ran_in(told, tmp_path):
    hook, out = "blocks.0.attn.hook_pattern", tmp_path / "s"
    words = ("extract", "induction-attention", "--hooks", hook, "--rows", 4, "--out", out)
    told(*words, "--dtype", "bfloat16")
    store = ActivationStore(out)
    rounded = load("induction-attention", dtype="bfloat16")
    _, cache = rounded.run_with_cache(torch.from_numpy(store.inputs()), names_filter=hook)
    assert store.manifest["hooks"][hook]["dtype"] == "bfloat16"
    assert np.array_equal(store.activation(hook), cache[hook].float().numpy())
    model, reason = model_of(store)
    assert (model.cfg.dtype, reason) == (torch.bfloat16, "")
    assert "model     induction-attention, weights" in told("store", out)
    told(*words, "--dtype", "bfloat16", "--stored-dtype", "float32", "--overwrite")
    assert ActivationStore(out).manifest["hooks"][hook]["dtype"] == "float32"


def test_a_checkpoint_without_a_task_has_none_to_draw_rows_from(refused, model, tmp_path) -> None:
    words = ("extract", model, "--hooks", "hook_embed", "--out", tmp_path / "s")
    assert "source must be one of --task, --tokens, --dataset and --data" in refused(*words)
    assert "only a shipped model or a checkpoint" in refused(*words, "--task", "own")


def test_tasks_are_written_as_kind_and_arguments():
    task = task_of("fixed_memory:lags=[1,3],length=12", NOBODY)
    assert task.to_dict()["lags"] in ((1, 3), [1, 3])
    batch = task.sample(2, seed=0)
    assert batch.inputs.shape[:2] == torch.Size([2, 12])
    with pytest.raises(ArgumentError, match="kind must be one of"):
        task_of("nothing", NOBODY)
    with pytest.raises(ArgumentError, match="add a '='"):
        task_of("fixed_memory:lags", NOBODY)


def test_a_checkpoint_that_knows_its_task_needs_none(tmp_path):
    task = FixedMemory((1, 3), "parity", 12)
    spec = TransformerSpec(
        input="real", d_in=1, d_out=1, n_ctx=12, d_model=4, n_layers=1, n_heads=1, d_head=4
    )
    path = tmp_path / "mine"
    save_checkpoint(SequenceTransformer(spec), path, about={"task": task.to_dict()})
    assert load(path).card.task == task
    assert task_of("own", load(path).card) == task


def test_a_model_that_is_nowhere_is_one_clear_line():
    with pytest.raises(CheckpointError, match="'nowhere/at-all' is not a shipped model"):
        load("nowhere/at-all")


def test_a_pretrained_folder_without_a_tokenizer_has_none(tmp_path):
    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.card.tokenizer is None
    assert model.card.task is None
    assert (model.card.family, model.card.vocabulary, model.card.n_ctx) == ("gpt2", 11, 8)
    _, cache = model.run_with_cache(torch.zeros(1, 4, dtype=torch.long))
    assert cache["blocks.0.attn.hook_pattern"].shape == (1, 2, 4, 4)


def test_a_folder_of_heads_points_to_its_store(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds no model: did you mean the store .*/store\?"):
        load(tmp_path)


def test_shipped_models_have_a_folder_and_other_names_stay():
    assert read_metadata(folder_of("induction-attention"))["name"] == "induction-attention"
    assert folder_of("gpt2") == "gpt2"


def test_a_task_that_is_not_known_here_is_said_where_it_is_asked_for(tmp_path):
    spec = TransformerSpec(d_in=9, d_out=9, n_ctx=8, d_model=8, n_layers=1, n_heads=1, d_head=4)
    path = tmp_path / "mine"
    save_checkpoint(SequenceTransformer(spec), path, about={"task": {"kind": "nobodys"}})
    named = load(path).card
    assert named.task is None
    with pytest.raises(ArgumentError, match="kind 'nobodys', which is not known here"):
        task_of("own", named)
    assert task_of("fixed_memory:lags=[1],length=8", named).to_dict()["kind"] == "fixed_memory"
