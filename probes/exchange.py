"""Exchange a component's activation between two rows: choose components and rows, and compute the
outputs.

A pair is a *base* row, a *source* row and a position t. At t (or at all positions, for latents that
other positions read) a component's activation in the base run is replaced by that in the source
run; the output is read at t. Rows are paired so that the latent changes the answer, and also so
that it does not.

The component's activation is exchanged as a whole. The answers that a task expects are in
:mod:`interp.tasks.counterfactual`, the conclusions in :mod:`probes.locate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import Problems
from interp.interventions.components import Component, components, hook_of
from interp.run import Array, Run, Site, Swap
from interp.tasks.base import Batch
from interp.tasks.counterfactual import Variable, unknown

_SHIFTS = 8
"""Number of source rows that are tried for each base row."""
_SAME = 0.01
"""Real answers that differ by less than this many standard deviations of the targets count as
equal."""


@dataclass(frozen=True)
class Exchanged:
    """One or more components whose activations are exchanged between two rows together.

    Attributes:
        name: ``L1H0``, ``L1 heads``, ``L1 FFN``, or ``L1`` (everything that a layer writes).
        circuit: ``attention`` for the attention pattern, the name of a score term for its rows, or
            ``output``.
        layer: The layer, counted from 0.
        heads: Numbers of the layer's heads that are exchanged; empty for an FFN.
        hooks: The (hook, heads) that are exchanged; no heads stand for the whole activation.
    """

    name: str
    circuit: str
    layer: int
    heads: tuple[int, ...]
    hooks: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Pairs:
    """Pairs of a base and a source row, with one position each.

    Attributes:
        base: The number of each base row.
        source: The number of each source row.
        at: The position.
        expected: The answer that the task expects after the exchange.
        moving: True for the pairs whose answer the latent changes; the answers of the others must
            stay.
    """

    base: Int[Tensor, " pair"]
    source: Int[Tensor, " pair"]
    at: Int[Tensor, " pair"]
    expected: Tensor
    moving: Bool[Tensor, " pair"]


def exchangeable(model: Any, groups: Sequence[Sequence[Component]] = ()) -> tuple[Exchanged, ...]:
    """Return everything that can be exchanged in a model, layer by layer.

    These are each head's attention and output, the same for the given groups and for all heads of a
    layer, each score term if there are several, the FFN, and everything that the layer writes.

    Args:
        model: A hooked model.
        groups: Groups of heads of one layer that are exchanged together.

    Raises:
        ArgumentError: for groups that are not heads of one layer.
        HookError: for a model without attention heads.
    """
    parts = components(model)
    problems = Problems("exchangeable")
    for group in groups:
        one = len({part.layer for part in group}) == 1 and all(p.kind == "head" for p in group)
        known = one and set(group) <= set(parts)
        names = [part.name for part in group]
        problems.need(known, "groups", "must be heads of one layer of the model", names, "split it")
    problems.raise_if_any()
    return tuple(
        piece
        for layer in range(model.cfg.n_layers)
        for piece in _of_layer(model, layer, [p for p in parts if p.layer == layer], groups)
    )


def _of_layer(
    model: Any, layer: int, parts: list[Component], groups: Sequence[Sequence[Component]]
) -> Iterator[Exchanged]:
    heads = [part for part in parts if part.kind == "head"]
    together = [[head] for head in heads] + [list(g) for g in groups if g[0].layer == layer]
    together += [heads] * (len(heads) > 1)
    together = [some for i, some in enumerate(together) if some not in together[:i]]
    pattern = Site(layer, "pattern").name
    sites = [Site.of(name) for name in model.hook_dict]
    terms = [site for site in sites if site.kind == "score" and site.layer == layer]
    for some in together:
        which = tuple(head.head for head in some)
        name = some[0].name if len(some) == 1 else f"L{layer}H{'+'.join(map(str, which))}"
        name = f"L{layer} heads" if some == heads and len(some) > 1 else name
        if pattern in model.hook_dict:
            yield Exchanged(name, "attention", layer, which, ((pattern, which),))
        for term in terms if len(terms) > 1 else ():
            yield Exchanged(name, str(term.term), layer, which, ((term.name, which),))
        yield Exchanged(name, "output", layer, which, ((hook_of(model, some[0]), which),))
    ffn = [part for part in parts if part.kind == "ffn"]
    for part in ffn:
        yield Exchanged(part.name, "output", layer, (), ((hook_of(model, part), ()),))
    if heads and ffn:
        which = tuple(head.head for head in heads)
        hooks = ((hook_of(model, heads[0]), which), (hook_of(model, ffn[0]), ()))
        yield Exchanged(f"L{layer}", "output", layer, which, hooks)


def draw_pairs(batch: Batch, variable: Variable, seed: int) -> Pairs:
    """Pair each row with another row, at a position where the latent changes the answer and at one
    where it does not.

    Rows without such a position are left out.

    Args:
        batch: Rows of the task.
        variable: The latent.
        seed: Seed of the choice of rows and positions.
    """
    count = len(batch)
    shifts = [s for s in range(1, _SHIFTS + 1) if s < count]
    others = torch.stack([torch.arange(count).roll(-s) for s in shifts])
    answers = torch.stack([variable.answer(batch, _some_rows(batch, rows)) for rows in others])
    known = batch.mask & torch.stack([batch.mask[rows] for rows in others])
    known &= ~torch.stack([unknown(answer) for answer in answers])
    apart = _apart(answers, batch)
    generator = torch.Generator().manual_seed(seed)
    chosen = [
        _pairs_of_rows(known & wanted, others, generator) for wanted in (apart > 0, apart == 0)
    ]
    base, source, at, shift = (torch.cat(parts) for parts in zip(*chosen, strict=True))
    moving = torch.arange(len(base)) < len(chosen[0][0])
    return Pairs(base, source, at, answers[shift, base, at], moving)


def _some_rows(batch: Batch, rows: Int[Tensor, " row"]) -> Batch:
    """Return some rows of a batch, in the given order."""
    latents = {name: latent[rows] for name, latent in batch.latents.items()}
    return Batch(batch.inputs[rows], batch.targets[rows], batch.mask[rows], latents)


def _apart(answers: Tensor, batch: Batch) -> Float[Tensor, "shift row pos"]:
    """Return how far expected answers are from the rows' own answers; 0 where they agree."""
    if not batch.targets.is_floating_point():
        return (answers != batch.targets).float()
    scale = batch.targets[batch.mask].std().clamp_min(torch.finfo(batch.targets.dtype).tiny)
    apart = (answers - batch.targets).square().sum(-1).sqrt() / scale
    return torch.where(apart <= _SAME, 0.0, apart)


