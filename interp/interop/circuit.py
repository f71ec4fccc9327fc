"""Roles as a circuit, in the JSON that circuit-discovery tools exchange.

The graph is that of edge attribution patching: nodes ``input``, ``a1.h0`` (a head), ``m1`` (an
FFN), ``logits``; edges from every node to what reads it later, for a head separately to its
queries, keys and values: ``a0.h1->a1.h0<k>``. ``Graph.from_json`` of EAP-IG reads it.

A node is in the circuit if a role of it is confirmed; its score is the largest effect of its
confirmed roles. An edge is in it where both its ends are. Edges are not measured by roles: their
score is 0, and those that matter are for path patching to find (``pl.patch_paths``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import ArgumentError
from interp.output import output_file

__all__ = ["circuit_of_roles", "write_circuit"]

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
