"""Where heads attend: by lag and by kind of key, on given, shuffled and repeated rows."""

from interp.attention.attention_to_keys import AttentionMass, attention_table
from interp.attention.behaviour import SCALE, copying_table, positional_table
from interp.attention.by_lag import lag_table
from interp.attention.key_sets import repeated_tokens, token_key_sets
from interp.store.rows import layer_hooks, read_batches

__all__ = [
    "SCALE",
    "AttentionMass",
    "attention_table",
    "copying_table",
    "lag_table",
    "layer_hooks",
    "positional_table",
    "read_batches",
    "repeated_tokens",
    "token_key_sets",
]
