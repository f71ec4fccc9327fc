"""Pretrained folders of two families, tiny and random; damaged ones are refused in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from analyses.benchmarks.gguf_writer import decoder
from interp.errors import CheckpointError
from interp.models.checkpoint import save_checkpoint
from interp.models.pretrained import load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


@pytest.mark.parametrize(("kind", "groups"), [("gpt2", 4), ("llama", 2)])
@torch.no_grad()
def test_a_folder_without_tokenizer_is_enough(kind: str, groups: int, tmp_path: Path) -> None:
    changes = {"num_key_value_heads": groups, "bos_token_id": 10, "max_position_embeddings": 12}
    reference = decoder(kind, **changes)
    reference.save_pretrained(tmp_path)
    found = load_pretrained(tmp_path)
    assert (found.vocabulary, found.n_ctx, found.bos) == (64, 12, 10)
    assert found.tokenizer is None
    assert any("no tokenizer" in note for note in found.notes)
    tokens = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(1))
    output, cache = found.model.run_with_cache(tokens)
    assert torch.allclose(output, reference(tokens).logits, atol=1e-5)
    pattern = cache["blocks.1.attn.hook_pattern"]
    assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-5)
    assert float(pattern.triu(1).abs().max()) == 0


@pytest.mark.filterwarnings("ignore:A forward hook edited")
def test_ablations_stand_where_patching_the_stream_between_does_not(tmp_path: Path) -> None:
    """What the note promises: without a head, transformers itself gives the same loss."""
    reference = decoder("llama")
    reference.save_pretrained(tmp_path)
    found = load_pretrained(tmp_path)
    (note,) = (note for note in found.notes if "patching hook_resid_mid yourself" in note)
    assert "ablations do not patch it, so their numbers stand" in note
    tokens = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(1))
    size, head = 16, 1
    with torch.no_grad():
        weight = reference.model.layers[0].self_attn.o_proj.weight
        weight[:, head * size : (head + 1) * size] = 0
        expected = reference(tokens).logits
        hooks = [("blocks.0.attn.hook_z", _without(head))]
        output = found.model.run_with_hooks(tokens, fwd_hooks=hooks)
    assert torch.allclose(output, expected, atol=1e-5)


def _without(head: int) -> Callable[..., torch.Tensor]:
    def hook(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value = value.clone()
        value[:, :, head] = 0
        return value

    return hook


def shard_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.weight"][0, :3] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def tensor_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".mlp." not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def wrong_shape(folder: Path) -> None:
    edit(folder, n_embd=16)


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def own_code(folder: Path) -> None:
    edit(folder, model_type="bespoke", auto_map={"AutoModelForCausalLM": "modeling.Model"})
    (folder / "modeling.py").write_text("raise SystemExit('this code ran')\n")


def unknown(folder: Path) -> None:
    edit(folder, model_type="bespoke")


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (shard_missing, "1 of 1 shards are missing"),
        (truncate_weights, "missing, truncated or not a safetensors file"),
        (not_finite, "has 3 values of 16384 that are not finite"),
        (tensor_missing, "lacks 8 of the model's tensors, first 'transformer.h.0.mlp"),
        (wrong_shape, "cannot be loaded"),
        (only_pickled, "holds only pickled weights"),
        (own_code, "brings Python code of its own for its architecture 'bespoke'"),
        (unknown, "does not know the architecture 'bespoke': put hooks on the module"),
        (no_config, "has no config.json"),
    ],
)
def test_damaged_folders_are_refused_in_one_line(
    damage: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    decoder("gpt2", num_key_value_heads=4).save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=told) as caught:
        load_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_ours_is_itself(tmp_path: Path) -> None:
    spec = TransformerSpec(d_in=9, d_out=9, n_ctx=7, d_model=8, n_layers=1, d_head=4)
    about = {"task": {"kind": "repeated_tokens", "bos": 2}}
    save_checkpoint(SequenceTransformer(spec), tmp_path / "ours", about=about)
    found = load_pretrained(tmp_path / "ours")
    assert (found.vocabulary, found.n_ctx, found.bos) == (9, 7, 2)
    assert isinstance(found.model, SequenceTransformer)
    real = SequenceTransformer(TransformerSpec(**{**vars(spec), "input": "real"}))
    save_checkpoint(real, tmp_path / "real")
    with pytest.raises(CheckpointError, match="takes real values"):
        load_pretrained(tmp_path / "real")
    with pytest.raises(CheckpointError, match="is a file"):
        load_pretrained(tmp_path / "real" / "model.safetensors")
