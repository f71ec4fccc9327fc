"""The constructive proof for `memory` Task II as weights (§1.4): R rounds in R + 1 layers.

    layer 0       no attention; FFN: the first locations t_1 = g_1(a_t), from the token
    layer r       attention: what lies at the locations of round r; score p_h t_i − p_h s, no
                  normaliser: Σ_h a_h e^{−p_h (s − t_i)} ≈ 1[s = t_i]
                  FFN: the locations of round r + 1, or f after the last round

The location is a query-side scalar against a constant key, so content is needed in the score and a
scalar of it is enough; ``gate="dot"`` puts the same number through W_Q and W_K. With
a_h = a′_h e^{−p_h T} and T the largest location, a′_h selects lag T at s + T − t_i: one fit serves
all locations. FFNs are ramps (:mod:`interp.proofs.memory.corners`), so what a round leaves out of
place is removed before the next one reads it; without that, errors of locations are multiplied by
10¹¹ a round.

Values must be ±1. The construction says that R + 1 layers suffice, not that they are needed, nor
that trained models run one round a layer.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal, get_args

import torch

from interp.errors import Problems
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Construction, Mechanism, Part
from interp.proofs.memory.margins import AdaptivePlan, plan_adaptive
from interp.proofs.zero_model import zero_model
from interp.tasks.memory import AdaptiveMemory

__all__ = ["Gate", "construct_adaptive_memory"]

Gate = Literal["scalar", "dot"]


def construct_adaptive_memory(
    task: AdaptiveMemory,
    *,
    gate: Gate = "scalar",
    dtype: Literal["float64", "float32"] = "float64",
) -> Construction:
    """A model of R + 1 layers that computes the task exactly, up to rounding.

    Latents of several channels (addresses) have one direction a channel, ``a[t-t_1] bit 0`` ….

    Args:
        task: A task whose values are ±1.
        gate: How the location enters the score: ``scalar`` ⟨w_h, x_t⟩, or ``dot`` through a
            product of queries with constant keys.
        dtype: Dtype of the model.

    Raises:
        ArgumentError: for Gaussian values, or if the locations cannot be told apart well enough in
            the dtype; the message gives the coordinates' error and the margins that it exceeds.
    """
    problems = Problems("construct_adaptive_memory")
    signs = task.inputs == "signs"
    problems.need(signs, "inputs", "must be signs: ramps read ±1", task.inputs, "use signs")
    rule = f"must be one of {', '.join(get_args(Gate))}"
    problems.need(gate in get_args(Gate), "gate", rule, gate, "pick one")
    rule = "must be float64 or float32"
    problems.need(dtype in ("float64", "float32"), "dtype", rule, dtype, "use float64")
    problems.raise_if_any()
    plan = plan_adaptive(task, 2.0**-53 if dtype == "float64" else 2.0**-24)
    model = zero_model(_spec(plan, gate, dtype))
    with torch.no_grad():
        model.embed.W_E.copy_(torch.eye(1 + task.bits, plan.slots.width))
        for layer, memories in enumerate(plan.slots.rounds, start=1):
            _write_heads(model, plan, layer, memories)
        for layer, block in enumerate(model.blocks):
            first = 0
            for table, reads, slot in plan.readouts(layer):
                table.write(block.mlp, reads, slot, first)
                first += table.neurons
        model.unembed.W_U[plan.slots.at["f"], 0] = 1
    name = f"constructed-{task.name}" if gate == "scalar" else f"constructed-dot-{task.name}"
    return Construction(name, task, model, _mechanism(plan), plan.certificate())


def _spec(plan: AdaptivePlan, gate: Gate, dtype: Literal["float64", "float32"]) -> TransformerSpec:
    task, rounds = plan.task, plan.slots.rounds
    heads = len(plan.fit.slopes)
    ffn = [sum(t.neurons for t, _, _ in plan.readouts(r)) for r in range(len(rounds) + 1)]
    return TransformerSpec(
        input="real",
        d_in=1 + task.bits,
        d_out=1,
        n_ctx=task.length,
        d_model=plan.slots.width,
        n_layers=len(rounds) + 1,
        n_heads=(0, *(heads * len(memories) for memories in rounds)),
        d_head=(1, *(len(plan.slots.carried(memories[0])) for memories in rounds)),
        ffn=tuple((width,) for width in ffn),
        score="dot" if gate == "dot" else "scalar_gate",
        lag_bias="lin",
        normalizer="none",
        dtype=dtype,
    )


def _write_heads(
    model: SequenceTransformer, plan: AdaptivePlan, layer: int, memories: tuple[int, ...]
) -> None:
    attn, head = model.blocks[layer].attn, 0
    scale = sqrt(model.spec.head_widths[layer])
    for memory in memories:
        location = plan.slots.at[f"t_{memory}"]
        for slope, coefficient in zip(plan.fit.slopes, plan.coefficients, strict=True):
            attn.terms["lag"].p[head] = float(slope)
            if "gate" in attn.terms:
                attn.terms["gate"].w[head, location] = float(slope)
            else:
                attn.W_Q[head, location, 0] = float(slope) * scale
                attn.b_K[head, 0] = 1
            for channel, (source, target) in enumerate(plan.slots.carried(memory)):
                attn.W_V[head, source, channel] = 1
                attn.W_O[head, channel, target] = float(coefficient)
            head += 1


def _mechanism(plan: AdaptivePlan) -> Mechanism:
    slots, parts = plan.slots, []
    for layer, memories in enumerate(slots.rounds, start=1):
        heads = [memory for memory in memories for _ in plan.fit.slopes]
        for head, memory in enumerate(heads):
            target = f"x[t-t_{memory}]"
            parts.append(Part("head", layer, head, "memory-location", target, round=layer))
        for memory in memories:
            parts.append(Part("ffn", layer - 1, None, "readout", f"t_{memory}", round=layer))
    last = len(slots.rounds)
    parts.append(Part("ffn", last, None, "readout", "f"))
    written = {"x[t]": "hook_embed", "a[t]": "hook_embed", "f": f"blocks.{last}.hook_resid_post"}
    for layer, memories in enumerate(slots.rounds, start=1):
        for i in memories:
            written[f"t_{i}"] = f"blocks.{layer - 1}.hook_resid_post"
            written[f"x[t-t_{i}]"] = written[f"a[t-t_{i}]"] = f"blocks.{layer}.hook_resid_mid"
    axes = torch.eye(slots.width, dtype=torch.float64)
    directions, hooks = {}, {}
    for latent, first in slots.at.items():
        address = latent.startswith("a[")
        for bit in range(plan.task.bits if address else 1):
            name = f"{latent} bit {bit}" if address else latent
            directions[name], hooks[name] = axes[first + bit], written[latent]
    return Mechanism(tuple(parts), directions, hooks)
