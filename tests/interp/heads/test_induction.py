import pandas as pd
import pytest

from interp.errors import ArgumentError
from interp.heads.induction import induction_evidence
from interp.heads.nulls import Null
from interp.heads.table import head_table, score_row


def row(metric: str, score: float, layer: int, head: int, **more: str) -> dict[str, object]:
    null = Null(0.1, 0.01, 0.001)
    return score_row(metric, score, null, component="head", layer=layer, head=head, **more)


def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    mass = {"metric": "attention_mass"}
    content = [
        row(**mass, score=0.9, layer=1, head=0, target="after_same", circuit="tokens"),
        row(**mass, score=0.2, layer=0, head=0, target="after_same", circuit="tokens"),
        row(**mass, score=0.7, layer=1, head=0, target="after_same", circuit="positions"),
        row(**mass, score=0.95, layer=0, head=1, target="previous", circuit="positions"),
        row(**mass, score=0.05, layer=0, head=0, target="previous", circuit="positions"),
    ]
    pairs = [
        row("k_composition", 0.3, 1, 0, target="L0H0"),
        row("k_composition", 0.2, 1, 0, target="L0H1"),
        row("q_composition", 0.9, 1, 0, target="L0H1"),
    ]
    losses = [row("loss_increase", 2.5, 1, 0, target="output", circuit="mean")]
    return head_table(content), head_table(pairs), head_table(losses)


def test_the_three_kinds_of_evidence_stand_in_one_row() -> None:
    found = induction_evidence(*tables()).set_index(["layer", "head"])
    one = found.loc[(1, 0)]
    assert one["induction"] == 0.9
    assert one["writer"] == "L0H1"
    assert (one["previous"], one["k_composition"], one["loss_increase"]) == (0.95, 0.2, 2.5)
    first = found.loc[(0, 0)]
    assert first["writer"] == ""
    assert pd.isna(first["k_composition"])


def test_tables_without_the_scores_are_refused() -> None:
    content, pairs, losses = tables()
    with pytest.raises(ArgumentError, match="content must hold the heads' scores"):
        induction_evidence(content.iloc[:0], pairs, losses)
