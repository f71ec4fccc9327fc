"""Is E_j used as the program uses it? Exchange it between strings, before and after its layer.

Base and source are strings of one length. At every position where both have the same letter the
base's coordinate along one direction of the residual stream becomes the source's, and the model
should answer as the program does with E_j taken from the source there (at other positions a model
need not hold it: what asks for E_j asks at one letter).

    counterfactual accuracy = ½ (share right where the answer changes + where it stays)

So ½ is a direction that does nothing, and 1 is one that is E_j to all that read it. The direction
is learned on other pairs, by descent on the model's loss for the counterfactual answers, from the
difference of class means. Before the layer that makes E_j, E_{j−1} can be exchanged in its place,
which is right in part: the compiled model says how far that goes. One direction that is used shows
that the formula is held there, not that nothing else holds it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.papers.depth.predictors import predicted_labels, strings_of
from prooflens.crasp import alphabet, evaluate_codes, prediction_program
from prooflens.tasks import Batch

__all__ = ["Exchange", "counterfactual", "exchanges"]

_BATCH, _RATE = 64, 0.03


@dataclass(frozen=True)
class Exchange:
    """The options of an exchange of formulas between strings.

    Attributes:
        pairs: The number of pairs on which a direction is learned, and of those on which it is
            judged.
        length: The number of symbols of their strings.
        steps: The number of gradient steps that find a direction.
    """

    pairs: int = 256
    length: int = 40
    steps: int = 150


@dataclass(frozen=True)
class _Pairs:
    """Pairs of strings, base and source.

    ``expected`` holds the right answers on ``base`` if the formula has the values of ``source`` at
    the positions ``agree``.
    """

    base: Batch
    source: Batch
    agree: Bool[Tensor, "pair pos"]
    expected: Bool[Tensor, "pair pos"]

    def places(self) -> tuple[Tensor, Tensor]:
        """Return the scored positions at which the expected answer changes, and those at which it
        stays."""
        changes = (self.base.targets.bool() != self.expected) & self.base.mask
        return changes, ~changes & self.base.mask


def exchanges(model: Any, k: int, how: Exchange) -> pd.DataFrame:
    """Return, for every layer j, how accurately the model follows an exchange of the formula
    E_{j+1}.

    Returns:
        Columns ``layer`` (from 0), and the counterfactual accuracy ``before`` and ``after`` it.
    """
    rows = []
    for layer in range(model.spec.n_layers):
        formula = f"E{layer + 2}"
        learned, judged = (_draw_pairs(k, formula, how, seed) for seed in (0, 2))
        found = {
            name: _judge(model, entered, formula, learned, judged, how)
            for name, entered in (("before", layer), ("after", layer + 1))
        }
        rows.append({"layer": layer, **found})
    return pd.DataFrame(rows)


def counterfactual(
    k: int, formula: str, base: Tensor, source: Tensor, agree: Bool[Tensor, "pair pos"]
) -> Bool[Tensor, "pair pos"]:
    """Return the program's answers on base strings with a formula's values taken from the source
    strings where ``agree`` is True. They are False at BOS."""
    program = prediction_program(k)
    letters = alphabet(program)
    codes = [inputs[:, 1:].numpy() - 1 for inputs in (base, source)]
    own, other = (evaluate_codes(program, part, letters).values[formula] for part in codes)
    given = {formula: np.where(agree[:, 1:].numpy(), other, own)}
    found = evaluate_codes(program, codes[0], letters, given=given)
    return F.pad(torch.from_numpy(found.values[found.answer].astype(bool)), (1, 0))


def _draw_pairs(k: int, formula: str, how: Exchange, seed: int) -> _Pairs:
    lengths = (how.length, how.length)
    base, source = (strings_of(k, lengths, how.pairs, seed=seed + i) for i in (1, 2))
    agree = base.inputs == source.inputs
    expected = counterfactual(k, formula, base.inputs, source.inputs, agree)
    return _Pairs(base, source, agree, expected)


def _judge(
    model: Any, layer: int, formula: str, learned: _Pairs, judged: _Pairs, how: Exchange
) -> float:
    """Learn a direction of the residual stream that enters a layer, and return the counterfactual
    accuracy of exchanging it."""
    direction = _direction(model, layer, formula, learned, how.steps)
    base, source = _streams(model, layer, judged)
    with torch.no_grad():
        output = _output(model, layer, base, source, judged.agree, direction)
    right = predicted_labels(output) == judged.expected
    changes, stays = judged.places()
    return float(right[changes].double().mean() + right[stays].double().mean()) / 2


def _direction(
    model: Any, layer: int, formula: str, pairs: _Pairs, steps: int
) -> Float[Tensor, " d_model"]:
    base, source = _streams(model, layer, pairs)
    masks = pairs.base.mask, pairs.source.mask
    held = torch.cat([base[masks[0]], source[masks[1]]])
    latents = pairs.base.latents[formula], pairs.source.latents[formula]
    holds = torch.cat([one[mask] for one, mask in zip(latents, masks, strict=True)]).bool()
    start = F.normalize(held[holds].mean(0) - held[~holds].mean(0), dim=0)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(start.shape, generator=generator).to(start) / len(start) ** 0.5
    weight = (start + 0.02 * noise).requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=_RATE)
    places = pairs.places()
    for _ in range(steps):
        some = torch.randperm(len(pairs.agree), generator=generator)[:_BATCH]
        line = F.normalize(weight, dim=0)
        output = _output(model, layer, base[some], source[some], pairs.agree[some], line)
        losses = _losses(output, pairs.expected[some])
        loss = sum(losses[one[some]].mean() for one in places if bool(one[some].any()))
        (weight.grad,) = torch.autograd.grad(torch.as_tensor(loss), weight)
        optimiser.step()
    return F.normalize(weight.detach(), dim=0)


def _output(
    model: Any,
    layer: int,
    base: Float[Tensor, "pair pos d_model"],
    source: Float[Tensor, "pair pos d_model"],
    agree: Bool[Tensor, "pair pos"],
    direction: Float[Tensor, " d_model"],
) -> Tensor:
    """Return the model's output when the stream that enters a layer gets the source's coordinate
    along a direction, at positions where the letters of both strings agree."""
    moved = ((source - base) @ direction) * agree
    stream = base + moved[..., None] * direction
    for block in model.blocks[layer:]:
        stream = block(stream)
    output: Tensor = model.unembed(model.ln_final(stream))
    return output


@torch.no_grad()
def _streams(model: Any, layer: int, pairs: _Pairs) -> tuple[Tensor, Tensor]:
    """Return the residual streams of bases and sources that enter a layer, or that leave the last
    one."""
    base, source = (model(one.inputs, stop_at_layer=layer) for one in (pairs.base, pairs.source))
    return base, source


def _losses(output: Tensor, expected: Bool[Tensor, "pair pos"]) -> Float[Tensor, "pair pos"]:
    if output.shape[-1] == 1:
        return (output[..., 0] - expected.to(output)).square()
    return F.cross_entropy(output.transpose(1, 2), expected.long(), reduction="none")
