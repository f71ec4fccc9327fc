import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyses.papers.base import Setting
from analyses.papers.coupling.bound import (
    coupling_bound,
    judge_bound,
    network_complexity,
    spectrum_part,
)
from interp.tasks.coupling import PodCoupling

FLAT = PodCoupling(6, sigmas=(1.0,) * 6)
FALLING = PodCoupling("infinite", alpha=1.75, mask_self=True)


def test_of_a_power_law_c_1_is_one_and_the_steepest_alpha_is_its_own() -> None:
    assert spectrum_part(FALLING, 4) == pytest.approx(4**-2.5)
    assert spectrum_part(FALLING, 4, squared=True) == pytest.approx(4**-2.5 / 2.5)


def test_of_a_flat_spectrum_the_least_over_alpha_has_a_closed_form_and_is_zero_from_the_rank() -> (
    None
):
    for m_h in (1, 3, 5):
        # r^{2α} / ((2α − 1) m^{2α−1}) is least at 2α − 1 = 1/ln(r/m)
        closed = math.e * 6 * math.log(6 / m_h)
        assert spectrum_part(FLAT, m_h, squared=True) == pytest.approx(closed, rel=1e-3)
        assert closed > 6 - m_h  # Σ_{k > m} σ_k², which it bounds
    assert spectrum_part(FLAT, 6) == spectrum_part(FLAT, 9, squared=True) == 0
    assert spectrum_part(FLAT, 2) == pytest.approx(min(2 * 1.5**0.51, 6**0.51), rel=1e-2)
    assert spectrum_part(FLAT, 3) < 1e-9  # 3 (6/9)^α: as written it asks nothing of rank 6


def test_the_complexity_is_what_interpolation_at_equal_knots_needs() -> None:
    x = np.linspace(0, 1, 40_001)
    for k, knots in ((1, 16), (3, 50)):
        wave = math.sqrt(2) * np.sin(2 * math.pi * k * x)
        at = np.arange(knots + 1) / knots
        drawn = np.interp(x, at, math.sqrt(2) * np.sin(2 * math.pi * k * at))
        one = network_complexity(FLAT, k) - network_complexity(FLAT, k - 1)
        worst = np.abs(wave - drawn).max() * knots**2
        assert 0.8 * one / 2 < worst <= one / 2  # φ_k and ψ_k are both counted
    assert network_complexity(FLAT, 9) == network_complexity(FLAT, 6)


def test_the_bound_puts_the_constants_together() -> None:
    c_2 = 2 * math.sqrt(2) * (2 * math.pi) ** 2 / 8 * (1 + 4)
    expected = 16**2 * math.sqrt(2) * (2**-2.5 + c_2 * 2**3 / 100**2)
    assert coupling_bound(FALLING, 2, 100) == pytest.approx(expected)
    legendre = PodCoupling(2, left="legendre", right="legendre", length=4)
    assert coupling_bound(legendre, 2, 10) == pytest.approx(
        4**2 * math.sqrt(5) * network_complexity(legendre, 2) * 8 / 100
    )


@pytest.mark.parametrize(("width", "status"), [(3, "partly"), (6, "reproduced")])
def test_one_error_above_the_bound_as_written_decides(
    width: int, status: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"widths": [[width], [1]], "networks": [16], "trained_networks": [4]}
    options |= {"steps": 1, "batch": 2, "learning_rate": 1e-3}
    verdict = judge_bound(Setting("quick", (0,), options, tmp_path))
    assert verdict.status == status
    cells = verdict.tables["cells"]
    flat = cells[cells["target"] == "rank 6"]
    assert flat["m_ff"].tolist() == [4, 16, math.inf]
    assert (np.diff(flat["best known"]) <= 0).all()  # a wider network holds the narrower one
    assert verdict.numbers["telling"] == int(
        (cells["bound with C_1² / (2α − 1)"] < cells["best constant"]).sum()
    )
