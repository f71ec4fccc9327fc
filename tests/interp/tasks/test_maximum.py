"""The maximum of K tokens: targets, latents and what is refused."""

import pytest

from interp.errors import ArgumentError
from interp.tasks.maximum import Maximum


def test_targets_and_latents_are_those_of_a_direct_loop() -> None:
    task = Maximum(5, 4)
    batch = task.sample(200, seed=3)
    for x, y, mask, largest, copies in zip(
        batch.inputs.tolist(),
        batch.targets.tolist(),
        batch.mask.tolist(),
        batch.latents["maximum"].tolist(),
        batch.latents["copies"].tolist(),
        strict=True,
    ):
        assert y[-1] == max(x)
        assert mask == [False, False, False, True]
        assert largest == [max(x[: t + 1]) for t in range(4)]
        assert copies == [x[: t + 1].count(max(x[: t + 1])) for t in range(4)]


def test_sizes_that_make_no_task_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"vocabulary must be at least 2.*length must be at"):
        Maximum(1, 1)


def test_every_row_is_listed_once_with_its_largest_token() -> None:
    listed = list(Maximum(3, 4).every_row())
    assert len(listed) == len({row for row, _ in listed}) == 3**4
    assert all(answer == sorted(row)[-1] for row, answer in listed)
