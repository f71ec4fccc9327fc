"""Weights on the hub are read by ranges: what heads weigh is sent, and nothing else twice."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from ranged_hub import Hub, local_hub
from safetensors.torch import save_file
from same_head_weights import assert_same, shard
from typer.testing import CliRunner

from interp.errors import CheckpointError
from interp.weights.head_weights import head_weights
from prooflens.cli.main import app

WIDTH, LAYERS, HEADS, WORDS = 32, 3, 4, 1000
CONFIG = {"model_type": "gpt2", "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
SHAPES = {
    "attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,),
    "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,),
    "ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,),
    "mlp.c_fc.weight": (WIDTH, 8 * WIDTH), "mlp.c_proj.weight": (8 * WIDTH, WIDTH),
}  # fmt: skip
ATTENTION = 4 * LAYERS * WIDTH * (3 * WIDTH + 3 + WIDTH)
"""Bytes of what QK and OV are made of: W_QKV, its bias, W_O."""


def write_checkpoint(folder: Path, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"h.{layer}.{name}": torch.randn(shape, generator=generator)
        for layer in range(LAYERS)
        for name, shape in SHAPES.items()
    }
    tensors["wte.weight"] = torch.randn(WORDS, WIDTH, generator=generator)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with local_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.folders["me/model", "main"] = write_checkpoint(tmp_path / "main", 0)
        yield hub


@pytest.mark.parametrize("sharded", [False, True])
def test_remote_weights_are_those_on_disk(hub: Hub, sharded: bool) -> None:
    folder = hub.folders["me/model", "main"]
    if sharded:
        shard(folder)
    assert_same(head_weights("me/model"), head_weights(folder))


def test_opening_fetches_headers_alone(hub: Hub) -> None:
    weights = hub.folders["me/model", "main"] / "model.safetensors"
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    remote = head_weights("me/model").files
    assert hub.bytes_sent(".safetensors") == header == remote.fetched
    assert remote.size == weights.stat().st_size


def test_a_tensor_is_fetched_alone_and_once(hub: Hub) -> None:
    layer = head_weights("me/model").layer(1)
    before = hub.bytes_sent()
    first = layer.W_Q
    assert hub.bytes_sent() - before == 4 * 3 * WIDTH * WIDTH  # W_Q, W_K and W_V are one tensor
    assert torch.equal(layer.W_Q, first)
    assert layer.W_V.shape == (HEADS, WIDTH, WIDTH // HEADS)
    assert hub.bytes_sent() - before == 4 * 3 * WIDTH * WIDTH


def test_checkpoints_of_a_training_cost_what_their_heads_weigh(hub: Hub, tmp_path: Path) -> None:
    whole = 0
    for step in range(24):
        folder = write_checkpoint(tmp_path / f"step{step}", step)
        hub.folders["me/model", f"step{step}"] = folder
        whole += (folder / "model.safetensors").stat().st_size
    for step in range(24):
        found = head_weights("me/model", revision=f"step{step}")
        wanted = head_weights(tmp_path / f"step{step}")
        for mine, theirs in zip(found, wanted, strict=True):
            for part in ("W_Q", "W_K", "W_V", "W_O", "b_Q"):
                assert torch.equal(mine.read(part), theirs.read(part))
    headers = sum(n for path, n in hub.sent if path.endswith(".safetensors")) - 24 * ATTENTION
    assert 0 < headers < 24 * 4000
    assert hub.bytes_sent() < 1.3e6 < 8e6 < whole


def test_a_cached_repository_asks_for_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.weights.head_weights.hub import whole_snapshot

    whole_snapshot("me/model", None)
    hub.sent.clear()
    assert_same(head_weights("me/model"), head_weights(hub.folders["me/model", "main"]))
    assert hub.sent == []


def pickled(hub: Hub) -> None:
    weights = hub.folders["me/model", "main"] / "model.safetensors"
    weights.rename(weights.with_suffix(".bin"))


def without_ranges(hub: Hub) -> None:
    hub.ranges = False


def damaged(data: bytes) -> Callable[[Hub], object]:
    return lambda hub: (hub.folders["me/model", "main"] / "model.safetensors").write_bytes(data)


DAMAGED = r"safetensors|cannot fetch|no ranges"


@pytest.mark.parametrize(
    ("change", "name", "revision", "told"),
    [
        (id, "me/other", None, "'me/other' is neither a local path nor a repository on the hub"),
        (id, "me/model", "step9", "me/model on the hub has no revision 'step9'"),
        (pickled, "me/model", None, r"neither model\.safetensors nor"),
        (without_ranges, "me/model", None, r"no ranges of model\.safetensors of me"),
        (damaged(b"\xff" * 64), "me/model", None, DAMAGED),
        (damaged((9).to_bytes(8, "little") + b"not json!" + b"\0" * 9), "me/model", None, DAMAGED),
        (damaged(b""), "me/model", None, DAMAGED),
    ],
)
def test_what_cannot_be_read_is_one_line(
    hub: Hub, change: Callable[[Hub], object], name: str, revision: str | None, told: str
) -> None:
    change(hub)
    with pytest.raises(CheckpointError, match=told):
        head_weights(name, revision=revision)


def test_an_answer_cut_short_is_refused(hub: Hub) -> None:
    layer = head_weights("me/model").layer(0)
    hub.cut = 5
    with pytest.raises(CheckpointError, match=r"of \d+ bytes|cannot fetch"):
        _ = layer.W_O


def test_the_command_draws_a_training_on_the_hub_and_tells_its_cost(
    hub: Hub, tmp_path: Path
) -> None:
    hub.folders["me/model", "step1"] = write_checkpoint(tmp_path / "step1", 1)
    asked = ["weights", "me/model", "--revisions", "step1,main", "--metrics", "trace_share"]
    done = CliRunner().invoke(app, [*asked, "--json", "--out", str(tmp_path / "page")])
    found = json.loads(done.stdout)
    assert found["fetched_bytes"] == hub.bytes_sent(".safetensors")
    assert 2 * ATTENTION < found["fetched_bytes"] < 2 * ATTENTION + 2 * 4000
    assert any(note.startswith("the hub sent 0.1 MB of 0.") for note in found["notes"])
    assert (tmp_path / "page" / "report.html").is_file()
