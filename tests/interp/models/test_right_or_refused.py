"""Other people's models, files and rows are right, or refused with the true reason.

Each kind of mistake has a property over many cases of it, so that its next case is caught too.
"""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

import prooflens as pl
from analyses.benchmarks.gguf_writer import decoder, write_gguf
from interp.errors import ArgumentError, CheckpointError, StoreError
from interp.models.pretrained import load_pretrained

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
RESID = "blocks.0.hook_resid_post"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    decoder().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    return pl.load(llama)


def copy_of(folder: Path, target: Path, **changes: Any) -> Path:
    """The checkpoint with other entries in config.json."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


@pytest.mark.parametrize("family", ["Qwen2", "Llama", "Gemma", "Mistral", "GPT2"])
@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification"])
def test_a_model_with_another_head_is_refused_by_its_class(
    family: str, head: str, tmp_path: Path
) -> None:
    sizes = SMALL if family == "GPT2" else SMALL | GROUPED
    if family == "GPT2":
        sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**sizes, num_labels=1)
    name = f"{family}For{head}"
    getattr(transformers, name)(config).save_pretrained(tmp_path / "m")
    with pytest.raises(CheckpointError, match=f"is a {name}: it has no trained map"):
        load_pretrained(tmp_path / "m")


@pytest.mark.parametrize(
    "tensor",
    [
        "self_attn.q_proj.bias",
        "self_attn.o_proj.bias",
        "mlp.up_proj.bias",
        "self_attn.q_norm.weight",
    ],
)
def test_a_tensor_that_the_configuration_has_no_place_for_is_refused(
    llama: Path, tensor: str, tmp_path: Path
) -> None:
    folder = copy_of(llama, tmp_path / "m")
    file = folder / "model.safetensors"
    added = {f"model.layers.1.{tensor}": torch.ones(64)}
    save_file(load_file(file) | added, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"holds 1 tensors that .* first '.*{tensor}'"):
        load_pretrained(folder)


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_a_quantised_format_is_refused_by_name(llama: Path, method: str, tmp_path: Path) -> None:
    folder = copy_of(llama, tmp_path / "m", quantization_config={"quant_method": method})
    with pytest.raises(CheckpointError, match=f"is quantised by {method}: dequantise it first"):
        load_pretrained(folder)


@pytest.mark.parametrize("named", [None, "<s>"])
def test_rows_begin_as_the_tokenizer_says_and_not_the_configuration(
    llama: Path, named: str | None, tmp_path: Path
) -> None:
    folder = copy_of(llama, tmp_path / "m")
    words = ["<unk>", "</s>", "<s>", *(f"w{i}" for i in range(61))]
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))  # noqa: S106
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        unk_token="<unk>",  # noqa: S106  words, no secrets
        eos_token="</s>",  # noqa: S106
        bos_token=named,
    ).save_pretrained(folder)
    assert load_pretrained(folder).bos == (-1 if named is None else 2)  # config.json says 1


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_a_wrapping_that_computes_something_else_is_refused(epsilon: float, tmp_path: Path) -> None:
    """TransformerLens 4.3 takes the norms' epsilon of StarCoder 2 to be 1e-5."""
    model = decoder("starcoder2", norm_epsilon=epsilon)
    model.save_pretrained(tmp_path / "m")
    if epsilon == 1e-5:
        tokens = torch.arange(12)[None] * 5 % 61
        torch.testing.assert_close(
            pl.load(tmp_path / "m")(tokens), model(tokens).logits, atol=1e-4, rtol=0
        )
        return
    with pytest.raises(CheckpointError, match=r"its logits would be off by 0\.\d+ of the largest"):
        pl.load(tmp_path / "m")


@pytest.fixture
def shut_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever starts a process or opens a connection fails."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"started or opened {arguments}")

    import h5py  # noqa: F401  asks for the processor's name when it is first imported

    for name in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("shut_in")
def test_loading_starts_no_process_and_opens_no_connection(llama: Path, tmp_path: Path) -> None:
    """Not even with a vision tower, for which TransformerLens 4.3 fetches torchvision."""
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
              "num_attention_heads": 4, "image_size": 28, "patch_size": 14}  # fmt: skip
    text = transformers.Gemma3TextConfig(**SMALL, **GROUPED, head_dim=8)
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=39,
        boi_token_index=38, eoi_token_index=37,
    )  # fmt: skip
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "gemma")
    assert pl.load(llama).cfg.n_layers == 2
    assert pl.load(tmp_path / "gemma").cfg.n_layers == 2
    assert len(pl.weight_table(str(tmp_path / "gemma"), ["trace_share"])) == 16  # 2 × 4 × QK, OV


@pytest.mark.usefixtures("shut_in")
def test_a_gguf_file_is_loaded_so_too_and_nothing_is_written_but_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf", reason="GGUF files need the extra: pip install 'prooflens[gguf]'")
    write_gguf(decoder(), tmp_path / "m" / "m.gguf", packed="Q8_0")
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PROOFLENS_CACHE", str(tmp_path / "cache"))
    assert pl.load(tmp_path / "m").cfg.n_layers == 2
    assert len(pl.weight_table(str(tmp_path / "m" / "m.gguf"), ["trace_share"])) == 16
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert found == {"m/m.gguf", "cache/gguf"}


