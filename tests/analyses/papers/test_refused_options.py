"""Options of claims that have no answer are refused before any work."""

import pytest

from analyses.papers.base import Setting
from analyses.papers.coupling import order
from analyses.papers.depth import bounded, frontier, swapped, training_lengths
from analyses.papers.memory import language, long_lags, tails
from analyses.papers.template import relations
from interp.errors import ArgumentError

LAGS = {"lags": [1, 4, 30, 100], "slopes": [1.0], "level": 0.1}
COMPARED = r"--option models must be of .* with linear RNN and"
CASES = [
    (bounded.check, {"fragments": [[5, 2]], "longest": 20}, "fragments must list k and its k − 3"),
    (bounded.check, {"fragments": [[4, -1]], "longest": 20}, "--option fragments must list k"),
    (
        bounded.check,
        {"fragments": [[5, 2, 0]], "longest": 4},
        "option longest must be at least 5",
    ),
    (swapped.check, {"cases": [[3, 1, 4, 2]]}, "--option cases must list k from 4 on"),
    (swapped.check, {"cases": [[5, 1, 4]]}, "--option cases must list k from 4 on"),
    (swapped.check, {"cases": [[5, 0, 4, 2]]}, "--option cases must list k from 4 on"),
    (swapped.check, {"cases": [[14, 1, 100, 10]]}, "at most 10000000 symbols, got 1111111111100"),
    (frontier.check, {"bins": [[3, 30]]}, "--option bins must have at least two ranges"),
    (long_lags.check, LAGS | {"lags": [1, 30]}, "must rise from 1 on, two of them from 25 on"),
    (long_lags.check, LAGS | {"slopes": [0.01]}, "--option slopes must be at least 0.2"),
    (long_lags.check, LAGS | {"level": 1.0}, "--option level must be between 0 and 1"),
    (language.check, {"length": 12, "recalled": 3}, "--option recalled must be true or false"),
    (language.check, {"length": 12, "recalled": "yes", "text": ""}, "recalled must be true or"),
    (tails.heavy, {"length": 65}, r"--option length must be at least 66.* got 65"),
    (order.check, {"models": ["linear RNN"]}, COMPARED),
    (order.check, {"models": ["linear RNN", "transformer", "GRU"]}, COMPARED),
    (order.check, {"models": []}, COMPARED),
    (relations.check, {"named": ["no-such"]}, "--option named must be among same-different"),
    (
        training_lengths.check,
        {"blocks": [3, 4], "numbers": [1, 2], "lengths": [7, 15]},
        r"--option lengths must hold \[7, 16\]",
    ),
]


@pytest.mark.parametrize(("check", "options", "words"), CASES)
def test_options_without_an_answer_are_refused(check, options, words, tmp_path) -> None:
    with pytest.raises(ArgumentError, match=words):
        check(Setting("quick", (1,), options, tmp_path))


def test_models_that_can_be_compared_are_taken(tmp_path) -> None:
    order.check(Setting("quick", (0,), {"models": ["transformer", "LSTM", "linear RNN"]}, tmp_path))
