"""LoRA adapters: W + s·B·A by hand, in every layer, at every door; what is not understood is
refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import prooflens as pl
from analyses.benchmarks.gguf_writer import decoder
from interp.errors import ArgumentError, CheckpointError
from prooflens.cli.main import app
from trained.loading import model_of

transformers = pytest.importorskip("transformers")

IDS = torch.arange(12)[None] * 5 % 37 + 3
RANK, ALPHA = 3, 6.0
LLAMA = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
GPT2 = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def build(kind: str) -> Any:
    return decoder(kind, num_key_value_heads=4 if kind == "gpt2" else 2)


def modules_of(kind: str) -> list[str]:
    start, names = ("transformer.h", GPT2) if kind == "gpt2" else ("model.layers", LLAMA)
    return [f"{start}.{layer}.{name}" for layer in range(2) for name in names]


def write_adapter(folder: Path, model: Any, modules: list[str], **changes: Any) -> None:
    """As peft writes it: A and B of every module, whatever way its weight lies."""
    folder.mkdir(exist_ok=True)
    conv = model.config.model_type == "gpt2"
    config = {
        "peft_type": "LORA", "base_model_name_or_path": "someone/a-base", "r": RANK,
        "lora_alpha": ALPHA, "lora_dropout": 0.1, "bias": "none", "task_type": "CAUSAL_LM",
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "fan_in_fan_out": conv, "use_rslora": False, "use_dora": False, "modules_to_save": None,
        "rank_pattern": {}, "alpha_pattern": {}, "init_lora_weights": True, "loftq_config": {},
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name in modules:
        weight = model.get_submodule(name).weight
        inputs, outputs = weight.shape if conv else reversed(weight.shape)
        at = f"base_model.model.{name}.lora_"
        tensors[f"{at}A.weight"] = torch.randn(RANK, inputs, generator=generator)
        tensors[f"{at}B.weight"] = torch.randn(outputs, RANK, generator=generator) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def merge_by_hand(model: Any, folder: Path, scale: float) -> Any:
    tensors = load_file(folder / "adapter_model.safetensors")
    for name in {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in tensors}:
        a, b = (tensors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
        weight = model.get_submodule(name).weight
        for i in range(weight.shape[0]):  # an entry at a time, by the definition
            row = b[i] @ a if model.config.model_type != "gpt2" else b @ a[:, i]
            weight[i] += scale * row
    return model


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found = model(IDS)
    return getattr(found, "logits", found)


@pytest.mark.parametrize("stabilised", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_the_sum_by_hand_run_and_from_weights(
    kind: str, stabilised: bool, tmp_path: Path
) -> None:
    base = build(kind)
    base.save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "a", base, modules_of(kind), use_rslora=stabilised)
    scale = ALPHA / (RANK**0.5 if stabilised else RANK)
    model = pl.load(tmp_path / "m", adapter=tmp_path / "a")
    plain = logits(base)
    own = merge_by_hand(base, tmp_path / "a", scale)
    torch.testing.assert_close(logits(model), logits(own), atol=1e-4, rtol=0)
    assert (logits(own) - plain).abs().max() > 0.1
    own.save_pretrained(tmp_path / "own")
    from_files = pl.head_weights(tmp_path / "m", adapter=tmp_path / "a")
    for factors in (from_files, pl.head_weights(model)):
        for layer, expected in zip(factors, pl.head_weights(tmp_path / "own"), strict=True):
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                torch.testing.assert_close(getattr(layer, name), getattr(expected, name))
    told = rf"LoRA {tmp_path}/a merged \(rank 3, 8 matrices; made for someone/a-base\)$"
    assert re.search(told, model.card.analysed)
    assert re.search(told, from_files.analysed)


def test_files_of_a_body_are_found_without_the_first_part_of_their_names(tmp_path: Path) -> None:
    base = build("gpt2")
    base.save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = {k.removeprefix("transformer."): v for k, v in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    write_adapter(tmp_path / "a", base, modules_of("gpt2"))
    merge_by_hand(base, tmp_path / "a", ALPHA / RANK)
    factors = pl.head_weights(tmp_path / "m", adapter=tmp_path / "a")
    torch.testing.assert_close(factors.layer(1).W_Q, pl.head_weights(base).layer(1).W_Q)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, "has use_dora = True, which is not understood"),
        ({"modules_to_save": ["lm_head"]}, r"has modules_to_save = \['lm_head'\]"),
        ({"bias": "all"}, "has bias = 'all'"),
        ({"rank_pattern": {"q_proj": 8}}, "has rank_pattern = {'q_proj': 8}"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights = 'pissa'"),
        ({"something_new": [3]}, r"has something_new = \[3\], which is not understood"),
        ({"peft_type": "IA3"}, "is a IA3 of rank 3, and no LoRA"),
        ({"r": 4}, "not A and B of rank 4"),
        ({"lora_alpha": None}, "must state lora_alpha"),
        ({"fan_in_fan_out": True}, "has fan_in_fan_out = True, and .* of a llama needs False"),
    ],
)
def test_an_entry_that_is_not_understood_is_refused(
    changes: Any, words: str, tmp_path: Path
) -> None:
    base = build("llama")
    base.save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "a", base, modules_of("llama"), **changes)
    check_refusal(tmp_path, words)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("base_model.model.lm_head.weight", (64, 64), "has the tensor .*lm_head.weight"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", (3, 64), "lora_embedding_A"),
        ("{q}.lora_magnitude_vector", (64,), "lora_magnitude_vector"),
        ("{q}.lora_B.bias", (64,), "has the tensor .*lora_B.bias"),
        ("{x}.lora_A.weight", (3, 64), r"has {'A': \[3, 64\]} for model.layers.0.x_proj, not A"),
        ("{q}.lora_A.weight", (3, 32), r"adds \[64, 32\] to .*q_proj, whose weight is \[64, 64\]"),
    ],
)
def test_a_tensor_without_a_place_is_refused(
    name: str, shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    base = build("llama")
    base.save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "a", base, modules_of("llama"))
    file = tmp_path / "a" / "adapter_model.safetensors"
    start = "base_model.model.model.layers.0."
    full = name.format(q=start + "self_attn.q_proj", x=start + "x_proj")
    save_file(load_file(file) | {full: torch.ones(shape)}, file, metadata={"format": "pt"})
    check_refusal(tmp_path, words)


def test_a_module_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "a", build("gpt2"), modules_of("gpt2"), fan_in_fan_out=False)
    check_refusal(tmp_path, "adapts 'transformer.h.0.attn.c_attn', which the model has not")


def check_refusal(place: Path, words: str) -> None:
    for door in (pl.load, pl.head_weights):
        with pytest.raises(CheckpointError, match=words) as caught:
            door(place / "m", adapter=place / "a")
        assert "\n" not in str(caught.value)


def test_one_matrix_with_the_embedding_is_refused(tmp_path: Path) -> None:
    base = build("gpt2")
    base.save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "a", base, modules_of("gpt2"))
    file = tmp_path / "a" / "adapter_model.safetensors"
    sides = {"A": torch.ones(RANK, 64), "B": torch.ones(64, RANK)}
    added = {f"base_model.model.lm_head.lora_{side}.weight": one for side, one in sides.items()}
    save_file(added, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="'lm_head', which is one matrix with the embedding"):
        pl.load(tmp_path / "m", adapter=tmp_path / "a")
    with pytest.raises(CheckpointError, match="'lm_head', which the model has not"):
        pl.head_weights(tmp_path / "m", adapter=tmp_path / "a")


def test_an_adapter_that_is_not_there_or_not_asked_of_a_file_is_refused(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "m")
    for name in ("nowhere", "m"):
        with pytest.raises(CheckpointError, match=rf"adapter '.*{name}' must be a folder with"):
            pl.load(tmp_path / "m", adapter=tmp_path / name)
    write_adapter(tmp_path / "a", build("llama"), modules_of("llama"))
    with pytest.raises(ArgumentError, match="adapter must be left out for a model in memory"):
        pl.head_weights(build("llama"), adapter=tmp_path / "a")
    with pytest.raises(CheckpointError, match="takes no adapter"):
        pl.load("induction-attention", adapter=tmp_path / "a")


def test_one_that_lies_beside_the_weights_is_named_and_merged_when_asked(tmp_path: Path) -> None:
    base = build("llama")
    base.save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "m", base, modules_of("llama"))
    left = pl.load(tmp_path / "m")
    assert "left out: adapter_model.safetensors" in left.card.analysed
    torch.testing.assert_close(logits(left), logits(base), atol=1e-4, rtol=0)
    model = pl.load(tmp_path / "m", adapter=tmp_path / "m")
    assert "left out" not in model.card.analysed
    merge_by_hand(base, tmp_path / "m", ALPHA / RANK)
    torch.testing.assert_close(logits(model), logits(base), atol=1e-4, rtol=0)


def test_one_that_transformers_loads_by_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does where peft is installed."""
    build("llama").save_pretrained(tmp_path / "m")
    monkeypatch.setattr(transformers.LlamaForCausalLM, "_hf_peft_config_loaded", True)
    with pytest.raises(CheckpointError, match="holds an adapter, which transformers loads"):
        pl.load(tmp_path / "m")