def pad_rows(rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded with zeros to one length, and their attention mask."""
    length = max(map(len, rows))
    ids, mask = torch.zeros(2, len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        at = slice(length - len(row), None) if side == "left" else slice(len(row))
        ids[i, at], mask[i, at] = torch.tensor(row), 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("form", ["mapping", "list of mappings", "tokenizer's", "data set"])
def test_padded_rows_are_the_rows_alone(model: Any, side: str, form: str, tmp_path: Path) -> None:
    rows = [[5, 9, 11, 3, 7, 20], [8, 8, 30], [17, 4, 6, 21]]
    ids, mask = pad_rows(rows, side)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    source: Any = given
    if form == "list of mappings":
        source = [given]
    elif form == "tokenizer's":
        source = transformers.BatchEncoding(given)
    elif form == "data set":
        datasets = pytest.importorskip("datasets")
        source = datasets.Dataset.from_dict({k: v.tolist() for k, v in given.items()})
    store = pl.extract(model, source, [RESID], tmp_path / "s")
    for i, row in enumerate(rows):
        alone = model.run_with_cache(torch.tensor([row]))[1][RESID][0]
        (found,) = [b for b in store.batches(1) if b.rows.tolist() == [i]]
        np.testing.assert_allclose(found.activation(RESID)[0], alone.detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_mask": torch.tensor([[1, 0, 1, 1]])}, "must be one stretch of ones"),
        ({"attention_mask": torch.tensor([[0, 0, 0, 0]])}, "must be one stretch of ones"),
        ({"attention_mask": torch.ones(1, 3)}, r"of shape \(1, 4\) as the ids"),
        ({"attention_mask": torch.full((1, 4), 0.5)}, "must be 0 and 1"),
        ({"position_ids": torch.arange(4)[None]}, "position_ids, which is not understood"),
        ({"labels": torch.arange(4)[None]}, "labels, which is not understood"),
    ],
)
def test_a_column_that_is_not_understood_is_refused(
    model: Any, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source = {"input_ids": torch.tensor([[3, 4, 5, 6]]), **changes}
    with pytest.raises(ArgumentError, match=words):
        pl.extract(model, source, [RESID], tmp_path / "s")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.full((4, 80), 3), "must have at most 64 positions, as the model, got 80"),
        (torch.full((4, 12), 64), "must be (ids from )?0 to 63"),
        (torch.full((4, 12), -1), "must be (ids from )?0 to 63"),
    ],
)
def test_rows_beyond_the_model_are_refused_at_every_door(
    model: Any, rows: torch.Tensor, words: str, tmp_path: Path
) -> None:
    doors = (
        lambda: pl.ablate(model, pl.next_tokens(rows)),
        lambda: pl.attention.attention_table(model, rows),
        lambda: pl.extract(model, rows, [RESID], tmp_path / "s"),
        lambda: pl.interventions.residual_decomposition(model, rows),
    )
    for door in doors:
        with pytest.raises(ArgumentError, match=words):
            door()


def test_what_is_obviously_meant_is_taken(model: Any) -> None:
    """Ids are rows of next tokens, a name is a component, a name is a profile."""
    ids = torch.randint(3, 40, (16, 12), generator=torch.Generator().manual_seed(0))
    batch = pl.next_tokens(ids)
    heads = [pl.interventions.Component("head", 1, 0), pl.interventions.Component("ffn", 0)]
    expected = pl.ablate(model, batch, heads)
    for rows in (ids, ids.tolist(), {"input_ids": ids}):
        pd.testing.assert_frame_equal(pl.ablate(model, rows, ["L1H0", "L0 FFN"]), expected)
    roles = pl.find_roles(model, batch, profile=pl.roles.LANGUAGE)
    pd.testing.assert_frame_equal(pl.find_roles(model, ids), roles)
    pd.testing.assert_frame_equal(pl.find_roles(model, batch, profile="language"), roles)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x: pl.find_roles(m, x.float()), "token ids"),
        (lambda m, x: pl.ablate(m, x, ["H0"]), "must be components, or names such as L2H0"),
        (lambda m, x: pl.ablate(m, x, ["L9H0"]), "must be in the model, got"),
        (lambda m, x: pl.find_roles(m, x, profile="nats"), "must be one of task, language"),
    ],
)
def test_what_is_not_understood_is_one_line(model: Any, call: Any, words: str) -> None:
    ids = torch.randint(3, 40, (16, 12), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ArgumentError, match=words) as caught:
        call(model, ids)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_no_store_of_numbers_that_are_not_finite_is_sealed(
    model: Any, bad: float, tmp_path: Path
) -> None:
    def spoil(value: torch.Tensor, hook: Any) -> torch.Tensor:
        return torch.full_like(value, bad)

    rows = torch.full((4, 12), 3)
    with (
        model.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", spoil)]),
        pytest.raises(StoreError, match=r"blocks\.0\.hook_resid_post is infinite or not a number"),
    ):
        pl.extract(model, rows, ["*hook_resid_post"], tmp_path / "s")
    assert not list((tmp_path / "s").glob("part-*"))
