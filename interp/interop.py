"""Ways out to other tools: batches of activations, circuits, Hugging Face data sets, Parquet.

Batches of activations at single positions, for training sparse autoencoders and the like.

SAELens' trainer takes as ``data_provider`` an iterator of tensors ``[batch, d_in]``, and so do most
others. Rows are read a block at a time; a batch is a view of its block wherever it lies in one.

    provider = activation_batches(store, "blocks.0.hook_resid_post", 4096, shuffle=0)
    SAETrainer(cfg=…, sae=…, data_provider=provider)

Mixing is over the positions of one block of rows: positions of a row are alike, so take many rows a
block. Which positions count is not asked: leave out what must not be learned when extracting.

Roles as a circuit, in the JSON that circuit-discovery tools exchange.

The graph is that of edge attribution patching: nodes ``input``, ``a1.h0`` (a head), ``m1`` (an
FFN), ``logits``; edges from every node to what reads it later, for a head separately to its
queries, keys and values: ``a0.h1->a1.h0<k>``. ``Graph.from_json`` of EAP-IG reads it.

A node is in the circuit if a role of it is confirmed; its score is the largest effect of its
confirmed roles. An edge is in it where both its ends are. Edges are not measured by roles: their
score is 0, and those that matter are for path patching to find (``pl.patch_paths``).

A store's rows as a Hugging Face data set: a column a hook, a row a row.

What is read from HDF5 is handed to Arrow as it lies in memory, without a second copy. The set is in
memory whole: name the hooks and rows that are needed, or write sets of parts of the rows and join
them. ``save_to_disk`` makes of it what SAELens takes as ``cached_activations_path``, whose columns
have the names of the hooks and ``token_ids``.

Tables as Parquet files, which pandas, polars, DuckDB and R read with their types.

Every table of ours is a pandas frame already; a Parquet file keeps what a CSV file loses: which
column holds text and which numbers, NaN beside empty text, all digits. What the table was made with
(versions, threads) is in the file's own metadata under ``prooflens``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.environment import environment
from interp.errors import ArgumentError, HookError, Problems, StoreError
from interp.machine import need_bytes
from interp.output import output_file
from interp.reading import regular
from interp.store.cache import tensor
from interp.store.files import RowSelector
from interp.store.reader import ActivationStore

if TYPE_CHECKING:
    import datasets
    import pyarrow


def activation_batches(
    store: ActivationStore,
    hook: str,
    size: int,
    *,
    shuffle: int | None = None,
    block: int = 256,
    repeat: bool = True,
) -> Iterator[Tensor]:
    """The activations of a hook at every position, in batches.

    Args:
        store: An activation store.
        hook: A hook with a position axis; heads are laid side by side.
        size: Positions of a batch.
        shuffle: Seed of the order of rows and of positions within a block; each pass over the rows
            has another order. None for the store's own order.
        block: Rows that are read together.
        repeat: Begin again after the last row, for ever. Otherwise the last batch may be smaller.

    Yields:
        ``[size, width]``, in the dtype that was stored.

    Raises:
        ArgumentError: if a number is not positive.
        HookError: if the hook is not stored, or has no position axis.
    """
    problems = Problems("activation_batches")
    for name, value in (("size", size), ("block", block)):
        problems.need(value >= 1, name, "must be at least 1", value, "raise it")
    good = shuffle is None or shuffle >= 0
    problems.need(good, "shuffle", "must not be negative", shuffle, "any seed from 0 on")
    problems.need(store.rows >= 1, "store", "must hold rows", store.rows, "extract some")
    problems.raise_if_any()
    name, labels = store.canonical(hook), store.labels(hook)
    if labels[1:2] != ("pos",):
        raise HookError(f"{name} has no position axis: its axes are {', '.join(labels)}")
    shape = store.manifest["hooks"][name]["shape"]
    if repeat:  # a batch of more positions than the store has is filled by rows again
        need_bytes(4 * size * math.prod(shape[1:]), f"size: a batch of {size}", "lower it")
    return _batches(store, name, size, shuffle, block, repeat)


def _batches(
    store: ActivationStore, hook: str, size: int, shuffle: int | None, block: int, repeat: bool
) -> Iterator[Tensor]:
    left: Tensor | None = None
    epoch = 0
    while repeat or epoch == 0:
        for values in _blocks(store, hook, shuffle, epoch, block):
            found = values if left is None else torch.cat([left, values])
            whole = len(found) // size * size
            yield from found[:whole].split(size) if whole else ()
            left = found[whole:] if whole < len(found) else None
        epoch += 1
    if left is not None:
        yield left


def _blocks(
    store: ActivationStore, hook: str, shuffle: int | None, epoch: int, block: int
) -> Iterator[Tensor]:
    """``[position, width]`` of some rows at a time."""
    rows = store.row_ids
    generator = None if shuffle is None else np.random.default_rng([shuffle, epoch])
    if generator is not None:
        rows = generator.permutation(rows)
    for start in range(0, len(rows), block):
        for batch in store.batches(block, rows[start : start + block]):
            values = tensor(store, hook, batch.rows)
            values = values.reshape(values.shape[0] * values.shape[1], -1)
            if generator is not None:
                values = values[torch.from_numpy(generator.permutation(len(values)))]
            yield values


_FIRST, _LAST = "input", "logits"


def circuit_of_roles(model: Any, roles: pd.DataFrame) -> dict[str, Any]:
    """The circuit of a model's confirmed roles, as JSON data.

    Args:
        model: The model (its ``cfg`` is read alone).
        roles: Its role table, from ``pl.find_roles``.

    Returns:
        ``cfg`` (n_layers, n_heads, d_model, parallel_attn_mlp), ``nodes`` and ``edges``, each a
        name → ``in_graph`` and ``score``; nodes also have ``roles``, their confirmed roles.

    Raises:
        ArgumentError: if the table is none of roles, or of a larger model.
    """
    lacking = {"component", "layer", "head", "role", "status", "effect"} - set(roles.columns)
    if lacking:
        raise ArgumentError(f"roles must be a role table, got one without {sorted(lacking)}")
    config = getattr(model, "cfg", None)
    if config is None:
        raise ArgumentError(
            f"model must be a hooked model, got {type(model).__name__}: pl.load one"
        )
    layers, heads = int(config.n_layers), int(config.n_heads)
    parallel = bool(getattr(config, "parallel_attn_mlp", False))
    nodes = {name: {"in_graph": False, "score": 0.0, "roles": []} for name in _names(layers, heads)}
    for end in (_FIRST, _LAST):
        nodes[end]["in_graph"] = True
    confirmed = roles[(roles["status"] == "confirmed") & roles["component"].isin(("head", "ffn"))]
    rows: Iterable[Any] = confirmed.itertuples()
    for row in rows:
        name = f"a{row.layer}.h{row.head}" if row.component == "head" else f"m{row.layer}"
        if name not in nodes:
            raise ArgumentError(f"roles must be this model's, got one of {name}: it has no such")
        node: dict[str, Any] = nodes[name]
        effect = 0.0 if pd.isna(row.effect) else float(row.effect)
        node["in_graph"], node["score"] = True, max(node["score"], effect)
        node["roles"].append(str(row.role))
    edges = {
        name: {"in_graph": bool(nodes[a]["in_graph"] and nodes[b]["in_graph"]), "score": 0.0}
        for name, a, b in _edges(layers, heads, parallel)
    }
    sizes = {"n_layers": layers, "n_heads": heads, "d_model": int(config.d_model)}
    return {"cfg": sizes | {"parallel_attn_mlp": parallel}, "nodes": nodes, "edges": edges}


def write_circuit(
    model: Any, roles: pd.DataFrame, path: str | Path, *, overwrite: bool = False
) -> Path:
    """Write the circuit of :func:`circuit_of_roles` as a JSON file; the file's place.

    Raises:
        ArgumentError: as :func:`circuit_of_roles`.
        OutputError: if the file exists and may not be replaced, or cannot be written.
    """
    text = json.dumps(circuit_of_roles(model, roles), allow_nan=False)
    path = Path(path)
    with output_file(path, overwrite=overwrite) as draft:
        draft.write_text(text + "\n", encoding="utf-8")
    return path


def _names(layers: int, heads: int) -> Iterator[str]:
    yield _FIRST
    for layer in range(layers):
        yield from (f"a{layer}.h{head}" for head in range(heads))
        yield f"m{layer}"
    yield _LAST


def _edges(layers: int, heads: int, parallel: bool) -> Iterator[tuple[str, str, str]]:
    """(name, from, to), in the order of the layers."""
    before = [_FIRST]
    for layer in range(layers):
        attention, ffn = [f"a{layer}.h{head}" for head in range(heads)], f"m{layer}"
        for one in before:
            for head in attention:
                yield from ((f"{one}->{head}<{letter}>", one, head) for letter in "qkv")
        read = before if parallel else [*before, *attention]
        yield from ((f"{one}->{ffn}", one, ffn) for one in read)
        before += [*attention, ffn]
    yield from ((f"{one}->{_LAST}", one, _LAST) for one in before)


_BLOCK = 1 << 30  # elements of a chunk; Arrow's offsets have 31 bits


def hugging_face_dataset(
    store: ActivationStore, hooks: Sequence[str] | None = None, rows: RowSelector = None
) -> datasets.Dataset:
    """The rows of a store as a ``datasets.Dataset``.

    Args:
        store: An activation store whose chosen rows are of one length.
        hooks: Which hooks; all by default.
        rows: Ids, a slice of ids, or None for all.

    Returns:
        Columns ``row`` (the id), ``token_ids`` (or ``inputs``, of real values), ``targets`` and
        ``mask`` where the store has them, and each hook under its canonical name with the axes that
        the store has, ``[pos, d_model]`` for a residual stream; bfloat16 becomes float32.

    Raises:
        HookError: if a hook is not stored.
        ArgumentError: if rows are of different lengths, or absent.
        StoreError: if the data are damaged.
    """
    import datasets
    import pyarrow

    ids = np.concatenate([batch.rows for batch in store.batches(store.rows or 1, rows)])
    inputs = store.inputs(ids)
    tokens = np.issubdtype(inputs.dtype, np.integer)
    columns: dict[str, NDArray[Any]] = {"row": ids, "token_ids" if tokens else "inputs": inputs}
    for name in ("targets", "mask"):
        try:
            columns[name] = getattr(store, name)(ids)
        except StoreError:  # the source had none
            continue
    for hook in store.hooks if hooks is None else hooks:
        columns[store.canonical(hook)] = store.activation(hook, ids)
    arrow = {name: _chunks(values) for name, values in columns.items()}
    table = pyarrow.table(arrow)
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def _chunks(values: NDArray[Any]) -> pyarrow.ChunkedArray:
    """An array as a column, in chunks that Arrow's offsets can address."""
    import pyarrow

    each = max(1, _BLOCK // max(1, int(np.prod(values.shape[1:]))))
    parts = [values[start : start + each] for start in range(0, len(values), each)]
    return pyarrow.chunked_array([_column(part) for part in parts])


def _column(values: NDArray[Any]) -> pyarrow.Array:
    """Rows of one shape as nested lists over the array's own memory."""
    import pyarrow
    from datasets.features import features

    values = np.ascontiguousarray(values)
    column = pyarrow.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis]))
        offsets = pyarrow.array(np.arange(count + 1, dtype=np.int32) * values.shape[axis])
        column = pyarrow.ListArray.from_arrays(offsets, column)
    if values.ndim < 3:
        return column
    kind = getattr(features, f"Array{values.ndim - 1}DExtensionType")
    return pyarrow.ExtensionArray.from_storage(kind(values.shape[1:], str(values.dtype)), column)


