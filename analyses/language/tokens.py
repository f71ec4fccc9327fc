"""A byte-level BPE vocabulary trained on the same text as the model, in Hugging Face's layout.

Every byte is a token of its own, so that any text can be written; merges make frequent pieces of
the training text one token each. The first token, ``<|endoftext|>``, begins every row and stands
between two files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["BEGIN", "encode", "train_tokenizer", "write_tokenizer"]

BEGIN = 0
"""Id of the token that begins every row."""

_BEGIN = "<|endoftext|>"


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer with GPT-2's splitting and a vocabulary of ``vocabulary``
    tokens; return it as a ``tokenizers.Tokenizer``.

    The same texts in the same order give the same vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_BEGIN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Return all texts as one row of token ids ``[token]``; each text begins with :data:`BEGIN`."""
    rows = [[BEGIN, *coded.ids] for coded in tokenizer.encode_batch(list(texts))]
    return torch.tensor([token for row in rows for token in row], dtype=torch.int32)


def write_tokenizer(tokenizer: Any, folder: Path, context: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (rows of ``context`` tokens)."""
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"bos_token": _BEGIN, "eos_token": _BEGIN, "unk_token": _BEGIN}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **words}
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
