"""In-context tasks against direct loops over the rows."""

import pytest
import torch

from interp.errors import ArgumentError
from interp.tasks.induction import InContextTemplate, RepeatedTokens


def last(tokens: list[int], token: int) -> int:
    """The last place of a token in a list, −1 where it is not."""
    return max((i for i, other in enumerate(tokens) if other == token), default=-1)


@pytest.mark.parametrize("bos", [0, 7, -1])
def test_repeated_tokens_equal_a_direct_loop(bos: int) -> None:
    batch = RepeatedTokens(20, 17, (3, 6), bos=bos).sample(30, seed=1)
    assert {int(p) for p in batch.latents["period"][:, 0]} == {3, 4, 5, 6}
    start = int(bos >= 0)
    for row in range(30):
        x, period = batch.inputs[row].tolist(), int(batch.latents["period"][row, 0])
        if bos >= 0:
            assert x[0] == bos
            assert bos not in x[1:]
        assert len(set(x[start:])) == period
        for t in range(17):
            told = {name: int(latent[row, t]) for name, latent in batch.latents.items()}
            before = last(x[:t], x[t]) if t >= start else -1
            assert told["is_repeat"] == (before >= 0) == bool(batch.mask[row, t])
            assert told["source"] == (before + 1 if before >= 0 else -1)
            assert told["previous"] == (x[t - 1] if t else -1)
            if t < 16:
                assert batch.targets[row, t] == x[t + 1]
            if before >= 0:
                assert batch.targets[row, t] == x[before + 1]


def test_shuffled_repeats_hold_the_same_tokens_and_no_order() -> None:
    task = RepeatedTokens(40, 33, (8, 8), chunk=1)
    batch = task.sample(200, seed=0)
    turns = batch.inputs[:, 1:].unflatten(1, (4, 8))
    assert torch.equal(turns.sort(-1).values, turns[:, :1].sort(-1).values.expand_as(turns))
    source = batch.latents["source"][batch.mask]
    kept = batch.inputs.gather(1, batch.latents["source"].clamp(min=0))[batch.mask]
    follows = (kept == batch.targets[batch.mask]).float().mean()
    assert (source > 0).all()
    assert 0.05 < follows < 0.25  # one in eight by chance


def test_pieces_stay_together_and_are_scored_inside() -> None:
    task = RepeatedTokens(40, 25, (4, 8), chunk=2)
    batch = task.sample(60, seed=3)
    assert {int(p) for p in batch.latents["period"][:, 0]} == {4, 6, 8}
    orders = set()
    for row in range(60):
        x, period = batch.inputs[row].tolist(), int(batch.latents["period"][row, 0])
        pairs = {x[i]: x[i + 1] for i in range(1, period, 2)}
        assert not batch.mask[row, : period + 1].any()
        for t in range(period + 1, 25):
            assert bool(batch.mask[row, t]) == (x[t] in pairs)
            if batch.mask[row, t]:
                assert batch.targets[row, t] == pairs[x[t]]
        again = [x[i] for i in range(period + 1, min(2 * period + 1, 25), 2)]
        orders.add(again == list(pairs)[: len(again)])
    assert orders == {True, False}


@pytest.mark.parametrize("template", ["aba", "same"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_templates_equal_a_direct_loop(template: str, shuffled: bool) -> None:
    task = InContextTemplate(template, 60, examples=6, bos=3, shuffled=shuffled)
    batch = task.sample(40, seed=2)
    assert batch.inputs.shape == (40, task.length) == (40, 18)
    agree = []
    for row in range(40):
        x = [*batch.inputs[row].tolist(), int(batch.targets[row, -1])]
        triples = [x[i : i + 3] for i in range(1, 19, 3)]
        fresh = [t for triple in triples for t in set(triple[:2])]
        assert len(fresh) == len(set(fresh))
        shown: set[int] = set()
        for i, (a, b, c) in enumerate(triples):
            asked = 2 + 3 * i
            assert batch.targets[row, asked] == c
            assert batch.latents["example"][row, asked] == i
            assert bool(batch.latents["same"][row, asked]) == (a == b)
            ready = i > 0 if template == "aba" else len(shown) == 2
            assert bool(batch.mask[row, asked]) == ready
            assert batch.latents["source"][row, asked] == last(x[:asked], c)
            assert (c == a) == (template == "aba" and not shuffled)
            agree.append((a == b, c))
            shown.add(c)
        if template == "same":
            assert sum(a == b for a, b, _ in triples) == 3
            rule = {(a == b, c) for a, b, c in triples}
            assert len(rule) == 2 or shuffled
    assert batch.mask.sum() > 0
    assert not batch.mask[:, [0, 1, 3, 4]].any()


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ArgumentError) as caught:
        RepeatedTokens(6, 9, (8, 9), bos=6)
    for part in ("bos must be", "length must leave", "vocabulary must have 9"):
        assert part in str(caught.value)
    with pytest.raises(ArgumentError, match=r"examples must be at least 2.*vocabulary must have"):
        InContextTemplate("aba", 5, examples=1)
    with pytest.raises(ArgumentError, match=r"chunk must divide the periods \(5, 8\)"):
        RepeatedTokens(60, 30, (5, 8), chunk=2)
    with pytest.raises(ArgumentError, match="periods must be"):
        RepeatedTokens(60, 30, (5, 4))
