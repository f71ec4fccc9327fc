"""Tokens as text, to be written beside a number about a position.

A token's text comes from the words of the user's own rows, else from the model's tokenizer, else it
is the id itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.transformer_lens_adapter import vocabulary_of
from interp.models.card import ModelCard

_DIGITS = 3


def card_of(model: Any) -> ModelCard:
    """Return a model's card, or one made from its configuration if it has none."""
    card = getattr(model, "card", None)
    if isinstance(card, ModelCard):
        return card
    named = type(getattr(model, "module", model)).__name__
    size, cfg = vocabulary_of(model), getattr(model, "cfg", None)
    n_ctx = int(getattr(cfg, "n_ctx", 0) or 0)
    formats = {
        str(one.dtype).removeprefix("torch.") for one in getattr(model, "parameters", list)()
    }
    told = "; ".join(
        filter(None, (named, " and ".join(sorted(formats)), "a module as it was given"))
    )
    return ModelCard(named, vocabulary=size or 0, n_ctx=n_ctx, analysed=told)


def token_word(token: int, tokenizer: Any = None, words: Sequence[str] | None = None) -> str:
    """Return a token id as text: its entry in ``words``, else what the tokenizer decodes, else the
    number.

    A null character is shown as ␀.
    """
    if words is not None and token < len(words):
        text = words[token]
    else:
        text = str(token) if tokenizer is None else str(tokenizer.decode([token]))
    return text.replace("\0", "␀")  # no text of a table may hold it


def token_texts(
    inputs: Tensor, tokenizer: Any = None, words: Sequence[str] | None = None
) -> tuple[tuple[str, ...], ...]:
    """Return each position of each row as text: the token, or the first numbers of real values.

    Args:
        inputs: Token ids ``[row, pos]``, or real values ``[row, pos, channel]``.
        tokenizer: The model's tokenizer; None if it has none.
        words: The text of each id, if the user's rows give it.
    """
    if inputs.ndim == 2 and not inputs.is_floating_point():
        known = {int(i): token_word(int(i), tokenizer, words) for i in inputs.unique()}
        return tuple(tuple(known[i] for i in row) for row in inputs.tolist())
    flat = inputs.reshape(*inputs.shape[:2], -1)
    return tuple(tuple(_numbers(place) for place in row) for row in flat.tolist())


def _numbers(values: Sequence[float]) -> str:
    more = "…" if len(values) > _DIGITS else ""
    return ",".join(f"{value:.3g}" for value in values[:_DIGITS]) + more


def prompt_rows(card: ModelCard, prompts: Iterable[str]) -> Iterator[Tensor]:
    """Yield each prompt as token ids ``[1, pos]``, from the model's tokenizer.

    Without a tokenizer the prompt must be the ids themselves; the model's BOS is put in front if it
    has one.

    Args:
        card: The card of the model that reads them.
        prompts: Texts; for a model without a tokenizer, token ids separated by spaces or commas.

    Raises:
        ArgumentError: for a prompt that the model cannot read.
    """
    for prompt in prompts:
        yield torch.tensor([_ids(card, prompt)])


def _ids(card: ModelCard, prompt: str) -> list[int]:
    problems = Problems("inspect")
    if card.tokenizer is not None:
        ids = list(card.tokenizer(prompt)["input_ids"])
    else:
        words = prompt.replace(",", " ").split()
        whole = bool(words) and all(word.isdigit() for word in words)
        rule = "must be token ids with spaces between, as the model has no tokenizer"
        problems.need(whole, "prompt", rule, prompt, "write 3 1 4")
        problems.raise_if_any()
        ids = [int(word) for word in words]
        if card.bos >= 0 and ids[:1] != [card.bos]:
            ids = [card.bos, *ids]
    most = card.n_ctx or len(ids)
    known = max(ids, default=0) < (card.vocabulary or len(ids) + max(ids, default=0))
    rule = f"must be 2 to {most} tokens below {card.vocabulary}"
    problems.need(2 <= len(ids) <= most and known, "prompt", rule, prompt, "change it")
    problems.raise_if_any()
    return ids
