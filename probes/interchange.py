"""Is a probe's direction used? Exchange what it holds between two rows and watch the output.

TransformerLens' interchange intervention: at one hook and position, the base row's coordinate
along the direction becomes the source row's. If the direction holds a variable that the model
uses, the output becomes what it should be for the base with that variable taken from the source
(the *expected* output, from the task).

    moved = 1 − ‖output − expected‖² / ‖clean output − expected‖²        real outputs
    moved = (right after − right before) / (1 − right before)            token outputs

The placebo moves the base as far in a random direction. A direction with `moved` near 1 and a
placebo near 0 is used in the way the variable should be. One that does nothing may be a shadow:
read by the probe and by nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.heads.nulls import bootstrap_interval, from_draws, signs_null
from interp.models.hook_names import require_hooks

__all__ = ["Interchange", "interchange"]

_PLACEBOS = 8


@dataclass(frozen=True)
class Interchange:
    """What an exchange did.

    Attributes:
        moved: Share of the way to the expected outputs.
        placebo: The same for random directions, mean over several.
        low: Lower end of the 95 % interval of ``moved − placebo`` over pairs.
        high: Upper end.
        p: Of ``moved − placebo``, each pair's sign flipped at random.
    """

    moved: float
    placebo: float
    low: float
    high: float
    p: float


@torch.no_grad()
def interchange(
    model: Any,
    hook: str,
    directions: Float[Tensor, "rank d_model"],
    base: Tensor,
    source: Tensor,
    expected: Tensor,
    position: int,
    *,
    seed: int = 0,
) -> Interchange:
    """Exchange directions between paired rows at one position.

    Args:
        model: A hooked model in evaluation mode.
        hook: Where, ``[row, pos, d_model]``.
        directions: What to exchange: their span. For class probes, the rows of the weights.
        base, source: Inputs, paired row by row.
        expected: The outputs at ``position`` for the base with the variable from the source:
            ``[row, output]`` real, or ``[row]`` token ids.
        position: Where the exchange happens and the output is read.
        seed: Of the placebos and of the null.

    Raises:
        ArgumentError: if rows do not pair up, or pairs expect what the model gives already.
        HookError: for a hook that is not there.
    """
    from interp.lens import interchange_tools as tools

    require_hooks([hook], model.hook_dict, "does not have")
    problems = Problems("interchange")
    paired = len(base) == len(source) == len(expected)
    sizes = (len(base), len(source), len(expected))
    problems.need(paired, "base", "must pair with source and expected", sizes, "match their rows")
    problems.raise_if_any()

    def read(inputs: Tensor) -> Tensor:
        return model(inputs)[:, position]

    at = torch.full((len(base),), position)
    basis = torch.linalg.qr(directions.mT.double()).Q.float()
    exchange = tools.SubspaceInterchange(basis)
    rank, width = basis.shape[1], basis.shape[0]
    placebos = [
        tools.NormMatchedPlacebo(exchange, tools.random_basis(width, rank, seed + i))
        for i in range(_PLACEBOS)
    ]
    values = tools.collect_activations(model, hook, source, read, positions=at)
    clean = _distance(read(base), expected)
    outputs = [
        tools.intervened_logits(model, hook, change, base, values, read, positions=at)
        for change in (exchange, *placebos)
    ]
    gained = [(clean - _distance(output, expected)).numpy() for output in outputs]
    return _judged(gained[0], np.mean(gained[1:], axis=0), clean.numpy(), seed)


def _distance(output: Tensor, expected: Tensor) -> Float[Tensor, "row"]:
    output, expected = output.detach().cpu(), expected.cpu()
    if expected.is_floating_point():
        return (output.double() - expected.double()).square().sum(-1)
    return (output.argmax(-1) != expected).double()


def _judged(
    gained: Float[np.ndarray, "row"],
    placebo: Float[np.ndarray, "row"],
    clean: Float[np.ndarray, "row"],
    seed: int,
) -> Interchange:
    size = float(clean.mean())
    problems = Problems("interchange")
    rule = "must differ from what the model gives without an exchange"
    problems.need(size > 0, "expected", rule, size, "choose pairs whose answers differ")
    problems.raise_if_any()
    difference = (gained - placebo) / size
    score = float(difference.mean())
    null = from_draws(score, signs_null(difference, seed=seed), normal_tail=True)
    low, high = bootstrap_interval(difference[:, None], seed=seed)
    moved, beside = float(gained.mean()) / size, float(placebo.mean()) / size
    return Interchange(moved, beside, float(low[0]), float(high[0]), null.p)
