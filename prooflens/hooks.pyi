from interp.hooks.capture import evaluating as evaluating
from interp.hooks.transformer_lens_adapter import TransformerBridge as TransformerBridge
from interp.hooks.transformer_lens_adapter import detect_head as detect_head
