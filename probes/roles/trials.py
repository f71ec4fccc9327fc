"""The kinds of rows on which a pretrained model is run, each with its control.

    repeated   a block of random tokens that repeats, with a period that differs from row to row;
               control: the block in a new order at every repetition
    aba, same  in-context templates on fresh random tokens; control: without the rule
    text       pieces of the user's text, if the model has a tokenizer; control: none
    passages   passages of the user's text or rows, each repeated; control: another passage at
               every repetition
    again      rows given by the user that repeat themselves; control: their tokens in random
               order

Random tokens need no tokenizer and leave a model nothing but its context to predict from. If the
tokens' counts in some text or rows are known, each row's tokens are drawn in proportion to them
(without replacement); otherwise all tokens are equally likely. Sizes follow the model's vocabulary
and context; a kind that does not fit is left out with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interp.errors import ArgumentError, Problems
from interp.models.pretrained import Pretrained
from interp.tasks.base import Batch
from interp.tasks.induction import InContextTemplate, RepeatedTokens
from probes.roles.views import first_alone

ROWS, LENGTH = 32, 64
_EXAMPLES = 8
_REPEATS, _FOLLOWED, _DIFFERENT = 0.3, 0.6, 5
"""When rows count as repeating themselves: at least the share ``_REPEATS`` of the scored positions
has an earlier equal token; at least the share ``_FOLLOWED`` of these is followed by the same token
as then; and a row has at least ``_DIFFERENT`` different tokens on average."""


@dataclass(frozen=True)
class Trial:
    """One kind of rows, with its control.

    Attributes:
        name: ``repeated``, ``aba``, ``same``, ``text``, ``passages`` or ``again``.
        title: The trial's name in words, with which a sentence can begin.
        about: What the rows are, in words.
        batch: The tokens, the targets, and which positions are scored.
        control: The control rows, without the rule; None where there is no control.
    """

    name: str
    title: str
    about: str
    batch: Batch
    control: Batch | None = None


def token_trials(
    model: Pretrained,
    *,
    rows: int = ROWS,
    length: int = LENGTH,
    seed: int = 0,
    counts: Tensor | None = None,
    period: int | None = None,
) -> tuple[list[Trial], list[str]]:
    """Make test inputs of random tokens: repeated blocks, and two in-context template tasks.

    Args:
        model: The model, whose vocabulary, context length and BOS token are used.
        rows: How many rows each trial has, at least 4.
        length: The most positions in a row of repeated tokens; reduced to the model's context.
        seed: Seed of the random draws.
        counts: How often each token id occurs in a corpus, ``[vocabulary]``. Tokens are drawn in
            these proportions, those with count 0 never. By default all are equally likely.
        period: The longest block that is repeated; by default the longest that fits in twice.

    Returns:
        The trials, and for each trial that was left out a sentence with the reason.

    Raises:
        ArgumentError: for fewer than 4 rows, too small a ``length``, fewer than 4 tokens to draw
            from, or a context of fewer than 6 positions.
    """
    problems = Problems("inspect")
    problems.need(rows >= 4, "rows", "must be at least 4", rows, "nulls exchange rows")
    least = min(12, model.n_ctx)
    rule, advice = f"must be at least {least}", "two periods must fit"
    problems.need(length >= least, "length", rule, length, advice)
    ids = _drawable(model, counts)
    size = len(ids)
    advice = (
        "no block of different tokens can be put in another order; give rows with answers of their "
        "own (a Batch), or take the profile task"
    )
    problems.need(size >= 4, "vocabulary", "of the model must be at least 4", size, advice)
    good, rule = model.n_ctx >= 6, "of the model must be at least 6 positions"
    problems.need(good, "context", rule, model.n_ctx, "no block of two tokens fits in twice")
    problems.raise_if_any()
    length = min(length, model.n_ctx)
    longest = max(2, min((length - 2) // 2, size - 2, period or length))
    most, names, by_count = max(longest + 2, 3 * _EXAMPLES + 3), ids.expand(rows, -1), False
    if counts is not None and len(counts[counts > 0].unique()) > 1:
        names, by_count = _by_count(model, counts, ids, rows, most, seed), True
    drawn = {
        "vocabulary": names.shape[1],
        "bos": -1 if model.bos < 0 else 0 if by_count else int(torch.searchsorted(ids, model.bos)),
    }
    periods = (max(2, longest // 3), longest)
    found, left_out = [], []
    made = [RepeatedTokens(length=length, periods=periods, chunk=c, **drawn) for c in (0, 1)]
    about = f"a block of {periods[0]} to {periods[1]} distinct random tokens, over and over"
    found.append(_trial("repeated", about, made, rows, seed, names))
    examples = min(_EXAMPLES, (size - 3) // 3, model.n_ctx // 3)
    templates: tuple[tuple[Literal["aba", "same"], str], ...] = (
        ("aba", "triples α β α of fresh tokens: predict the third"),
        ("same", "pairs of fresh tokens and a label for equal or different: predict the label"),
    )
    for template, words in templates:
        if examples < 4:
            left_out.append(f"template {template}: the model has too few tokens or positions")
            continue
        tasks = [
            InContextTemplate(template, examples=examples, shuffled=s, **drawn)
            for s in (False, True)
        ]
        found.append(_trial(template, words, tasks, rows, seed, names))
    return found, left_out


def rows_of(trials: Sequence[Trial]) -> dict[str, Batch]:
    """Return the trials' rows by kind, as :func:`probes.roles.find_roles` takes them for profile
    ``language``.

    The control of ``repeated`` is included as ``shuffled``; other controls are left out.
    """
    found = {trial.name: trial.batch for trial in trials}
    for trial in trials:
        if trial.name == "repeated" and trial.control is not None:
            found["shuffled"] = trial.control
    return found


def text_trial(
    model: Pretrained, text: str, *, rows: int = ROWS, length: int = LENGTH
) -> Trial | None:
    """Make a trial of consecutive pieces of a text, each after BOS if the model has one.

    Args:
        model: The model, whose tokenizer, context length and BOS token are used.
        text: The text.
        rows: The most pieces.
        length: The positions of a piece, BOS included; reduced to the model's context.

    Returns:
        The trial, scored at all positions but the last; None if the model has no tokenizer.

    Raises:
        ArgumentError: if the text gives fewer than four pieces.
    """
    ids = text_ids(model, text)
    if ids is None:
        return None
    length = min(length, model.n_ctx)
    body = length - (model.bos >= 0)
    pieces = ids[: len(ids) // body * body].reshape(-1, body)[:rows]
    if len(pieces) < 4:
        raise ArgumentError(
            f"text must give at least 4 pieces of {body} tokens, got {len(ids)} tokens: give more"
        )
    pieces = _after_bos(model, pieces)
    targets = pieces.roll(-1, 1)
    mask = torch.ones_like(pieces, dtype=torch.bool)
    mask[:, -1] = False
    about = f"{len(pieces)} pieces of {length} tokens"
    return Trial("text", "Text", about, Batch(pieces, targets, mask))


def text_ids(model: Pretrained, text: str) -> Tensor | None:
    """Return a text's token ids, ``[pos]``, without special tokens; None if the model has no
    tokenizer."""
    if model.tokenizer is None:
        return None
    return torch.tensor(model.tokenizer(text, add_special_tokens=False)["input_ids"])


def passage_trial(
    model: Pretrained, given: Tensor, *, rows: int = ROWS, length: int = LENGTH, seed: int = 0
) -> Trial | None:
    """Make a trial of passages of given rows, each repeated to the end of its row.

    The control has another passage in place of every repetition. Positions are scored from the
    second passage on.

    Args:
        model: The model, whose context length and BOS token are used.
        given: Token ids ``[piece, pos]``; a passage lies within a piece.
        rows: How many rows are made.
        length: The most positions in a row; reduced to the model's context.
        seed: Seed of the random draws.

    Returns:
        The trial; None if no passage of at least four tokens fits twice.
    """
    if model.bos >= 0 and bool((given[:, 0] == model.bos).all()):
        given = given[:, 1:]
    body = min(length, model.n_ctx) - (model.bos >= 0)
    longest = min((body - 1) // 2, given.shape[1] // 2)
    least = max(4, longest // 3)
    if longest < least:
        return None
    generator = torch.Generator().manual_seed(seed)
    periods = torch.randint(least, longest + 1, (rows,), generator=generator)

    def passage(period: int) -> Tensor:
        piece = int(torch.randint(len(given), (), generator=generator))
        start = int(torch.randint(given.shape[1] - period + 1, (), generator=generator))
        return given[piece, start : start + period]

    def row(period: int, *, same: bool) -> Tensor:
        times = -(-(body + 1) // period)
        parts = [passage(period)] * times if same else [passage(period) for _ in range(times)]
        return torch.cat(parts)[: body + 1]

    made = []
    for same in (True, False):
        whole = _after_bos(model, torch.stack([row(int(p), same=same) for p in periods]))
        since = torch.arange(whole.shape[1] - 1) - int(model.bos >= 0)
        mask = since >= periods[:, None]
        made.append(Batch(whole[:, :-1], whole[:, 1:], mask))
    about = f"a passage of {least} to {longest} tokens of what was given, over and over"
    return Trial("passages", "Repeated passages", about, *made)


def repeats_given(batch: Batch, *, seed: int = 0) -> Trial | None:
    """Make a trial of given rows, if these repeat themselves.

    They do if enough scored positions have an earlier equal token, and mostly the same token
    follows. Only these positions are scored. The control has each row's tokens in random order.

    Args:
        batch: Rows of token ids whose targets are the next tokens.
        seed: Seed of the random order.

    Returns:
        The trial; None for rows that do not repeat themselves.
    """
    inputs, places = batch.inputs, torch.arange(batch.inputs.shape[1])
    last = torch.stack([_last_equal(row) for row in inputs])
    mask = batch.mask & (last >= 0)
    same = inputs.gather(1, last + 1) == batch.targets
    if mask.sum() < _REPEATS * batch.mask.sum() or same[mask].double().mean() < _FOLLOWED:
        return None
    if sum(len(row.unique()) for row in inputs) < _DIFFERENT * len(inputs):
        return None  # of two tokens in turn each is what followed the last one
    generator, start = torch.Generator().manual_seed(seed), int(first_alone(inputs))
    order = torch.rand(len(inputs), inputs.shape[1] - start, generator=generator).argsort(1) + start
    mixed = torch.cat([inputs[:, :start], inputs.gather(1, order)], dim=1)
    control = Batch(mixed, mixed.roll(-1, 1), mask & (places < inputs.shape[1] - 1))
    found = Batch(inputs, batch.targets, mask)
    about = "the rows given, where they repeat themselves"
    return Trial("again", "Repeats in the rows given", about, found, control)


def _last_equal(row: Tensor) -> Tensor:
    """Return, for each position, the last earlier position with an equal token; −1 if there is
    none."""
    places = torch.arange(len(row))
    earlier = (row[:, None] == row) & (places[:, None] > places)
    return torch.where(earlier, places, -1).amax(-1)


def _after_bos(model: Pretrained, rows: Tensor) -> Tensor:
    """Return the rows with the model's BOS token in front, if it has one."""
    first = torch.full((len(rows), int(model.bos >= 0)), model.bos, dtype=rows.dtype)
    return torch.cat([first, rows], dim=1)


