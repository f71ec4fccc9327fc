"""Kernel regression on strings, with kernels of finite models (`template` §2.2, §2.4).

    feature kernel   K(X, Y) = mean over the last FFN's neurons of φ(u)φ(v): training the readout
                     alone is regression with it; as width grows it tends to the NNGP kernel
    tangent kernel   K(X, Y) = ⟨∂f(X)/∂θ, ∂f(Y)/∂θ⟩ at the initial weights: training everything by
                     tiny steps is regression with it

Both are lazy: features do not move. Where full training needs fewer samples than either, features
were learned.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from jaxtyping import Float64, Int
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor
from torch.func import functional_call, jacrev

from analyses.papers.template.nngp.kernel import NNGPKernel
from prooflens.architectures import Activation, SequenceTransformer, TransformerSpec
from prooflens.errors import Problems

__all__ = ["feature_kernel", "kernel_predict", "tangent_kernel", "theory_model"]

Tokens = Int[Tensor, "string pos"]
Square = Float64[np.ndarray, "string string"]
_ROWS = 16


def theory_model(
    kernel: NNGPKernel, *, vocabulary: int, length: int, width: int, heads: int, seed: int = 0
) -> SequenceTransformer:
    """A random one-layer model whose kernel tends to ``kernel`` as width and heads grow.

    No residual connection; embeddings of unit variance a coordinate, positions γ times that,
    scores scaled by β. Head width is ``width // 4``, and the FFN has four neurons a coordinate.

    Raises:
        ArgumentError: for erf, which models do not have, or if the spec refuses the sizes.
    """
    problems, known = Problems("theory_model"), ("relu", "gelu")
    good = kernel.activation in known
    problems.need(good, "activation", "must be relu or gelu", kernel.activation, "pick one")
    problems.raise_if_any()
    spec = TransformerSpec(
        d_in=vocabulary,
        d_out=1,
        n_ctx=length,
        d_model=width,
        n_layers=1,
        n_heads=heads,
        d_head=max(width // 4, 1),
        ffn=(4 * width,),
        positions="learned",
        residual=False,
        activation=cast("Activation", kernel.activation),
        identity_qk=kernel.a != 0,
    )
    model = SequenceTransformer(spec, seed=seed)
    attn = model.blocks[0].attn
    with torch.no_grad():
        model.embed.W_E *= width**0.5
        model.W_pos.mul_(width**0.5 * kernel.gamma)
        attn.W_Q *= kernel.beta
        if kernel.a != 0:
            attn.terms["identity"].a.fill_(kernel.beta * kernel.a / width)
    return model


@torch.no_grad()
def feature_kernel(model: SequenceTransformer, strings: Tokens) -> Square:
    """The feature kernel: the mean product of the last FFN's neurons at the last position."""
    name = f"blocks.{model.spec.n_layers - 1}.mlp.hook_post"
    _, cache = model.run_with_cache(strings, names_filter=name, return_cache_object=False)
    features = cache[name][:, -1].double().numpy()
    return np.asarray(features @ features.T / features.shape[1])


def tangent_kernel(
    model: SequenceTransformer, strings: Tokens, others: Int[Tensor, "other pos"]
) -> np.ndarray:
    """The tangent kernel ⟨∂f/∂θ, ∂f/∂θ⟩ of the first output at the last position, ``[string,
    other]``.

    Memory is others × parameters numbers of eight bytes.
    """
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    right = torch.cat(
        [_gradients(model, weights, part) for part in torch.split(others, _ROWS)]
    ).double()
    products = [
        _gradients(model, weights, p).double() @ right.T for p in torch.split(strings, _ROWS)
    ]
    return np.asarray(torch.cat(products).numpy())


def _gradients(model: SequenceTransformer, weights: dict[str, Tensor], rows: Tensor) -> Tensor:
    def output(parameters: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(model, parameters, (rows,))
        return found[:, -1, 0]

    jacobian = jacrev(output)(weights)
    return torch.cat([part.reshape(len(rows), -1) for part in jacobian.values()], dim=1)


def kernel_predict(
    train: Square,
    targets: Float64[np.ndarray, " string"],
    cross: Float64[np.ndarray, "test string"],
    *,
    ridge: float,
) -> Float64[np.ndarray, " test"]:
    """Predictions of kernel ridge regression.

    Args:
        train: The kernel between training strings.
        targets: The labels of the training strings.
        cross: The kernel between test and training strings.
        ridge: The ridge λ as a multiple of the kernel's mean diagonal.
    """
    alpha = ridge * float(np.diag(train).mean())
    fitted = KernelRidge(alpha=alpha, kernel="precomputed").fit(train, targets)
    return np.asarray(fitted.predict(cross), dtype=np.float64)
