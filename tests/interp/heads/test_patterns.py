import numpy as np

from interp.heads.patterns import concentration, kernel_by_lag, mass_by_lag

RNG = np.random.default_rng(0)


def causal(rows: int, heads: int, n: int) -> np.ndarray:
    return np.tril(RNG.random((rows, heads, n, n))) + 1e-9 * np.eye(n)


def test_mass_equals_a_direct_loop() -> None:
    pattern, mask = causal(3, 2, 7), RNG.random((3, 7)) < 0.7
    mask[:, 0] = False
    found = mass_by_lag(pattern, mask)
    for head in range(2):
        for lag in range(5):
            shares = [pattern[r, head, t, t - lag] / pattern[r, head, t].sum()
                      for r in range(3) for t in range(lag, 7) if mask[r, t]]  # fmt: skip
            np.testing.assert_allclose(found[head, lag], np.mean(shares))


def test_kernel_of_one_signal_is_the_weighted_pattern() -> None:
    """Heads that write multiples g_h of one signal u have kernel g_h × mean of pattern · u²."""
    pattern, mask = causal(4, 3, 8), np.ones((4, 8), bool)
    signal = RNG.choice([-1.0, 1.0], (4, 8))
    gains = np.array([2.0, -1.0, 0.5])
    found = kernel_by_lag(pattern, signal[..., None] * gains, mask)
    signal = signal - signal.mean()
    by_key = pattern * signal[:, None, None, :] ** 2 / signal.std()
    means = np.stack([np.diagonal(by_key, -s, 2, 3).mean((0, 2)) for s in range(8)], axis=-1)
    expected = gains[:, None] * means
    together = expected.sum(0)
    expected = expected * np.sign(together[np.abs(together).argmax()])
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_constant_values_carry_nothing() -> None:
    """A value bias that the output bias takes back changes no kernel."""
    pattern, mask = causal(4, 2, 8), np.ones((4, 8), bool)
    values = RNG.normal(size=(4, 8, 2))
    np.testing.assert_allclose(
        kernel_by_lag(pattern, values + np.array([5.0, -3.0]), mask),
        kernel_by_lag(pattern, values, mask),
        atol=1e-12,
    )


def test_weight_at_far_lags_counts_against_concentration() -> None:
    n = 12
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    two_peaks = (0.6 * (lag == 1) + 0.4 * (lag == 9)).astype(float)
    values = RNG.choice([-1.0, 1.0], (50, n, 1))
    pattern = np.repeat(two_peaks[None, None], 50, axis=0)
    kernel = kernel_by_lag(pattern, values, np.ones((50, n), bool)).sum(0)
    assert concentration(kernel, 1) < 0.7


def test_signed_combination_selects_a_lag_that_no_head_does() -> None:
    s = np.subtract.outer(np.arange(9), np.arange(9))
    slow, fast = np.tril(0.5 ** s.clip(0)), np.tril(0.25 ** s.clip(0))
    pattern = np.stack([slow, fast])[None]
    signal = RNG.choice([-1.0, 1.0], (1, 9, 1))
    kernel = kernel_by_lag(pattern, signal * np.array([4.0, -4.0]), np.ones((1, 9), bool))
    assert np.abs(kernel).argmax(axis=1).tolist() == [0, 0]
    assert kernel.sum(0).argmax() == 1


def test_concentration_of_a_spike_and_of_nothing() -> None:
    assert concentration(np.array([0.0, -3.0, 1.0]), 1) == 0.75
    assert concentration(np.zeros(3), 1) == 0.0
