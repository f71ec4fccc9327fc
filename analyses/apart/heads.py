"""Heads of a language model by transformers and PyTorch alone: where they look, what they are
needed for.

Nothing of prooflens is used, so that nothing of it can be wrong on both sides. The rows are a first
token, then a block of random tokens over and over, with a period of each row's own.

    previous    share of attention on the token before, over all queries but the first
    followed    share on what followed earlier equal tokens, over queries whose token came before
    loss        rise of the loss, in nats, over queries whose token came before, when what heads
                write is replaced by its mean over rows at each position: a row of the table a
                number, of which mean and t-interval are told

A head's write is its slice of what the output projection reads. Layers before the changed one are
not run again: their streams are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from scipy.stats import t
from torch import Tensor, nn

Heads = Sequence[tuple[int, int]]
"""Layer and head of some."""

_SPARED = 512
"""Number of token ids at each end of the vocabulary that are never drawn, because they are often
not words."""

_SCORED = 128
"""Number of positions whose logits are computed at once. It bounds memory."""


def repeated_rows(
    vocabulary: int, first: int, *, rows: int = 16, length: int = 48, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return rows of random tokens that repeat, ``[row, pos]``, and a mask of the queries whose
    next token follows from an earlier equal token, of the same shape."""
    generator = torch.Generator().manual_seed(seed)
    periods = torch.randint(length // 4, length // 2, (rows, 1), generator=generator)
    drawn = torch.rand(rows, vocabulary - 2 * _SPARED, generator=generator)
    blocks = drawn.topk(length, dim=1).indices + _SPARED
    place = torch.arange(length)[None]
    tokens = blocks.gather(1, (place - 1).clamp_min(0) % periods)
    tokens[:, 0] = first
    scored = place > periods
    scored[:, -1] = False
    return tokens, scored


class HeadsApart:
    """A causal language model of transformers, with its clean run on some rows.

    Args:
        model: The model in float32, with ``attn_implementation="eager"``.
        tokens: ``[row, pos]``.
        scored: The queries at which the loss is taken, ``[row, pos]``.
    """

    def __init__(self, model: Any, tokens: Tensor, scored: Tensor) -> None:
        self._model, self._tokens, self._scored = model.eval(), tokens, scored
        self._layers = list(model.model.layers)
        self._heads = model.config.num_attention_heads
        self._streams: list[Tensor] = []  # what each layer reads
        self._writes: list[Tensor] = []  # mean over rows of what the output projection reads
        self._patterns: list[Tensor] = []
        self._clean = self._first_run()

    @torch.no_grad()
    def _first_run(self) -> Tensor:
        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._writes.append(inputs[0].mean(0))

        hooks = [x.self_attn.o_proj.register_forward_pre_hook(keep) for x in self._layers]
        run = self._model.model(
            self._tokens, output_hidden_states=True, output_attentions=True, use_cache=False
        )
        for hook in hooks:
            hook.remove()
        self._streams = list(run.hidden_states[: len(self._layers)])
        self._patterns = list(run.attentions)
        return self._losses(run.last_hidden_state)

    def _losses(self, stream: Tensor) -> Tensor:
        """The mean loss of each row over its scored queries, in nats."""
        scored = self._scored[: len(stream)]
        where = scored.nonzero()
        losses = torch.cat([
            nn.functional.cross_entropy(
                self._logits(stream[some[:, 0], some[:, 1]]),
                self._tokens[some[:, 0], some[:, 1] + 1],
                reduction="none",
            )
            for start in range(0, len(where), _SCORED)
            for some in (where[start : start + _SCORED],)
        ])  # fmt: skip
        by_row = torch.zeros(len(stream)).index_add_(0, where[:, 0], losses)
        return by_row / scored.sum(1)

    def _logits(self, stream: Tensor) -> Tensor:
        logits: Tensor = self._model.lm_head(stream).float()
        cap = getattr(self._model.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @property
    def clean(self) -> float:
        """The mean loss of the unchanged model, in nats."""
        return float(self._clean.mean())

    def attention(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield for each head its layer, its number, and its shares of attention on the token
        before and on the tokens after earlier equal ones."""
        length = self._tokens.shape[1]
        same = (self._tokens[:, :, None] == self._tokens[:, None, :]).tril(-1)
        followed = nn.functional.pad(same, (1, 0))[:, :, :-1]  # [row, query, key]
        queries = followed.any(-1)
        later = torch.arange(1, length)
        for layer, pattern in enumerate(self._patterns):
            previous = pattern[:, :, later, later - 1].mean((0, 2))
            mass = (pattern * followed[:, None]).sum(-1)  # [row, head, query]
            after = (mass * queries[:, None]).sum((0, 2)) / queries.sum()
            for head, both in enumerate(zip(previous.tolist(), after.tolist(), strict=True)):
                yield layer, head, *both

    @torch.no_grad()
    def rises(self, heads: Heads, rows: int | None = None) -> Tensor:
        """Return by how many nats the loss of each row rises without some heads, for the first
        ``rows`` rows.

        What the heads write is replaced by its mean over all rows.
        """
        first = min(layer for layer, _ in heads)
        with self._without(heads), self._from(first):
            stream = self._streams[first][:rows]
            run = self._model.model(inputs_embeds=stream, use_cache=False)
        return self._losses(run.last_hidden_state) - self._clean[:rows]

    @contextmanager
    def _without(self, heads: Heads) -> Iterator[None]:
        hooks = []
        for layer in {layer for layer, _ in heads}:
            some, mean = [head for at, head in heads if at == layer], self._writes[layer]

            def change(
                _: nn.Module,
                inputs: tuple[Tensor, ...],
                some: Sequence[int] = some,
                mean: Tensor = mean,
            ) -> tuple[Tensor]:
                parts = inputs[0].reshape(*inputs[0].shape[:-1], self._heads, -1).clone()
                parts[:, :, list(some)] = mean.reshape(len(mean), self._heads, -1)[:, list(some)]
                return (parts.flatten(-2),)

            module = self._layers[layer].self_attn.o_proj
            hooks.append(module.register_forward_pre_hook(change))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def _from(self, layer: int) -> Iterator[None]:
        """Skip all layers before this one while the block runs: they pass on their input
        unchanged."""
        inner = self._model.model
        inner.layers = nn.ModuleList([_Skipped() for _ in range(layer)] + self._layers[layer:])
        try:
            yield
        finally:
            inner.layers = nn.ModuleList(self._layers)


class _Skipped(nn.Module):
    def forward(self, stream: Tensor, **_: Any) -> Tensor:
        return stream


def random_sets(heads: Heads, of_layer: int, *, draws: int = 10, seed: int = 0) -> list[Heads]:
    """Draw sets of other heads, as many of each layer as in ``heads``; fewer of a layer that has
    not enough others."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Heads] = []
    for _ in range(draws):
        some: list[tuple[int, int]] = []
        for layer in sorted({layer for layer, _ in heads}):
            others = [head for head in range(of_layer) if (layer, head) not in heads]
            order = torch.randperm(len(others), generator=generator).tolist()
            some += [(layer, others[i]) for i in order[: of_layer - len(others)]]
        found.append(some)
    return found


def summary(rises: Tensor) -> Mapping[str, float]:
    """Return the mean over rows with its 95 % t-interval."""
    error = float(rises.std() / len(rises) ** 0.5)
    mean, wide = float(rises.mean()), float(t.ppf(0.975, len(rises) - 1)) * error
    return {"loss": mean, "low": mean - wide, "high": mean + wide}
