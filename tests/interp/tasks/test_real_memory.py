import math

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.tasks.memory import RealMemory
from interp.tasks.memory.readouts import REAL, Readout

FORMULAS = {
    "mean": lambda u: sum(u) / 3,
    "maximum": max,
    "waves": lambda u: math.sin(2.5 * sum(u) / math.sqrt(3)),
}


@pytest.mark.parametrize("readout", FORMULAS)
@pytest.mark.parametrize("inputs", ["gaussian", "signs"])
def test_targets_equal_a_direct_loop(readout: str, inputs: str) -> None:
    task = RealMemory((1, 4), readout, inputs, length=9, frequency=2.5)
    batch = task.sample(4, seed=3)
    x = batch.inputs[..., 0]
    for row in range(4):
        for t in range(9):
            assert batch.mask[row, t] == (t >= 4)
            expected = 0.0
            if t >= 4:
                expected = FORMULAS[readout]([float(x[row, t - lag]) for lag in (0, 1, 4)])
            assert float(batch.targets[row, t, 0]) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(batch.targets[..., 0], batch.latents["f"])


def test_single_lag_is_the_shifted_input() -> None:
    batch = RealMemory((3,), length=10).sample(6, seed=0)
    assert torch.equal(batch.targets[:, 3:], batch.inputs[:, :-3])
    assert torch.equal(batch.latents["x[t-3]"], batch.latents["f"])


def test_inputs_are_standard_normal_or_signs() -> None:
    gaussian = RealMemory((1,), length=500).sample(200, seed=0).inputs
    assert abs(float(gaussian.mean())) < 0.02
    assert float(gaussian.var()) == pytest.approx(1, abs=0.02)
    signs = RealMemory((1,), inputs="signs").sample(50, seed=0).inputs
    assert set(signs.unique().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("name", [n for n in REAL if n != "single"])
def test_the_lipschitz_bound_holds_and_is_not_idle(name: str) -> None:
    f = Readout(name, 3, seed=2, frequency=3.0)
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(4, 5000, 50, generator=generator, dtype=torch.float64).float()
    step = torch.randn(4, 5000, 50, generator=generator) * 1e-2
    moved = (f(list(u + step)) - f(list(u))).abs() / step.norm(dim=0)
    assert float(moved.max()) <= f.lipschitz * 1.01
    assert float(moved.max()) >= f.lipschitz * 0.2


def test_network_equals_its_formula_and_depends_on_its_seed() -> None:
    f = Readout("network", 1, seed=4)
    u = np.random.default_rng(0).standard_normal((2, 3, 5))
    generator = torch.Generator().manual_seed(4)
    w = torch.randn(2, 16, generator=generator).double().numpy()
    b = torch.randn(16, generator=generator).double().numpy()
    sign = torch.randint(2, (16,), generator=generator).numpy() * 2 - 1
    w = w / np.sqrt((w**2).sum(0))
    found = f([torch.from_numpy(v).float() for v in u]).numpy()
    for row, t in np.ndindex(3, 5):
        neurons = [max(0.0, w[:, k] @ u[:, row, t] + b[k]) * sign[k] for k in range(16)]
        assert found[row, t] == pytest.approx(sum(neurons) / 16, abs=1e-6)
    other = Readout("network", 1, seed=5)([torch.ones(1, 4), torch.ones(1, 4)])
    assert not torch.equal(other, f([torch.ones(1, 4), torch.ones(1, 4)]))


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ArgumentError) as caught:
        RealMemory((0, 5, 5), "parity", "uniform", length=5, frequency=-1.0)
    told = str(caught.value)
    for part in ("at least 1", "distinct", "exceed the largest lag 5", "one of gaussian, signs",
                 "one of single, mean", "frequency must be positive"):  # fmt: skip
        assert part.replace("gaussian, signs", "signs, gaussian") in told
    with pytest.raises(ArgumentError, match="one memory for the readout single, got 2"):
        RealMemory((1, 2))
