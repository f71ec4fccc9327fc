import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from interp.errors import ArgumentError, CheckpointError, OutputError
from interp.models.checkpoint import load_checkpoint, read_metadata, save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SPEC = TransformerSpec(
    d_in=4, d_out=4, n_ctx=6, d_model=4, n_layers=1, n_heads=2, d_head=2, ffn=(3,), dtype="float64",
    tied_unembedding=True,
)  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_checkpoint(SequenceTransformer(SPEC, seed=7), tmp_path / "m", about={"note": "x"})


def rewrite(saved: Path, **changes: object) -> None:
    metadata = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps({**metadata, **changes}))


def replace_weights(saved: Path, bias: torch.Tensor) -> None:
    """A new bias with a hash that matches, so that only its content is wrong."""
    file = saved / "model.safetensors"
    save_file({**load_file(file), "blocks.0.mlp.b_in": bias}, file)
    rewrite(saved, weights_sha256=hashlib.sha256(file.read_bytes()).hexdigest())


def test_round_trip_is_exact(saved: Path) -> None:
    model, again = SequenceTransformer(SPEC, seed=7), load_checkpoint(saved)
    assert again.spec == SPEC
    assert not again.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert read_metadata(saved)["note"] == "x"
    assert not list(saved.parent.glob(".m-*"))


def test_existing_folder_is_kept_unless_told(saved: Path) -> None:
    model = SequenceTransformer(SPEC, seed=8)
    with pytest.raises(OutputError, match="exists"):
        save_checkpoint(model, saved)
    assert torch.equal(
        load_checkpoint(save_checkpoint(model, saved, overwrite=True)).W_E, model.W_E
    )


def test_what_is_told_about_a_model_cannot_redefine_it(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="own keys, got 'spec'"):
        save_checkpoint(SequenceTransformer(SPEC), tmp_path / "m", about={"spec": {}})
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    diverged = SequenceTransformer(SPEC)
    diverged.W_E.data[0] = float("nan")
    with pytest.raises(ArgumentError, match=r"finite weights, got 'embed\.W_E'"):
        save_checkpoint(diverged, tmp_path / "m")
    with pytest.raises(ArgumentError, match=r"spec's dtype torch\.float64, got 'embed\.W_E"):
        save_checkpoint(SequenceTransformer(SPEC).float(), tmp_path / "m")
    with pytest.raises(ArgumentError, match="about must be JSON data"):
        save_checkpoint(SequenceTransformer(SPEC), tmp_path / "m", about={"task": object()})
    assert not (tmp_path / "m").exists()


def test_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"):
        save_checkpoint(SequenceTransformer(SPEC), tmp_path / "file" / "m")


def flipped(saved: Path) -> None:
    file = saved / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flipped, r"is not the file its model\.json describes"),
        (lambda saved: (saved / "model.json").write_text("{"), "cannot be read"),
        (lambda saved: (saved / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda saved: saved.rename(saved.with_name("moved")), "no checkpoint at"),
        (
            lambda saved: rewrite(saved, format={"name": "prooflens-checkpoint", "version": 99}),
            "format version 99.*upgrade",
        ),
        (
            lambda saved: rewrite(saved, format={"name": "other"}),
            "does not describe a prooflens checkpoint",
        ),
        (
            lambda saved: rewrite(saved, spec={"d_in": 3}),
            "spec that is refused.*d_out must be given",
        ),
        (
            lambda saved: replace_weights(saved, torch.full((3,), float("nan"))),
            r"NaN or infinity in blocks\.0\.mlp\.b_in",
        ),
        (
            lambda saved: replace_weights(saved, torch.zeros(9, dtype=torch.float64)),
            r"does not fit its spec.*b_in",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_its_damage(
    saved: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(saved)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(saved)
