"""Hooks: TransformerLens' bridge and head detector, and a model put in evaluation mode."""

from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import TransformerBridge, detect_head

__all__ = [
    "TransformerBridge",
    "detect_head",
    "evaluating",
]
