"""The head weights W_Q, W_K, W_V, W_O of any checkpoint (without the model) or of a model in
memory.

``head_weights`` finds a checkpoint (a safetensors file, a folder, sharded or not, or a hub id) or
takes a live model, recognises the architecture and returns the factors of every head layer by
layer. Tensors are read only when they are used, and the MLPs' never are.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
