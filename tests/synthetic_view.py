"""A viewer's page of made-up heads, whose tokens look like markup: no model is run."""

import json
from typing import Any

import numpy as np
import pandas as pd
import torch

from interp.store.attention_mask import AttentionMask
from interp.tasks.base import Batch
from probes.roles import ROLE_COLUMNS
from probes.viewing.measure import Effects, HeadOnRows, Seen
from probes.viewing.model import Column, Viewed
from probes.viewing.quantised import quantised
from probes.viewing.sequences import Sequences


def synthetic(
    layers: int, heads: int, rows: int, length: int, *, name: str = "made up", alike: bool = False
) -> Viewed:
    """A model's page with random causal attention; its tokens look like markup.

    Args:
        layers, heads: How many; layer 0, head 2 has the one role.
        rows, length: Of its sequences.
        name: Of the model.
        alike: Whether all heads share one attention, which is quicker to make.
    """
    rng = np.random.default_rng(0)
    inputs = torch.arange(rows * length).reshape(rows, length) % 97
    texts = tuple(tuple(f"</script>{i % 97}" for i in row) for row in inputs.tolist())
    batch = Batch(inputs, inputs, torch.ones(rows, length, dtype=torch.bool))
    places = tuple((layer, head) for layer in range(layers) for head in range(heads))
    seen: dict[Any, Any] = {}
    by_position: dict[Any, Any] = {}
    by_row: dict[Any, Any] = {}
    for place in places[:1] if alike else places:
        seen[place] = _head(rng, rows, length)
        lost = rng.normal(size=(rows, length))
        by_position[place], by_row[place] = quantised(lost), lost.mean(1)
    for place in places:
        for found in (seen, by_position, by_row):
            found.setdefault(place, found[places[0]])
    values = {place: float(i) for i, place in enumerate(places)} | {places[0]: np.inf}
    columns = (
        Column("previous", "previous (share)", "About.", dict.fromkeys(places[1:], 0.5)),
        Column("loss-task", "loss without it (nats)", "About.", values),
    )
    return Viewed(
        name,
        places,
        columns,
        _roles(),
        {},
        (Sequences("task", "rows", batch, texts),),
        (Seen(seen, AttentionMask(), tuple(range(32))),),
        (Effects(by_position, by_row, pd.DataFrame(), "mean", "nats"),),
        None,
        ("a <note>",),
    )


def _head(rng: np.random.Generator, rows: int, length: int) -> HeadOnRows:
    pattern = np.tril(rng.random((rows, length, length), dtype=np.float32) ** 8)
    pattern /= pattern.sum(-1, keepdims=True)
    lags = np.full(32, np.nan)
    lags[:5] = 0.2
    masses = {"previous": rng.random(rows), "after_same": np.full(rows, np.nan)}
    norms = quantised(rng.random((rows, length)))
    return HeadOnRows(quantised(pattern, shares=True), norms, masses, lags)


def _roles() -> pd.DataFrame:
    role: dict[str, Any] = dict.fromkeys(ROLE_COLUMNS, "")
    role |= {"component": "head", "layer": 0, "head": 2, "role": "induction"}
    role |= {"status": "confirmed", "strength": 0.9, "effect": 1.5, "q": 0.0}
    test = {"p": 0.0, "q": 0.0, "low": 0.8, "high": 0.95}
    tests = [
        test
        | {"name": "share <b>of</b> attention", "kind": "behaviour", "score": 0.9, "floor": 0.3},
        test
        | {"name": "the loss rises, in nats, by", "kind": "cause", "score": 1.5, "floor": 0.05},
        test | {"name": "beside it", "kind": "sufficiency", "score": 0.0, "floor": 0.5},
    ]
    return pd.DataFrame([role | {"evidence": "", "tests": json.dumps(tests)}])