def _drawable(model: Pretrained, counts: Tensor | None) -> Tensor:
    """Return the token ids that may be drawn, sorted, with BOS among them."""
    if counts is None:
        return torch.arange(model.vocabulary)
    begin = torch.tensor([model.bos] if model.bos >= 0 else [], dtype=torch.long)
    return torch.cat([counts.nonzero()[:, 0], begin]).unique()


def _by_count(
    model: Pretrained, counts: Tensor, ids: Tensor, rows: int, most: int, seed: int
) -> Tensor:
    """Draw token ids for every row in proportion to their counts, without replacement.

    BOS comes first if the model has one. The draw takes the smallest exponential keys.

    Returns:
        Token ids, ``[row, drawn]``.
    """
    others = ids[(ids != model.bos) & (counts[ids] > 0)]
    generator = torch.Generator().manual_seed(seed)
    keys = torch.empty(rows, len(others), dtype=torch.float64).exponential_(generator=generator)
    chosen = (keys / counts[others]).argsort(1)[:, : min(most, len(others))]
    return _after_bos(model, others[chosen])


def _trial(
    name: str,
    about: str,
    tasks: Sequence[RepeatedTokens | InContextTemplate],
    rows: int,
    seed: int,
    names: Tensor,
) -> Trial:
    """Sample the rows of a task and of its control.

    The tasks' token ids are indices into each row's ``names``, and are replaced by the ids there.
    """
    batch, control = (
        _rename_tokens(task.sample(rows, seed=seed + i), names) for i, task in enumerate(tasks)
    )
    title = "Repeated random tokens" if name == "repeated" else f"Template {name}"
    return Trial(name, title, about, batch, control)


def _rename_tokens(batch: Batch, names: Tensor) -> Batch:
    latents = dict(batch.latents)
    if "previous" in latents:
        before = latents["previous"].long()
        latents["previous"] = torch.where(before >= 0, names.gather(1, before.clamp_min(0)), before)
    inputs, targets = (names.gather(1, ids) for ids in (batch.inputs, batch.targets))
    return Batch(inputs, targets, batch.mask, latents)
