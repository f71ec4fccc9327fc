"""The head weights W_Q, W_K, W_V, W_O of any checkpoint (without the model) or of a model in
memory.

``head_weights`` finds a checkpoint (a safetensors file, a folder, sharded or not, or a hub id) or
takes a live model, recognises the architecture and hands out the factors of every head layer by
layer. Nothing is read before it is asked for, and the MLPs never are.
"""

from interp.weights.head_weights.architectures import ARCHITECTURES, Architecture
from interp.weights.head_weights.circuit import CIRCUITS, Circuit
from interp.weights.head_weights.families import head_weights
from interp.weights.head_weights.layers import HeadWeights, LayerHeadWeights
from interp.weights.head_weights.layout import Layout, Part, Sizes
from interp.weights.head_weights.rope import Rope
from interp.weights.head_weights.tensors import TensorFiles

__all__ = [
    "ARCHITECTURES",
    "CIRCUITS",
    "Architecture",
    "Circuit",
    "HeadWeights",
    "LayerHeadWeights",
    "Layout",
    "Part",
    "Rope",
    "Sizes",
    "TensorFiles",
    "head_weights",
]
