"""The rows that a model is decompiled on: their tokens, the positions where a decision counts, and
rows off the task.

*sets*: after a position, the model decides for every token whether it may follow.
*next token*: after a position, the model decides which token follows.
Labels say at which positions a decision counts, and which one would be right; a program is fitted
to the *model's* decisions, right or wrong.

Equal rows count once. The longest third is never fitted; a part of the others is held out. Rows
*off the task* are made from the fitted ones: tokens are redrawn at random, a few tokens are
repeated often, ties are made and broken, single tokens are replaced. They test whether a program is
right about what the model does on inputs that it was not trained on.

The format of rows in a JSON file, which is checked completely:

    {"vocabulary": {"a": 0, …}, "objective": "sets" | "next token",
     "rows": [{"tokens": [2, 0, …], "label": […]}, …]}

*sets*: ``label[t]`` is a list of 0 and 1, one for each token of the vocabulary: whether it may
follow position t. The label of a row's last position is ignored.
*next token*: if ``label[t]`` is not ``<pad>``, it is the token that follows position t − 1.

Rows of a task are converted to this form:

    strings that count     BOS and letters; the answer is "0" or "1"
    templates, walks       tokens ``t0``, ``t1`` …; the answer is a token, or "-1" and "+1"
    fixed memories         inputs of ±1 are the tokens "-1" and "+1"; so is the sign of the answer
    C-RASP programs        random strings over the program's letters, each with its own frequencies

A task of real values has no tokens, and no program in this language.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import ArgumentError, Problems, need, refuse_unless
from interp.hooks.limits import need_hooks
from interp.program.analysis import alphabet
from interp.program.evaluation import NONE, Vocabulary, evaluate_codes
from interp.program.syntax import Program
from interp.proofs.mechanism import Construction
from interp.reading import read_json
from interp.tasks.base import Batch

_Codes = NDArray[np.int64]
Objective = Literal["sets", "next token"]
_FEWEST = 8
_OFTEN, _HALF = 0.9, 0.5


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens, with the positions at which decisions count.

    Attributes:
        tokens: Token codes ``[row, pos]``, −1 past a row's end.
        asked: True at the positions where a decision counts, ``[row, pos]``.
        labels: The right decisions: truths ``[row, pos, output]`` for sets, else codes ``[row,
            pos]``, −1 where unknown; None if there are no labels.
        vocabulary: The texts that codes stand for.
        objective: ``sets`` if each token is allowed or not, ``next token`` if one token is chosen.
        answers: For each output of the model, the code that it stands for; None if outputs are the
            vocabulary.
        encode: A function from codes ``[row, pos]`` to the model's inputs; None if these are the
            codes.
        threshold: For a model with one output, the value above which it decides for the second
            answer.
    """

    tokens: Int[np.ndarray, "row pos"]
    asked: Bool[np.ndarray, "row pos"]
    labels: NDArray[Any] | None
    vocabulary: Vocabulary
    objective: Objective
    answers: tuple[int, ...] | None = None
    encode: Callable[[Tensor], Tensor] | None = None
    threshold: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, which: Any) -> TokenRows:
        """Return some of the rows, chosen by a slice, indices or a mask."""
        labels = None if self.labels is None else self.labels[which]
        return replace(self, tokens=self.tokens[which], asked=self.asked[which], labels=labels)

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        """The number of tokens of each row."""
        return np.asarray((self.tokens != NONE).sum(1))

    @property
    def read(self) -> Bool[np.ndarray, "row pos"]:
        """True at the positions up to the last asked one of each row."""
        return np.asarray(np.flip(np.maximum.accumulate(np.flip(self.asked, 1), axis=1), 1))

    @cached_property
    def _times(self) -> tuple[Int[np.ndarray, " token"], Int[np.ndarray, "row token"]]:
        """The codes of the tokens up to each row's last asked position, and how often each row has
        each."""
        read = self.read & (self.tokens != NONE)
        codes, place = np.unique(self.tokens[read], return_inverse=True)
        size = (len(self), len(codes))
        cells = np.nonzero(read)[0] * len(codes) + place
        return codes, np.bincount(cells, minlength=size[0] * size[1]).reshape(size)

    def content(self) -> Int[np.ndarray, " token"]:
        """Return the codes of the tokens that vary: all except those that occur exactly once in at
        least nine tenths of the rows, and never twice.

        Positions after a row's last asked one are ignored.
        """
        codes, times = self._times
        once = (times == 1).sum(0) / max(len(self), 1)
        return np.asarray(codes[(times.max(0, initial=0) > 1) | (once < _OFTEN)])

    def common(self, most: int) -> Int[np.ndarray, " token"]:
        """Return the codes of the tokens that vary, if there are at most ``most``; else of the most
        frequent of those that occur in at least half of the rows."""
        content, (codes, times) = self.content(), self._times
        if len(content) <= most:
            return content
        share = (times[:, np.isin(codes, content)] > 0).mean(0)
        often = np.argsort(-share, kind="stable")[:most]
        return np.sort(content[often[share[often] >= _HALF]])


