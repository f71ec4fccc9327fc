"""Questions about strings of a language: whether the whole string, or what was read so far, is in
it.

*Batches.* A row is BOS, the string, and padding; the lines of the program are latents.

    id 0 = BOS,   1 … = the letters that the program names, sorted,   last = any other, and padding

A compiled program takes the same ids. Padding is on the right, so only causal models may be given
such rows: then what follows a string does not affect positions inside it.

*Membership:* whether the whole string is in the language. Half of each bin's rows are members,
uniform among the language's strings of their length. The others are half uniform among all strings
that are not members, half near misses: a uniform member with one symbol changed, drawn again until
it is no member, and after fifty tries uniform among the non-members. Both halves have the same
lengths, so the length is not informative. A uniform non-member of a sparse language is easy to
recognise: check the near misses' accuracy before believing a high score.

*Prefix prediction* (`depth` §3.3): whether the part of the string read so far is in the language
already, for strings that are. For L_k the answer is 0 before the last block and 1 from its start
on, which takes k − 2 nested counts instead of the k of membership. Rows are drawn length first:
uniform over the lengths of the bin for which the language has strings, then uniform among its
strings of that length. In-distribution accuracy is weak evidence: at short lengths shallower models
fit too.

*Enumeration of the questions* of prefix prediction for L_k (`depth` §3.3). The answer to a prefix
depends on the prefix alone, so a prefix stands for as many questions as there are strings of the
task that begin with it. Both numbers come from one recursion over (letters read, blocks begun): a
block continues or the next one begins. It is not for other languages, where the continuations
depend on a state of their automaton. For membership every string is a question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice
from math import comb
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import Problems
from interp.program.analysis import alphabet, depths
from interp.program.evaluation import Evaluation, evaluate_codes
from interp.program.syntax import (
    Assignment,
    Count,
    Expression,
    FormulaName,
    Program,
    Symbol,
    rebuilt,
)
from interp.tasks.base import Batch, sampler
from interp.tasks.counterfactual import Variable
from interp.tasks.depth.languages import Language, language

TargetForm = Literal["classes", "bits"]
Bins = tuple[tuple[int, int], ...]
_Codes = Int[np.ndarray, "batch pos"]
_Lengths = Int[np.ndarray, " batch"]


def check_bins(bins: Bins, spoken: Language, problems: Problems) -> None:
    """Record a problem for each bin that is no pair of lengths or that contains no string's
    length."""
    problems.need(len(bins) > 0, "bins", "must name a bin of lengths", bins, "e.g. ((3, 30),)")
    for pair in bins:
        good = len(pair) == 2 and 1 <= pair[0] <= pair[-1]
        rule = "must be pairs (shortest, longest) with 1 ≤ shortest ≤ longest"
        problems.need(good, "bins", rule, pair, "e.g. ((3, 30),)")
        if good:
            rule = f"must hold a length that {spoken.name} has strings of"
            problems.need(
                bool(_nonempty_lengths(spoken, pair)), "bins", rule, pair, "lengthen the bin"
            )


def check_target_form(form: str, problems: Problems) -> None:
    """Record a problem if the form of targets is not known."""
    known = get_args(TargetForm)
    rule = f"must be one of {', '.join(known)}"
    problems.need(form in known, "targets", rule, form, "pick one")


def rows_of_bins(n: int, bins: Bins) -> list[int]:
    """Return how many of n rows each bin gets: equal numbers, with the remainder given to the first
    bins."""
    return [n // len(bins) + (number < n % len(bins)) for number in range(len(bins))]


def draw_lengths(n: int, bins: Bins, spoken: Language, generator: np.random.Generator) -> _Lengths:
    """Draw n lengths, bin after bin, uniform over the lengths of a bin for which the language has
    strings."""
    drawn = [
        generator.choice(_nonempty_lengths(spoken, pair), rows)
        for pair, rows in zip(bins, rows_of_bins(n, bins), strict=True)
    ]
    return np.concatenate(drawn)


def run(program: Program, codes: _Codes, spoken: Language, lengths: _Lengths) -> Evaluation:
    """Evaluate the program on strings given as codes of the language's letters."""
    return evaluate_codes(program, codes, spoken.letters, lengths)


def to_inputs(
    program: Program, codes: _Codes, letters: Sequence[str], longest: int
) -> Int[Tensor, "batch one_more"]:
    """Return the model's token ids ``[batch, 1 + longest]``: BOS, the string, padding."""
    named = alphabet(program)
    other = len(named) + 1
    known = [named.index(letter) + 1 if letter in named else other for letter in letters]
    ids = np.full((len(codes), longest + 1), other, dtype=np.int64)
    ids[:, 0] = 0
    ids[:, 1 : codes.shape[1] + 1] = np.array([*known, other])[codes]
    return torch.from_numpy(ids)


