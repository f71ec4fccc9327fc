from itertools import product

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.tasks.memory import AdaptiveMemory

TASKS = [
    AdaptiveMemory((1, 2, 4), length=12),
    AdaptiveMemory((1, 2, 3, 4), rounds=2, readout="maximum", length=10, inputs="gaussian"),
    AdaptiveMemory((2, 5), rounds=0, concurrent=2, readout="parity", length=9),
    AdaptiveMemory((1, 3, 4), rounds=2, concurrent=2, readout="mean", length=15, bits=3),
    AdaptiveMemory((1, 2, 6), rounds=4, readout="table", length=14, readout_seed=2),
]
READOUTS = {"single": lambda u: u[-1], "maximum": max, "parity": np.prod, "mean": np.mean}


def code(bits: torch.Tensor) -> int:
    return sum(2**k for k, bit in enumerate(reversed(bits.tolist())) if bit > 0)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_targets_and_latents_equal_a_direct_loop(task: AdaptiveMemory) -> None:
    batch, tables = task.sample(5, seed=3), task.location_tables()
    x, address, latents = batch.inputs[..., 0], batch.inputs[..., 1:], batch.latents
    assert address.shape[-1] == task.bits
    for row, t in np.ndindex(5, task.length):
        assert batch.mask[row, t] == (t >= max(task.locations))
        if t < max(task.locations):
            assert batch.targets[row, t, 0] == 0
            continue
        read, pointer = [float(x[row, t])], t
        for i in range(1, task.memory_count + 1):
            lag = tables[i - 1][code(address[row, pointer])]
            assert latents[f"t_{i}"][row, t] == lag
            assert latents[f"x[t-t_{i}]"][row, t] == x[row, t - lag]
            read.append(float(x[row, t - lag]))
            if i <= task.rounds and i < task.memory_count:
                pointer = t - lag
                assert torch.equal(latents[f"a[t-t_{i}]"][row, t], address[row, pointer])
        if task.readout == "table":
            expected = task.f.truth_table()[tuple(int(v) for v in read)]
        else:
            expected = READOUTS[task.readout](read)
        assert float(batch.targets[row, t, 0]) == pytest.approx(float(expected), abs=1e-6)
    assert torch.equal(latents["f"], batch.targets[..., 0])


def test_what_lies_before_the_start_is_zero() -> None:
    task = AdaptiveMemory((3, 7), rounds=2, length=9, readout="mean")
    latents = task.sample(20, seed=0).latents
    assert latents["t_1"][:, 0].ne(0).all()  # an address is read, though it points out of the row
    for name in ("x[t-t_1]", "t_2", "x[t-t_2]", "a[t-t_1]"):
        assert latents[name][:, :3].eq(0).all()


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_location_is_affine_in_the_channels(bits: int, count: int) -> None:
    corners = np.array(list(product((-1, 1), repeat=bits)))
    design = np.column_stack([np.ones(len(corners)), corners])
    for seed in range(10):
        task = AdaptiveMemory(tuple(range(1, count + 1)), rounds=1, concurrent=2, bits=bits,
                              readout="mean", table_seed=seed)  # fmt: skip
        for table in task.location_tables():
            residual = np.linalg.lstsq(design, np.array(table, dtype=float), rcond=None)[1]
            assert residual.sum() > 1e-6
            sizes = np.unique(table, return_counts=True)[1]
            assert len(sizes) == count
            assert sizes.max() - sizes.min() <= 1


def test_memories_fetched_together_never_coincide() -> None:
    task = AdaptiveMemory((1, 2, 3, 4), concurrent=4, readout="mean", length=20)
    latents = task.sample(30, seed=1).latents
    together = torch.stack([latents[f"t_{i}"] for i in range(2, 6)])[..., 4:]
    assert (together.sort(dim=0).values == torch.arange(1.0, 5)[:, None, None]).all()


def test_rounds_that_follow_one_another() -> None:
    made = [(1, 0), (0, 3), (3, 0), (2, 2)]
    tasks = [AdaptiveMemory((1, 2, 3), r, c, readout="mean") for r, c in made]
    assert [task.sequential_rounds for task in tasks] == [1, 1, 3, 3]
    assert [task.memory_count for task in tasks] == [1, 3, 3, 4]


def test_tables_depend_on_their_seed() -> None:
    tables = {AdaptiveMemory((1, 2, 3), table_seed=s).location_tables() for s in range(12)}
    assert len(tables) > 4


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ArgumentError) as caught:
        AdaptiveMemory((0, 40, 40), rounds=-1, concurrent=4, bits=1, readout="table",
                       inputs="gaussian")  # fmt: skip
    for part in ("locations must be at least 1", "distinct", "rounds must be at least 0",
                 "at most the 3 locations", "bits must be 2 to 8", "point before the start",
                 "readout must be one of single"):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"locations": (3,)}, "locations must be two or more"),
        ({"locations": (1, 2, 3, 4, 5)}, "an address to each of 5 locations, got 2"),
        ({"locations": (1, 2), "rounds": 0}, "must make at least one memory"),
        ({"locations": (1, 2), "rounds": 2}, "one memory for the readout single, got 2"),
        ({"locations": (1, 2), "readout": "majority"}, "odd number of arguments"),
        ({"locations": (1, 2), "readout": "multiplexer"}, "two memories for a multiplexer"),
        ({"locations": (1, 2), "rounds": 13, "readout": "table"}, "at most 12 memories"),
    ],
)
def test_each_rule_is_kept(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AdaptiveMemory(**arguments)  # type: ignore[arg-type]
