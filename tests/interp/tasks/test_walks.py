"""Random walks: what is scored, by loops."""

import pytest
import torch

from interp.errors import ArgumentError
from interp.tasks.walks import SuccessorWalk

TASK = SuccessorWalk(vocabulary=20, length=30, symbols=6, jump=0.3, bos=4)


def test_scored_tokens_are_told_by_the_row_alone() -> None:
    batch = TASK.sample(40, seed=3)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert (batch.inputs[:, 0] == 4).all()
    assert not (batch.inputs[:, 1:] == 4).any()
    for row in range(40):
        tokens, targets = batch.inputs[row].tolist(), batch.targets[row].tolist()
        assert len(set(tokens[1:])) <= 6
        for t in range(1, 30):
            followers = {tokens[j + 1] for j in range(1, t) if tokens[j] == tokens[t]}
            successor = int(batch.latents["successor"][row, t])
            told = followers == {targets[t]} and targets[t] == successor
            assert bool(batch.mask[row, t]) == told, (row, t)
        assert not batch.mask[row, 0]
    assert batch.mask[:, 10:].float().mean() > 0.2


def test_successors_are_one_circle_a_row_and_steps_jump_as_often_as_asked() -> None:
    batch = TASK.sample(300, seed=1)
    inputs, successor = batch.inputs[:, 1:], batch.latents["successor"][:, 1:]
    for row in range(20):
        pairs = set(zip(inputs[row].tolist(), successor[row].tolist(), strict=True))
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    stepped = (batch.targets[:, 1:] == successor).float().mean()
    assert stepped == pytest.approx(0.7 + 0.3 / 6, abs=0.02)


def test_what_cannot_be_is_refused_all_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"bos must.*symbols must.*jump must.*length must"):
        SuccessorWalk(vocabulary=10, length=5, symbols=10, jump=1.0, bos=10)
