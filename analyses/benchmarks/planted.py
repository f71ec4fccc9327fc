"""Models that are trained around planted heads: those are written down and frozen, the rest learns.

Some heads of a circuit (:mod:`analyses.benchmarks.circuits`) stand in a model of more layers and
heads, with FFNs. Their weights, the embeddings, norms and the unembedding stay; all else is trained
on a task in which the circuit helps. What the others learn may be of use to the planted heads, do
their work, or nothing: which head has which role is located afterwards by attention and ablation
(:mod:`analyses.benchmarks.located`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from analyses.benchmarks.circuits import CircuitLayout, Sizes, construct_circuit, spec_of
from analyses.benchmarks.known import Built
from analyses.benchmarks.located import locate_roles
from prooflens.architectures import SequenceTransformer
from prooflens.tasks import InContextTemplate, RepeatedTokens, SuccessorWalk

__all__ = ["Planting", "plant_model", "train_around"]

_RATE, _BATCH, _SMALL = 2e-3, 32, 0.05
_OF_HEADS = ("W_Q", "W_K", "W_V", "W_O")


@dataclass(frozen=True)
class Planting:
    """A circuit that is planted into a model before the rest of the model is trained.

    Attributes:
        circuit: The circuit whose heads are planted.
        sizes: The sizes of the model.
        layers: The number of layers of the model.
        at: The layer of each planted job; the circuit's further jobs are left to training.
        steps: The number of steps for which the rest is trained.
    """

    circuit: str
    sizes: Sizes
    layers: int
    at: tuple[int, ...]
    steps: int = 300


def plant_model(one: Planting, seed: int) -> Built:
    """Plant a circuit, train the rest of the model, and locate the roles of its heads."""
    model, task = train_around(one, seed)
    sizes = one.sizes
    longest = min((sizes.length - 2) // 2, sizes.vocabulary - 2)
    bos = 0 if sizes.bos else -1
    lengths = (max(2, longest // 3), longest)
    repeated = RepeatedTokens(sizes.vocabulary, sizes.length, lengths, bos=bos)
    truth, exempt = locate_roles(model, task.sample(96, seed=78), repeated.sample(96, seed=77))
    return Built(model, truth, exempt, bos)


def train_around(
    one: Planting, seed: int
) -> tuple[SequenceTransformer, SuccessorWalk | InContextTemplate]:
    """Return the trained model, whose planted heads are unchanged, and its task."""
    model, mine = _plant(one, seed)
    task = _task(one)
    hooks = [hook for layer, head in mine for hook in _freeze(model, layer, head)]
    free = [p for block in model.blocks for p in block.attn.parameters()]
    free += [p for block in model.blocks if block.mlp is not None for p in block.mlp.parameters()]
    optimiser = torch.optim.Adam(free, lr=_RATE)
    for step in range(one.steps):
        batch = task.sample(_BATCH, seed=seed * 100_000 + step)
        output = model(batch.inputs)[batch.mask]
        loss = torch.nn.functional.cross_entropy(output, batch.targets[batch.mask])
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    for hook in hooks:
        hook.remove()
    return model.eval(), task


def _task(one: Planting) -> SuccessorWalk | InContextTemplate:
    sizes = one.sizes
    if one.circuit == "previous-copy":
        count = (sizes.length - sizes.bos) // 3
        bos = 0 if sizes.bos else -1
        return InContextTemplate("aba", vocabulary=sizes.vocabulary, bos=bos, examples=count)
    return SuccessorWalk(sizes.vocabulary, sizes.length, symbols=8, jump=0.2)


@torch.no_grad()
def _plant(one: Planting, seed: int) -> tuple[SequenceTransformer, list[tuple[int, int]]]:
    """Return a model with the planted heads, and their places."""
    made = construct_circuit(one.circuit, one.sizes, seed=seed)
    layout = CircuitLayout(one.sizes)
    spec = replace(spec_of(one.sizes, layout, one.layers), ffn=(64,), dtype="float32")
    model = SequenceTransformer(spec, seed=seed)
    model.embed.W_E.copy_(made.model.W_E)
    if model.pos_embed is not None:
        model.pos_embed.W_pos.copy_(made.model.W_pos)
    model.unembed.W_U.copy_(made.model.W_U)
    for block in model.blocks:  # the rest begins small, so that the circuit works from the start
        block.attn.W_O.mul_(_SMALL)
        block.mlp.W_out.mul_(_SMALL)
    roles = {(part.layer, int(part.head or 0)) for part in made.mechanism.parts}
    mine = [(layer, head) for layer, head in sorted(roles) if layer < len(one.at)]
    for layer, head in mine:
        _copy(made.model.blocks[layer].attn, model.blocks[one.at[layer]].attn, head)
    return model, [(one.at[layer], head) for layer, head in mine]


def _copy(source: torch.nn.Module, target: torch.nn.Module, head: int) -> None:
    for name in (*_OF_HEADS, "b_Q", "b_K", "b_V"):
        getattr(target, name)[head] = getattr(source, name)[head]


def _freeze(
    model: SequenceTransformer, layer: int, head: int
) -> Sequence[torch.utils.hooks.RemovableHandle]:
    """Keep a head's weights fixed in training, by setting their gradients to zero."""

    def without(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[head] = 0
        return gradient

    attn = model.blocks[layer].attn
    names = (*_OF_HEADS, "b_Q", "b_K", "b_V")
    return [getattr(attn, name).register_hook(without) for name in names]
