"""The decisions of a template construction, made before any weight is written.

The sizes of the scores follow from the margins of `template` §2.3: with k positions and coherence μ
a(1 − μ) = log 4k + 2, and a position is fixed by a score c with (k − 1)e^{−c} = δ = 10⁻³. The last
symbol is in the residual already (and a regular token's flag on top), so a copy needs
b(1 − 2δ − δμ − μ) ≥ 2 + own + μ for a margin of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float64
from torch import Tensor

from interp.errors import Problems
from interp.proofs.template.layout import Bit, Key, Slots, bits, collision, keys, outcome
from interp.tasks.template import TemplateTask
from interp.tasks.template.text import regular_tokens

__all__ = ["Plan", "one_layer_suffices", "plan_of"]

_LEAK = 1e-3
"""Attention that a head fixed on one position gives to all the others together."""
_SPARE = 2.0
"""Margin in nats by which e^{−a(1−μ)} stays below what the clipped ramp still maps to 0."""


def one_layer_suffices(task: TemplateTask) -> bool:
    """Whether the answers are a function of the last row of XXᵀ and of the regular tokens."""
    return collision(task, bits(task, 1)) is None


@dataclass(frozen=True)
class Plan:
    """Everything that determines the weights; slices are coordinates of the residual stream."""

    task: TemplateTask
    readout: int
    embedding: Float64[Tensor, "token dimension"]
    coherence: float
    asked: tuple[Bit, ...]
    keys: tuple[Key, ...]
    symbol: slice
    position: slice
    flag: slice
    row: slice
    flags: slice
    cells: slice
    means: slice
    code: slice
    label: slice
    width: int

    @property
    def k(self) -> int:
        """The number of positions of a string."""
        return self.task.length

    @property
    def tokens(self) -> tuple[str, ...]:
        """The regular tokens that occur in templates."""
        return regular_tokens(self.task.templates)

    @property
    def fixes(self) -> bool:
        """Whether a single layer must fetch the flags of earlier positions."""
        return self.readout == 1 and bool(self.tokens)

    @property
    def a(self) -> float:
        """The score of a match, large enough for the ramp's margin."""
        return (log(4 * self.k) + _SPARE) / (1 - self.coherence)

    @property
    def c(self) -> float:
        """The score of the one position that a head is fixed on."""
        return log(max(self.k - 1, 1) / _LEAK)

    @property
    def gate(self) -> float:
        """More than all bits can add up to at earlier positions, whose averages are larger."""
        return 2.0 * self.k * (len(self.asked) + 1)

    @property
    def own(self) -> float:
        """The most that the last symbol's own flag can add to its logit."""
        return 1.0 if self.tokens else 0.0

    @property
    def slack(self) -> float:
        """The part of the copying strength b that reaches the margin."""
        mu = self.coherence
        return 1 - 2 * _LEAK - _LEAK * mu - mu

    @property
    def b(self) -> float:
        """The copying strength b for a margin of at least 1."""
        return (2 + self.own + self.coherence) / self.slack

    @property
    def direct(self) -> float:
        """The strength with which a token is written that is not copied from a position."""
        mu = self.coherence
        return (1 + self.own + (1 + self.b) * (1 + mu)) / (1 - mu)


def plan_of(task: TemplateTask, dimension: int | None, layers: int | None, seed: int) -> Plan:
    """Make the plan for a task.

    Raises:
        ArgumentError: for arguments that :func:`~interp.proofs.template.construct_template`
            refuses.
    """
    problems = Problems("construct_template")
    rule = "must be at least 1"
    problems.need(dimension is None or dimension >= 1, "dimension", rule, dimension, "raise it")
    problems.need(layers in (None, 1, 2), "readout_layers", "must be 1 or 2", layers, "or None")
    problems.raise_if_any()
    embedding, coherence = _embedding(task.vocabulary, dimension, seed)
    readout = _readout_layers(task, layers)
    asked = bits(task, readout) if readout else ()
    _check_collisions(task, asked, readout)
    slots, k = Slots(), task.length
    r = len(regular_tokens(task.templates))
    plan = Plan(
        task,
        readout,
        embedding,
        coherence,
        asked,
        keys(task, asked) if readout else (),
        symbol=slots.take(embedding.shape[1]),
        position=slots.take(k),
        flag=slots.take(r),
        row=slots.take(k if readout else 0),
        flags=slots.take((k - 1) * r if readout == 1 else 0),
        cells=slots.take(len(asked) if readout == 2 else 0),
        means=slots.take(len(asked) if readout == 2 else 0),
        code=slots.take(k if readout and task.symbolic else 0),
        label=slots.take(0 if task.symbolic else 1),
        width=slots.width,
    )
    good = not task.symbolic or plan.slack > 0.05
    rule = f"must give embeddings that can be copied (coherence is {coherence:.2f})"
    problems.need(good, "dimension", rule, dimension, "raise it, or use fewer symbols")
    rule = f"must keep embeddings apart (coherence is {coherence:.3f})"
    problems.need(coherence < 0.99, "dimension", rule, dimension, "raise it")
    problems.raise_if_any()
    return plan


def _readout_layers(task: TemplateTask, layers: int | None) -> int:
    """The number of layers before the copy; 0 where all answers stand at one position."""
    answers = {outcome(task, i) for i in range(len(task.templates))}
    fixed = len(answers) == 1 and isinstance(next(iter(answers)), int)
    if layers is None and fixed:
        return 0
    return layers or (1 if one_layer_suffices(task) else 2)


def _check_collisions(task: TemplateTask, asked: tuple[Bit, ...], layers: int) -> None:
    pair = collision(task, asked) if layers == 1 else None
    if pair is not None:
        problems = Problems("construct_template")
        rule = f"must be 2: {pair[0]} and {pair[1]} have the same last row"
        problems.need(False, "readout_layers", rule, layers, "use 2 or None")
        problems.raise_if_any()


def _embedding(
    vocabulary: int, dimension: int | None, seed: int
) -> tuple[Float64[Tensor, "token dimension"], float]:
    """The unit vectors of the tokens, and the largest |inner product| of two of them."""
    if dimension is None:
        return torch.eye(vocabulary, dtype=torch.float64), 0.0
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(vocabulary, dimension, generator=generator, dtype=torch.float64)
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    products = (drawn @ drawn.T).fill_diagonal_(0)
    return drawn, float(products.abs().max())