@dataclass(frozen=True)
class Split:
    """Rows split into parts for fitting and for judging (see :func:`split`).

    Attributes:
        fit: Rows for fitting.
        held: Held-out rows of the same lengths.
        longer: The longest rows.
        queries: Rows off the task for fitting.
        off_task: Rows off the task for judging.
        every: All strings of a recogniser in random order (:func:`every_string`); empty for other
            rows.
    """

    fit: TokenRows
    held: TokenRows
    longer: TokenRows
    queries: TokenRows
    off_task: TokenRows
    every: TokenRows


def split(rows: TokenRows, *, seed: int = 0, held: float = 0.25, queries: int = 200) -> Split:
    """Split rows into training and test sets for decompilation.

    Duplicate rows and rows without a scored position are dropped. The longest third (by number of
    tokens) becomes ``longer``, which tests generalisation to length. The other rows are divided at
    random into ``fit`` and ``held``. ``queries`` (for fitting) and ``off_task`` (for testing) are
    made from ``fit`` by changing tokens, and have no labels. ``every`` has all strings of a
    recogniser (:func:`every_string`), and is empty for other rows.

    Args:
        rows: The rows to split.
        seed: Seed of the division and of the changed tokens.
        held: Share of the shorter two thirds that goes to ``held``, at least two rows.
        queries: Number of rows in each of ``queries`` and ``off_task``. Both are empty if fewer
            than two tokens vary between the rows.

    Returns:
        The six sets.

    Raises:
        ArgumentError: if fewer than eight distinct rows with a scored position remain.
    """
    rows = rows[rows.asked.any(1)]
    _, first = np.unique(rows.tokens, axis=0, return_index=True)
    rows = rows[np.sort(first)]
    rule = f"must be at least {_FEWEST} different ones that ask something"
    need("decompile", len(rows) >= _FEWEST, "rows", rule, len(rows), "give more rows")
    order = np.argsort(rows.lengths, kind="stable")
    short, longer = order[: -(len(order) // 3)], order[-(len(order) // 3) :]
    rng = np.random.default_rng(seed)
    short = rng.permutation(short)
    out = max(2, int(len(short) * held))
    fit = rows[short[out:]]
    content, every = rows.content(), every_string(rows)
    return Split(
        fit,
        rows[short[:out]],
        rows[longer],
        off_task(fit, content, queries, seed=seed + 1),
        off_task(fit, content, queries, seed=seed + 2),
        rows[:0] if every is None else every[rng.permutation(len(every))],
    )


def off_task(
    rows: TokenRows, content: Int[np.ndarray, " token"], count: int, *, seed: int
) -> TokenRows:
    """Make rows off the task by changing tokens of other rows.

    In turn: all varying tokens redrawn at random, drawn from two tokens, made equally frequent, or
    a tenth of them replaced.

    Args:
        rows: The rows to change; decisions count at the same positions.
        content: Codes of the tokens that may be exchanged for each other; with fewer than two, no
            rows are made.
        count: How many rows are made.
        seed: Seed of the draws.

    Returns:
        The rows, without labels.
    """
    rng = np.random.default_rng(seed)
    tokens, asked = [], []
    makers = (_random, _few, _fill_evenly, _corrupt)
    for number in range(count if len(content) > 1 else 0):
        source = int(rng.integers(len(rows)))
        row = rows.tokens[source].copy()
        free = np.flatnonzero(np.isin(row, content))
        if len(free):
            makers[number % len(makers)](row, free, content, rng)
        tokens.append(row)
        asked.append(rows.asked[source])
    if not tokens:
        return replace(rows[:0], labels=None)
    return replace(rows, tokens=np.stack(tokens), asked=np.stack(asked), labels=None)


def _random(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    row[free] = rng.choice(content, len(free))


def _few(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    few = rng.choice(content, min(2, len(content)), replace=False)
    row[free] = rng.choice(few, len(free), p=None if len(few) == 1 else (0.7, 0.3))


def _fill_evenly(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    two = rng.choice(content, 2, replace=False)
    even = np.resize(two, len(free))
    row[free] = rng.permutation(even)


def _corrupt(row: _Codes, free: _Codes, content: _Codes, rng: np.random.Generator) -> None:
    at = rng.choice(free, max(1, len(free) // 10), replace=False)
    row[at] = rng.choice(content, len(at))


_EVERY, _LETTERS = 2**17, 8
"""Limits up to which all strings of a recogniser are enumerated: the number of strings, and the
number of different tokens that vary in them."""


def every_string(rows: TokenRows) -> TokenRows | None:
    """Return all strings of a recogniser of the lengths that its rows have.

    These are all combinations of the varying tokens, with the other tokens kept in place.

    Returns:
        The strings. None for rows with more than one asked position, for rows that all have one
        answer (they contain only strings of a language), for more than eight varying tokens, and
        for more than 2^17 strings.
    """
    labels = [] if rows.labels is None or rows.objective == "sets" else rows.labels[rows.asked]
    content = rows.content()
    few = 0 < len(content) <= _LETTERS
    if len(np.unique(labels)) < 2 or (rows.asked.sum(1) != 1).any() or not few:
        return None
    read = np.where(rows.read, rows.tokens, NONE)
    free = np.isin(read, content)
    _, frames = np.unique(np.where(free, NONE - 1, read), axis=0, return_index=True)
    sizes = [len(content) ** int(free[frame].sum()) for frame in frames.tolist()]
    if sum(sizes) > _EVERY:
        return None
    tokens, asked = (np.repeat(of[frames], sizes, axis=0) for of in (read, rows.asked))
    for frame, end, size in zip(frames.tolist(), np.cumsum(sizes).tolist(), sizes, strict=True):
        filled = list(product(content.tolist(), repeat=int(free[frame].sum())))
        tokens[end - size : end, free[frame]] = np.array(filled).reshape(size, -1)
    return replace(rows, tokens=tokens, asked=asked, labels=None)


_PAD = "<pad>"
_QUOTES = set('"\r\n')


def read_worded_rows(path: str | Path) -> TokenRows:
    """Read rows of tokens and their labels from a JSON file.

    The file holds one object with three keys. ``vocabulary`` maps each token's text to its code
    0, 1, 2, …. ``objective`` is ``"sets"`` or ``"next token"``. ``rows`` is a list of objects with
    the lists ``tokens`` (codes) and ``label`` (one label per token). With ``sets``, ``label[t]``
    is a list of 0 and 1 that says for every token whether it may follow position t. With
    ``next token``, ``label[t]`` is the code of the right prediction at position t − 1, and the
    code of ``<pad>`` marks predictions that are not scored.

    Args:
        path: The file.

    Returns:
        The rows, padded with −1 to the longest row. The last position of a row is never scored.

    Raises:
        ArgumentError: if the file cannot be read, is not valid JSON or does not have this format.
            One message lists all violated rules that could be checked; for rules about rows it
            gives the first offending row and the number of further ones.
    """
    try:
        data = read_json(path)
    except ArgumentError as error:
        raise ArgumentError(f"{error}: give rows as docs/howto-decompile says") from error
    problems = Problems(str(path))
    good = isinstance(data, dict) and {"vocabulary", "objective", "rows"} <= set(data)
    rule, advice = "must hold vocabulary, objective and rows", "see docs/howto-decompile"
    problems.need(good, "file", rule, _short(data), advice)
    problems.raise_if_any()
    words, objective, rows = data["vocabulary"], data["objective"], data["rows"]
    size = _check_words(words, problems)
    known = get_args(Objective)
    named = isinstance(objective, str) and objective in known
    problems.need(named, "objective", f"must be one of {known}", objective, "pick one")
    some = isinstance(rows, list) and bool(rows)
    problems.need(some, "rows", "must be a list of at least one row", _short(rows), "give rows")
    if some and size and named:
        _check_rows(rows, size, objective, problems)
    problems.raise_if_any()
    return _arrays(rows, tuple(sorted(words, key=words.get)), objective)


def _check_words(words: Any, problems: Problems) -> int:
    """Return the number of tokens of a vocabulary; 0 if it is not valid."""
    codes = list(words.values()) if isinstance(words, dict) else []
    good = bool(codes) and all(_is_code(c, len(codes)) for c in codes)
    good = good and len(set(codes)) == len(codes)
    rule = "must be an object that numbers its tokens 0, 1, 2 …"
    problems.need(good, "vocabulary", rule, _short(words), "number them")
    if not good:
        return 0
    quoted = [text for text in words if set(text) & _QUOTES]
    rule = "must have no token with a quote or a line break, which programs could not name"
    problems.need(not quoted, "vocabulary", rule, quoted[:3], "rename the token")
    return len(codes)


def _check_rows(rows: list[Any], size: int, objective: str, problems: Problems) -> None:
    codes = f"codes of the vocabulary, 0 to {size - 1}"
    rules: list[tuple[str, Callable[[Any], bool], str]] = [
        ("must each be an object with the lists tokens and label", _has_lists, ""),
        (
            f"must each have tokens, {codes}",
            lambda row: all(_is_code(t, size) for t in row["tokens"]) and bool(row["tokens"]),
            "tokens",
        ),
        (
            "must each have as many labels as tokens",
            lambda row: len(row["label"]) == len(row["tokens"]),
            "label",
        ),
    ]
    if objective == "sets":
        rule = f"must each have labels that are lists of {size} numbers, 0 or 1"
        rules.append((rule, lambda row: _are_sets(row["label"][:-1], size), "label"))
    else:
        rule = f"must each have labels that are {codes}"
        rules.append((rule, lambda row: all(_is_code(c, size) for c in row["label"]), "label"))
    whole = [number for number, row in enumerate(rows) if _has_lists(row)]
    for number, (rule, holds, key) in enumerate(rules):
        looked = range(len(rows)) if number == 0 else whole
        broken = [k for k in looked if not holds(rows[k])]
        if broken:
            row = rows[broken[0]]
            got = f"row {broken[0]}: {_short(row[key] if key else row)}"
            others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
            problems.need(False, "rows", rule, got + others, "mend the file")


def _has_lists(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(k), list) for k in ("tokens", "label"))


def _is_code(value: Any, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size


def _are_sets(labels: Sequence[Any], size: int) -> bool:
    return all(
        isinstance(label, list) and len(label) == size and all(v in (0, 1) for v in label)
        for label in labels
    )


def _short(value: Any, most: int = 60) -> str:
    """Return a value as JSON, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _arrays(
    rows: Sequence[dict[str, Any]], texts: tuple[str, ...], objective: Objective
) -> TokenRows:
    shape = (len(rows), max(len(row["tokens"]) for row in rows))
    tokens, asked = np.full(shape, NONE), np.zeros(shape, dtype=bool)
    sets = objective == "sets"
    labels: NDArray[Any] = np.zeros((*shape, len(texts)), bool) if sets else np.full(shape, NONE)
    pad = texts.index(_PAD) if _PAD in texts else NONE
    for i, row in enumerate(rows):
        n = len(row["tokens"])
        tokens[i, :n] = row["tokens"]
        if sets:
            asked[i, : n - 1] = True
            labels[i, : n - 1] = np.array(row["label"][:-1], dtype=bool).reshape(n - 1, len(texts))
        else:
            following = np.array(row["label"][1:], dtype=np.int64)
            asked[i, : n - 1] = following != pad
            labels[i, : n - 1] = np.where(following != pad, following, NONE)
    return TokenRows(tokens, asked, labels, Vocabulary(texts), objective)


_SIGNS = ("-1", "+1")
_LONGEST = 40
BITS = 0.5
"""Threshold between real answers 0 and 1: halfway."""


def rows_of_task(task: Any, *, count: int = 400, seed: int = 0) -> TokenRows:
    """Draw input rows of a task, with the right answers as labels.

    Args:
        task: A task whose inputs are token ids or ±1, or a C-RASP program, for which random
            strings are drawn.
        count: How many rows are drawn.
        seed: Seed of the rows.

    Returns:
        The rows. Decisions count at the positions that the task scores; tokens after the last of
        these in a row are treated as padding.

    Raises:
        ArgumentError: for a task whose inputs are other real values.
    """
    if isinstance(task, Program):
        return _rows_of_program(task, count, seed)
    batch: Batch = task.sample(count, seed=seed)
    codes, texts, encode = _inputs(task, batch)
    asked = batch.mask if batch.mask.ndim == 2 else batch.mask[..., 0]
    inside = asked.flip(1).cummax(1).values.flip(1)
    codes = torch.where(inside, codes, NONE)
    targets, threshold = batch.targets, 0.0
    if targets.is_floating_point() and bool((targets >= 0).all()):
        threshold = BITS
        answers, texts = _classes(task, texts)
        right = (targets[..., 0] > threshold).long()
    elif targets.is_floating_point():
        answers = [len(texts), len(texts) + 1] if _SIGNS[0] not in texts else [0, 1]
        right = (targets[..., 0] > 0).long()
        texts = texts if _SIGNS[0] in texts else (*texts, *_SIGNS)
    else:
        answers, texts = _classes(task, texts)
        right = targets
    labels = np.array(answers)[right.numpy()]
    return TokenRows(
        codes.numpy(),
        asked.numpy(),
        np.where(asked.numpy(), labels, NONE),
        Vocabulary(texts),
        "next token",
        answers=tuple(answers),
        encode=encode,
        threshold=threshold,
    )


def _rows_of_program(program: Program, count: int, seed: int) -> TokenRows:
    """Draw random strings of up to :data:`_LONGEST` letters, with BOS in front, labelled with a
    program's answers.

    The program's last letter is followed by an id for any other token, which no string has here.
    """
    generator = np.random.default_rng(seed)
    letters = [str(letter) for letter in alphabet(program)]
    lengths = generator.integers(1, _LONGEST + 1, count)
    codes = np.full((count, _LONGEST), NONE)
    for row, length in zip(codes, lengths, strict=True):
        shares = generator.dirichlet(np.ones(len(letters)))
        row[:length] = generator.choice(len(letters), length, p=shares)
    answers = evaluate_codes(program, codes, letters, lengths).values[program.lines[-1].name]
    first = np.zeros((count, 1), dtype=np.int64)
    there = np.concatenate([first > 0, codes >= 0], axis=1)
    texts = ("<bos>", *letters, "<other>", "0", "1")
    labels = np.concatenate([first, answers.astype(np.int64)], axis=1) + len(texts) - 2
    return TokenRows(
        np.concatenate([first, np.where(codes >= 0, codes + 1, NONE)], axis=1),
        there,
        np.where(there, labels, NONE),
        Vocabulary(texts),
        "next token",
        answers=(len(texts) - 2, len(texts) - 1),
        threshold=BITS,
    )


def _inputs(task: Any, batch: Batch) -> tuple[Tensor, tuple[str, ...], Any]:
    inputs = batch.inputs
    if not inputs.is_floating_point():
        return inputs, _texts(task, int(inputs.max()) + 1), None
    signs = inputs.ndim == 3 and inputs.shape[-1] == 1 and bool((inputs.abs() == 1).all())
    if not signs:
        raise ArgumentError(
            f"task must have tokens or ±1 as inputs, got real values of {type(task).__name__}: "
            "programs speak of tokens; give --data, or another model"
        )
    return (inputs[..., 0] > 0).long(), _SIGNS, _to_signs


def _to_signs(codes: Tensor) -> Tensor:
    return (2.0 * codes - 1.0)[..., None]


def _texts(task: Any, least: int) -> tuple[str, ...]:
    program = getattr(task, "program", None)
    if program is not None:
        letters = [str(letter) for letter in sorted(alphabet(program))]
        return ("<bos>", *letters, *(f"<{i}>" for i in range(least - 1 - len(letters))))
    size = max(least, int(getattr(task, "vocabulary", 0) or 0))
    return tuple(f"t{code}" for code in range(size))


def _classes(task: Any, texts: tuple[str, ...]) -> tuple[list[int], tuple[str, ...]]:
    """Return the code of each output, and the texts extended by those of outputs that are no
    tokens."""
    if getattr(task, "program", None) is None:
        return list(range(len(texts))), texts
    return [len(texts), len(texts) + 1], (*texts, "0", "1")


_YES_OR_NO = ("0", "1")


def resolve_rows(
    model: Any, rows: TokenRows | None, *, count: int, seed: int
) -> tuple[Any, TokenRows, Any]:
    """Return a model, rows that fit it, and the task of the rows.

    Args:
        model: A hooked model, or a construction with such a model.
        rows: The rows; by default those of the task that the model's card, or the construction,
            names.
        count: How many rows of the task are drawn.
        seed: Seed of the task's rows.

    Returns:
        The hooked model, the rows, and the task; None for the task if rows are given.

    Raises:
        ArgumentError: without rows for a model that has no task; for rows with more tokens than the
            model has, or longer than its context; for a vocabulary larger than the number of
            outputs, except for a yes-or-no model with "0" and "1" in the vocabulary.
    """
    if not isinstance(model, Construction):
        need_hooks(model)
    rule, advice = "must be rows as read_rows gives them", "write them to a file and read it"
    refuse_unless(rows is None or isinstance(rows, TokenRows), "rows", rule, rows, advice)
    holder = model if isinstance(model, Construction) else getattr(model, "card", None)
    task = getattr(holder, "task", None)
    rule = "must be given for a model that knows no task of its own"
    known = rows is not None or task is not None
    need("decompile", known, "rows", rule, None, "read them with read_rows")
    own = rows is None
    rows = rows_of_task(task, count=count, seed=seed) if rows is None else rows
    model = model.model if isinstance(model, Construction) else model
    return model, _fitting(model, rows), task if own else None


def _fitting(model: Any, rows: TokenRows) -> TokenRows:
    spec = getattr(model, "spec", None)
    read, given = (
        (spec.d_in, spec.d_out)
        if spec is not None
        else (model.cfg.d_vocab, getattr(model.cfg, "d_vocab_out", None) or model.cfg.d_vocab)
    )
    longest, size = model.cfg.n_ctx, len(rows.vocabulary.texts)
    problems = Problems("decompile")
    got = int(rows.lengths.max(initial=0))
    advice = "leave out longer rows"
    problems.need(got <= longest, "rows", f"must have at most {longest} tokens", got, advice)
    used = 0 if rows.encode is not None else int(rows.tokens.max(initial=0)) + 1
    rule, advice = f"must use codes below {read}, the model's tokens", "give the model's own rows"
    problems.need(used <= read, "rows", rule, used - 1, advice)
    answers, threshold = rows.answers, rows.threshold
    if answers is None and given < size and given <= len(_YES_OR_NO):
        codes = rows.vocabulary.codes
        named = all(text in codes for text in _YES_OR_NO) and rows.objective == "next token"
        rule = 'must have "0" and "1" and the objective next token for a model that says yes or no'
        problems.need(named, "vocabulary", rule, list(codes)[:8], "name its two answers")
        answers = tuple(codes[text] for text in _YES_OR_NO) if named else None
        threshold = BITS
    elif answers is None:
        rule = f"must have at most {given} tokens, the model's outputs"
        problems.need(size <= given, "vocabulary", rule, size, "give the model's own")
    problems.raise_if_any()
    return replace(rows, answers=answers, threshold=threshold)