def _pairs_of_rows(
    wanted: Bool[Tensor, "shift row pos"],
    others: Int[Tensor, "shift row"],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose a wanted (shift, position) at random for each row that has any; return base, source,
    position and shift."""
    drawn = torch.rand(wanted.shape, generator=generator) * wanted
    best, where = drawn.movedim(1, 0).flatten(1).max(1)
    base = torch.nonzero(best > 0)[:, 0]
    shift, at = where[base] // wanted.shape[2], where[base] % wanted.shape[2]
    return base, others[shift, base], at, shift


def outputs_of(
    model: Any,
    inputs: Tensor,
    pairs: Pairs,
    parts: Sequence[Exchanged],
    variable: Variable,
) -> list[Tensor]:
    """Return the outputs at each pair's position: the clean output, then one with each part
    exchanged.

    Args:
        model: A hooked model.
        inputs: The inputs of all rows.
        pairs: The pairs.
        parts: The parts, exchanged one at a time.
        variable: The latent, which says whether all positions are exchanged.
    """
    run = run_at(model, inputs[pairs.base], pairs.at)
    source = Array(inputs[pairs.source], "the source rows")
    at = None if variable.everywhere else tuple(pairs.at.tolist())
    edits = [
        [
            Swap(site, inputs=source, at=at)
            for hook, heads in part.hooks
            for site in (Site.of(hook, head) for head in heads or (None,))
        ]
        for part in parts
    ]
    return [
        torch.cat([output.cpu() for _, output in run.with_(*some).outputs()])
        for some in ([], *edits)
    ]


def run_at(model: Any, inputs: Tensor, at: Int[Tensor, " row"]) -> Run:
    """Return a model's run on some rows, scored at one position of each."""
    mask = at[:, None].cpu() == torch.arange(inputs.shape[1])
    return Run(model, Batch(inputs.cpu(), torch.zeros(mask.shape, dtype=torch.long), mask))
