import pytest

from interp.errors import ArgumentError
from interp.tasks.memory import FixedMemory

FORMULAS = {
    "parity": lambda now, *past: now * past[0] * past[1],
    "majority": lambda now, *past: 1 if now + sum(past) > 0 else -1,
    "multiplexer": lambda now, *past: past[0] if now > 0 else past[1],
}


@pytest.mark.parametrize("readout", FORMULAS)
def test_targets_equal_a_direct_loop(readout: str) -> None:
    task = FixedMemory((1, 4), readout, length=9)
    batch = task.sample(5, seed=3)
    x = batch.inputs[..., 0]
    for row in range(5):
        for t in range(9):
            assert batch.mask[row, t] == (t >= 4)
            for lag in (1, 4):
                expected = x[row, t - lag] if t >= lag else 0
                assert batch.latents[f"x[t-{lag}]"][row, t] == expected
            if t >= 4:
                f = FORMULAS[readout](*(float(x[row, t - lag]) for lag in (0, 1, 4)))
                assert batch.targets[row, t, 0] == f == batch.latents["f"][row, t]


def test_random_table_is_its_truth_table_and_depends_on_its_seed() -> None:
    task = FixedMemory((2,), "table", length=6, table_seed=5)
    table, batch = task.truth_table(), task.sample(50, seed=0)
    now, past = (batch.latents[name][:, 2:].flatten().int() for name in task.arguments)
    found = batch.latents["f"][:, 2:].flatten()
    pairs = zip(now.tolist(), past.tolist(), strict=True)
    assert [table[pair] for pair in pairs] == found.tolist()
    tables = {tuple(FixedMemory((1, 2, 3), "table", table_seed=s).truth_table().values())
              for s in range(8)}  # fmt: skip
    assert len(tables) == 8


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ArgumentError) as caught:
        FixedMemory((0, 5, 5), "multiplexer", length=5)
    for part in ("at least 1", "distinct", "exceed the largest lag 5", "two for a multiplexer"):
        assert part in str(caught.value)
