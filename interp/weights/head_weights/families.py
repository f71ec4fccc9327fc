"""Recognise a checkpoint's architecture, and read its head weights.

The architecture is decided by ``model_type`` in the configuration and the names of the tensors,
never by guessing from shapes: the same shapes can hold the numbers in another order, and every
metric would be wrong without an error. A checkpoint that is not recognised is refused with the
names found in it; a mapping can open it (:mod:`interp.weights.head_weights.mapping`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from interp.errors import ArgumentError, CheckpointError
from interp.weights.head_weights.adapter import merge_adapter, read_adapter
from interp.weights.head_weights.analysed import describe_model, names_of
from interp.weights.head_weights.architectures import ARCHITECTURES
from interp.weights.head_weights.layers import HeadWeights
from interp.weights.head_weights.layout import Layout, at_layer
from interp.weights.head_weights.layouts import FAMILIES, own_layout
from interp.weights.head_weights.live import live_source
from interp.weights.head_weights.mapping import layout_of_mapping, read_mapping
from interp.weights.head_weights.source import TensorSource, find_source

# What old checkpoints keep beside the weights: masks and tables, recomputed by every loader.
_BUFFERS = re.compile(
    r"\.(attn|attention)\.(attention\.)?(bias|masked_bias)$|inv_freq$|embed_positions$"
)


def head_weights(
    model: Any,
    *,
    mapping: Mapping[str, Any] | str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    download: bool = True,
    adapter: str | Path | None = None,
) -> HeadWeights:
    """Open the head factors of a checkpoint or of a model in memory, lazily.

    Args:
        model: a ``.safetensors`` file or its index (with ``config.json`` beside it), a folder with
            one, or a hub id; or a live model: ours, a ``TransformerBridge`` or a Hugging Face model
            of the same families (:mod:`interp.weights.head_weights.live`). With a mapping any
            module will do. A ``HeadWeights`` is returned as it is.
        mapping: for an unknown architecture, where the factors are stored: a table, or the path of
            a TOML or JSON file (:mod:`interp.weights.head_weights.mapping`).
        dtype: the dtype that tensors are converted to when they are read.
        revision: branch, tag or commit on the hub.
        download: whether a hub id that is not in the local cache may be read from the hub, by
            ranged requests: the header of each file, then only the tensors that are used.
        adapter: folder of a LoRA adapter to merge (:mod:`.adapter`); for a path or hub id.

    Raises:
        ArgumentError: if the mapping is malformed, or the model is neither a path nor a module.
        CheckpointError: if nothing is there, a file is damaged or pickled, the hub cannot be
            reached, the architecture is not known, or its attention holds tensors that are not
            understood.
    """
    if isinstance(model, HeadWeights):
        return model
    given = read_mapping(Path(mapping)) if isinstance(mapping, str | Path) else mapping
    layout = None if given is None else layout_of_mapping(given)
    if not isinstance(model, str | Path | nn.Module):
        raise ArgumentError(
            f"model must be a path, a hub id or a module, got {model!r}: give one of these"
        )
    if adapter is not None and isinstance(model, nn.Module):
        raise ArgumentError(
            f"adapter must be left out for a model in memory, got {adapter}: load the model with it"
        )
    if isinstance(model, nn.Module):
        source = live_source(model)
    else:
        source = find_source(model, revision=revision, download=download)
    if adapter is not None:
        source = merge_adapter(source, read_adapter(adapter))
    found = layout or _recognise(source)
    factors = HeadWeights(source.name, found, source.files, dtype, describe_model(source))
    _check_complete(factors)
    _check_understood(factors)
    return _with_layers_left_out(factors)


def _recognise(source: TensorSource) -> Layout:
    if source.description is not None:
        return own_layout(source.description)
    kind = str(source.config.get("model_type", ""))
    added = ARCHITECTURES.get(kind) if kind not in FAMILIES else None
    if added is not None and added.mapping is not None:
        return layout_of_mapping(added.mapping(source.config))
    if kind not in FAMILIES:
        raise CheckpointError(_unknown(source, kind))
    family, mark = FAMILIES[kind], FAMILIES[kind].mark
    marked = names_of(source, mark)
    if len(marked) != 1:
        raise CheckpointError(
            f"{source.name} says it is a {kind} but has {len(marked)} tensors named {mark!r}. "
            f"{_listing(source)}"
        )
    config = {**source.config, **(source.config.get("text_config") or {})}
    unembeddings = names_of(source, family.tokens[1])
    stated = config.get("tie_word_embeddings")  # what is stated goes before what is absent
    tied = not unembeddings and stated is not False
    called = unembeddings[0] if len(unembeddings) == 1 else ""
    return family.layout(config, marked[0].removesuffix(mark), tied=tied, unembedding=called)


def _check_complete(factors: HeadWeights) -> None:
    if factors.n_layers > len(factors.files.names):
        raise CheckpointError(
            f"{factors.name} says it has {factors.n_layers} layers and has "
            f"{len(factors.files.names)} tensors: is this the config.json that belongs to them?"
        )
    lacking = [
        name
        for layer in factors
        for part in factors.layout.needed
        if (name := at_layer(factors.layout.parts[part].name, layer.index)) not in factors.files
    ]
    if lacking:
        raise CheckpointError(
            f"{factors.name} lacks {len(lacking)} attention tensors of a "
            f"{factors.n_layers}-layer {factors.layout.family}, first {lacking[0]!r}"
        )


def _with_layers_left_out(factors: HeadWeights) -> HeadWeights:
    """Add a note if the files hold more layers than the configuration says."""
    name = factors.layout.parts["W_Q"].name
    more = factors.n_layers
    while "{layer}" in name and at_layer(name, more) in factors.files:
        more += 1
    if more == factors.n_layers:
        return factors
    first, last = factors.n_layers, more - 1
    which = f"layer {first}" if first == last else f"layers {first} to {last}"
    note = f"left out: {which} of the files, since the configuration or mapping says {first} layers"
    return replace(factors, layout=replace(factors.layout, notes=(*factors.layout.notes, note)))


def _check_understood(factors: HeadWeights) -> None:
    """Refuse a checkpoint whose attention layers hold tensors that the layout does not read."""
    layout = factors.layout
    if not layout.attention:
        return
    layers = range(factors.n_layers)
    read = {at_layer(part.name, i) for part in layout.parts.values() for i in layers}
    starts = tuple(at_layer(layout.attention, i) for i in layers)
    unread = [
        name
        for name in factors.files.names
        if name.startswith(starts) and name not in read and not _BUFFERS.search(name)
    ]
    if unread:
        raise CheckpointError(
            f"{factors.name} has {len(unread)} attention tensors that a {layout.family} here does "
            f"not have, first {unread[0]!r}: leaving them out would change the circuits; give a "
            "mapping if you know what they do"
        )


def _unknown(source: TensorSource, kind: str) -> str:
    nothing = "there is no config.json and no configuration"
    what = f"model_type {kind!r} is not known" if kind else nothing
    remote = "auto_map" in source.config
    code = "; it brings its own code, which weight inspection never runs" if remote else ""
    return (
        f"{source.name}: {what} (known: {', '.join(sorted(FAMILIES))}){code}. {_listing(source)}. "
        "Say where W_Q, W_K, W_V and W_O lie with a mapping (docs/howto-weights.md)"
    )


def _listing(source: TensorSource) -> str:
    names = source.files.names
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"Tensors found: {shown}"
