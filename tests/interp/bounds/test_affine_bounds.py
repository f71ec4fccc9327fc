"""Affine forms hold what they say they hold: exact rationals, sampled noise, every operation."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interp.bounds.affine import (
    DTYPES,
    Affine,
    Arithmetic,
    add,
    dot,
    exactly,
    gamma,
    linear,
    scale,
    span,
    subtract,
)
from interp.bounds.network import apply, gelu, inverse_root, relu

floats = st.floats(-1e6, 1e6, allow_nan=False, width=32)


def small(*shape: int) -> st.SearchStrategy[np.ndarray]:
    size = int(np.prod(shape))
    return st.lists(floats, min_size=size, max_size=size).map(lambda v: np.array(v).reshape(shape))


def exact(x: np.ndarray) -> list[Fraction]:
    return [Fraction(v) for v in x.tolist()]


@settings(max_examples=60, deadline=None)
@given(small(5), small(5, 2), small(2))
def test_a_linear_map_of_numbers_holds_the_exact_rational_result(x, w, b) -> None:
    found = linear(exactly(x[None]), w, b, Arithmetic("real"))
    low, high = found.bounds()
    for j in range(2):
        real = sum(
            (Fraction(float(u)) * Fraction(float(v)) for u, v in zip(x, w[:, j], strict=True)),
            Fraction(float(b[j])),
        )
        assert Fraction(float(low[0, j])) <= real <= Fraction(float(high[0, j]))


@settings(max_examples=60, deadline=None)
@given(small(6), small(6))
def test_a_product_holds_the_exact_rational_result_in_float32_and_float64(x, y) -> None:
    real = sum((a * b for a, b in zip(exact(x), exact(y), strict=True)), Fraction(0))
    low, high = dot(exactly(x[None]), exactly(y[None]), Arithmetic("real")).bounds()
    assert Fraction(float(low[0])) <= real <= Fraction(float(high[0]))
    low, high = dot(exactly(x[None]), exactly(y[None]), Arithmetic("float32")).bounds()
    for order in (slice(None), slice(None, None, -1)):
        total = np.float32(0)
        for a, b in zip(x[order].astype(np.float32), y[order].astype(np.float32), strict=True):
            total = np.float32(total + a * b)
        assert low[0] <= float(total) <= high[0]


def test_gamma_is_not_below_the_exact_quotient() -> None:
    for n in (1, 7, 1000):
        u = Fraction(2) ** -53
        assert Fraction(gamma(n, 2.0**-53)) >= n * u / (1 - n * u)
    assert gamma(2**60, 2.0**-24) == np.inf


@settings(max_examples=40, deadline=None)
@given(small(1, 3), small(2, 1, 3), small(2, 1, 3), st.integers(0, 2**16))
def test_sums_products_and_scalings_hold_sampled_noise(c, g, h, seed) -> None:
    ar = Arithmetic("real", symbols=2)
    a = Affine(c, g, np.zeros((1, 3)))
    b = Affine(c[:, ::-1].copy(), h, np.full((1, 3), 0.5))
    rng = np.random.default_rng(seed)
    eps = rng.choice([-1.0, 1.0, 0.3], size=2)
    x = c + np.tensordot(eps, g, 1)
    y = c[:, ::-1] + np.tensordot(eps, h, 1) + rng.uniform(-0.5, 0.5, (1, 3))
    factor = np.array([2.0, -3.0, 0.1])
    slack = 1e-12 * (np.abs(c).max() + np.abs(g).sum() + np.abs(h).sum() + 1) ** 2
    for form, value in (
        (add(a, b, ar), x + y),
        (dot(a, b, ar), (x * y).sum(-1)),
        (scale(a, factor, ar), x * factor),
    ):
        low, high = form.bounds()
        assert (low - slack <= value).all()
        assert (value <= high + slack).all()
        fixed = form.centre + np.tensordot(eps, form.generators, 1)
        assert (np.abs(fixed - value) <= form.radius + slack).all()


FUNCTIONS = {
    "relu": (relu, lambda x: np.maximum(x, 0)),
    "gelu": (
        gelu,
        lambda x: x * 0.5 * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2))),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=80, deadline=None)
@given(st.floats(-30, 30), st.floats(0, 20))
@example(-5.960464477539063e-08, 3.0)  # here the test's own arithmetic rounds more than the rest
def test_a_relaxation_holds_the_function_on_its_interval(name, low, width) -> None:
    relax, f = FUNCTIONS[name]
    slope, shift, rest = relax(np.array([low]), np.array([low + width]))
    x = np.linspace(low, low + width, 201)
    rounded = 4 * np.finfo(np.float64).eps * (np.abs(f(x)) + np.abs(slope * x) + np.abs(shift))
    assert (np.abs(f(x) - (slope * x + shift)) <= rest * (1 + 1e-12) + rounded + 1e-300).all()


@settings(max_examples=80, deadline=None)
@given(st.floats(1e-6, 1e4), st.floats(0, 10))
def test_the_inverse_root_is_held_on_its_interval(low: float, width: float) -> None:
    high = low * (1 + width)
    slope, shift, rest = inverse_root(np.array([low]), np.array([high]))
    x = np.linspace(low, high, 201)
    assert (np.abs(1 / np.sqrt(x) - (slope * x + shift)) <= rest * (1 + 1e-9)).all()
    assert rest <= 1 / np.sqrt(low) - 1 / np.sqrt(high) + 1e-9 / np.sqrt(low)


def test_a_relu_of_fixed_sign_loses_nothing() -> None:
    slope, shift, rest = relu(np.array([0.5, -2.0]), np.array([1.0, -0.1]))
    assert slope.tolist() == [1.0, 0.0]
    assert shift.tolist() == rest.tolist() == [0.0, 0.0]


def test_what_cancels_costs_nothing() -> None:
    ar = Arithmetic("real")
    x = span(np.array([[-1.0, 2.0]]), np.array([[1.0, 3.0]]), ar)
    found = subtract(x, x, ar)
    assert found.deviation.max() < 1e-14


def test_noise_over_budget_becomes_radius_and_stays_sound() -> None:
    for budget in (0, 2**20):
        ar = Arithmetic("real", budget=budget)
        x = span(np.array([[-1.0, 0.0]]), np.array([[2.0, 0.0]]), ar)
        found = apply(x, relu, ar)
        low, high = found.bounds()
        assert low[0, 0] <= 0
        assert high[0, 0] >= 2
        assert len(found.generators) == (0 if budget == 0 else 2)


def test_numbers_beyond_the_dtype_have_no_bound() -> None:
    huge = exactly(np.array([[1e30]]))
    for dtype, known in (("float64", True), ("float32", False)):
        found = linear(huge, np.array([[1e30]]), None, Arithmetic(dtype))
        assert np.isfinite(found.bounds()[1]).all() == known
    assert set(DTYPES) == {"float32", "float64", "real"}