_KEY = b"prooflens"


def write_parquet(table: pd.DataFrame, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a table as a Parquet file; the file's place.

    Args:
        table: A head table, a role table, or any other frame.
        path: The file.
        overwrite: Replace a file that is there.

    Raises:
        ArgumentError: for a column of mixed types, or a name that stands twice.
        OutputError: if the file exists and may not be replaced, or cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    if not isinstance(table, pd.DataFrame):
        raise ArgumentError(f"table must be a pandas frame, got {type(table).__name__}: make one")
    path = Path(path)
    plain = table.copy(deep=False)
    plain.attrs = {}
    try:
        arrow = pyarrow.Table.from_pandas(plain, preserve_index=False)
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(
            f"table must have columns that Parquet has types for, each name once: {error}"
        ) from error
    told = {_KEY: json.dumps(environment()).encode()}
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **told})
    with output_file(path, overwrite=overwrite) as draft:
        pyarrow.parquet.write_table(arrow, draft)
    return path


def read_parquet(path: str | Path) -> pd.DataFrame:
    """Read a table that :func:`write_parquet` wrote, as it was.

    Raises:
        ArgumentError: if the file is not there or is no Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    regular(path, "table", ArgumentError)
    try:
        found: pd.DataFrame = pyarrow.parquet.read_table(path).to_pandas()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ArgumentError(f"table {path} is not a Parquet file: {error}") from error
    return found
