"""Tables of made-up heads, whose tokens look like markup: no model is run."""

import base64
import json
from typing import Any

import numpy as np
import pandas as pd

from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Null
from probes.inspection.shown import quantise
from probes.measure import Measurements
from probes.roles import ROLE_COLUMNS


def synthetic(
    layers: int, heads: int, rows: int, length: int, *, name: str = "made up", alike: bool = False
) -> Measurements:
    """What was measured of a model with random causal attention; its tokens look like markup.

    Args:
        layers, heads: How many; layer 0, head 2 has the one role.
        rows, length: Of its sequences.
        name: Of the model.
        alike: Whether all heads share one attention, which is quicker to make.
    """
    rng = np.random.default_rng(0)
    tokens = np.arange(rows * length) % 97
    shown = pd.DataFrame(
        {"kind": "rows", "row": np.repeat(np.arange(rows), length),
         "position": np.tile(np.arange(length), rows),
         "token": [f"</script>{i}" for i in tokens], "scored": True, "group": 0}
    )  # fmt: skip
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    codes, scores, lags = list[dict](), list[dict](), list[dict]()
    kept: dict[str, Any] = {}
    for layer, head in places:
        place = {"group": 0, "kind": "rows", "layer": layer, "head": head}
        if not kept or not alike:
            kept = _head(rng, rows, length)
        codes += [place | {"part": part} | line for part, line in kept["codes"].items()]
        scores += [
            place | {"keys": keys, "row": row, "score": score}
            for keys, of in kept["scores"].items()
            for row, score in enumerate(of)
        ]
        lags += [
            place | {"lag": lag, "share": 0.2 if lag < 5 else np.nan}
            for lag in range(min(32, length))
        ]
    about = {
        "model": name, "profile": "language", "seed": 0, "unit": "nats", "level": 0.01,
        "asked": ["induction"], "trials": [{"name": "rows", "title": "Rows", "about": "rows"}],
        "settings": {"rows": rows, "asked": length, "length": length, "tokens": 97}, "task": None,
        "environment": {"python": "made up"}, "family": "", "vocabulary": 97, "context": length,
        "ran": True, "notes": ["a <note>"], "causal": True,
        "groups": [{"kind": "rows", "about": "rows", "effect": {"how": "mean", "unit": "nats"}}],
    }  # fmt: skip
    tables = {
        "roles": _roles(),
        "heads": _scores(places),
        "shown-rows": shown,
        "shown-heads": pd.DataFrame(codes),
        "shown-scores": pd.DataFrame(scores),
        "shown-lags": pd.DataFrame(lags),
    }
    return Measurements(tables, about)


def pattern_of(found: Measurements, layer: int, head: int, part: str = "pattern") -> np.ndarray:
    """A head's codes, flat."""
    table = found["shown-heads"]
    own = table[(table["layer"] == layer) & (table["head"] == head) & (table["part"] == part)]
    return np.frombuffer(base64.b64decode(own["codes"].iloc[0]), dtype=np.uint8)


def _head(rng: np.random.Generator, rows: int, length: int) -> dict[str, Any]:
    pattern = np.tril(rng.random((rows, length, length), dtype=np.float32) ** 8)
    pattern /= pattern.sum(-1, keepdims=True)
    lost = rng.normal(size=(rows, length))
    parts = {"pattern": pattern, "written": rng.random((rows, length)), "effect": lost}
    codes = {}
    for part, values in parts.items():
        found, low, step, error = quantise(values, shares=part == "pattern")
        if part == "pattern":
            found = np.ascontiguousarray(found[:, *np.tril_indices(length)])
        text = base64.b64encode(found.tobytes()).decode()
        codes[part] = {"low": low, "step": step, "error": error, "codes": text}
    scores = {"previous": rng.random(rows), "after_same": np.full(rows, np.nan)}
    return {"codes": codes, "scores": scores | {"effect": lost.mean(1)}}


def _scores(places: list[tuple[int, int]]) -> pd.DataFrame:
    """Each head's share on the token before but the first's, and a loss that is infinite for it."""
    lines, null = [], Null(0.0, 0.1, 0.5, "positions")
    for number, (layer, head) in enumerate(places):
        place: dict[str, Any] = {"component": "head", "layer": layer, "head": head}
        share = np.nan if number == 0 else 0.5
        lines.append(score_row("attention_mass", share, null, target="previous", **place))
        lost = np.inf if number == 0 else float(number)
        lines.append(score_row("loss_increase", lost, null, target="output", **place))
    table = head_table(lines)
    kinds = {"attention_mass": "repeated", "loss_increase": "rows"}
    return table.assign(trial=table["metric"].map(kinds), circuit="")


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
