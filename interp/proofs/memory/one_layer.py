"""The common parts of memory proofs with one layer: groups of heads that extract a memory each, and
slots.

attention   each memory has a group of heads without dot products: Σ_h a_h e^{−p_h φ(s)} FFN
is left to the proof: it reads the slots and writes f into the last one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from numpy import ndarray

from interp.hooks.site import Site
from interp.models.spec import Normalizer, TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import Positions
from interp.proofs.mechanism import Mechanism, Part, zero_model


@dataclass(frozen=True)
class HeadGroup:
    """Heads that together extract one memory.

    Attributes:
        memory: Name of the latent that they write.
        slopes: The slopes p_h.
        coefficients: The coefficients a_h.
        lag: The lag that they select; None for a kernel.
    """

    memory: str
    slopes: Float64[ndarray, " head"]
    coefficients: Float64[ndarray, " head"]
    lag: int | None


def one_layer(
    groups: Sequence[HeadGroup],
    slots: Mapping[str, int],
    *,
    length: int,
    ffn: tuple[int, ...],
    d_in: int = 1,
    lag_bias: Positions = "lin",
    normalizer: Normalizer = "none",
) -> tuple[SequenceTransformer, Mechanism]:
    """Make a float64 model whose attention extracts the memories and whose FFN is still all 0.

    Args:
        groups: The heads, group by group.
        slots: Latent → coordinate of the residual stream that holds it. x[t] has coordinate 0, each
            memory has one of its own, and f has the last.
        length: Number of positions of the longest row.
        ffn: Widths of the FFN's hidden layers.
        d_in: Number of input channels, which enter the first coordinates.
        lag_bias: How the scores of all heads depend on the lag; see :class:`TransformerSpec`.
        normalizer: How all heads normalise their weights; see :class:`TransformerSpec`.
    """
    width = slots["f"] + 1
    spec = TransformerSpec(
        input="real",
        d_in=d_in,
        d_out=1,
        n_ctx=length,
        d_model=width,
        n_layers=1,
        n_heads=sum(len(group.slopes) for group in groups),
        d_head=1,
        ffn=ffn,
        score="none",
        lag_bias=lag_bias,
        normalizer=normalizer,
        dtype="float64",
    )
    model = zero_model(spec)
    parts: list[Part] = []
    with torch.no_grad():
        model.embed.W_E.copy_(torch.eye(d_in, width))
        model.unembed.W_U[-1, 0] = 1
        attn = model.blocks[0].attn
        for group in groups:
            role = "memory-kernel" if group.lag is None else "memory-location"
            for slope, coefficient in zip(group.slopes, group.coefficients, strict=True):
                head = len(parts)
                attn.terms["lag"].p[head] = float(slope)
                attn.W_V[head, 0, 0] = 1
                attn.W_O[head, 0, slots[group.memory]] = float(coefficient)
                parts.append(Part("head", 0, head, role, group.memory, group.lag))
    axes = torch.eye(width, dtype=torch.float64)
    ends = {"x[t]": Site(-1, "embed").name, "f": Site(0, "resid_post").name}
    mechanism = Mechanism(
        parts=(*parts, Part("ffn", 0, None, "readout", "f")),
        directions={latent: axes[at] for latent, at in slots.items()},
        written={latent: ends.get(latent, Site(0, "resid_mid").name) for latent in slots},
    )
    return model, mechanism
