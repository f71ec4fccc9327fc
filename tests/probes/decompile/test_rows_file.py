"""Files of rows: what is read, and that everything wrong with one is said at once."""

import json

import numpy as np
import pytest

from interp.errors import ArgumentError
from probes.decompile.rows import split
from probes.own_rows import read_rows

WORDS = {"a": 0, "b": 1, "<pad>": 2}


def write_rows(tmp_path, data) -> str:
    path = tmp_path / "rows.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def sets(*rows: tuple[list, list]) -> dict:
    made = [{"tokens": tokens, "label": label} for tokens, label in rows]
    return {"vocabulary": WORDS, "objective": "sets", "rows": made}


def next_token_rows(*rows: tuple[list, list]) -> dict:
    return sets(*rows) | {"objective": "next token"}


def test_a_row_of_one_token_asks_nothing(tmp_path) -> None:
    zero = [0, 0, 0]
    data = sets(([0], [zero]), ([0, 1], [[1, 0, 1], zero]), ([1, 1], [[True, False, False], None]))
    rows = read_rows(write_rows(tmp_path, data))
    assert rows.asked.tolist() == [[False, False], [True, False], [True, False]]
    assert rows.labels is not None
    assert rows.labels[:, 0].tolist() == [
        [False] * 3,
        [True, False, True],
        [True, False, False],
    ]
    single = read_rows(write_rows(tmp_path, next_token_rows(([0], [2]), ([1, 0], [2, 1]))))
    assert single.asked.tolist() == [[False, False], [True, False]]
    assert single.labels is not None
    assert single.labels[1, 0] == 1


def test_rows_that_ask_nothing_are_not_counted(tmp_path) -> None:
    zero = [0, 0, 0]
    few = [([n % 2] * n, [zero] * n) for n in range(1, 9)]
    rows = read_rows(write_rows(tmp_path, sets(*few)))
    with pytest.raises(ArgumentError, match="at least 8 different ones that ask something, got 7"):
        split(rows)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "must hold vocabulary, objective and rows"),
        ({"vocabulary": {"a": 1}, "objective": "sets", "rows": []}, "must be an object that numb"),
        ({"vocabulary": {"a": "x"}, "objective": "sets", "rows": []}, "must be an object that num"),
        ({"vocabulary": 5, "objective": "sets", "rows": [{}]}, "must be an object that numbers"),
        ({"vocabulary": WORDS, "objective": ["sets"], "rows": [{}]}, "must be one of"),
        ({"vocabulary": {'"': 0}, "objective": "sets", "rows": [{}]}, "no token with a quote"),
        (sets(), "must be a list of at least one row"),
        (sets(([7], [0])), r"codes of the vocabulary, 0 to 2, got 'row 0: \[7\]'"),
        (sets(([], [])), "must each have tokens"),
        (sets(([0, 1], [[1, 0, 0]])), "must each have as many labels as tokens"),
        (sets(([0, 1], [[1, 0], [0, 0, 0]])), "lists of 3 numbers, 0 or 1"),
        (sets(([0, 1], [[1, 0, 2], [0, 0, 0]])), "lists of 3 numbers, 0 or 1"),
        (sets(([0, 1], [1, 0])), "lists of 3 numbers, 0 or 1"),
        (next_token_rows(([0, 1], [2, 9])), "labels that are codes of the vocabulary"),
        (next_token_rows(([0, 1], [[2], 1])), "labels that are codes of the vocabulary"),
        ({"vocabulary": WORDS, "objective": "sets", "rows": [3]}, "an object with the lists"),
        ("{", "cannot be read"),
    ],
)
def test_files_that_are_no_rows_are_refused(tmp_path, data, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        read_rows(write_rows(tmp_path, data))


def test_everything_wrong_is_said_at_once_with_the_first_row(tmp_path) -> None:
    good = ([0, 1], [[1, 0, 0], [0, 0, 0]])
    data = sets(good, ([9, 0], [[1, 0, 0], []]), ([0, 0], [[1, 0], []]), ([8], [[]]))
    with pytest.raises(ArgumentError) as refused:
        read_rows(write_rows(tmp_path, data))
    text = str(refused.value)
    assert "row 1: [9, 0] (and 1 more)" in text
    assert "row 2: [[1, 0], []]" in text
    assert len(refused.value.problems) == 2


def test_labels_past_the_end_stay_unknown(tmp_path) -> None:
    rows = read_rows(write_rows(tmp_path, next_token_rows(([0, 1, 1], [2, 1, 2]), ([0], [2]))))
    assert rows.labels is not None
    assert np.array_equal(rows.labels, [[1, -1, -1], [-1, -1, -1]])
