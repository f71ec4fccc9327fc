"""Models that judge are none of those that were tuned on, and none of another benchmark's."""

from collections.abc import Iterable
from typing import Any

__all__ = ["need_apart"]


def need_apart(part: Any, others: Iterable[Any]) -> list[Any]:
    """The scored subjects and decoys of a part of a benchmark, whose names and seeds are all
    different, and different from those tuned on and from the ``others``."""
    scored, tuned = ([*part.subjects(tuning=t), *part.decoys(tuning=t)] for t in (False, True))
    every = [*scored, *others]
    names, seeds = [one.name for one in every], [one.seed for one in every]
    assert len(set(names)) == len(names)
    assert len(set(seeds)) == len(seeds)
    assert not {one.name for one in tuned} & set(names)
    assert not {one.seed for one in tuned} & set(seeds)
    return scored
