"""Where heads look when each place of a text is seen through its last tokens alone.

    stream_w(t)     the stream that enters a layer at the last place of (first token, the w tokens
                    up to t), run as a row of its own
    pattern_w       the head's attention, by its own weights, over the streams stream_w(0 … t)

With w = 1 a head's scores are a table over pairs of tokens and the distance between them; with w as
long as the text they are the head's own. In between the overlap with the head's own attention says
how much of the text a layer's queries and keys need. That is no program that a person can read, and
no bound: something else may be made of the same tokens. Not for models that add positions to
tokens, whose short rows would have other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prooflens.errors import Problems
from prooflens.run import Array, Replace, Run, Site

__all__ = ["patterns_of_last_tokens", "spans_of"]

_ROWS = 256
"""Number of short rows in one forward pass. It bounds memory."""


def spans_of(
    tokens: Int[Tensor, "row pos"], window: int
) -> tuple[list[tuple[int, ...]], Int[Tensor, "row pos"]]:
    """Return the distinct short rows that the positions of a text see, and for each position the
    number of its short row.

    Args:
        tokens: The text's rows, which begin with the same token.
        window: The number of tokens that a position sees: itself and those before, besides the
            first token of the row.
    """
    known: dict[tuple[int, ...], int] = {}
    numbers = [
        [
            known.setdefault((row[0], *row[max(1, end - window) : end]), len(known))
            for end in range(1, len(row) + 1)
        ]
        for row in tokens.tolist()
    ]
    return list(known), torch.tensor(numbers)


@torch.no_grad()
def patterns_of_last_tokens(
    run: Run, sites: Sequence[Site], window: int
) -> dict[Site, Float[Tensor, "row query key"]]:
    """Return the attention of heads whose layer receives, at each position, a residual stream
    computed from the last tokens alone.

    Args:
        run: A language model on its texts.
        sites: Patterns of single heads.
        window: The number of tokens that a position sees, besides the first token of the row.

    Raises:
        ArgumentError: for a window below 1, or a model that adds positions to tokens.
    """
    problems = Problems("patterns_of_last_tokens")
    problems.need(window >= 1, "window", "must be at least 1", window, "raise it")
    added = getattr(run.model, "pos_embed", None) is not None
    advice = "take one whose positions are relative"
    problems.need(not added, "model", "must not add positions to tokens", added, advice)
    problems.raise_if_any()
    layers = sorted({site.layer for site in sites})
    stream = _streams(run.model, run.batch.inputs, layers, window)
    found: dict[Site, Tensor] = {}
    for layer in layers:
        seen = Array(stream(layer), f"what the last {window} tokens say")
        here = [site for site in sites if site.layer == layer]
        changed = run.with_(Replace(Site(layer, "resid_pre"), seen))
        found |= {site: value.float().cpu() for site, value in changed.at(here).items()}
        run.forget()
    return found


def _streams(
    model: Any, tokens: Tensor, layers: Sequence[int], window: int
) -> Callable[[int], Float[Tensor, "row pos d_model"]]:
    """Return a function from a layer to the residual stream that enters it, where each position's
    stream comes from its own short row."""
    spans, numbers = spans_of(tokens, window)
    names = {layer: Site(layer, "resid_pre").name for layer in layers}
    found: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
    for size in sorted({len(span) for span in spans}):
        which = [number for number, span in enumerate(spans) if len(span) == size]
        for start in range(0, len(which), _ROWS):
            some = which[start : start + _ROWS]
            rows = torch.tensor([spans[number] for number in some])
            _, cache = model.run_with_cache(rows, names_filter=[*names.values()])
            for layer, name in names.items():
                found[layer] |= dict(zip(some, cache[name][:, -1].float().cpu(), strict=True))
    return lambda layer: torch.stack([found[layer][n] for n in range(len(spans))])[numbers]
