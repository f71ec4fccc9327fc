"""What speaks for induction, side by side: where a head attends, whose writes its keys read, what
is lost without it.

An induction head attends to the token after an earlier equal one (behaviour); it can find that
token because an earlier head wrote each token's predecessor there (K-composition with a
previous-token head); and without it the repeated half is predicted worse (effect). Each alone is
weak: the rows here join the three, and decide nothing.
"""

from __future__ import annotations

import pandas as pd

from interp.errors import Problems

__all__ = ["induction_evidence"]

_HEAD = ["layer", "head"]


def induction_evidence(
    content: pd.DataFrame, composition: pd.DataFrame, losses: pd.DataFrame
) -> pd.DataFrame:
    """One row a head.

    Args:
        content: From :func:`interp.heads.content.content_table`, on repeated tokens.
        composition: From :func:`interp.heads.composition.compositions` (``k_composition``).
        losses: From :func:`interp.heads.reliance.loss_increases`, scored on repeats
            (:func:`interp.heads.reliance.next_tokens` with a ``start``).

    Returns:
        ``layer``, ``head``; ``induction``, ``induction_effect``, ``induction_q`` (against other
        rows' tokens); ``writer`` ("L0H1", the earlier head for which previous-token mass
        times the excess of K-composition is largest; empty in the first layer), ``previous``,
        ``k_composition``, ``k_effect``, ``k_q``; ``loss_increase``, ``loss_q``. NaN where there is
        none.

    Raises:
        ArgumentError: if a table lacks the scores.
    """
    mass = content[content["metric"] == "attention_mass"]
    induction = mass[(mass["target"] == "after_same") & (mass["circuit"] == "tokens")]
    previous = mass[(mass["target"] == "previous") & (mass["circuit"] == "positions")]
    k = composition[composition["metric"] == "k_composition"]
    lost = losses[(losses["metric"] == "loss_increase") & (losses["component"] == "head")]
    problems = Problems("induction_evidence")
    for name, table in (("content", induction), ("losses", lost)):
        problems.need(len(table) > 0, name, "must hold the heads' scores", 0, "measure tokens")
    problems.raise_if_any()
    names = {"score": "induction", "effect": "induction_effect", "q": "induction_q"}
    found = induction[[*_HEAD, *names]].rename(columns=names)
    found = found.merge(_writers(k, previous), on=_HEAD, how="left")
    names = {"score": "loss_increase", "q": "loss_q"}
    found = found.merge(lost[[*_HEAD, *names]].rename(columns=names), on=_HEAD, how="left")
    found["writer"] = found["writer"].fillna("")
    return found.reset_index(drop=True)


def _writers(k: pd.DataFrame, previous: pd.DataFrame) -> pd.DataFrame:
    """For each reader the writer that is most a previous-token head and most composed with."""
    mass = {f"L{r.layer}H{r.head}": r.score for r in previous.itertuples()}
    names = {"score": "k_composition", "effect": "k_effect", "q": "k_q", "target": "writer"}
    pairs = k[[*_HEAD, *names]].rename(columns=names)
    pairs = pairs.assign(previous=pairs["writer"].map(mass).astype(float))
    product = (pairs["previous"] * pairs["k_effect"].clip(lower=0)).dropna()
    best = product.groupby([pairs["layer"], pairs["head"]]).idxmax()
    columns = [*_HEAD, "writer", "previous", "k_composition", "k_effect", "k_q"]
    return pairs.loc[best, columns]
