import numpy as np

from interp.heads.nulls import Null
from interp.heads.table import MEASURED_COLUMNS, adjust, head_table, score_row


def test_q_is_taken_within_each_metric() -> None:
    ps = [0.01, 0.02, 0.5]
    rows = [
        score_row("m", 1.0, Null(0.25, 0.1, p), component="head", layer=0, head=h)
        for h, p in enumerate(ps)
    ]
    rows.append(score_row("other", 1.0, Null(0.0, 0.1, 0.02), component="ffn", layer=0))
    table = head_table(rows)
    assert tuple(table.columns) == MEASURED_COLUMNS
    assert table["q"].tolist() == [0.03, 0.03, 0.5, 0.02]
    assert table["effect"].tolist() == [0.75, 0.75, 0.75, 1.0]
    assert table["head"].tolist() == [0, 1, 2, -1]


def test_missing_p_counts_for_nothing() -> None:
    q = adjust(np.array([0.01, np.nan, 0.04]))
    assert q[0] == 0.02
    assert np.isnan(q[1])
