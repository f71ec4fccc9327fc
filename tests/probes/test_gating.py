"""How well attention on the first position tells an event, against pairs counted one by one."""

import math

import torch

from probes.roles.detectors import gating
from probes.roles.selecting import Seen


def head_attention(pattern: torch.Tensor) -> Seen:
    rows, length = pattern.shape[:2]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    inputs = torch.zeros(rows, length, dtype=torch.long)
    return Seen(pattern, inputs, torch.ones(rows, length, dtype=torch.bool), past, True)


def test_the_area_under_the_curve_is_that_of_all_pairs() -> None:
    generator = torch.manual_seed(4)
    pattern = torch.randint(4, (5, 9, 9), generator=generator) / 4.0  # with ties
    events = torch.rand(3, 5, 9, generator=generator) < 0.4
    events[0, 0] = False
    wins = gating._wins(head_attention(pattern))
    found = gating._aucs(wins, events)
    assert found.shape == (3, 5)
    alone = gating._aucs(wins, events[1])
    torch.testing.assert_close(alone, found[1], atol=0, rtol=0, equal_nan=True)
    for event in range(3):
        for row in range(5):
            won, pairs = 0.0, 0
            for one in range(1, 9):
                for other in range(1, 9):
                    if events[event, row, other] and not events[event, row, one]:
                        a, b = pattern[row, one, 0], pattern[row, other, 0]
                        won += float(a > b) + 0.5 * float(a == b)
                        pairs += 1
            told = float(found[event, row])
            assert math.isnan(told) if pairs == 0 else told == won / pairs