def targets_of(answer: Tensor, form: TargetForm) -> Tensor:
    """Return the answers as targets: classes ``[batch, pos]`` or bits ``[batch, pos, 1]``."""
    return answer.long() if form == "classes" else answer[..., None]


def latents_of(found: Evaluation, longest: int) -> dict[str, Tensor]:
    """Return each program line's values as a latent ``[batch, 1 + longest]`` in float32, 0 at BOS
    and past the string's end."""
    latents = {}
    for name, values in found.values.items():
        held = np.zeros((len(values), longest + 1), dtype=np.float32)
        held[:, 1 : values.shape[1] + 1] = values
        latents[name] = torch.from_numpy(held)
    return latents


def _nonempty_lengths(spoken: Language, pair: tuple[int, int]) -> list[int]:
    return [length for length in range(pair[0], pair[1] + 1) if spoken.size(length)]


@dataclass(frozen=True)
class StringTask:
    """A question about strings of a language.

    Attributes:
        language: The language's name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: (shortest, longest) lengths in symbols; a batch has equally many rows of each bin.
        targets: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits`` ``[batch, pos,
            1]``, as a compiled program outputs them.

    Raises:
        ArgumentError: if the language is unknown, or a bin has no string of it.
    """

    kind: ClassVar[str]

    language: str
    bins: Bins = ((3, 30),)
    targets: TargetForm = "classes"

    def __post_init__(self) -> None:
        problems = Problems(type(self).__name__)
        check_bins(self.bins, language(self.language), problems)
        check_target_form(self.targets, problems)
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The kind of question and the language, e.g. ``membership-L_4``."""
        return f"{self.kind.replace('_', '-')}-{self.language}"

    @property
    def longest(self) -> int:
        """The length of the longest string; a row has one position more, for BOS."""
        return max(longest for _, longest in self.bins)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": self.kind, **asdict(self)}


_TRIES = 50


@dataclass(frozen=True)
class Membership(StringTask):
    """The task of telling, at a string's last position, whether the string is in a language
    (`depth` §3.2).

    Attributes:
        language: The language's name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: (shortest, longest) lengths in symbols; a batch has equally many rows of each bin, and
            equally many in each bin that are in the language and that are not.
        targets: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits`` ``[batch, pos,
            1]``, as a compiled program outputs them.

    Raises:
        ArgumentError: if the language is unknown, or a bin has no string of it.
    """

    kind: ClassVar[str] = "membership"

    @property
    def program(self) -> Program:
        """The C-RASP program that answers at the last position; its lines are the latents."""
        return language(self.language).membership

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows.

        Inputs ``[batch, 1 + longest]`` are token ids, targets 0 or 1, scored at a string's last
        position only. Latents are the program's lines.
        """
        generator = np.random.default_rng(seed)
        spoken = language(self.language)
        lengths = draw_lengths(n, self.bins, spoken, generator)
        kinds = np.concatenate([_kinds(rows) for rows in rows_of_bins(n, self.bins)])
        order = generator.permutation(n)
        lengths, kinds = lengths[order], kinds[order]
        codes = np.full((n, int(lengths.max(initial=0))), -1, dtype=np.int64)
        for kind in range(3):
            rows = np.flatnonzero(kinds == kind)
            if kind == 2:
                drawn = _near_misses(spoken, lengths[rows], generator)
            else:
                drawn = spoken.draw(lengths[rows], generator, member=kind == 0)
            codes[rows, : drawn.shape[1]] = drawn
        found = run(self.program, codes, spoken, lengths)
        inputs = to_inputs(self.program, codes, spoken.letters, self.longest)
        last = torch.arange(self.longest + 1) == torch.from_numpy(lengths)[:, None]
        latents = latents_of(found, self.longest)
        return Batch(inputs, targets_of(latents[found.answer], self.targets), last, latents).to(
            device
        )


def _kinds(rows: int) -> np.ndarray:
    """Return the kind of each row, in a cycle: 0 member (half of all), 1 other string, 2 near
    miss."""
    return np.array([(0, 1, 0, 2)[row % 4] for row in range(rows)], dtype=np.int64)


def _near_misses(spoken: Language, lengths: _Lengths, generator: np.random.Generator) -> _Codes:
    codes = spoken.draw(lengths, generator, member=False)
    open_rows = np.arange(len(lengths))
    for _ in range(_TRIES):
        if not len(open_rows):
            break
        asked = lengths[open_rows]
        tried = spoken.draw(asked, generator)
        place = generator.integers(0, asked)
        here = np.arange(len(asked)), place
        shift = generator.integers(1, len(spoken.letters), len(asked))
        tried[here] = (tried[here] + shift) % len(spoken.letters)
        outside = ~run(spoken.membership, tried, spoken, asked).accepted
        codes[open_rows[outside], : tried.shape[1]] = tried[outside]
        open_rows = open_rows[~outside]
    return codes


