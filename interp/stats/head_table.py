"""Head tables: every score with its null, p, q and effect, as one tidy frame.

A row is one score of one component. These columns say what it is about:

    component, layer, head   ``head``, ``ffn``, ``layer``, ``position``, ``group`` and which (−1
                             if it does not apply)
    group                    the set of heads that act together, for a group
    circuit                  ``QK`` or ``OV`` (with ``+aI`` or ``+bI``), for scores of weights
    metric, target           what is measured, and of what: a latent, a class of keys, another head
    site                     the hook that is read
    method                   how the model was changed: ``mean``, ``zero``, ``resample``, …
    null                     what the score is compared with: ``positions``, ``tokens``, ``signs`` …
    trial                    which rows: ``repeated``, ``shuffled``, ``text`` …
    score, null_mean,        the number, its mean and standard deviation under the null, and
    null_std, effect         effect = score − null_mean, in the metric's own unit
    p, draws                 probability of such a score under the null, and from how many draws (0
                             if the null's moments are exact)
    q                        p with false discovery controlled over the row's family
    low, high                a 95 % interval of the effect over rows; NaN if none was computed

q is Benjamini–Hochberg over a *family*: the rows that agree in the columns which the writer of the
table declares. By default these are all columns that define the test, so that a family is all
components in one test (:data:`TEST`). A writer whose ``target`` is one of many that are searched
(every lag, every pair of heads, every latent) declares a family over all of them
(:data:`ANY_TARGET`). q is computed once, from the whole table: choosing rows afterwards, or
concatenating tables, changes no q.

A small q says that a component is not random, which trained ones rarely are: every rule that
decides something requires a least effect as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from interp.stats.p_values import Null
from interp.stats.table_format import COLUMNS, IDENTITY

__all__ = ["ANY_TARGET", "COLUMNS", "TEST", "adjust", "complete_table", "head_table", "score_row"]

TEST = ("metric", "circuit", "target", "site", "method", "null", "trial")
"""Columns that define a test. By default, rows that agree in all of them form one family, within
which q corrects for the number of components tested."""

ANY_TARGET = tuple(name for name in TEST if name != "target")
"""Columns that define the family of a search over many targets, such as all lags. Rows that differ
only in ``target`` are in one family, so that q also corrects for the search."""


_KINDS = dict.fromkeys(("layer", "head", "draws"), "int64") | dict.fromkeys(
    ("score", "null_mean", "null_std", "p", "q", "effect", "low", "high"), "float64"
)
"""Types of the columns that hold numbers, so that tables without rows have them too."""


def score_row(
    metric: str,
    score: float,
    null: Null,
    *,
    component: str,
    layer: int,
    head: int = -1,
    group: str = "",
    circuit: str = "",
    target: str = "",
    site: str = "",
    method: str = "",
    trial: str = "",
    interval: tuple[float, float] = (math.nan, math.nan),
) -> dict[str, Any]:
    """Return one row of a head table, without q and effect; the module describes the columns."""
    return {
        "component": component,
        "layer": layer,
        "head": head,
        "group": group,
        "circuit": circuit,
        "metric": metric,
        "target": target,
        "site": site,
        "method": method,
        "null": null.name,
        "trial": trial,
        "score": score,
        "null_mean": null.mean,
        "null_std": null.std,
        "p": null.p,
        "low": interval[0],
        "high": interval[1],
        "draws": null.draws,
    }


def head_table(rows: Iterable[Mapping[str, Any]], *, family: Sequence[str] = TEST) -> pd.DataFrame:
    """Make a head table from rows of :func:`score_row`.

    Args:
        rows: The rows of everything that was tested: q is computed over them.
        family: Columns in which the rows of one family agree.
    """
    given = [name for name in COLUMNS if name not in ("q", "effect")]
    return complete_table(pd.DataFrame(list(rows), columns=given), family=family)


def complete_table(table: pd.DataFrame, *, family: Sequence[str] = TEST) -> pd.DataFrame:
    """Make a head table of a frame with scores, nulls and p: add effect, q and the missing columns.

    Args:
        table: Columns of a head table; those that say what a row is about may be missing if they do
            not apply.
        family: Columns in which the rows of one family agree.
    """
    absent = [name for name in IDENTITY if name not in table]
    table = table.assign(**{name: -1 if name == "head" else "" for name in absent})
    for name, empty in (("low", math.nan), ("high", math.nan), ("draws", 0)):
        table[name] = table.get(name, empty)
    table["effect"] = table["score"] - table["null_mean"]
    groups = table.groupby(list(family), sort=False)["p"]
    table["q"] = groups.transform(lambda p: adjust(p.to_numpy()))
    return table[list(COLUMNS)].astype(_KINDS)


def adjust(p: Float64[np.ndarray, " test"]) -> Float64[np.ndarray, " test"]:
    """Return Benjamini–Hochberg q values of one family of tests; NaN stays NaN and is not
    counted."""
    q, known = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    falling = known[np.argsort(-p[known], kind="stable")]
    found = p[falling] * len(known) / np.arange(len(known), 0, -1)
    q[falling] = np.minimum(np.minimum.accumulate(found), 1.0)
    return q