def test_commands_take_it_and_a_store_finds_it_again(tmp_path: Path) -> None:
    base = build("gpt2")
    base.save_pretrained(tmp_path / "m")
    write_adapter(tmp_path / "a", base, modules_of("gpt2"))
    (tmp_path / "rows.jsonl").write_text("".join(f"{[*range(i, i + 12)]}\n" for i in range(3, 27)))
    model, more = str(tmp_path / "m"), ["--adapter", str(tmp_path / "a")]
    rows = ["--data", str(tmp_path / "rows.jsonl")]
    store = str(tmp_path / "s")
    hooks = ["--hooks", "blocks.0.attn.hook_pattern"]
    for words in (
        ["extract", model, *rows, *hooks, "--out", store, *more],
        ["weights", model, "--metrics", "trace_share", "--out", str(tmp_path / "w"), *more],
        ["probe", model, *rows, "--hooks", "hook_embed", "--out", str(tmp_path / "p"), *more],
        ["inspect", model, "--quick", "--rows", "4", "--out", str(tmp_path / "i"), *more],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (words, done.output, done.exception)
    for page in ("w", "i"):
        assert "merged (rank 3, 8 matrices" in (tmp_path / page / "report.html").read_text()
    for place in (store, str(tmp_path / "i" / "store")):
        again, reason = model_of(pl.open_store(place))
        assert again is not None, reason
        assert "merged" in again.card.analysed
