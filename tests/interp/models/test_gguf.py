"""GGUF files are the models that they were written from, or are refused in one line."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prooflens as pl
from interp.errors import CheckpointError, MissingDependencyError
from interp.weights.head_weights import gguf_files

pytest.importorskip("transformers")
gguf = pytest.importorskip(
    "gguf", reason="GGUF files need the extra: pip install 'prooflens[gguf]'"
)

from analyses.benchmarks.gguf_writer import KINDS, decoder, write_gguf  # noqa: E402

IDS = torch.arange(12)[None] * 5 % 61 + 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROOFLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found = model(IDS)
    return getattr(found, "logits", found)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {}) for kind in KINDS), ("llama", {"tie_word_embeddings": True})],
)
def test_a_file_in_float32_is_the_model_it_was_written_from(
    kind: str, changes: Any, tmp_path: Path
) -> None:
    model = decoder(kind, **changes)
    write_gguf(model, tmp_path / "m.gguf", kind)
    torch.testing.assert_close(
        logits(pl.load(tmp_path / "m.gguf")), logits(model), atol=1e-4, rtol=0
    )


def test_every_architecture_that_is_read_was_tried() -> None:
    assert sorted(gguf_files._READ) == sorted(KINDS)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("starcoder2", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
         r"freq_base = 100\.0, and transformers makes it 10000\.0"),
        ("nemotron", {"norm_eps": 1e-3}, "epsilon = 0.001.*, and transformers makes it 1e-05"),
        ("gemma2", {"head_dim": 128, "query_pre_attn_scalar": 144}, "have 128 dimensions, and"),
        ("gemma2", {"final_logit_softcapping": 3.0}, "softcapping = 3.0, and transformers makes"),
        ("gemma2", {"tie_word_embeddings": False}, "some of its tensors are not understood"),
    ],
)  # fmt: skip
def test_what_transformers_would_replace_by_its_default_is_refused(
    kind: str, changes: Any, words: str, tmp_path: Path
) -> None:
    write_gguf(decoder(kind, **changes), tmp_path / "m.gguf", kind)
    with pytest.raises(CheckpointError, match=words):
        pl.load(tmp_path / "m.gguf")


@pytest.mark.parametrize("packed", ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16"])
def test_a_packed_file_is_what_transformers_makes_of_it(packed: str, tmp_path: Path) -> None:
    import transformers

    write_gguf(decoder(), tmp_path / "m.gguf", packed=packed)
    model = pl.load(tmp_path / "m.gguf")
    own = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32
    )
    torch.testing.assert_close(logits(model), logits(own), atol=1e-4, rtol=0)
    assert (logits(model) - logits(decoder())).abs().max() > 1e-3  # packing loses something
    words = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert model.card.tokenizer("a b c d")["input_ids"] == words("a b c d")["input_ids"]


def test_every_door_takes_a_file_and_a_folder_and_says_what_it_was_packed_in(
    tmp_path: Path,
) -> None:
    write_gguf(decoder(), tmp_path / "m" / "m.gguf", packed="Q4_1")
    file, folder = tmp_path / "m" / "m.gguf", tmp_path / "m"
    told = r"GGUF Q4_1 \(Q4_1, F32; apache-2\.0\), dequantised; unembedding of its own; RMSNorm$"
    loaded = [pl.load(place) for place in (folder, str(file))]
    for analysed in (one.card.analysed for one in loaded):
        assert analysed.startswith("LlamaForCausalLM; float32 from GGUF")
        assert re.search(told, analysed), analysed
    from_folder, from_file = pl.head_weights(folder), pl.head_weights(file)
    assert re.search(told, from_file.analysed)
    assert from_file.name == str(file)
    model = decoder()
    for factors in (from_file, from_folder, pl.head_weights(loaded[1])):
        own = model.model.layers[1].self_attn.q_proj.weight.detach()
        found = torch.cat([*factors.layer(1).W_Q], dim=-1).T
        assert (found - own).abs().max() < 0.2  # by steps of four bits
        torch.testing.assert_close(factors.layer(1).W_Q, from_file.layer(1).W_Q)


def test_a_file_is_converted_once_and_by_its_bytes(tmp_path: Path, cache: Path) -> None:
    write_gguf(decoder(), tmp_path / "m.gguf")
    pl.head_weights(tmp_path / "m.gguf")
    (kept,) = (cache / "gguf").iterdir()
    assert kept.name.startswith(hashlib.sha256((tmp_path / "m.gguf").read_bytes()).hexdigest())
    before = {file: file.stat().st_mtime_ns for file in kept.iterdir()}
    (tmp_path / "m.gguf").rename(tmp_path / "other.gguf")
    pl.head_weights(tmp_path / "other.gguf")
    assert [*(cache / "gguf").iterdir()] == [kept]
    assert {file: file.stat().st_mtime_ns for file in kept.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stated": "mamba"}, "its architecture 'mamba' is none of llama, mistral"),
        ({"stated": "lfm2"}, "its architecture 'lfm2' is none of llama, mistral"),
        ({"entries": {"rope.scaling.type": "linear"}}, r"says llama\.rope\.scaling\.type = linear"),
        ({"entries": {"logit_scale": 0.5}}, r"says llama\.logit_scale = 0\.5"),
        ({"entries": {"attention.key_length": 8.0}}, r"key_length = 8\.0, and transformers makes"),
        ({"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}, "some of its tensors are not"),
        (
            {"tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            "some of its tensors are not",
        ),
        ({"leave_out": "blk.1.attn_q"}, "lacks 1 tensors of a model, first .*layers.1.self_attn.q"),
    ],
)
def test_what_is_not_understood_is_refused(changes: Any, words: str, tmp_path: Path) -> None:
    write_gguf(decoder(), tmp_path / "m.gguf", **changes)
    for door in (pl.load, pl.head_weights):
        with pytest.raises(CheckpointError, match=words) as caught:
            door(tmp_path / "m.gguf")
        assert "\n" not in str(caught.value)
        assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "header"])
def test_a_damaged_file_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(decoder(), file)
    data = file.read_bytes()
    damaged = {"cut": data[:-400], "empty": b"", "text": b"no model", "header": data[:40]}
    file.write_bytes(damaged[damage])
    with pytest.raises(CheckpointError, match=r"m\.gguf cannot be read as GGUF: ") as caught:
        pl.head_weights(file)
    assert "\n" not in str(caught.value)


def test_two_files_in_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(decoder(), tmp_path / name)
    with pytest.raises(CheckpointError, match=r"several GGUF files: \['a.gguf', 'b.gguf'\]"):
        pl.head_weights(tmp_path)


def test_without_the_package_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(decoder(), tmp_path / "m.gguf")
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'prooflens\[gguf\]'$"):
        pl.head_weights(tmp_path / "m.gguf")


def test_a_file_in_parts_is_the_whole_and_has_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(decoder(), file)
    data = file.read_bytes()
    parts = [tmp_path / "m.part0", tmp_path / "m.part1"]
    parts[0].write_bytes(data[:1000])
    parts[1].write_bytes(data[1000:])
    right = hashlib.sha256(data).hexdigest()
    folder = gguf_files.convert_gguf(parts, "m", sha256=right)
    torch.testing.assert_close(logits(pl.load(folder)), logits(decoder()), atol=1e-4, rtol=0)
    assert not list(folder.glob("*.gguf"))
    assert json.loads((folder / gguf_files.ORIGIN).read_text())["quantisation"] == "F32"
    parts[1].write_bytes(data[1000:] + b"0")
    with pytest.raises(CheckpointError, match=f"m has the SHA-256 .*, not {right}: install it"):
        gguf_files.convert_gguf(parts, "m", sha256=right)
