"""Which rows a page of heads shows, and on which rows the heads' roles are decided.

    a task's model     rows of its task; roles on the same kind of rows (profile ``task``)
    a language model   rows of its own task where it has one, random tokens that repeat, the same in
                       another order, pieces of a text; roles on random tokens (profile
                       ``language``), as ``prooflens inspect`` decides them

A model whose targets are the inputs, one position on, is a language model here, whatever it is
called. Prompts are shown and take no part in any decision: a reader chose them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.errors import ArgumentError, Problems
from interp.hooks.transformer_lens_adapter import vocabulary_of
from interp.interventions.ablation_effects import next_tokens
from interp.models.card import ModelCard
from interp.models.pretrained import Pretrained
from interp.tasks.base import Batch, Memory, answers_of, memories_of
from probes.given_rows import read_rows
from probes.own_rows import kind_of
from probes.roles.profile import LANGUAGE, TASK, Profile
from probes.roles.trials import rows_of, text_trial, token_trials

__all__ = [
    "Chosen",
    "Sequences",
    "card_of",
    "choose_rows",
    "given_rows",
    "prompt_rows",
    "token_texts",
    "token_word",
]

_MEASURED = 256
"""Rows of a task that roles are decided on, as ``prooflens heads`` does."""
_TRIED = 32
"""Rows of random tokens that roles are decided on, as ``prooflens inspect`` does."""
_DIGITS = 3
_LEARNED = "rows of the task that the model learned"


@dataclass(frozen=True)
class Sequences:
    """Rows of one kind and one length.

    Attributes:
        kind: ``task``, ``repeated``, ``shuffled``, ``text``, ``data``, ``store`` or ``prompt``.
        about: What they are, in words.
        batch: The rows.
        texts: Each row's tokens as text.
        aimed: Whether the targets are known, so that a loss means something.
    """

    kind: str
    about: str
    batch: Batch
    texts: tuple[tuple[str, ...], ...]
    aimed: bool = True


@dataclass(frozen=True)
class Chosen:
    """What is shown, and what is measured.

    Attributes:
        profile: Of the roles.
        shown: Rows that the page shows.
        measured: What roles are decided on, as :func:`probes.roles.find_roles` takes it; None where
            there is nothing to decide on, with the reason in ``notes``.
        memories, answers: What the task says is fetched and computed.
        notes: What to know of the rows.
    """

    profile: Profile
    shown: tuple[Sequences, ...]
    measured: Batch | Mapping[str, Batch] | None
    memories: Sequence[Memory] = ()
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def choose_rows(
    model: Any,
    *,
    rows: int = 60,
    length: int = 64,
    seed: int = 0,
    text: str | None = None,
    data: Batch | str | Path | None = None,
    prompts: Sequence[str] = (),
) -> Chosen:
    """The rows of a model's page.

    Args:
        model: As :func:`trained.loading.load` gives it, with its card.
        rows: Shown, besides prompts; as many of each kind.
        length: Tokens of a row of random tokens or text, at most.
        seed: Of the draws.
        text: Pieces of it are shown, where the model has a tokenizer.
        data: Rows to show besides: a batch, or a file (:mod:`probes.given_rows`).
        prompts: Rows to show as they are: text where the model has a tokenizer, otherwise token
            ids with spaces between.

    Raises:
        ArgumentError: for fewer rows or tokens than a decision needs, and for prompts or text that
            the model cannot read.
    """
    problems, card = Problems("view"), card_of(model)
    problems.need(rows >= 4, "rows", "must be at least 4", rows, "some are compared with others")
    problems.need(length >= 12, "length", "must be at least 12", length, "two periods must fit")
    task = card.task
    real = card.vocabulary == 0
    problems.need(not (real and prompts), "prompts", "need tokens", card.name, "leave them out")
    problems.need(not (real and text), "text", "needs a model of tokens", card.name, "leave it out")
    problems.need(
        task is not None or not real, "model", "needs a task or tokens", card.name, "name another"
    )
    problems.raise_if_any()
    asked = list(prompt_rows(card, prompts))
    given = [] if data is None else list(given_rows(card, data, rows))
    own = None if task is None else task.sample(_MEASURED, seed=seed)
    if own is not None and not _continues(own):
        shown = _shown(card, "task", _LEARNED, own[:rows])
        known = memories_of(task), answers_of(task), _unread(card, text)
        return Chosen(TASK, (*given, shown, *asked), own, *known)
    found = _language(model, card, own, rows, length, seed, text, asked)
    together = (*given, *found.shown)
    reasons = "; ".join(found.notes) or "nothing fits"
    problems.need(bool(together), "rows", "must be given for it", reasons, "use --prompt or --data")
    problems.raise_if_any()
    return replace(found, shown=together)


def _language(
    model: Any,
    card: ModelCard,
    own: Batch | None,
    rows: int,
    length: int,
    seed: int,
    text: str | None,
    asked: Sequence[Sequences],
) -> Chosen:
    notes = list(_unread(card, text))
    known = Pretrained(
        card.name, model, card.family, card.vocabulary, card.n_ctx, card.bos, card.tokenizer
    )
    found: list[tuple[str, str, Batch]] = []
    measured: dict[str, Batch] | None = None
    if own is not None:
        found.append(("task", _LEARNED, own))
    try:
        trials, left_out = token_trials(known, rows=max(rows, _TRIED), length=length, seed=seed)
    except ArgumentError as error:
        notes.append(f"roles are not looked for: {error}")
    else:
        notes += left_out
        by_kind = rows_of(trials)
        measured = {kind: batch[:_TRIED] for kind, batch in by_kind.items()}
        found.append(("repeated", trials[0].about, by_kind["repeated"]))
        found.append(("shuffled", "the same tokens in random order", by_kind["shuffled"]))
    if text is not None and (trial := text_trial(known, text, rows=rows, length=length)):
        found.append(("text", trial.about, trial.batch))
        if measured is not None:
            measured["text"] = trial.batch
    each = -(-rows // max(1, len(found)))
    shown = [_shown(card, kind, about, batch[:each]) for kind, about, batch in found]
    prompts = [replace(prompt, aimed=True) for prompt in asked]
    return Chosen(LANGUAGE, (*shown, *prompts), measured, notes=tuple(notes))


def card_of(model: Any) -> ModelCard:
    """What is known about a model: its card, or what its configuration says where it has none."""
    card = getattr(model, "card", None)
    if isinstance(card, ModelCard):
        return card
    size, cfg = vocabulary_of(model), getattr(model, "cfg", None)
    return ModelCard(
        type(model).__name__, vocabulary=size or 0, n_ctx=int(getattr(cfg, "n_ctx", 0) or 0)
    )


def given_rows(card: ModelCard, data: Batch | str | Path, rows: int) -> Iterator[Sequences]:
    """Rows that a user gives: a batch, or a file, by length.

    Args:
        card: Of the model that reads them.
        data: A batch, or the path of a file (:mod:`probes.given_rows`).
        rows: How many are shown, the first ones.
    """
    if isinstance(data, Batch):
        yield _shown(card, "data", "rows that were given", data[:rows])
        return
    found = read_rows(data, card)
    worded = kind_of(Path(data), card.tokenizer) == ".json"
    asked = torch.from_numpy(found.asked[:rows])
    tokens = torch.from_numpy(found.tokens[:rows])
    aimed = found.objective == "next token" and found.labels is not None
    told = found.labels[:rows] if aimed and found.labels is not None else found.tokens[:rows]
    targets = torch.from_numpy(told).clamp_min(0)
    lengths = (tokens >= 0).sum(1)
    for n in lengths.unique().tolist():
        own = lengths == n
        batch = Batch(tokens[own, :n], targets[own, :n], asked[own, :n])
        texts = token_texts(batch.inputs, card.tokenizer)
        if worded:
            words = found.vocabulary.texts
            texts = tuple(tuple(words[i] for i in row) for row in batch.inputs.tolist())
        yield Sequences("data", f"rows of {Path(data).name}", batch, texts, aimed)


def _unread(card: ModelCard, text: str | None) -> tuple[str, ...]:
    unread = text is not None and card.tokenizer is None
    return ("text was given and not used: the model has no tokenizer",) if unread else ()


def _continues(batch: Batch) -> bool:
    """Whether the targets are the inputs, one position on."""
    if batch.inputs.ndim != 2 or batch.targets.shape != batch.inputs.shape:
        return False
    scored = batch.mask[:, :-1]
    same = batch.targets[:, :-1] == batch.inputs[:, 1:]
    return bool(scored.any()) and bool(same[scored].all())


def _shown(card: ModelCard, kind: str, about: str, batch: Batch) -> Sequences:
    return Sequences(kind, about, batch, token_texts(batch.inputs, card.tokenizer))


def token_texts(inputs: Tensor, tokenizer: Any = None) -> tuple[tuple[str, ...], ...]:
    """Each position of each row as text: the token, its id without a tokenizer, or the number."""
    if inputs.ndim == 2 and not inputs.is_floating_point():
        known = {int(i): token_word(int(i), tokenizer) for i in inputs.unique()}
        return tuple(tuple(known[i] for i in row) for row in inputs.tolist())
    flat = inputs.reshape(*inputs.shape[:2], -1)
    return tuple(tuple(_numbers(place) for place in row) for row in flat.tolist())


def token_word(token: int, tokenizer: Any = None) -> str:
    """A token as text; its id without a tokenizer."""
    return str(token) if tokenizer is None else str(tokenizer.decode([token]))


def _numbers(values: Sequence[float]) -> str:
    more = "…" if len(values) > _DIGITS else ""
    return ",".join(f"{value:.3g}" for value in values[:_DIGITS]) + more


def prompt_rows(card: ModelCard, prompts: Iterable[str]) -> Iterator[Sequences]:
    """Each prompt as a row of its own. The next token counts as its target, for what predicts one
    (``aimed`` is for the caller to say)."""
    for prompt in prompts:
        ids = _ids(card, prompt)
        inputs = torch.tensor([ids])
        texts = token_texts(inputs, card.tokenizer)
        yield Sequences("prompt", "a prompt", next_tokens(inputs), texts, aimed=False)


def _ids(card: ModelCard, prompt: str) -> list[int]:
    problems = Problems("view")
    if card.tokenizer is not None:
        ids = list(card.tokenizer(prompt, add_special_tokens=False)["input_ids"])
    else:
        words = prompt.replace(",", " ").split()
        whole = bool(words) and all(word.isdigit() for word in words)
        rule = "must be token ids with spaces between, as the model has no tokenizer"
        problems.need(whole, "prompts", rule, prompt, "write 3 1 4")
        problems.raise_if_any()
        ids = [int(word) for word in words]
    if card.bos >= 0 and ids[:1] != [card.bos]:
        ids = [card.bos, *ids]
    fits = 2 <= len(ids) <= card.n_ctx and max(ids) < card.vocabulary
    rule = f"must be 2 to {card.n_ctx} tokens below {card.vocabulary}"
    problems.need(fits, "prompts", rule, prompt, "shorten or mend it")
    problems.raise_if_any()
    return ids
