"""How long strings must be to tell predictors with small numbers apart, and the rule on scores."""

from itertools import product

import pandas as pd
import pytest

from analyses.papers.base import Setting
from analyses.papers.depth import training_lengths
from analyses.papers.depth.training_lengths import needed_length

OPTIONS = {
    "blocks": [3, 4], "lengths": [4, 7, 16], "numbers": [1, 2], "bins": [[8, 12], [17, 20]],
    "rows": 5, "width": 8, "batch": 4, "steps": 2, "learning_rate": 1e-3, "warmup": 1,
    "weight_decay": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(("number", "beyond"), [(1, 16), (2, 24)])
def test_strings_of_the_needed_length_and_no_shorter_ones_show_every_class(number, beyond) -> None:
    """Against all strings of L_3 up to a length beyond the bound, told apart by direct loops."""
    numbers, seen = range(-number, number + 1), dict[tuple, int]()
    for length in range(3, beyond + 1):
        for first in range(1, length - 1):
            for second in range(1, length - first):
                string = "a" * first + "b" * second + "a" * (length - first - second)
                for end in range(1, length + 1):
                    a, b = string[:end].count("a"), string[:end].count("b")
                    holds = [u * a + v * b >= w for u, v, w in product(numbers, repeat=3)]
                    seen.setdefault((string[end - 1], *holds), length)
    assert needed_length(number) == max(seen.values())
    assert max(seen.values()) <= 4 * number**2 + 8 * number + 2


@pytest.mark.parametrize(("at", "status"), [
    ([0.2, 0.95, 0.99], "reproduced"), ([0.2, 0.5, 0.99], "partly"),
    ([0.2, 0.99, 0.5], "not reproduced"), ([0.2, 0.5, 0.5], "not reproduced"),
])  # fmt: skip
def test_the_rule(at, status) -> None:
    rows = [
        (k, n, seed, "17–20 symbols", match + 0.01 * seed, f"L_{k}")
        for k in (3, 4)
        for n, match in zip((4, 7, 16), at if k == 3 else (0.0, 0.0, 0.0), strict=True)
        for seed in (0, 1)
    ]
    columns = ["k", "longest", "seed", "bin", "exact_match", "model"]
    found = training_lengths._verdict(pd.DataFrame(rows, columns=columns), [1, 2], rows[0][3])
    assert found.status == status


def test_a_miniature_trains_every_length_until_its_median_is_known(tmp_path) -> None:
    found = training_lengths.run(Setting("quick", (1, 2, 3), OPTIONS, tmp_path))
    table = found.tables["lengths"]
    assert found.status == "not reproduced"
    assert len(table) == 2 * 2 * (3 + 2)  # of no length the third seed: two of three fail
    assert set(table[table["k"] == 4]["longest"]) == {7, 16}
