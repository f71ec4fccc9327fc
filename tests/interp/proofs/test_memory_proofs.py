from itertools import product

import pytest
import torch

from interp.errors import ArgumentError
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory

TASKS = [
    FixedMemory((1, 3), "multiplexer"),
    FixedMemory((2, 4), "majority"),
    FixedMemory((1, 2, 4), "parity"),
    FixedMemory((4,), "table", table_seed=3),
    FixedMemory((1, 2), "table", table_seed=0),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@torch.no_grad()
def test_error_stays_below_the_certificate(task: FixedMemory) -> None:
    construction = construct_fixed_memory(task)
    batch = task.sample(400, seed=1)
    error = (construction.model(batch.inputs) - batch.targets)[batch.mask].abs().max()
    assert float(error) <= construction.certificate.error < 1e-10


@torch.no_grad()
def test_every_input_of_a_short_sequence_is_right() -> None:
    task = FixedMemory((1, 3), "parity", length=9)
    construction = construct_fixed_memory(task)
    x = torch.tensor(list(product((-1.0, 1.0), repeat=9)))
    f = x[:, 3:] * x[:, 2:-1] * x[:, :-3]
    error = (construction.model(x[..., None])[:, 3:, 0] - f).abs().max()
    assert float(error) <= construction.certificate.error


@torch.no_grad()
def test_residual_directions_hold_what_the_mechanism_says() -> None:
    task = FixedMemory((1, 3), "multiplexer")
    construction = construct_fixed_memory(task)
    batch = task.sample(64, seed=2)
    _, cache = construction.model.run_with_cache(batch.inputs)
    parts = construction.certificate.parts
    for latent, axis in construction.mechanism.directions.items():
        held = cache[construction.mechanism.written[latent]] @ axis
        slack = parts.get(f"slot of lag {latent[4:-1]}", construction.certificate.error)
        assert float((held - batch.latents[latent])[batch.mask].abs().max()) <= slack


def test_each_memory_owns_its_heads() -> None:
    mechanism = construct_fixed_memory(FixedMemory((1, 3), "multiplexer")).mechanism
    owned = [part.target for part in mechanism.parts if part.component == "head"]
    assert owned == ["x[t-1]"] * 2 + ["x[t-3]"] * 4


def test_a_lag_that_float64_cannot_select_is_refused_with_the_numbers() -> None:
    with pytest.raises(ArgumentError, match=r"summed error below 0\.5 in float64 \(lag 12: "):
        construct_fixed_memory(FixedMemory((12,), "table", length=32))