@dataclass(frozen=True)
class PrefixPrediction(StringTask):
    """The task of telling, at every position of a string of a formal language, whether the prefix
    that ends there is in the language (`depth` §3.3).

    Attributes:
        language: The language's name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: Ranges of lengths in symbols, each (shortest, longest); a batch has equally many rows
            of each range.
        targets: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits`` ``[batch, pos,
            1]``, as a compiled program outputs them.

    Raises:
        ArgumentError: if the language is unknown, or a bin has no string of it.
    """

    kind: ClassVar[str] = "prefix_prediction"

    @property
    def program(self) -> Program:
        """The C-RASP program that answers at every position; its lines are the latents."""
        return language(self.language).prediction

    def of_one_length(self) -> PrefixPrediction:
        """Return the same task, restricted to strings of the longest length."""
        return replace(self, bins=((self.longest, self.longest),))

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows.

        Inputs ``[batch, 1 + longest]`` are token ids, targets 0 or 1, scored inside the string and
        not at BOS. Latents are the program's lines.
        """
        generator = np.random.default_rng(seed)
        spoken = language(self.language)
        lengths = generator.permutation(draw_lengths(n, self.bins, spoken, generator))
        codes = spoken.draw(lengths, generator)
        found = run(self.program, codes, spoken, lengths)
        latents = latents_of(found, self.longest)
        batch = Batch(
            to_inputs(self.program, codes, spoken.letters, self.longest),
            targets_of(latents[found.answer], self.targets),
            _inside(lengths, self.longest),
            latents,
        )
        return batch.to(device)

    def variables(self) -> Iterator[Variable]:
        """Yield the program's lines with a count, the formulas counted there (``E3_counted``), and
        the last line.

        A line is set at every position, because later lines count the positions where it holds.
        """
        program = name_counted_formulas(self.program)
        for line, level in depths(program).items():
            if level or line == program.lines[-1].name:
                answer = partial(self._answer_if, program, line)
                yield Variable(line, answer, everywhere=True, role="counting")

    def _answer_if(
        self, program: Program, line: str, base: Batch, source: Batch
    ) -> Int[torch.Tensor, "batch pos"] | Float[torch.Tensor, "batch pos 1"]:
        """Return the program's answers on the base rows if one line had its values from the source
        rows."""
        given = {line: _lines(program, source, {}).values[line]}
        found = _lines(program, base, given)
        answer = latents_of(found, base.inputs.shape[1] - 1)[found.answer]
        return targets_of(answer, self.targets).to(base.targets)


def _lines(program: Program, batch: Batch, given: Mapping[str, np.ndarray]) -> Evaluation:
    """Return the values of a program's lines on the strings of a batch."""
    codes = batch.inputs[:, 1:].cpu().numpy() - 1
    lengths = batch.mask.sum(1).cpu().numpy()
    return evaluate_codes(program, codes, alphabet(program), lengths, given=given)


def _inside(lengths: np.ndarray, longest: int) -> torch.Tensor:
    """Return which positions ``[batch, pos]`` are inside a row's string, without BOS and
    padding."""
    place = np.arange(longest + 1)
    return torch.from_numpy((place >= 1) & (place <= lengths[:, None]))


def name_counted_formulas(program: Program) -> Program:
    """Return the same program with every counted formula named, unless it is a name or symbol
    already.

        E3 = (# (a && E2)) >= 1        becomes        E3_counted = a && E2
                                                      E3 = (# E3_counted) >= 1

    The counted formula is then a latent like the others: a model may hold it without holding the
    formulas that it is made of.

    New lines are called ``NAME_counted`` (``NAME_counted2`` … if a line counts more than once),
    after the line that counts them, and precede it.
    """
    lines: list[Assignment] = []
    for line in program.lines:
        found: list[Assignment] = []

        def name_count(
            part: Expression, name: str = line.name, found: list[Any] = found
        ) -> Expression:
            if not isinstance(part, Count) or isinstance(part.of, FormulaName | Symbol):
                return part
            new = f"{name}_counted{len(found) + 1 if found else ''}"
            found.append(Assignment(new, part.of))
            return replace(part, of=FormulaName(new))

        expression = rebuilt(line.expression, name_count)
        lines += [*found, Assignment(line.name, expression)]
    return replace(program, lines=tuple(lines))


_Ids = Int[np.ndarray, "row one_more"]


