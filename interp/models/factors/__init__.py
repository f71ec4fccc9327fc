"""The W_Q, W_K, W_V, W_O of any checkpoint, without the model; or of a model in memory.

``open_factors`` finds a checkpoint (a safetensors file, a folder, sharded or not, or a hub id) or
takes a live model, recognises the architecture and hands out the factors of every head layer by
layer. Nothing is read before it is asked for, and the MLPs never are.
"""

from interp.models.factors.circuit import CIRCUITS, Circuit
from interp.models.factors.families import open_factors
from interp.models.factors.layers import Factors, LayerFactors
from interp.models.factors.layout import Layout, Part, Sizes
from interp.models.factors.rope import Rope
from interp.models.factors.tensors import TensorFiles

__all__ = [
    "CIRCUITS",
    "Circuit",
    "Factors",
    "LayerFactors",
    "Layout",
    "Part",
    "Rope",
    "Sizes",
    "TensorFiles",
    "open_factors",
]
