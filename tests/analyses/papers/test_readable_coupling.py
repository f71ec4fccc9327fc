from collections import Counter

import pytest
import torch

from analyses.papers.coupling.tasks import IndexedAverage, NearestPoint, SegmentCentres
from interp.errors import ArgumentError
from interp.tasks.catalogue import task_from_dict


def test_nearest_points_equal_a_direct_search() -> None:
    task = NearestPoint(4, 3)
    batch = task.sample(6, seed=2)
    for row in range(6):
        points = batch.inputs[row, :, :2].double()
        sets = batch.inputs[row, :, 2].tolist()
        assert sets == [1.0] * 4 + [-1.0] * 3
        for t in range(7):
            others = [s for s in range(7) if sets[s] != sets[t]]
            best = min(others, key=lambda s: float((points[t] - points[s]).norm()))
            assert int(batch.latents["nearest"][row, t]) == best
            assert torch.equal(batch.targets[row, t], batch.inputs[row, best, :2])
            coupling = batch.latents["coupling"][row, t]
            squared = float((points[t] - points[best]).square().sum())
            assert float(coupling[best]) == pytest.approx(-squared, abs=1e-5)
            assert all(float(coupling[s]) == 0 for s in range(7) if s not in others)


def test_segment_centres_equal_a_direct_walk() -> None:
    task = SegmentCentres(3, 10)
    batch = task.sample(40, seed=0)
    for row in range(40):
        tokens, start, seen = batch.inputs[row], 0, []
        for t in range(10):
            assert bool(batch.mask[row, t]) == (float(tokens[t, 2]) == 1)
            assert int(batch.latents["segment"][row, t]) == len(seen)
            if tokens[t, 2] == 1:
                centre = tokens[start:t, :2].mean(0)
                assert torch.allclose(batch.targets[row, t], centre, atol=1e-6)
                weights = batch.latents["coupling"][row, t]
                assert weights.nonzero()[:, 0].tolist() == list(range(start, t))
                labels = tokens[start : t + 1, 3:].argmax(-1).tolist()
                assert len(set(labels)) == 1
                seen.append(labels[0])
                start = t + 1
        assert start == 10
        assert sorted(seen) == [0, 1, 2]


def test_segments_are_uniform_compositions() -> None:
    ends = SegmentCentres(2, 6).sample(3000, seed=1).mask.float().argmax(1).tolist()
    counts = Counter(ends)
    assert set(counts) == {1, 2, 3}
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_indexed_averages_equal_a_direct_loop() -> None:
    task = IndexedAverage(3, 8, width=2)
    batch = task.sample(5, seed=6)
    for row in range(5):
        for t in range(8):
            chosen = batch.latents["indices"][row, t].tolist()
            assert len(set(chosen)) == 3
            assert chosen == sorted(chosen)
            mean = sum(batch.inputs[row, j, :2] for j in chosen) / 3
            assert torch.allclose(batch.targets[row, t], mean, atol=1e-6)
            assert batch.inputs[row, t, 2:10].argmax() == t
            assert batch.inputs[row, t, 10:].nonzero()[:, 0].tolist() == chosen


@pytest.mark.parametrize("task", [NearestPoint(), SegmentCentres(), IndexedAverage()])
def test_round_trip(task: NearestPoint | SegmentCentres | IndexedAverage) -> None:
    assert task_from_dict(task.to_dict()) == task
    assert torch.equal(task.sample(3, seed=1).inputs, task.sample(3, seed=1).inputs)


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="second must be at least 1"):
        NearestPoint(second=0)
    with pytest.raises(ArgumentError, match="a point and a token a segment"):
        SegmentCentres(6, 10)
    with pytest.raises(ArgumentError, match=r"q must be from 1 to the length 8.*width"):
        IndexedAverage(9, width=0)
