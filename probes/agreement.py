"""Does a model do what the proof does? Statement by statement.

A :class:`~interp.proofs.mechanism.Mechanism` says which kind of component serves which latent. Each
of its statements is checked against a model's decided roles: *x_{t−T} is extracted by attention
heads*, *each memory owns its heads*, *f is computed by an FFN that comes after them*. A statement
holds when confirmed roles say so; its strength is the decodability of the latent that is lost
without the strongest such component (NaN for ownership, which is true or false).

Trained models are judged on kind and order, not on how many heads serve a memory or in which
layer. Disagreement means another mechanism was found, not that the proof is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from interp.heads.effects import Component
from interp.proofs.mechanism import Mechanism

__all__ = ["agreement"]


def agreement(mechanism: Mechanism, roles: pd.DataFrame) -> pd.DataFrame:
    """Every statement of a mechanism, checked against decided roles.

    Args:
        mechanism: The proof's.
        roles: From :func:`probes.roles.decide_roles`.

    Returns:
        Columns ``statement``, ``holds``, ``strength`` and ``by`` (the components, in words).
    """
    confirmed = roles[roles["status"] == "confirmed"]
    return pd.DataFrame(_statements(mechanism, confirmed))


def _statements(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    heads = confirmed[confirmed["role"] == "memory-location"]
    readouts = confirmed[confirmed["role"] == "readout"]
    memories = {part.target: part.lag for part in mechanism.parts if part.role == "memory-location"}
    for memory, lag in memories.items():
        serving = heads[heads["target"] == memory]
        yield _row(f"{memory} is extracted by attention heads that select lag {lag}", serving)
    acting = confirmed[confirmed["role"].isin(["memory-location", "memory-correction"])]
    owners = acting.groupby(["layer", "head"])["target"].nunique()
    alone = len(owners) > 0 and bool((owners == 1).all()) and set(heads["target"]) == set(memories)
    yield {
        "statement": "each memory owns its heads",
        "holds": alone,
        "strength": float("nan"),
        "by": "; ".join(f"{name}: {_names(group)}" for name, group in acting.groupby("target")),
    }
    for part in mechanism.parts:
        if part.role == "readout":
            serving = readouts[readouts["target"] == part.target]
            found = heads[heads["target"].isin(memories)].groupby("target")["layer"].min()
            complete = len(found) == len(memories)
            after = serving[serving["layer"] >= found.max()] if complete else serving.iloc[:0]
            yield _row(f"{part.target} is computed by an FFN after the memories are there", after)


def _row(statement: str, serving: pd.DataFrame) -> dict[str, Any]:
    strength = float(serving["strength"].max()) if len(serving) else 0.0
    return {
        "statement": statement,
        "holds": len(serving) > 0,
        "strength": strength,
        "by": _names(serving),
    }


def _names(rows: pd.DataFrame) -> str:
    columns = rows[["component", "layer", "head"]].itertuples(index=False, name=None)
    return ", ".join(Component(*values).name for values in columns)