def letters_of(task: PrefixPrediction) -> Int[np.ndarray, " 3"]:
    """Return the ids of BOS, a and b."""
    letters = language(task.language).letters
    return np.asarray(to_inputs(task.program, np.array([[0, 1]]), letters, 2)[0].numpy())


def prefixes(
    task: PrefixPrediction, longest: int, *, ordered: bool, most: int
) -> Iterator[tuple[_Ids, Int[np.ndarray, " row"], list[int]]]:
    """Yield, for every length, the ids of the prefixes, the right answers, and each one's number of
    questions.

    Args:
        task: The task of a language L_k.
        longest: The largest length; longer strings are left out.
        ordered: Whether to yield each prefix by itself; otherwise one represents all with as many
            letters of each kind, the same last letter and the same answer.
        most: The most rows to yield at a time.
    """
    k = int(task.language.removeprefix("L_"))
    lengths = set(lengths_within(task, longest))

    @cache
    def endings(i: int, j: int) -> int:
        """Return the number of the task's strings that continue i letters in j blocks."""
        if j > k or i > max(lengths):
            return 0
        return (i in lengths and j == k) + endings(i + 1, j) + endings(i + 1, j + 1)

    bos, *letters = letters_of(task).tolist()
    states = Counter[Any]({((0,) if ordered else (), 1, 1): 1})  # letters if kept, blocks, a's
    for i in range(1, max(lengths) + 1):
        rows, after = Counter[Any](), Counter[Any]()
        for (word, j, a), ways in states.items():
            last = 1 - j % 2
            text = word or (1,) * (i - a - last) + (0,) * (a - 1 + last) + (last,)
            rows[text, int(j == k)] += ways * endings(i, j)
            for block in range(j, min(j + 1, k) + 1):
                longer = (*word, 1 - block % 2) if word else ()
                after[longer, block, a + block % 2] += ways
        kept = iter([(text, answer, n) for (text, answer), n in rows.items() if n])
        while part := list(islice(kept, most)):
            ids = np.array([[bos, *(letters[c] for c in text)] for text, _, _ in part])
            yield ids, np.array([answer for _, answer, _ in part]), [n for _, _, n in part]
        states = after


def counts_and_blocks(
    task: Membership | PrefixPrediction, longest: int
) -> tuple[Int[np.ndarray, "cell 3"], Int[np.ndarray, " cell"], list[int]]:
    """Group the prefixes by their numbers of a's, b's and blocks.

    Args:
        task: The task of a language L_k.
        longest: The largest length; longer strings are left out.

    Returns:
        The three numbers of each cell; the right answer at the last letter; and the number of the
        task's questions in the cell: with i letters in j blocks each prefix begins as many strings
        as there are ways to continue to length n ≥ i and k blocks.

    Raises:
        ValueError: for another task, which has other questions.
    """
    if not isinstance(task, PrefixPrediction):
        raise ValueError(f"{task.name} does not ask at every prefix")
    k, lengths = int(task.language.removeprefix("L_")), lengths_within(task, longest)
    cells, answers, counts = [], [], []
    for i in range(1, max(lengths) + 1):
        for j in range(1, min(i, k) + 1):
            begun = sum(comb(n - i, k - j) if j < k else 1 for n in lengths if n >= i)
            of_a, of_b = (j + 1) // 2, j // 2
            for a in range(of_a, i - of_b + 1):
                ways = comb(a - 1, of_a - 1) * (comb(i - a - 1, of_b - 1) if of_b else a == i)
                if ways * begun:
                    cells.append((a, i - a, j))
                    answers.append(int(j == k))
                    counts.append(int(ways * begun))
    return np.array(cells), np.array(answers), counts


def lengths_within(task: Membership | PrefixPrediction, longest: int) -> list[int]:
    """Return the lengths in a task's bins, shortest first, up to ``longest``."""
    every = {n for low, high in task.bins for n in range(low, high + 1)}
    return sorted(n for n in every if n <= longest)


def whole_strings(
    task: Membership, longest: int, *, most: int
) -> Iterator[tuple[_Ids, Int[np.ndarray, " row"], list[int]]]:
    """Yield the same as :func:`prefixes` for membership: every string over the language's letters
    whose length is in the task's bins; each is one question.

    Args:
        task: Any membership task.
        longest: The largest length; longer strings are left out.
        most: The most rows to yield at a time.
    """
    spoken = language(task.language)
    size = len(spoken.letters)
    for n in lengths_within(task, longest):
        for start in range(0, size**n, most):
            place = np.arange(start, min(start + most, size**n))[:, None]
            codes = place // size ** np.arange(n - 1, -1, -1) % size
            found = run(task.program, codes, spoken, np.full(len(codes), n))
            ids = to_inputs(task.program, codes, spoken.letters, n).numpy()
            yield ids, found.accepted.astype(np.int64), [1] * len(codes)
