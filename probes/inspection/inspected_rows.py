"""The rows that an inspection runs a model on, and the profile that follows from them.

    TASK       targets are not the next tokens: rows of a task, or the user's own with their
               labels
    LANGUAGE   targets are the next tokens, or no rows are given: random tokens that the model can
               handle, and the user's text or rows

The random rows of a language model are chosen as follows:

    tokens      those of the given rows or text, by their frequency there; else those that the
                model has learned; else all
    positions   as many as the model has learned (:mod:`probes.inspection.usable`), at most
                ``length`` and its context
    roles       are tested on repeated random tokens, or on repeated passages of the given text or
                rows if these repetitions lower the loss more: a small language model does not
                notice repetitions of tokens in an order that it has never seen

Rows chosen so contain nothing on which the model was never trained; they show no behaviour there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.errors import ArgumentError, refuse_unless
from interp.models.pretrained import Pretrained
from interp.run import Run
from interp.run.gate import admit_batch
from interp.tasks.base import Batch, Memory, answers_of, memories_of
from interp.tasks.counterfactual import Variable, role_variables
from probes.inspection.behaviour import performance
from probes.inspection.usable import (
    LEAST,
    learned_tokens,
    positions_learned,
    tokens_repeated,
)
from probes.own_rows import OwnRows, rows_given, token_counts
from probes.roles.profile import LANGUAGE, TASK, Profile, outputs_of, profile_of
from probes.roles.trials import (
    LENGTH,
    ROWS,
    Trial,
    passage_trial,
    repeats_given,
    rows_of,
    text_ids,
    text_trial,
    token_trials,
)

_OF_TASK = 256
"""Number of rows of a task by default. It is enough to fit probes on some rows and judge them on
others."""

_TRIED = 16
"""Number of rows on which it is tested what a model has learned: the next token, or the positions
that it can handle."""

_MORE = 0.1
"""By how many nats a repetition in the user's rows must lower the loss more than one of random
tokens does, to be used in its place as the rows called ``repeated``."""


@dataclass(frozen=True)
class InspectedRows:
    """The rows of an inspection.

    Attributes:
        trials: The kinds of rows; roles are tested on ``repeated``, or on the ``given`` rows of a
            task.
        whole: Kind → rows of the requested length, for ``repeated`` and ``shuffled``.
        rows: How many rows of every trial were requested.
        asked: How many positions of a row were requested and fit the model's context.
        positions: How many positions of a row are used.
        tokens: How many token ids random rows are drawn from.
        notes: Sentences about the choice of the rows, for the reader.
        profile: The profile, with the unit of effects and the floors.
        task: The task that rows were drawn from; None for other rows.
        words: The text of each id, if the user's rows give it.
    """

    trials: tuple[Trial, ...]
    whole: Mapping[str, Batch]
    rows: int
    asked: int
    positions: int
    tokens: int
    notes: tuple[str, ...]
    profile: Profile = LANGUAGE
    task: Any = None
    words: tuple[str, ...] | None = None

    @property
    def task_variables(
        self,
    ) -> tuple[tuple[Memory, ...], dict[str, tuple[str, ...]], tuple[Variable, ...]]:
        """The memories, answers and exchangeable variables of the task; all empty for a language
        model."""
        if self.profile is not TASK or self.task is None:
            return (), {}, ()
        return memories_of(self.task), answers_of(self.task), tuple(role_variables(self.task))


@dataclass(frozen=True)
class _GivenRows:
    """The rows or text given by the user, with the frequencies of tokens in them.

    Attributes:
        own: The rows given.
        text: The text given.
        counts: How often each token occurs in them; None if nothing was given.
        notes: Sentences for the reader.
        templates: Whether in-context templates are among the trials.
    """

    own: OwnRows | None
    text: str | None
    counts: Tensor | None
    notes: tuple[str, ...]
    templates: bool = True


def inspected_rows(
    model: Pretrained,
    *,
    text: str | None = None,
    data: Any = None,
    task: Any = None,
    tokens_from: str | Path | None = None,
    profile: Profile | None = None,
    rows: int | None = None,
    length: int = LENGTH,
    seed: int = 0,
    templates: bool = True,
) -> InspectedRows:
    """Choose the rows of an inspection, and the profile.

    A language model is run on some rows, to find which tokens and positions it has learned.

    Args:
        model: The model, in evaluation mode.
        text: A text. If the model has a tokenizer, its pieces are one more trial, and repeated
            passages of it another.
        data: The user's rows (:func:`probes.own_rows.rows_given`). For a language model, token ids
            are one more trial, repeated passages of them another, and random rows are drawn from
            their tokens.
        task: The task that the model was trained on; its rows are used if no others are given.
        tokens_from: A file of rows of token ids; random rows are drawn from its tokens alone.
        profile: A profile to use instead of the one that follows from the rows.
        rows, length: The number of rows and of positions of every trial (by default 256 rows of a
            task, 32 of others); the length is limited by the model's context and by the positions
            that it has learned (:mod:`probes.inspection.usable`).
        seed: Seed of the rows.
        templates: Whether in-context templates are among the rows of a language model.

    Raises:
        ArgumentError: for arguments or files that do not fit.
    """
    own = drawn = None
    if data is not None:
        own = _own(model, data, rows, length)
    elif task is not None and tokens_from is None and (text is None or model.tokenizer is None):
        drawn = task.sample(rows or _OF_TASK, seed=seed)
    batch = own.batch if own is not None else drawn
    follows = LANGUAGE if batch is None else profile_of(batch)
    why = "" if drawn is None or follows is TASK or profile else _only_its_task(model, drawn)
    if (profile or (TASK if why else follows)) is TASK and batch is not None:
        found = _of_task(model, batch, None if own is not None else task, own, text)
        return replace(found, notes=(why,)) if why else found
    outputs = outputs_of(model.model) or model.vocabulary
    if outputs < model.vocabulary and data is None and not (text or tokens_from):
        raise ArgumentError(
            f"rows must be given for {model.name}, got none that are as a language's: its outputs "
            f"({outputs}) are fewer than its tokens ({model.vocabulary}), so it predicts no random "
            "ones"
        )
    if model.vocabulary == 0 and own is None:
        raise ArgumentError(
            f"rows must be given for {model.name}, got none: neither a task nor token ids are known"
        )
    extra = None if drawn is None else drawn[: rows or ROWS]
    counted = _count_tokens(model, text, own, tokens_from, length)
    found = _language(model, replace(counted, templates=templates), rows or ROWS, length, seed)
    if extra is None:
        return replace(found, words=None if own is None else own.words)
    about = f"{len(extra)} rows of {extra.inputs.shape[1]} tokens of the task that it learned"
    trials = (*found.trials, Trial("rows", "Rows of its task", about, extra))
    return replace(found, trials=trials, task=task)


def _only_its_task(model: Pretrained, drawn: Batch) -> str:
    """Return why a model of a task with next-token targets is inspected on rows of its task alone;
    empty if it is not.

    It is if it has fewer outputs than tokens, or if it predicts repeated random tokens worse than
    an even guess among its outputs but does better than that on rows of its task.
    """
    outputs = outputs_of(model.model) or model.vocabulary
    start = "roles are read on rows of its task:"
    if outputs < model.vocabulary:
        return f"{start} {outputs} outputs do not predict {model.vocabulary} tokens"
    repeated = token_trials(model, rows=_TRIED, length=LENGTH, seed=0)[0][0].batch
    late = repeated.mask.clone()
    late[:, : late.shape[1] // 2] = False
    random, own = (
        float(Run(model.model, some).value()[mask].double().mean())
        for some, mask in ((repeated, late), (drawn[:_TRIED], drawn[:_TRIED].mask))
    )
    if not (random > log(outputs) > own):
        return ""
    return (
        f"{start} it predicts repeated random tokens worse ({random:.2f} nats) than an even guess "
        f"({log(outputs):.2f}), and its task's rows better ({own:.2f})"
    )


def _own(model: Pretrained, data: Any, rows: int | None, length: int) -> OwnRows:
    """Return the user's rows: whole if they have labels of their own, else cut to the requested
    length."""
    size: dict[str, Any] = {"vocabulary": model.vocabulary, "tokenizer": model.tokenizer}
    file = isinstance(data, str | Path)
    if file and getattr(getattr(model.model, "spec", None), "input", "tokens") != "tokens":
        raise ArgumentError(
            f"rows of a file need a model of tokens, got {model.name}, which takes real values: "
            "name its task, or give a Batch"
        )
    rule, advice = "must be a file, a Batch, token ids or a list of rows", "see pl.next_tokens"
    refuse_unless(file or hasattr(data, "__len__"), "rows", rule, data, advice)
    data = data if file else admit_batch(model.model, data)
    longest = model.n_ctx or max(length, 1 << 20)
    cut = rows_given(
        data, rows=rows or (ROWS if file else len(data)), length=min(length, longest), **size
    )
    if profile_of(cut.batch) is LANGUAGE:
        return cut
    return rows_given(data, rows=rows or (_OF_TASK if file else len(data)), length=longest, **size)


def _of_task(
    model: Pretrained, batch: Batch, task: Any, own: OwnRows | None, text: str | None
) -> InspectedRows:
    """Return the rows of an inspection whose targets are not the next tokens."""
    title = "Rows of the task" if own is None else "The rows given"
    about = own.about if own is not None else f"{len(batch)} rows of {task.name}"
    trial = Trial("given", title, about, batch)
    if text is not None:
        raise ArgumentError(
            f"text must be left out for {model.name}, which is measured on rows of a task: drop "
            "--text, or name --profile language"
        )
    length = batch.inputs.shape[1]
    return InspectedRows(
        (trial,),
        {},
        len(batch),
        length,
        length,
        model.vocabulary,
        (),
        profile=TASK,
        task=task,
        words=None if own is None else own.words,
    )


def _language(
    model: Pretrained, given: _GivenRows, rows: int, length: int, seed: int
) -> InspectedRows:
    """Return the rows of an inspection of a language model: random tokens that repeat, and the text
    or rows given."""
    asked = min(length, model.n_ctx)
    if given.own is not None:
        asked = max(min(asked, LEAST), min(asked, given.own.longest))
    made, notes = _trials_of_length(
        model, given, rows, length if asked == model.n_ctx else asked, seed
    )
    counts, more = given.counts, list(given.notes)
    known, why = (None, "") if counts is not None else _known_tokens(model, made[0].batch)
    if known is not None:
        given = replace(given, counts=torch.zeros(model.vocabulary).index_fill(0, known, 1.0))
        left = model.vocabulary - len(known)
        more.append(f"random rows leave out {left} of {model.vocabulary} token ids, {why}")
        made, notes = _trials_of_length(model, given, rows, asked, seed)
    whole, used = rows_of(made), asked
    for some in _position_rows(model, given, made, asked, seed):
        used = min(used, positions_learned(Run(model.model, some).value(), some.mask))
    if used < asked:
        more.append(
            f"rows have {used} tokens, not {asked}: from position {used} on the loss is higher "
            "than before, as where a model was not trained"
        )
        made, notes = _trials_of_length(replace(model, n_ctx=used), given, rows, used, seed)
    made = _most_noticed(model, made)
    if made[0].title != "Repeated random tokens":
        more.append(
            f"roles are read on {made[0].about}: the model notices a repeat there more than among "
            "random tokens"
        )
        whole = rows_of(made) if used == asked else whole
    if given.own is not None and asked < min(length, model.n_ctx):
        more.append(
            f"random rows have {asked} tokens, not {min(length, model.n_ctx)}: no row given is "
            "longer, so later positions may never have been trained"
        )
    if length > model.n_ctx:
        more.append(f"rows have {model.n_ctx} tokens, the model's context, and not {length}")
    size = model.vocabulary if given.counts is None else int((given.counts > 0).sum())
    sizes: dict[str, Any] = {
        "rows": rows,
        "asked": min(length, model.n_ctx),
        "positions": used,
        "tokens": size,
    }
    return InspectedRows(tuple(made), whole, **sizes, notes=(*notes, *more))


def _count_tokens(
    model: Pretrained,
    text: str | None,
    own: OwnRows | None,
    tokens_from: str | Path | None,
    length: int,
) -> _GivenRows:
    """Count the tokens of the file, the rows or the text given."""
    named, counts, notes = "", None, []
    if text is not None:
        _need_pieces(model, text, length)
    if tokens_from is not None:
        counts, named = token_counts(tokens_from, model.vocabulary), Path(tokens_from).name
    elif own is not None:
        counts, named = own.counts, "the rows given"
    elif (ids := None if text is None else text_ids(model, text)) is not None:
        counts, named = torch.bincount(ids, minlength=model.vocabulary), "the text"
    if counts is not None:
        held = f"{int((counts > 0).sum())} of {model.vocabulary}"
        notes.append(f"random rows are drawn from the {held} tokens of {named}, by frequency")
    return _GivenRows(own, text, counts, tuple(notes))


def _need_pieces(model: Pretrained, text: str, length: int) -> None:
    """Raise ArgumentError for a text with too few pieces, whose few tokens would also be the only
    ones of all random rows."""
    if model.tokenizer is None:
        raise ArgumentError(
            f"text must be given to a model with a tokenizer, got {model.name}, which has none: "
            "give rows of token ids as --data"
        )
    try:
        text_trial(model, text, length=length)
    except ArgumentError as error:
        raise ArgumentError(f"{error}, or look at a sentence with --prompt") from None


def _trials_of_length(
    model: Pretrained, given: _GivenRows, rows: int, length: int, seed: int
) -> tuple[list[Trial], list[str]]:
    """Return the trials of one length, and why others are left out."""
    size: dict[str, Any] = {"rows": rows, "length": length}
    trials, notes = token_trials(model, **size, seed=seed, counts=given.counts)
    if not given.templates:
        trials, notes = trials[:1], ["a quick inspection has no in-context templates"]
    if given.own is not None:
        batch = given.own.batch
        trials.append(Trial("rows", "The rows given", given.own.about, batch))
        again = repeats_given(batch, seed=seed)
        trials += [] if again is None else [again]
    if given.text is not None:
        trials += [found] if (found := text_trial(model, given.text, **size)) else []
    ids = _stream(model, given)
    passages = None if ids is None else passage_trial(model, ids, **size, seed=seed)
    return [*trials, *([passages] if passages is not None else [])], notes


def _stream(model: Pretrained, given: _GivenRows) -> Tensor | None:
    """Return the token ids from which passages are cut, ``[piece, pos]``: the rows given, or the
    text; None without either."""
    if given.own is not None:
        return given.own.batch.inputs
    ids = None if given.text is None else text_ids(model, given.text)
    return None if ids is None else ids[None]


def _known_tokens(model: Pretrained, repeated: Batch) -> tuple[Tensor | None, str]:
    """Return the ids that the model has learned, and how they were recognised; None if they cannot
    be told from others."""
    known = learned_tokens(model.model)
    if known is not None:
        return known, "whose embeddings look as if the model had never read them"
    losses = Run(model.model, repeated).value()
    known = tokens_repeated(losses, repeated.targets, repeated.mask)
    return known, "which the model does not repeat where it repeats the others"


def _position_rows(
    model: Pretrained, given: _GivenRows, trials: Sequence[Trial], length: int, seed: int
) -> Iterator[Batch]:
    """Yield rows whose loss by position shows which positions the model has learned.

    These are the rows given. Without any they are repeated random tokens, also with short periods,
    which leave more positions to score, and the text given. A model that does well to the end of
    the rows given has learned their positions, whatever it does on random ones.
    """
    if given.own is not None:
        yield given.own.batch[:_TRIED]
        return
    size: dict[str, Any] = {"rows": _TRIED, "length": length, "period": max(4, length // 4)}
    short, _ = token_trials(model, **size, seed=seed, counts=given.counts)
    yield short[0].batch
    for trial in trials:
        if trial.name in ("repeated", "text"):
            yield trial.batch[:_TRIED]


def _most_noticed(model: Pretrained, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with the kind of repetition first, and called ``repeated``, that lowers the
    loss most compared with its control.

    It is random tokens, unless repetitions in what the user gave lower the loss by 0.1 nats more.
    """
    random, given = trials[0], [t for t in trials if t.name in ("passages", "again")]
    others = [trial for trial in trials[1:] if trial.name != "again"]
    gains = []
    for trial in (random, *given) if given else ():
        control = None if trial.control is None else Run(model.model, trial.control)
        found = performance(Run(model.model, trial.batch), trial.name, control, draws=1)
        gains.append(found.control - found.loss)
    if not given or max(gains[1:]) < gains[0] + _MORE:
        return [random, *others]
    best = given[gains[1:].index(max(gains[1:]))]
    rest = [trial for trial in others if trial is not best]
    return [replace(best, name="repeated"), *rest, replace(random, name="random")]
