"""A transformer whose parameters are all zero, into which a construction writes its weights.

Whatever a proof does not mention must contribute nothing. A head whose values are zero and a neuron
without an output do so exactly, where randomly initialised ones would not.
"""

from __future__ import annotations

import torch

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

__all__ = ["zero_model"]


def zero_model(spec: TransformerSpec) -> SequenceTransformer:
    """The spec's model with every parameter at zero."""
    model = SequenceTransformer(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model
