import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.tasks.memory import KernelMemory
from interp.tasks.memory.kernels import SHAPES, KernelTerm, MemoryKernel

FORMULAS = {
    "exponential(0.3)": lambda s: math.exp(-0.3 * s),
    "polynomial(1.5)": lambda s: (1 + s) ** -1.5,
    "2 bump(4, 1.5)": lambda s: 2 * math.exp(-((s - 4) ** 2) / (2 * 1.5**2)),
    "light(6, 1.3)": lambda s: math.exp(-((s / 6) ** 1.3)),
    "heavy(2)": lambda s: 1 / ((1 + s) * (1 + math.log(1 + s)) ** 2),
    "0.5 exponential(1) + -2e-1 polynomial(2)": lambda s: 0.5 * math.exp(-s) - 0.2 / (1 + s) ** 2,
}


@pytest.mark.parametrize("text", FORMULAS)
def test_targets_equal_a_direct_loop(text: str) -> None:
    task = KernelMemory((text,), length=11, burn_in=2)
    batch = task.sample(3, seed=5)
    x = batch.inputs[..., 0].double()
    for row, t in np.ndindex(3, 11):
        expected = sum(FORMULAS[text](s) * float(x[row, t - s]) for s in range(t + 1))
        assert float(batch.targets[row, t, 0]) == pytest.approx(expected, abs=1e-5)
        assert batch.mask[row, t] == (t >= 2)


def test_readout_of_several_kernels() -> None:
    task = KernelMemory(("exponential(0.5)", "bump(3, 1)"), "maximum", "signs", length=9)
    batch = task.sample(4, seed=0)
    assert task.arguments == ("rho_1*x", "rho_2*x")
    largest = torch.maximum(*(batch.latents[name] for name in task.arguments))
    assert torch.equal(batch.targets[..., 0], largest)
    assert torch.equal(batch.latents["f"], largest)
    alone = KernelMemory(("bump(3, 1)",), inputs="signs", length=9).sample(4, seed=0)
    assert torch.equal(alone.latents["rho_1*x"], batch.latents["rho_2*x"])
    assert set(batch.latents["x[t]"].unique().tolist()) == {-1.0, 1.0}


terms = st.tuples(
    st.sampled_from(sorted(SHAPES)),
    st.floats(-1e6, 1e6),
    st.tuples(st.floats(1.01, 1e6), st.floats(1.01, 1e6)),
)


@given(st.lists(terms, min_size=1, max_size=4))
def test_kernels_survive_their_text(found: list[tuple[str, float, tuple[float, float]]]) -> None:
    kernel = MemoryKernel(
        tuple(
            KernelTerm(w, name, values[: len(SHAPES[name].parameters)]) for name, w, values in found
        )
    )
    assert MemoryKernel.parse(str(kernel)) == kernel


@given(st.text(alphabet="exponential bump(),.+-0123456789e", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        kernel = MemoryKernel.parse(text)
    except ArgumentError:
        return
    assert MemoryKernel.parse(str(kernel)) == kernel


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ArgumentError) as caught:
        KernelMemory(
            ("gauss(1)", "heavy(1)", "bump(2)", "exponential(x)", "2 *"),
            "parity", "uniform", length=4, burn_in=4,
        )  # fmt: skip
    for part in ("shape must be one of exponential", "heavy must have a power above 1",
                 "bump must have the parameters lag, width", "numbers as parameters",
                 "kernel must be terms", "burn_in must be at least 0 and below the length",
                 "inputs must be one of", "readout must be one of single"):  # fmt: skip
        assert part in str(caught.value)


def test_no_kernel_and_infinite_numbers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="kernels must name at least one"):
        KernelMemory((), "mean")
    with pytest.raises(ArgumentError, match="exponential must have finite numbers"):
        KernelMemory(("exponential(1e999)",))


@pytest.mark.parametrize(
    ("kernel", "after"),
    [("light(1e-9, 100)", 0.0), ("heavy(1e9)", 0.0), ("bump(1, 1e-300)", 0.0)],
)
def test_powers_beyond_what_a_number_holds_leave_nothing(kernel: str, after: float) -> None:
    assert MemoryKernel.parse(kernel).values(np.array([7.0, 50.0])).tolist() == [after, after]
