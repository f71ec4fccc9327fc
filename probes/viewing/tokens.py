"""Which tokens a head raises and lowers when it attends to a token.

    e(t) W_V W_O R      R: the unembedding with the final norm's gain, centred over the vocabulary

e(t) is the token's embedding, with the gain of the norm before attention; no scale of any norm is
divided by, so that sizes compare within a head alone. Behind layer 0 a key holds more than its
token's embedding: there it is what the weights would do with a bare token, not what happens on a
row. Nothing here says that the head attends to the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.attribution.unembedding import unembedding
from interp.weights.head_weights import head_weights
from probes.viewing.sequences import Sequences

__all__ = ["Raised", "most_frequent", "raised_by"]

_MOST, _EACH = 48, 5
Place = tuple[int, int]


@dataclass(frozen=True)
class Raised:
    """What attending to each of some tokens would do to the output.

    Attributes:
        tokens: Which are attended to, most frequent first.
        up, down: Head → for each of these tokens, (output token, logit) most raised and lowered.
    """

    tokens: tuple[int, ...]
    up: Mapping[Place, list[list[tuple[int, float]]]]
    down: Mapping[Place, list[list[tuple[int, float]]]]


def most_frequent(shown: Sequence[Sequences], most: int = _MOST) -> tuple[int, ...]:
    """Tokens of some rows, most frequent first."""
    flat = [s.batch.inputs.flatten() for s in shown if s.batch.inputs.ndim == 2]
    if not flat or any(part.is_floating_point() for part in flat):
        return ()
    tokens, counts = torch.cat(flat).unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:most]
    return tuple(tokens[order].tolist())


@torch.no_grad()
def raised_by(model: Any, tokens: Sequence[int], each: int = _EACH) -> Raised | None:
    """The outputs that every head raises and lowers most, for some tokens; None for a model whose
    embedding and unembedding nothing names.

    Args:
        model: With TransformerLens' names for its weights.
        tokens: Attended to.
        each: How many outputs are kept.
    """
    if not tokens or not all(hasattr(model, name) for name in ("W_E", "W_U", "ln_final")):
        return None
    embedded = model.W_E.detach().float().cpu()[list(tokens)]
    readout = unembedding(model).float().cpu()
    kept = min(each, readout.shape[1])
    up: dict[Place, list[list[tuple[int, float]]]] = {}
    down: dict[Place, list[list[tuple[int, float]]]] = {}
    for layer in head_weights(model):
        name = "OV+bI" if "OV+bI" in layer.circuits else "OV"
        circuit = layer.circuit(name, fold_norm=True)
        for head in range(circuit.n_heads):
            left, right = circuit.pair(head)
            written = embedded @ left.float() @ right.float().mT
            logits = (written + circuit.added(head) * embedded) @ readout
            up[layer.index, head] = _listed(logits, kept, largest=True)
            down[layer.index, head] = _listed(logits, kept, largest=False)
    return Raised(tuple(tokens), up, down)


def _listed(logits: Tensor, kept: int, *, largest: bool) -> list[list[tuple[int, float]]]:
    values, places = logits.topk(kept, dim=1, largest=largest)
    pairs = zip(places.tolist(), values.tolist(), strict=True)
    return [list(zip(tokens, sizes, strict=True)) for tokens, sizes in pairs]
