"""How many lin heads a long lag takes, by a closed form and by least squares."""

from math import comb

import numpy as np
import pytest

from analyses.papers.base import Setting
from analyses.papers.memory import long_lags
from analyses.papers.memory.long_lags import heads_for_lag, left_of_lag
from analyses.papers.memory.projection import search

OPTIONS = {"lags": [1, 4, 30, 100], "slopes": [1.0], "level": 0.1}


@pytest.mark.parametrize(("lag", "slope", "heads"), [
    (1, 1.0, 2), (2, 1.0, 3), (4, 1.0, 6), (4, 0.5, 8), (6, 2.0, 7), (3, 1.0, 1),
])  # fmt: skip
def test_the_closed_form_is_what_least_squares_leave(lag: int, slope: float, heads: int) -> None:
    """Heads of one slope span, in the limit, s^k e^{−ps}; the lag's distance from them is known."""
    lags = np.arange(400)
    powers = [[comb(int(s), k) for s in lags] for k in range(heads)]
    basis, _ = np.linalg.qr(np.array(powers, float).T * np.exp(-slope * lags)[:, None])
    target = (lags == lag).astype(float)
    left = 1 - ((basis.T @ target) ** 2).sum()
    assert left_of_lag(lag, slope, heads) == pytest.approx(left, abs=1e-12)


def test_no_slopes_that_a_search_finds_do_with_fewer_heads_than_the_least() -> None:
    for lag, heads in ((1, 1), (2, 2), (4, 3)):
        found = search(np.eye(64)[lag], heads, "lin")
        assert heads >= (1 - found.error) * (lag + 1) - 1e-9


@pytest.mark.parametrize("slope", [0.5, 2.0])
def test_heads_for_lag_are_the_fewest(slope: float) -> None:
    for lag in (1, 5, 40):
        heads = heads_for_lag(lag, slope, 0.1)
        assert left_of_lag(lag, slope, heads) <= 0.1
        assert heads == 1 or left_of_lag(lag, slope, heads - 1) > 0.1
        assert heads >= 0.9 * (lag + 1)


def test_verdict_compares_growth_with_the_least_that_the_bound_allows(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = long_lags.run(Setting("quick", (0,), OPTIONS, tmp_path))
    assert found.status == "reproduced"
    assert found.tables["heads"]["heads"].tolist()[-4:] == [2, 5, 28, 91]
    monkeypatch.setattr(long_lags, "heads_for_lag", lambda lag, *_: round(np.exp(0.05 * lag)))
    assert long_lags.run(Setting("quick", (0,), OPTIONS, tmp_path)).status == "partly"
