"""How strongly an activation encodes a latent: scores that are cheap enough to be computed on
thousands of freshly initialised models (:meth:`probes.roles.reinit_null.ReinitNull.odds`).

    explained   share of the activation's variance, summed over all directions, that a linear
                function of the latent explains
    readable    squared correlation of the latent with the predictions of a ridge regression on
                the activation; each fold is predicted from the other folds, and the penalty is
                fixed

Both are in [0, 1]. To report a probe use :mod:`probes.linear`, which chooses its penalty. A latent
that is explained or readable need not be used by the model.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.linear import FOLDS

_PENALTY = 1e-6

Activation = Float[Tensor, "row sample feature"]
Latent = Float[Tensor, "row sample"]
Folds = Int[Tensor, " row"]


def explained_variance(
    activation: Activation, latent: Latent, folds: Folds | None = None
) -> Float[Tensor, ""]:
    """Return the share of an activation's variance that a linear function of a latent explains, in
    [0, 1].

    Args:
        activation: The activation at the sampled positions, ``[row, sample, feature]``.
        latent: The latent's values there, ``[row, sample]``.
        folds: Ignored, because nothing is held out; there so that the signature equals that of
            :func:`readable`.
    """
    flat = activation.double().flatten(0, 1)
    flat, f = flat - flat.mean(0), (latent - latent.mean()).flatten()
    size = flat.square().sum() * f.square().sum()
    return (f @ flat).square().sum() / size.clamp_min(torch.finfo(torch.float64).tiny)


def readable(activation: Activation, latent: Latent, folds: Folds) -> Float[Tensor, ""]:
    """Return the squared correlation of a latent with its held-out ridge predictions; 0 if the
    correlation is negative.

    Args:
        activation: The activation at the sampled positions, ``[row, sample, feature]``.
        latent: The latent's values there, ``[row, sample]``.
        folds: The fold of each row, from 0 (:func:`probes.linear.folds_of`).
    """
    x = activation.double()
    x = x - x.mean((0, 1))
    x = x / x.square().mean((0, 1)).sqrt().clamp_min(1e-12)
    y = latent - latent.mean()
    found = torch.stack([_ridge_predictions(x, y, folds == fold) for fold in range(FOLDS)]).sum(0)
    found = found - found.mean()
    product = (found * y).sum().clamp_min(0)
    size = found.square().sum() * y.square().sum()
    return product.square() / size.clamp_min(torch.finfo(torch.float64).tiny)


def _ridge_predictions(x: Activation, y: Latent, held: Tensor) -> Latent:
    """Fit a ridge regression on the rows that are not held out, and return its predictions on
    held-out rows; 0 on the other rows."""
    seen = (~held).double()[:, None]
    gram = torch.einsum("rsd,rse,rt->de", x, x, seen)
    ridge = _PENALTY * seen.sum() * x.shape[1] * torch.eye(x.shape[-1], dtype=x.dtype)
    w = torch.linalg.solve(gram + ridge, torch.einsum("rsd,rs->d", x, y * seen))
    return (x @ w) * held.double()[:, None]
