import pandas as pd

from analyses.figures.phase import phase_diagram

TABLE = pd.DataFrame(
    {
        "positions": ["lin"] * 4 + ["log"] * 4,
        "lag": [1, 1, 8, 8] * 2,
        "precision": ["float64", "float32"] * 4,
        "heads": pd.array([2, 2, 12, None, 2, 2, None, None], dtype="Int64"),
        "status": ["found"] * 3 + ["impossible"] + ["found"] * 2 + ["not found", "impossible"],
        "impossible_bits": [11, 11, 46, 46, 14, 14, 70, 70],
        "possible_bits": pd.array([13, 13, 49, 49, 16, 16, None, None], dtype="Int64"),
    }
)


def test_every_row_is_drawn_and_named() -> None:
    figure = phase_diagram(TABLE, epsilon=0.1)
    heads, bits = figure.axes
    assert heads.get_xlabel() == bits.get_xlabel() == "lag T (positions)"
    assert bits.get_ylabel() == "significant bits"
    drawn = {line.get_label(): line.get_ydata() for line in heads.lines}
    assert list(drawn["lin, float64"]) == [2, 12]
    assert list(drawn["T + 1, exact arithmetic"]) == [2, 9]
    crosses = [line for line in heads.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[8], [8]]
    assert "0.1" in figure.get_suptitle()


def test_a_table_without_any_heads_is_drawn() -> None:
    none = TABLE[TABLE["heads"].isna()]
    assert len(phase_diagram(none, epsilon=0.01).axes) == 2
