"""Opening checkpoints: where tensors lie, what is refused and how, and our own models."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from same_head_weights import shard

from interp.errors import ArgumentError, CheckpointError
from interp.models.pretrained import load_pretrained
from interp.weights.head_weights import Rope, head_weights
from interp.weights.head_weights.layouts import check_own_keys

CONFIG = {"model_type": "gpt2", "n_embd": 6, "n_layer": 2, "n_head": 2}


def gpt2_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "attn.c_attn.weight": (6, 18), "attn.c_attn.bias": (18,), "attn.c_proj.weight": (6, 6),
        "attn.c_proj.bias": (6,), "ln_1.weight": (6,), "ln_1.bias": (6,),
    }  # fmt: skip
    tensors = {
        f"h.{layer}.{name}": torch.randn(shape, generator=generator)
        for layer in range(2)
        for name, shape in shapes.items()
    }
    return tensors | {"wte.weight": torch.randn(9, 6, generator=generator)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(gpt2_tensors(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_file_folder_and_shards_hold_the_same(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    by_folder = head_weights(folder).layer(1)
    by_file = head_weights(folder / "model.safetensors").layer(1)
    whole = tensors["h.1.attn.c_attn.weight"]
    torch.testing.assert_close(by_folder.W_K[1], whole[:, 9:12])
    torch.testing.assert_close(by_file.W_V[0], whole[:, 12:15])
    torch.testing.assert_close(by_folder.W_O[1], tensors["h.1.attn.c_proj.weight"][3:])
    shard(folder)
    for place in (folder, folder / "model.safetensors.index.json"):
        torch.testing.assert_close(head_weights(place).layer(1).W_Q, by_q(whole))


def by_q(whole: torch.Tensor) -> torch.Tensor:
    return torch.stack([whole[:, :3], whole[:, 3:6]])


def test_opening_reads_no_tensor_and_imports_no_model(folder: Path) -> None:
    code = (
        "import sys; from interp.weights.head_weights import head_weights; "
        f"head_weights({str(folder)!r}); "
        "sys.exit('transformer_lens' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_fold_norm_puts_the_gain_into_the_circuits(folder: Path) -> None:
    layer = head_weights(folder).layer(0)
    gain = torch.diag(layer.read("norm_gain"))
    for name, wanted in (
        ("QK", gain @ layer.W_Q[1] @ layer.W_K[1].T @ gain),
        ("OV", gain @ layer.W_V[1] @ layer.W_O[1]),
    ):
        torch.testing.assert_close(layer.circuit(name, fold_norm=True).dense(1), wanted)
    bias = layer.read("b_Q")[1] + layer.read("norm_bias") @ layer.W_Q[1]
    torch.testing.assert_close(layer.circuit("QK", fold_norm=True).inner_bias(1), bias)


def test_token_basis_is_the_embedded_circuit(folder: Path) -> None:
    layer = head_weights(folder).layer(0)
    embedding = load_file(folder / "model.safetensors")["wte.weight"]
    qk = layer.circuit("QK", basis="token").dense(0)
    torch.testing.assert_close(qk, embedding @ layer.W_Q[0] @ layer.W_K[0].T @ embedding.T)
    ov = layer.circuit("OV", basis="token").dense(0)
    torch.testing.assert_close(ov, embedding @ layer.W_V[0] @ layer.W_O[0] @ embedding.T)


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def without_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "part-2.safetensors").unlink()


def rewritten(
    tensors: dict[str, torch.Tensor] | None = None, **config: object
) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        save_file(gpt2_tensors() | (tensors or {}), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(CONFIG | config))

    return rewrite


NOVEL = {"model_type": "novel", "auto_map": {"AutoModel": "modeling.Novel"}}
UNREAD = {"h.0.attn.q_norm.weight": torch.ones(3)}
EIGHT_BITS = {"h.0.attn.c_proj.weight": torch.ones(6, 6, dtype=torch.int8)}


def test_an_entry_that_the_family_does_not_read_changes_no_weights_and_opens_no_model(
    folder: Path,
) -> None:
    rewritten()(folder)
    plain = head_weights(folder).layer(0).W_Q
    rewritten(num_key_value_heads=1)(folder)
    assert torch.equal(head_weights(folder).layer(0).W_Q, plain)
    with pytest.raises(CheckpointError, match=r"must be n_head, 2, .*share no keys, got 1:"):
        check_own_keys(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize(
    ("damage", "opens", "words"),
    [
        (truncated, False, r"model\.safetensors is missing, truncated"),
        (without_a_shard, False, r"1 of 2 shards are missing.*part-2"),
        (rewritten(n_head=10**9), False, "1000000000 heads do not fit into a width of 6"),
        (rewritten(**NOVEL), False, r"'novel' is not known.*never runs.*h\.0\.attn.*mapping"),
        (rewritten(n_layer=3), False, r"lacks 4 attention tensors.*h\.2"),
        (rewritten(UNREAD), False, r"h\.0\.attn\.q_norm\.weight.*change the circuits"),
        (rewritten(n_embd=8), True, r"c_attn.*\[6, 18\].*does not fit"),
        (rewritten(EIGHT_BITS), True, "quantised"),
    ],
)
def test_what_does_not_fit_is_refused_when_opened_or_when_read(
    folder: Path, damage: Callable[[Path], None], opens: bool, words: str
) -> None:
    damage(folder)
    layer = head_weights(folder).layer(0) if opens else None
    with pytest.raises(CheckpointError, match=words):
        _ = (layer.W_Q, layer.W_O) if layer is not None else head_weights(folder)


def test_nan_weights_are_named_with_their_number(folder: Path) -> None:
    tensors = gpt2_tensors()
    tensors["h.1.attn.c_proj.weight"][2, :2] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    factors = head_weights(folder)
    assert factors.layer(0).W_O.shape == (2, 3, 6)
    with pytest.raises(CheckpointError, match=r"h\.1\.attn\.c_proj\.weight.*2 values of 36"):
        _ = factors.layer(1).W_O


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    bomb = tmp_path / "pytorch_model.bin"
    bomb.write_bytes(b"cos\nsystem\n(S'touch /tmp/prooflens-was-here'\ntR.")
    for place in (tmp_path, bomb):
        with pytest.raises(CheckpointError, match=r"pickled weights.*never opened"):
            head_weights(place)


def test_masks_among_the_attention_tensors_are_left_alone(folder: Path) -> None:
    rewritten({"h.0.attn.bias": torch.ones(1, 1, 4, 4)})(folder)
    assert head_weights(folder).n_layers == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_converted(folder: Path, dtype: torch.dtype) -> None:
    tensors = {n: t.to(dtype) for n, t in gpt2_tensors().items()}
    save_file(tensors, folder / "model.safetensors")
    found = head_weights(folder).layer(0).W_Q
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0], tensors["h.0.attn.c_attn.weight"][:, :3].float())


def test_local_names_that_are_not_there(tmp_path: Path) -> None:
    for door in (head_weights, load_pretrained):
        with pytest.raises(CheckpointError, match="does not exist"):
            door(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="not in the local hub cache"):
        head_weights("some-one/some-thing", download=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no"):
        head_weights(tmp_path / "empty")


def test_hub_cache_is_read_without_the_network(folder: Path, monkeypatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    commit = "0" * 40
    repo = tmp_path / "hub" / "models--me--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, snapshot / name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert head_weights("me/tiny", download=False).n_layers == 2


def test_unreachable_hub_is_one_clear_error(monkeypatch) -> None:
    import huggingface_hub

    def unreachable():
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "get_session", unreachable)
    for door in (head_weights, load_pretrained):
        with pytest.raises(CheckpointError, match=r"hub cannot be reached \(no route\)"):
            door("some-one/some-thing")


MAPPING = """
n_layers = 2
n_heads = 2
d_model = 6
d_head = 3
attention = "h.{layer}.attn."
b_Q = {name = "h.{layer}.attn.c_attn.bias", pattern = "(p h k) -> p h k", pick = 0}
b_O = {name = "h.{layer}.attn.c_proj.bias", pattern = "d -> d"}
W_O = {name = "h.{layer}.attn.c_proj.weight", pattern = "(h k) d -> h k d"}
[W_Q]
name = "h.{layer}.attn.c_attn.weight"
pattern = "d (p h k) -> p h d k"
pick = 0
[W_K]
name = "h.{layer}.attn.c_attn.weight"
pattern = "d (p g k) -> p g d k"
pick = 1
[W_V]
name = "h.{layer}.attn.c_attn.weight"
pattern = "d (p g k) -> p g d k"
pick = 2
"""


def test_mapping_opens_what_is_not_known(folder: Path) -> None:
    known = head_weights(folder).layer(1)
    (folder / "config.json").unlink()
    (folder / "map.toml").write_text(MAPPING)
    mapped = head_weights(folder, mapping=folder / "map.toml").layer(1)
    for name in ("QK", "OV"):
        torch.testing.assert_close(mapped.circuit(name).dense(1), known.circuit(name).dense(1))


def test_mapping_reports_every_problem_at_once(folder: Path) -> None:
    bad = {"n_layers": 0, "n_heads": 2, "d_model": 6, "d_head": 3, "W_X": {},
           "W_Q": {"name": "q", "pattern": "d h k -> d h k"}}  # fmt: skip
    with pytest.raises(ArgumentError) as caught:
        head_weights(folder, mapping=bad)
    for part in ("n_layers", "W_X must be a known key", "W_K must be given", "'h d k'", "{layer}"):
        assert part in str(caught.value)


def test_rope_turns_as_positions_do() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    for rope in (Rope(6, theta=50.0), Rope(6, theta=50.0, neighbours=True)):
        for i, j in ((5, 2), (9, 9), (7, 0)):
            apart = rope.rotate(q, i) @ rope.rotate(k, j)
            torch.testing.assert_close(rope.rotate(q, i - j) @ k, apart)
    with pytest.raises(CheckpointError, match="yarn"):
        Rope(6, scaling={"rope_type": "yarn"}).rotate(q, 1)


def test_lag_needs_rotary_positions(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="no rotary positions"):
        head_weights(folder).layer(0).circuit("QK", lag=1)


class TestOwnCheckpoints:
    """Against the model itself."""

    @staticmethod
    def save(folder: Path, **options: object):
        from interp.models.checkpoint import save_checkpoint
        from interp.models.spec import TransformerSpec
        from interp.models.transformer import SequenceTransformer

        sizes = {"d_in": 5, "d_out": 5, "n_ctx": 6, "d_model": 4, "n_layers": 2, **options}
        model = SequenceTransformer(TransformerSpec(**sizes), seed=1)
        generator = torch.Generator().manual_seed(2)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        save_checkpoint(model, folder / "own")
        return model, head_weights(folder / "own")

    def test_effective_circuits_hold_the_identity_scalars(self, tmp_path: Path) -> None:
        model, factors = self.save(
            tmp_path, n_heads=2, d_head=3, identity_qk=True, identity_ov=True,
            identity_multiplier=10.0,
        )  # fmt: skip
        layer, attn = factors.layer(1), model.blocks[1].attn
        assert layer.circuits == ("QK", "OV", "QK+aI", "OV+bI")
        eye = torch.eye(4)
        a, b = 10 * attn.terms["identity"].a[1], 10 * attn.b[1]
        qk, ov = attn.W_Q[1] @ attn.W_K[1].T, attn.W_V[1] @ attn.W_O[1]
        torch.testing.assert_close(layer.circuit("QK").dense(1), qk.detach())
        torch.testing.assert_close(
            layer.circuit("QK+aI").dense(1), (qk / 3**0.5 + a * eye).detach()
        )
        torch.testing.assert_close(layer.circuit("OV+bI").dense(1), (ov + b * eye).detach())

    def test_tokens_see_the_scalars_through_the_embedding(self, tmp_path: Path) -> None:
        model, factors = self.save(
            tmp_path, n_heads=2, d_head=3, identity_qk=True, identity_ov=True, norm="layernorm"
        )
        layer, attn, e = factors.layer(1), model.blocks[1].attn, model.W_E
        qk, ov = attn.W_Q[1] @ attn.W_K[1].T / 3**0.5, attn.W_V[1] @ attn.W_O[1]
        a, b = attn.terms["identity"].a[1], attn.b[1]
        gain = model.blocks[1].ln1.w.diag()
        folded = gain @ (qk + a * torch.eye(4)) @ gain
        for options, expected in (
            ({"basis": "token"}, e @ (qk + a * torch.eye(4)) @ e.T),
            ({"fold_norm": True}, folded),
            ({"fold_norm": True, "basis": "token"}, e @ folded @ e.T),
        ):
            found = layer.circuit("QK+aI", **options).dense(1)
            torch.testing.assert_close(found, expected.detach())
        found = layer.circuit("OV+bI", basis="token").dense(1)
        expected = e @ (ov + b * torch.eye(4)) @ model.W_U
        torch.testing.assert_close(found, expected.detach())

    def test_dot_product_free_models_have_no_qk(self, tmp_path: Path) -> None:
        from interp.weights.weight_table import weight_table

        _, factors = self.save(tmp_path, n_heads=2, d_head=3, score="none", lag_bias="lin")
        assert factors.layer(0).circuits == ("OV",)
        assert set(weight_table(factors)["circuit"]) == {"OV"}
        with pytest.raises(ArgumentError, match="'QK'"):
            factors.layer(0).circuit("QK")

    def test_padding_is_trimmed(self, tmp_path: Path) -> None:
        model, factors = self.save(tmp_path, n_heads=(1, 3), d_head=(2, 4))
        assert factors.layer(0).W_Q.shape == (1, 4, 2)
        assert factors.layer(1).W_O.shape == (3, 4, 4)
        torch.testing.assert_close(
            factors.layer(0).W_V[0], model.blocks[0].attn.W_V[0, :, :2].detach()
        )


def test_gpt2_shapes(gpt2_folder: Path) -> None:
    factors = head_weights(gpt2_folder)
    assert (factors.n_layers, factors.n_heads, factors.d_model, factors.d_head) == (12, 12, 768, 64)
    raw = load_file(next(gpt2_folder.glob("*.safetensors")))
    layer = factors.layer(7)
    torch.testing.assert_close(
        layer.W_K[2], raw["h.7.attn.c_attn.weight"][:, 768 + 128 : 768 + 192]
    )
    with pytest.raises(CheckpointError, match="holds no embedding"):
        layer.circuit("QK", basis="token")
