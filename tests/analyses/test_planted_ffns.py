"""FFNs whose role is written down are found, and decoys are not."""

import pytest
import torch

from analyses.benchmarks.planted_ffns import DECOYS, KINDS, confirmed_roles, plant


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_ffn_has_its_role_and_no_other(kind: str) -> None:
    one = plant(kind, seed=31)
    assert confirmed_roles(one) == {(one.role, one.target)}
    assert one.role == KINDS[kind]


@pytest.mark.parametrize("decoy", DECOYS)
@pytest.mark.parametrize("kind", ["token passed on", "heads passed on"])
def test_decoys_have_none(kind: str, decoy: str) -> None:
    assert not confirmed_roles(plant(kind, seed=32, decoy=decoy))


@pytest.mark.parametrize("kind", ["gating", "sharpening"])
def test_a_random_ffn_whose_readout_is_fitted_has_none(kind: str) -> None:
    assert not confirmed_roles(plant(kind, seed=32, decoy="random"))


def test_what_is_planted_is_what_the_task_asks_for() -> None:
    for kind in KINDS:
        one = plant(kind, seed=33)
        with torch.no_grad():
            missed = (one.model(one.rows.inputs.double()) - one.rows.targets)[one.rows.mask]
        assert float(missed.square().mean() / one.rows.targets[one.rows.mask].var()) < 0.1
