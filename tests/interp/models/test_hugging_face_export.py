"""A pretrained model comes back from its exported folder as it was, bit for bit."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, Phi3Config

from interp.errors import ArgumentError
from interp.models.export import export
from interp.models.pretrained import load_pretrained
from trained.loading import load

SIZES = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16, "intermediate_size": 12,
    "vocab_size": 30, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
TOKENS = torch.tensor([[1, 5, 9, 5, 20, 3]])


@pytest.mark.parametrize("config", [LlamaConfig, GPTNeoXConfig, Phi3Config])
def test_an_exported_model_computes_the_same(config: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config(**SIZES)).save_pretrained(tmp_path / "first")
    model = load_pretrained(tmp_path / "first").model
    with torch.no_grad():
        next(model.original_model.parameters()).add_(0.5)  # weights as they are now
        export(model, tmp_path / "second")
        again = load_pretrained(tmp_path / "second").model
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
        assert torch.equal(again(TOKENS), model(TOKENS))
        torch.testing.assert_close(plain(TOKENS).logits, model(TOKENS))


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    model = load("code-lm")
    export(model, tmp_path / "out")
    again = load(tmp_path / "out")
    text = "def f(x):\n    return x"
    assert again.card.tokenizer(text)["input_ids"] == model.card.tokenizer(text)["input_ids"]


def test_a_model_without_such_a_format_is_refused(tmp_path: Path) -> None:
    model = load("coupling-order-rnn")
    with pytest.raises(ArgumentError, match="model must have a Hugging Face format, got a"):
        export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
