"""Which architecture a checkpoint is, and its head factors.

The architecture is decided by ``model_type`` in the configuration and the prefix of the tensor
names, never by guessing from shapes: the same shapes can hold the same numbers in another order,
and every metric would be wrong without an error. What is not recognised is refused with the names
found, and can be opened by giving a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from interp.errors import CheckpointError
from interp.models.factors.gpt2 import gpt2
from interp.models.factors.layers import Factors
from interp.models.factors.layout import Layout, PartName
from interp.models.factors.source import Source, find_source

__all__ = ["FAMILIES", "open_factors"]

Adapter = Callable[[Mapping[str, Any], str, bool], Layout]

# model_type → (adapter, the tensor that marks layer 0; what stands before it is the prefix)
FAMILIES: dict[str, tuple[Adapter, str]] = {
    "gpt2": (gpt2, "h.0.attn.c_attn.weight"),
}
_NEEDED: tuple[PartName, ...] = ("W_Q", "W_K", "W_V", "W_O")


def open_factors(
    path_or_id: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
) -> Factors:
    """Open the head factors of a checkpoint, lazily.

    Args:
        path_or_id: a ``.safetensors`` file or its index (with ``config.json`` beside it), a
            folder holding one, or a hub id.
        dtype: what tensors are converted to when read.
        revision: branch, tag or commit on the hub.

    Raises:
        CheckpointError: if nothing is there, a file is damaged or pickled, the hub cannot be
            reached, or the architecture is not known.
    """
    source = find_source(path_or_id, revision=revision)
    layout = _recognise(source)
    factors = Factors(source.name, layout, source.files, dtype)
    _check_complete(factors)
    return factors


def _recognise(source: Source) -> Layout:
    kind = str(source.config.get("model_type", ""))
    if kind not in FAMILIES:
        raise CheckpointError(_unknown(source, kind))
    adapter, mark = FAMILIES[kind]
    marked = [n for n in source.files.names if n == mark or n.endswith("." + mark)]
    if not marked:
        raise CheckpointError(
            f"{source.name} says it is a {kind} but has no tensor {mark!r}: {_found(source)}"
        )
    tied = bool(source.config.get("tie_word_embeddings", True))
    return adapter(source.config, marked[0].removesuffix(mark), tied)


def _check_complete(factors: Factors) -> None:
    lacking = [
        part.name.format(layer=i)
        for i in range(factors.n_layers)
        for name in _NEEDED
        if (part := factors.layout.parts[name]) and part.name.format(layer=i) not in factors.files
    ]
    if lacking:
        raise CheckpointError(
            f"{factors.name} lacks {len(lacking)} attention tensors of a "
            f"{factors.n_layers}-layer {factors.layout.family}, first {lacking[0]!r}"
        )


def _unknown(source: Source, kind: str) -> str:
    what = f"model_type {kind!r} is not known" if kind else "there is no config.json beside it"
    return f"{source.name}: {what} (known: {', '.join(sorted(FAMILIES))}). {_found(source)}"


def _found(source: Source) -> str:
    names = source.files.names
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"Tensors found: {shown}"
