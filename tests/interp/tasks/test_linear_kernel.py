import math

import pytest
import torch

from interp.errors import ArgumentError
from interp.tasks.coupling import LinearKernel

CHANGES = ["none", "exchange", "mixing"]


@pytest.mark.parametrize("kernel", ["exponential", "random"])
@pytest.mark.parametrize("change", CHANGES)
def test_targets_and_inputs_equal_a_direct_loop(kernel: str, change: str) -> None:
    task = LinearKernel(kernel, change, length=9, exchanged=3, kernel_seed=5, filter_seed=2)
    batch = task.sample(2, seed=1)
    rho, w = task.weights().tolist(), task.filter().tolist()
    if kernel == "exponential":
        assert rho == pytest.approx([math.exp(-s) for s in range(9)])
    for row in range(2):
        x = batch.latents["x"][row].tolist()
        for t in range(9):
            y = sum(rho[s] * x[t - s] for s in range(t + 1))
            assert float(batch.targets[row, t, 0]) == pytest.approx(y, abs=1e-5)
            read = {
                "none": x[t],
                "exchange": x[(t + 6) % 9] if t < 3 or t >= 6 else x[t],
                "mixing": sum(w[j] * x[t - j] for j in range(5) if t >= j),
            }[change]
            if change == "exchange" and t >= 6:
                read = x[t - 6]
            assert float(batch.inputs[row, t, 0]) == pytest.approx(read, abs=1e-5)
            for s in range(9):
                expected = rho[t - s] if s <= t else 0.0
                assert float(batch.latents["coupling"][row, t, s]) == pytest.approx(expected)


def test_the_change_leaves_the_targets_as_they_are() -> None:
    batches = [LinearKernel("random", change).sample(5, seed=3) for change in CHANGES]
    for batch in batches[1:]:
        assert torch.equal(batch.targets, batches[0].targets)
        assert not torch.equal(batch.inputs, batches[0].inputs)
    halves = LinearKernel(change="exchange", length=8, exchanged=4).sample(2, seed=0)
    assert torch.equal(halves.inputs[:, :4, 0], halves.latents["x"][:, 4:])


def test_what_cannot_be_is_refused_all_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"kernel must be one of.*may not overlap"):
        LinearKernel("cubic", "exchange", length=16)
