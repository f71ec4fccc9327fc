"""The single-layer architecture of `coupling` §4.1, as options of the one transformer.

    H_t(x) = F̂( Σ_s softmax_s[⟨W_Q f̂(x_t), W_K f̂(x_s)⟩ / √m_h] W_V f̂(x_s) )

One head that looks both ways, no residual, no norm; f̂ (the input FFN) and F̂ (the FFN) are dense
pointwise networks of three layers. Positions, where a task needs them, are learned codes added to
the embedded input before f̂, so that f̂ can tell positions apart: the paper shifts each position's
inputs into a range of their own, which is one such code. The head's values are as wide as its
queries, m_v = m_h (the paper's n = 2 m_h + m_v lets them differ).
"""

from __future__ import annotations

from prooflens.architectures import Positions, TransformerSpec

__all__ = ["coupling_spec"]


def coupling_spec(
    d_in: int,
    d_out: int,
    n_ctx: int,
    *,
    m_h: int,
    n: int = 32,
    width: int = 128,
    positions: Positions = "none",
    mask_self: bool = False,
) -> TransformerSpec:
    """The spec of the single-layer model.

    Args:
        d_in: Number of channels of the input.
        d_out: Number of channels of the output.
        n_ctx: Longest input, in positions.
        m_h: Width of the head, which is the largest rank that its scores can have.
        n: Width of the features, the output of f̂.
        width: Width of the two hidden layers of f̂ and of F̂.
        positions: ``learned`` where the target depends on positions.
        mask_self: Whether a position is kept from attending to itself.

    Raises:
        ArgumentError: naming every size that is out of range.
    """
    return TransformerSpec(
        input="real",
        d_in=d_in,
        d_out=d_out,
        n_ctx=n_ctx,
        d_model=n,
        n_layers=1,
        n_heads=1,
        d_head=m_h,
        input_ffn=(width, width),
        ffn=(width, width),
        residual=False,
        causal=False,
        positions=positions,
        mask_self=mask_self,
    )
