"""Heads that share a job are found as one group each with its share; decoys are in none."""

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest

from analyses.benchmarks.backups import Backup, backups, measure
from analyses.benchmarks.circuits import Shared, Sizes, construct_circuit
from interp.proofs.mechanism import Construction
from interp.tasks.induction import RepeatedTokens
from probes.roles import LANGUAGE, find_roles
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of

ROWS = RepeatedTokens(16, 18, (4, 8), bos=-1).sample(32, seed=2)


@cache
def two(split: bool) -> tuple[Construction, list[tuple[int, int | None]], pd.DataFrame]:
    """A model with a pair of induction heads, the pair, and the roles that are found."""
    shared = Shared(1, 2, split)
    made = construct_circuit("induction", Sizes(16, 18, 4, False), seed=3, shared=shared)
    mine = sorted({(p.layer, p.head) for p in made.mechanism.parts if p.layer == 1})
    return made, mine, find_roles(made.model, ROWS, profile=LANGUAGE)


@pytest.mark.parametrize("split", [False, True])
def test_a_pair_is_one_row_with_its_members_and_their_shares(split: bool) -> None:
    _, mine, roles = two(split)
    name = "+".join(f"L{layer}H{head}" for layer, head in mine)
    (group,) = roles[(roles["component"] == "group") & (roles["role"] == "induction")].itertuples()
    assert (group.group, group.head, group.status) == (name, -1, "confirmed")
    shares = {
        test["name"]: test["score"]
        for test in json.loads(group.tests)
        if test["name"].startswith("share of L")
    }
    assert sum(shares.values()) == pytest.approx(1)
    assert [*shares.values()] == pytest.approx([0.5, 0.5], abs=0.02)
    members = roles[(roles["group"] == name) & (roles["role"] == "induction")]
    assert sorted(members["head"]) == [-1, *(head for _, head in mine)]
    assert set(members["status"]) == {"confirmed"}
    others = roles[(roles["role"] == "induction") & (roles["group"] != name)]
    assert len(others) == 2, "the two decoys attend alike"
    assert set(others["status"]) == {"rejected"}


def test_the_joint_effect_is_what_is_measured_with_both_taken_away() -> None:
    made, mine, roles = two(split=False)
    rises = Effects(evidence_of(made.model, ROWS, LANGUAGE)).rises
    lost = {
        name: rises.at("repeated", rises.away("repeated", places, "after_same"))
        for name, places in {"one": mine[:1], "other": mine[1:], "both": mine}.items()
    }
    odd = {name: (v * ROWS.mask).sum(1) / ROWS.mask.sum(1) for name, v in lost.items()}
    odd = {name: values[1::2].mean() for name, values in odd.items()}
    (group,) = roles[(roles["component"] == "group") & (roles["role"] == "induction")].itertuples()
    assert group.effect == pytest.approx(float(odd["both"]), rel=1e-6)
    tests = {t["name"]: t["score"] for t in json.loads(group.tests)}
    (excess,) = (
        score for name, score in tests.items() if name.startswith("without all of them more")
    )
    assert excess == pytest.approx(float(odd["both"] - odd["one"] - odd["other"]), rel=1e-6)


def test_a_single_head_is_in_no_group() -> None:
    made = construct_circuit("induction", Sizes(16, 18, 4, False), seed=5)
    roles = find_roles(made.model, ROWS, profile=LANGUAGE)
    assert "group" not in set(roles["component"])
    assert set(roles["group"]) == {""}


def test_the_benchmark_holds_twenty_pairs_and_ten_triples_among_decoys() -> None:
    planted = backups()
    assert [np.sum([one.shared.heads == k for one in planted]) for k in (2, 3)] == [20, 10]
    assert not {one.seed for one in planted} & {one.seed for one in backups(tuning=True)}


@pytest.mark.slow
def test_a_triple_among_twenty_decoys_is_found() -> None:
    (one,) = [
        b for b in backups(tuning=True) if b.name == "previous-copy previous-token, 3 parts, 22"
    ]
    assert isinstance(one, Backup)
    found = measure(one)
    assert found["found"]
    assert found["decoys"] >= 20
    assert not found["grouped"]
