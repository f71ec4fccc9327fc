"""Attention of a model on one text, drawn: ``pl.plot.attention(model, "a text")``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from interp.errors import Problems, refuse_unless
from interp.figures.maps import attention_grid, attention_on_tokens
from interp.hooks.limits import need_hooks
from interp.hooks.site import Site
from interp.run.gate import rows_of
from interp.store.rows import check_finite, layer_hooks, read_batches
from probes.inspection.texts import card_of, prompt_rows, token_texts

_MOST, _LARGE = 64, 12
"""Largest number of tokens of a text, and largest number of heads that are drawn large, with tokens
as labels. More heads are drawn as a grid."""


def attention(
    model: Any, text_or_tokens: str | Sequence[int], *, heads: Sequence[str] | None = None
) -> Figure:
    """Draw where each head attends on one text: a grid of all heads, or up to twelve with tokens as
    labels.

    Args:
        model: A hooked model, such as :func:`trained.loading.load` returns.
        text_or_tokens: A text, for a model with a tokenizer; or token ids, as a list or separated
            by spaces. The model's BOS is put in front of a text, not of a list.
        heads: Names such as ``L1H0``; all heads by default.

    Returns:
        A figure, for a notebook or for ``pl.plot.save``.

    Raises:
        ArgumentError: for text that the model cannot read, more than 64 tokens, heads that the
            model does not have, or attention that is not finite.
    """
    need_hooks(model)
    card = card_of(model)
    if isinstance(text_or_tokens, str):
        (inputs,) = prompt_rows(card, [text_or_tokens])
    else:
        ids = rows_of(text_or_tokens)
        good = ids is not None and ids.ndim == 1 and not ids.is_floating_point()
        rule, advice = "must be a text, or the token ids of one row", "take one row of a batch"
        refuse_unless(good, "text_or_tokens", rule, text_or_tokens, advice)
        inputs = torch.as_tensor(ids)[None]
    texts = token_texts(inputs, card.tokenizer)
    problems = Problems("plot.attention")
    fits = 1 <= inputs.shape[1] <= _MOST
    rule, advice = f"must be 1 to {_MOST} tokens", "cut it, or use prooflens inspect --prompt"
    problems.need(fits, "text_or_tokens", rule, inputs.shape[1], advice)
    problems.raise_if_any()
    (rows,) = read_batches(model, inputs, layer_hooks(model, "attn.hook_pattern"))
    check_finite(rows)
    found = {
        f"L{Site.of(hook).layer}H{head}": pattern.float().numpy()
        for hook, value in rows.activations.items()
        for head, pattern in enumerate(value[0])
    }
    wanted = list(found) if heads is None else list(heads)
    unknown = [name for name in wanted if name not in found]
    known = f"must be of {', '.join(list(found)[:4])} …"
    problems.need(not unknown and bool(wanted), "heads", known, unknown, "name its heads")
    problems.raise_if_any()
    chosen = {name: found[name] for name in wanted}
    if len(chosen) > _LARGE:
        return attention_grid(chosen, texts[0])
    return attention_on_tokens(chosen, texts[0])
