"""The columns of a head table, and the upgrade of tables in the first format to the second.

A *head table* is the one tidy frame in which every score of a component stands, whatever was
measured. In format 1 one column, ``circuit``, held whatever told two scores of one metric apart: a
circuit, the name of the null, a way of ablating, a hook; and an inspection put the trial behind an
``@`` in ``target``. Format 2 has a column for each. A table sealed in format 1 is upgraded when it
is read: what it said moves to its column, its numbers stay as they were. What format 1 did not say
(the null of a weight metric, the number of draws) is left empty, or −1.

Only the columns are known here: numbers are :mod:`interp.stats.head_table`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

FORMAT = 2
"""The format of head tables that this version writes."""

IDENTITY = (
    "component",
    "layer",
    "head",
    "group",
    "circuit",
    "metric",
    "target",
    "site",
    "method",
    "null",
    "trial",
)
"""Columns that say what a row is about; no two rows of a table agree in all of them."""

COLUMNS = (
    *IDENTITY,
    "score",
    "null_mean",
    "null_std",
    "p",
    "q",
    "effect",
    "low",
    "high",
    "draws",
)
"""All columns, in order."""

_FIRST = ("circuit", "metric", "target", "null_mean", "null_std", "p", "q", "effect")
_SPLIT = ("null", "site", "method", "trial")

_NULLS = {
    "decodability": "rows",
    "nonlinear_decodability": "rows",
    "decodability_drop": "swaps",
    "loss_increase": "signs",
    "round_dependence": "signs",
    "kernel_concentration": "reinitialised",
    "kernel_share": "reinitialised",
    "kernel_part": "reinitialised",
    "lag_mass": "reinitialised",
    "direct_share": "rows",
    "direct_logit": "targets",
    "k_composition": "rotations",
    "q_composition": "rotations",
    "v_composition": "rotations",
}
_NAMED_BY_NULL = ("attention_mass", "lag_mass", "copying", "positional")
_NAMED_BY_SITE = ("decodability", "nonlinear_decodability")
_NAMED_BY_METHOD = ("loss_increase", "decodability_drop", "round_dependence")
_METHODS = {"": "mean", "patched": "patch"}
_ROLES = {"counter": "uniform"}
"""Older names of roles → their names today."""


def is_head_table(columns: Iterable[str]) -> bool:
    """Whether these are the columns of a head table, in the present format or the first."""
    return set(columns) >= set(_FIRST)


def upgraded(table: pandas.DataFrame) -> pandas.DataFrame:
    """A head table of format 1 with the present columns; tables of another kind are left as they
    are.

    In a role table roles get their present names.
    """
    if "role" in table.columns:
        return table.assign(role=table["role"].replace(_ROLES))
    if not is_head_table(table.columns) or set(table.columns) & set(_SPLIT):
        return table
    table = table.copy()
    metric, said = table["metric"], table["circuit"]
    target = table["target"].str.partition("@")
    table["target"], table["trial"] = target[0], target[2]
    table.loc[(metric == "loss_increase") & (table["target"] == "loss"), "target"] = "output"
    by_null, by_site = metric.isin(_NAMED_BY_NULL) & (said != ""), metric.isin(_NAMED_BY_SITE)
    by_method, of_scores = metric.isin(_NAMED_BY_METHOD), said == "scores"
    table["null"] = said.where(by_null, metric.map(_NULLS).fillna(""))
    table["site"] = said.where(by_site, "")
    table["method"] = said.replace(_METHODS).where(by_method, "")
    layer = table["layer"].astype(int).astype(str)
    scores = "blocks." + layer + ".attn.hook_attn_scores"
    table["site"] = scores.where(of_scores, table["site"])
    table["circuit"] = said.where(~(by_null | by_site | by_method), "").replace("scores", "QK")
    for name, empty in (("low", float("nan")), ("high", float("nan")), ("draws", -1)):
        table[name] = table.get(name, empty)
    table["draws"] = table["draws"].fillna(-1).astype("int64")
    return table[list(COLUMNS)]
