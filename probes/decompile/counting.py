"""From a transformer that counts back to the C-RASP program it computes, exactly.

If every head averages over the prefix, or looks a fixed number of tokens back, and every network
switches on comparisons, then the model *is* a C-RASP program, in whatever basis its weights are
written, and the program can be read off the weights:

    what a head averages takes a few values     → the classes of positions that are counted
    a neuron's coefficients over the classes    → a comparison of counts with whole numbers
    what a network writes, by outcome           → the state of a position, a formula
    the readout of the last state               → the answer

That goes through for models that :func:`interp.proofs.depth.compiler.compile_program` made, also in
a random basis (:mod:`interp.proofs.random_basis`); for others it tells at which step they are of
another kind. Models with norms, smooth activations or heads that choose what they look at are: this
is no way to read a trained model. The comparisons are proved equivalent to the neurons up to the
longest input; that none was missed is checked on fresh strings, and the share of decisions that
agree is part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import model_device
from interp.models.transformer import SequenceTransformer
from interp.program.evaluation import evaluate_codes
from interp.program.printer import expression_text
from interp.program.syntax import Program
from probes.decompile.counting_lines import Written, write_program
from probes.decompile.counting_machine import build_machine
from probes.decompile.counting_network import NotCountingError, read_network

_SHORT_STRINGS = 2000
_LONG_STRINGS = 60
_MEASURED = 4


@dataclass(frozen=True)
class Source:
    """Where one comparison of a program comes from.

    Attributes:
        line: The line that holds the number.
        number: The compared number, as text.
        threshold: The comparison is number ≥ threshold.
        layer: The block whose network compares it.
        hidden: Number of the hidden layer in that network, from 0.
        neuron: A neuron that switches there.
        residual: How far the neuron's coefficients are from whole multiples of one scale, at most.
    """

    line: str
    number: str
    threshold: int
    layer: int
    hidden: int
    neuron: int
    residual: float


@dataclass(frozen=True)
class CountingProgram:
    """What was found.

    Attributes:
        program: None if the model is of another kind.
        reason: Why there is no program; empty if there is one.
        sources: Where every comparison of the program was read from.
        agreement: Share of decisions on fresh strings on which program and model agree, over all
            positions after BOS; NaN without a program.
        decisions: How many those are.
    """

    program: Program | None
    reason: str
    sources: tuple[Source, ...] = ()
    agreement: float = float("nan")
    decisions: int = 0


def decompile_counting(
    model: SequenceTransformer,
    words: Sequence[str | None],
    *,
    longest: int | None = None,
    seed: int = 0,
) -> CountingProgram:
    """The C-RASP program that a model computes.

    Args:
        model: A model whose first token is BOS, id 0. Its answer at a position is yes where the
            output is above ½, or where the second of two outputs is larger.
        words: What each id but 0 stands for; None for tokens that have no name, which a program can
            only tell from all that have one.
        longest: Most tokens of a string that the program is to be right on; None for as many as the
            model takes.
        seed: Seed of the strings and numbers that the model is asked about.

    Raises:
        ArgumentError: if the words are not the model's, or ``longest`` is out of range.
    """
    spec = model.spec
    most = spec.n_ctx - 1
    problems = Problems("decompile_counting")
    good, rule = len(words) == spec.d_in - 1, f"must name ids 1 to {spec.d_in - 1}"
    problems.need(good, "words", rule, list(words), "None stands for a token without name")
    good, rule = longest is None or 2 <= longest <= most, f"must lie in 2 … {most}"
    problems.need(good, "longest", rule, longest, "leave it out to take the model's own")
    problems.raise_if_any()
    length = longest or most
    generator = np.random.default_rng(seed)
    ids = _strings(generator, _MEASURED, length, spec.d_in)
    try:
        machine = build_machine(read_network(model, _tokens(model, ids)), seed)
    except NotCountingError as refusal:
        return CountingProgram(None, str(refusal))
    written = write_program(machine, words)
    agreed, asked = _agreement(model, written.program, words, length, generator)
    return CountingProgram(written.program, "", _sources(written), agreed / asked, asked)


def decisions(
    model: SequenceTransformer, ids: Int[np.ndarray, "row pos"]
) -> Int[np.ndarray, "row tokens"]:
    """The model's answers, 0 or 1, at every position after BOS."""
    with torch.no_grad():
        out = model(_tokens(model, ids))[:, 1:].double().cpu().numpy()
    yes = out[..., 0] > 0.5 if out.shape[-1] == 1 else out[..., 1] > out[..., 0]
    return np.asarray(yes.astype(np.int64))


def _tokens(model: SequenceTransformer, ids: Int[np.ndarray, "row pos"]) -> Tensor:
    return torch.from_numpy(ids).to(model_device(model))


def _sources(written: Written) -> tuple[Source, ...]:
    found = []
    for line, variables in written.numbers.items():
        text = expression_text(written.program[line])
        for variable in variables:
            if variable.number is None:
                continue
            pairs = zip(variable.number.thresholds, variable.number.bends, strict=True)
            for threshold, bend in pairs:
                residual = bend.comparison.residual
                where = (variable.read, bend.hidden, bend.neuron)
                found.append(Source(line, text, threshold, *where, residual))
    return tuple(found)


def _strings(generator: np.random.Generator, rows: int, length: int, tokens: int) -> np.ndarray:
    """Strings of one length, BOS in front, each with its own frequencies of tokens."""
    ids = np.zeros((rows, length + 1), dtype=np.int64)
    for row in ids:
        shares = generator.dirichlet(np.ones(tokens - 1))
        row[1:] = 1 + generator.choice(tokens - 1, length, p=shares)
    return ids


def _agreement(
    model: SequenceTransformer,
    program: Program,
    words: Sequence[str | None],
    longest: int,
    generator: np.random.Generator,
) -> tuple[int, int]:
    """Decisions that agree, and all, on short strings and long ones."""
    tokens = len(words) + 1
    short = max(int(np.log(_SHORT_STRINGS) / np.log(max(tokens - 1, 2))), 2)
    batches = [_strings(generator, _SHORT_STRINGS // 4, min(short, longest), tokens)]
    lengths = np.unique(np.geomspace(min(short, longest), min(longest, 200), 6).astype(int))
    batches += [_strings(generator, _LONG_STRINGS // 6, int(n), tokens) for n in lengths]
    agreed = asked = 0
    names = [word if word is not None else f"\n{number}" for number, word in enumerate(words)]
    for ids in batches:
        values = evaluate_codes(program, ids[:, 1:] - 1, names).values["answer"]
        same = values == decisions(model, ids)
        agreed, asked = agreed + int(same.sum()), asked + same.size
    return agreed, asked
