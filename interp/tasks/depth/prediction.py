"""Prefix prediction (`depth` §3.3): is the part of the string read so far in the language already?

Strings are promised to be in the language. For L_k the answer is 0 before the last block and 1 from
its start on, which takes k − 2 nested counts instead of the k of membership. Rows are drawn length
first: uniform over the lengths of the bin that the language has strings of, then uniform among its
strings of that length. In-distribution accuracy is a weak witness: at short lengths shallower
models fit too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

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
from interp.tasks.base import Batch
from interp.tasks.counterfactual import Variable
from interp.tasks.depth.batches import (
    draw_lengths,
    latents_of,
    run,
    targets_of,
    to_inputs,
)
from interp.tasks.depth.languages import language
from interp.tasks.depth.strings import StringTask

__all__ = ["PrefixPrediction", "counted_as_lines"]


@dataclass(frozen=True)
class PrefixPrediction(StringTask):
    """At every position of a string of the language: is the prefix in it (`depth` §3.3)?

    Attributes:
        language: The language's name: see :data:`interp.tasks.depth.languages.NAMES`.
        bins: (shortest, longest) lengths in symbols; a batch has equally many rows of each bin.
        targets: Targets as ``classes`` 0 and 1 ``[batch, pos]``, or as real ``bits``
            ``[batch, pos, 1]``, which is what a compiled program gives.

    Raises:
        ArgumentError: for an unknown language, or bins without a string of it.
    """

    kind: ClassVar[str] = "prefix_prediction"

    @property
    def program(self) -> Program:
        """The C-RASP program that answers at every position; its lines are the latents."""
        return language(self.language).prediction

    def of_one_length(self) -> PrefixPrediction:
        """The same task, restricted to strings of the longest length."""
        return replace(self, bins=((self.longest, self.longest),))

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows.

        Inputs ``[batch, 1 + longest]`` are token ids (:mod:`interp.tasks.depth.batches`), targets
        0 or 1, scored inside the string and not at BOS. Latents are the program's lines.
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
        """The program's lines that hold a count, what is counted there (``E3_counted``), and the
        last line. A line is set at every position: later ones count over where it holds."""
        program = counted_as_lines(self.program)
        for line, level in depths(program).items():
            if level or line == program.lines[-1].name:
                answer = partial(self._answer_if, program, line)
                yield Variable(line, answer, everywhere=True, role="counting")

    def _answer_if(
        self, program: Program, line: str, base: Batch, source: Batch
    ) -> Int[torch.Tensor, "batch pos"] | Float[torch.Tensor, "batch pos 1"]:
        """The program's answers on the base rows if one line had its values from the source
        rows."""
        given = {line: _lines(program, source, {}).values[line]}
        found = _lines(program, base, given)
        answer = latents_of(found, base.inputs.shape[1] - 1)[found.answer]
        return targets_of(answer, self.targets).to(base.targets)


def _lines(program: Program, batch: Batch, given: Mapping[str, np.ndarray]) -> Evaluation:
    """The values of a program's lines on the strings of a batch."""
    codes = batch.inputs[:, 1:].cpu().numpy() - 1
    lengths = batch.mask.sum(1).cpu().numpy()
    return evaluate_codes(program, codes, alphabet(program), lengths, given=given)


def _inside(lengths: np.ndarray, longest: int) -> torch.Tensor:
    """Which positions ``[batch, pos]`` lie inside a row's string, BOS and padding left out."""
    place = np.arange(longest + 1)
    return torch.from_numpy((place >= 1) & (place <= lengths[:, None]))


def counted_as_lines(program: Program) -> Program:
    """The same program with every counted formula named, unless it is a name or symbol already.

        E3 = (# (a && E2)) >= 1        becomes        E3_counted = a && E2
                                                      E3 = (# E3_counted) >= 1

    What it counts is then a latent like the others: a model may hold it without holding the
    formulas that it is made of.

    New lines are called ``NAME_counted`` (``NAME_counted2`` … where a line counts more than once),
    after the line that counts them, and stand before it.
    """
    lines: list[Assignment] = []
    for line in program.lines:
        found: list[Assignment] = []

        def named(part: Expression, name: str = line.name, found: list[Any] = found) -> Expression:
            if not isinstance(part, Count) or isinstance(part.of, FormulaName | Symbol):
                return part
            new = f"{name}_counted{len(found) + 1 if found else ''}"
            found.append(Assignment(new, part.of))
            return replace(part, of=FormulaName(new))

        expression = rebuilt(line.expression, named)
        lines += [*found, Assignment(line.name, expression)]
    return replace(program, lines=tuple(lines))
