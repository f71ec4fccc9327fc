"""The same construction in a random basis, so that its weights do not show it (`memory` §1.4).

    residual stream   x → x Q, Q orthogonal and uniformly random
    heads             permuted; each one's inner basis rotated: q, k by R_h, v by S_h, W_O by S_hᵀ
    neurons           permuted; those of ReLUs scaled by c > 0 at the input and 1/c at the output

Slopes p_h, gates w_h, the scalars a and b and everything else of a head moves with it; w_h is
rotated by Q. a·I and b·I stay as they are; a projector aP becomes a QᵀPQ. With a LayerNorm Q also
fixes the vector of ones, and with RoPE R_h rotates each of its planes. Pairs of ``pair_sign`` stay
pairs and are scaled at the input only; GELUs are not scaled.

Function and roles survive, axis-aligned weights do not: a detector that reads coordinates fails
here. It does not test robustness to *functional* disguises (idle heads, split neurons). Dense
weights round differently, and spread the rounding of ill-conditioned heads over all directions. So
the certificate is recomputed from the rotated weights if the construction has a ``certify``.
Otherwise it becomes its ``error_in_any_basis``, or says that this rounding is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from interp.errors import Problems
from interp.models.ffn import FFN
from interp.models.norm import Norm
from interp.models.spec import Activation
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction, Mechanism

_READERS = ("W_Q", "W_K", "W_V")
_OF_HEADS = {*_READERS, "b_Q", "b_K", "b_V", "W_O", "b", "a", "p", "c", "w", "bias", "r"}
_KNOWN = {"W_E", "W_pos", "W_U", "b_U", "b_O", "W", "W_in", "b_in", "W_out", "b_out"} | _OF_HEADS
_SCALES = 0.7
"""Standard deviation of the logarithm of the random factor by which a neuron's weights are
rescaled."""

Square = Float64[Tensor, "width width"]


@torch.no_grad()
def random_basis(construction: Construction, seed: int) -> Construction:
    """Return the construction in a random basis, with heads and neurons permuted and the mechanism
    adapted.

    Args:
        construction: Any construction; it is not changed.
        seed: Seed of the basis, the permutations and the scales.

    Raises:
        ArgumentError: if no rotation preserves the model (sinusoidal positions, a norm with gain or
            bias), or it has weights of an unknown kind.
    """
    old, certify = construction.model, construction.certify
    _check(old)
    generator = torch.Generator().manual_seed(seed)
    basis = _basis(old, generator)
    model = SequenceTransformer(old.spec)
    model.load_state_dict(old.state_dict())
    _turn_ends(model, basis)
    if model.input_ffn is not None:
        _hide_ffn(model.input_ffn, model.spec.input_ffn, basis, generator)
    heads = [_hide_heads(model, layer, basis, generator) for layer in range(model.spec.n_layers)]
    for block, widths in zip(model.blocks, model.spec.ffn_widths, strict=True):
        if block.mlp is not None:
            _hide_ffn(block.mlp, widths, basis, generator)
    return Construction(
        name=f"{construction.name}-hidden-{seed}",
        task=construction.task,
        model=model,
        mechanism=_in_basis(construction.mechanism, basis, heads),
        certificate=certify(model)
        if certify is not None
        else _dense_certificate(construction.certificate),
        certify=certify,
    )


def _check(model: SequenceTransformer) -> None:
    problems, spec = Problems("random_basis"), model.spec
    rule = "must not be sinusoidal: fixed codes do not turn"
    problems.need(spec.positions != "sinusoidal", "positions", rule, spec.positions, "use learned")
    for name, norm in model.named_modules():
        if isinstance(norm, Norm):
            plain = norm.w is None or bool((norm.w == 1).all())
            plain = plain and (norm.b is None or bool((norm.b == 0).all()))
            rule = "must have no gain and no bias: a rotation would change the function"
            problems.need(plain, name, rule, "an affine part", "build with norm_gain=False")
    for name, _ in model.named_parameters():
        known = name.split(".")[-1] in _KNOWN
        problems.need(
            known, "model", "must have known weights", name, "teach random_basis its rule"
        )
    problems.raise_if_any()


def _rotation(n: int, generator: torch.Generator) -> Square:
    """Draw a uniformly random orthogonal matrix."""
    gaussian = torch.randn(n, n, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()


def _basis(model: SequenceTransformer, generator: torch.Generator) -> Square:
    """Draw the basis Q; for a model with a LayerNorm one that fixes the vector of ones."""
    n = model.spec.d_model
    if model.spec.norm != "layernorm":
        return _rotation(n, generator)
    frame = torch.randn(n, n, generator=generator, dtype=torch.float64)
    frame[:, 0] = 1
    frame, _ = torch.linalg.qr(frame)
    inner = torch.eye(n, dtype=torch.float64)
    inner[1:, 1:] = _rotation(n - 1, generator)
    return frame @ inner @ frame.T


def _planes(n: int, width: int, generator: torch.Generator) -> Square:
    """Draw rotations of the planes (i, i + width/2), which commute with RoPE's rotations."""
    angle = 2 * torch.pi * torch.rand(width // 2, generator=generator, dtype=torch.float64)
    cos, sin, half = angle.cos(), angle.sin(), width // 2
    turn = torch.eye(n, dtype=torch.float64)
    i = torch.arange(half)
    turn[i, i] = turn[i + half, i + half] = cos
    turn[i, i + half], turn[i + half, i] = sin, -sin
    return turn


def _turn_ends(model: SequenceTransformer, basis: Square) -> None:
    _set(model.embed.W_E, _wide(model.embed.W_E) @ basis)
    if model.pos_embed is not None:
        _set(model.pos_embed.W_pos, _wide(model.pos_embed.W_pos) @ basis)
    if not model.spec.tied_unembedding:
        _set(model.unembed.W_U, basis.T @ _wide(model.unembed.W_U))


def _hide_heads(
    model: SequenceTransformer, layer: int, basis: Square, generator: torch.Generator
) -> Int64[Tensor, " head"]:
    """Rotate and permute one layer's heads; entry h is the old number of the head that is now
    number h."""
    spec, attn = model.spec, model.blocks[layer].attn
    heads, width = spec.heads[layer], spec.head_widths[layer]
    allocated = attn.W_V.shape[0]
    order = torch.cat([torch.randperm(heads, generator=generator), torch.arange(heads, allocated)])
    for head in range(heads):
        turns = [torch.eye(attn.W_V.shape[2], dtype=torch.float64) for _ in range(2)]
        for turn in turns:
            turn[:width, :width] = _rotation(width, generator)
        if spec.positions == "rope":
            turns[0] = _planes(attn.W_V.shape[2], width, generator)
        _turn_head(attn, head, *turns)
    _set(attn.b_O, _wide(attn.b_O) @ basis)
    for name, weight in attn.named_parameters():
        kind, wide = name.split(".")[-1], _wide(weight)
        if kind in _READERS:
            wide = basis.T @ wide
        elif kind in ("W_O", "w"):
            wide = wide @ basis
        if kind in _OF_HEADS:
            _set(weight, wide[order])
    return order


def _turn_head(attn: Any, head: int, qk: Square, vo: Square) -> None:
    """Rotate the inner bases of one head, before it is moved to another index."""
    for name, turn in (("Q", qk), ("K", qk), ("V", vo)):
        for kind in ("W_", "b_"):
            weight = getattr(attn, kind + name, None)
            if weight is not None:
                _set(weight[head], _wide(weight[head]) @ turn)
    if "relative_keys" in attn.terms:
        keys = attn.terms["relative_keys"].r
        _set(keys[head], _wide(keys[head]) @ qk)
    _set(attn.W_O[head], vo.T @ _wide(attn.W_O[head]))


def _hide_ffn(ffn: FFN, widths: tuple[int, ...], basis: Square, generator: torch.Generator) -> None:
    """Rotate what an FFN reads and writes, and permute and scale the neurons of each hidden
    layer."""
    inner: list[Any] = list(ffn.hidden)
    layers = [(hidden.W, hidden.b, hidden.kind) for hidden in inner]
    layers.append((ffn.W_in, ffn.b_in, ffn.kind))
    first = layers[0][0]
    _set(first, basis.T @ _wide(first))
    followers = [W for W, _, _ in layers[1:]] + [ffn.W_out]
    for (W, b, kind), after, width in zip(layers, followers, widths, strict=False):
        order, into, out = _neurons(width, kind, generator)
        _set(W[:, :width], _wide(W)[:, order] * into)
        _set(b[:width], _wide(b)[order] * into)
        _set(after[:width], _wide(after)[order] * out[:, None])
    _set(ffn.W_out, _wide(ffn.W_out) @ basis)
    _set(ffn.b_out, _wide(ffn.b_out) @ basis)


def _neurons(
    width: int, kind: Activation, generator: torch.Generator
) -> tuple[Int64[Tensor, " width"], Float64[Tensor, " width"], Float64[Tensor, " width"]]:
    """Return the old neuron at each place, its scale at the input, and its scale at the output."""
    one = torch.ones(width, dtype=torch.float64)
    if kind == "pair_sign":
        pairs = torch.randperm(width // 2, generator=generator)
        swap = torch.randint(2, (width // 2,), generator=generator)
        order = torch.stack([2 * pairs + swap, 2 * pairs + 1 - swap], dim=1).flatten()
        return order, _scales(width // 2, generator).repeat_interleave(2), one
    order = torch.randperm(width, generator=generator)
    if kind != "relu":
        return order, one, one
    scale = _scales(width, generator)
    return order, scale, 1 / scale


def _scales(count: int, generator: torch.Generator) -> Float64[Tensor, " count"]:
    return (_SCALES * torch.randn(count, generator=generator, dtype=torch.float64)).exp()


def _in_basis(mechanism: Mechanism, basis: Square, heads: list[Tensor]) -> Mechanism:
    places = [{int(old): new for new, old in enumerate(order)} for order in heads]
    parts = tuple(
        part if part.head is None else replace(part, head=places[part.layer][part.head])
        for part in mechanism.parts
    )
    return replace(
        mechanism, parts=parts, directions=_rotate_directions(mechanism.directions, basis)
    )


def _rotate_directions(directions: Mapping[str, Tensor], basis: Square) -> dict[str, Tensor]:
    return {name: (_wide(v) @ basis).to(v.dtype) for name, v in directions.items()}


def _dense_certificate(certificate: Certificate) -> Certificate:
    dense = certificate.error_in_any_basis
    if dense is not None:
        return replace(certificate, error=dense)
    domain = f"{certificate.domain}; rounding in the hidden basis is not counted"
    return replace(certificate, domain=domain)


def _wide(weight: Tensor) -> Tensor:
    return weight.detach().double().cpu()


def _set(weight: Tensor, value: Tensor) -> None:
    weight.copy_(value)
