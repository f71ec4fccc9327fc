"""Diagonals relative to what a rank allows: heads that compare tokens, and decoys that do not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probes.roles.detectors.circuits import diagonal_of
from probes.roles.profile import TASK

Rng = np.random.Generator
Factors = tuple[Tensor, Tensor]


def random_vectors(rng: Rng, tokens: int, width: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=(tokens, width)))


def packing(rng: Rng, tokens: int, width: int) -> Factors:
    """Directions of equal length, as spread as chance makes them."""
    v = torch.nn.functional.normalize(random_vectors(rng, tokens, width), dim=1)
    return v, v


def projection(rng: Rng, tokens: int, width: int) -> Factors:
    """The best of its rank."""
    v, _ = torch.linalg.qr(random_vectors(rng, tokens, width))
    return v, v


def noisy(rng: Rng, tokens: int, width: int) -> Factors:
    left, right = packing(rng, tokens, width)
    size = 0.4 / width**0.5
    return left + size * random_vectors(rng, tokens, width), right + size * random_vectors(
        rng, tokens, width
    )


def random(rng: Rng, tokens: int, width: int) -> Factors:
    return random_vectors(rng, tokens, width), random_vectors(rng, tokens, width)


def relabelling(rng: Rng, tokens: int, width: int) -> Factors:
    v, _ = packing(rng, tokens, width)
    return v, v[torch.from_numpy(rng.permutation(tokens))]


def successors(rng: Rng, tokens: int, width: int) -> Factors:
    v, _ = packing(rng, tokens, width)
    return v, v.roll(1, 0)


def classes(rng: Rng, tokens: int, width: int) -> Factors:
    """Any token matches all of its class: the whole rank is on the diagonal."""
    which = torch.from_numpy(rng.permutation(np.arange(tokens) % width))
    v = torch.eye(width, dtype=torch.float64)[which]
    return v + 0.02 * random_vectors(rng, tokens, width), v + 0.02 * random_vectors(
        rng, tokens, width
    )


def circle(rng: Rng, tokens: int, width: int) -> Factors:
    """Any token matches those near it on a circle."""
    angle = torch.arange(tokens, dtype=torch.float64) * 2 * torch.pi / tokens
    v = torch.stack([angle.cos(), angle.sin()], 1) + 0.01 * random_vectors(rng, tokens, 2)
    return v, v


def is_confirmed(left: Tensor, right: Tensor, rank: int) -> bool:
    """What a role asks of weights alone."""
    found, floors = diagonal_of(left, right, rank), TASK.floors
    large = found.relative >= floors.identity and found.p < TASK.level
    return large and found.dominance >= floors.leading and found.positive >= floors.positive


KINDS = [(make, width) for make in (packing, projection) for width in (4, 8, 16)]


@pytest.mark.parametrize(("make", "width"), [*KINDS, (noisy, 8), (noisy, 16)])
def test_heads_that_compare_tokens_are_told_at_eight_tokens_a_dimension(
    make: object, width: int
) -> None:
    rng = np.random.default_rng(width)
    factors = [make(rng, 8 * width, width) for _ in range(20)]  # type: ignore[operator]
    assert np.mean([is_confirmed(*pair, width) for pair in factors]) >= 0.9
    assert np.mean([is_confirmed(left, -right, width) for left, right in factors]) == 0


def test_one_decoy_in_a_hundred_at_most() -> None:
    rng, found = np.random.default_rng(7), []
    for make in (random, relabelling, successors, classes, circle):
        for width in (4, 8, 16):
            found += [is_confirmed(*make(rng, 8 * width, width), width) for _ in range(25)]
    assert len(found) >= 300
    assert np.mean(found) <= 0.01


@given(st.integers(2, 12), st.integers(13, 40), st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_no_circuit_has_more_than_its_rank_allows(width: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for make in (random, packing, projection):
        found = diagonal_of(*make(rng, tokens, width), width)
        assert abs(found.relative) <= 1 + 1e-9
        assert -1 - 1e-9 <= found.positive <= 1 + 1e-9


def test_a_centred_projector_has_all_that_its_rank_allows() -> None:
    rng = np.random.default_rng(3)
    left, _ = torch.linalg.qr(random_vectors(rng, 40, 6) - random_vectors(rng, 40, 6).mean(0))
    left = torch.linalg.qr(left - left.mean(0)).Q
    found = diagonal_of(left, 3 * left, 6)
    assert found.allowed == pytest.approx(6 / 39)
    assert found.relative == pytest.approx(1)
    assert found.positive == pytest.approx(1)


def test_suppression_has_a_negative_share_and_the_same_evidence() -> None:
    left, right = packing(np.random.default_rng(5), 64, 8)
    up, down = diagonal_of(left, right, 8), diagonal_of(left, -right, 8)
    assert down.relative == pytest.approx(-up.relative)
    assert (down.dominance, down.p) == (up.dominance, up.p)
    assert down.positive == pytest.approx(up.positive)


def test_no_circuit_has_no_diagonal() -> None:
    empty = torch.zeros(9, 3)
    found = diagonal_of(empty, empty, 3)
    assert (found.relative, found.dominance, found.positive, found.p) == (0, 0, 0, 1)
