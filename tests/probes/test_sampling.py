"""Rows of different lengths, shared prefixes, equal rows: what is held out was not seen before."""

import numpy as np
import pytest

from interp.errors import ArgumentError
from interp.tasks.depth.strings import PrefixPrediction
from probes.activations import (
    SampledPositions,
    collect,
    groups_of,
    sample_positions,
    sampled_positions,
)
from probes.linear import Decoding, decode, folds_of, logistic
from probes.probe_table import untrained_copy
from trained import zoo

RNG = np.random.default_rng(0)


def strings(rows: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Two letters and padding; every position of a string is scored."""
    lengths = RNG.integers(3, longest + 1, rows)
    mask = np.arange(longest) < lengths[:, None]
    return mask, np.where(mask, RNG.integers(0, 2, mask.shape), 2)


MASK, STRINGS = strings(256, 24)


def by_heart(at: SampledPositions) -> Decoding:
    """A code and a label for each prefix, both drawn at random: nothing to be decoded."""
    codes: dict[tuple[int, ...], np.ndarray] = {}
    drawn = [
        [codes.setdefault(tuple(STRINGS[row, : place + 1]), RNG.normal(size=201)) for place in own]
        for row, own in zip(at.rows, at.positions, strict=True)
    ]
    found = np.array(drawn)
    return decode(found[..., 1:], (found[..., 0] > 0) * 1.0, probe=logistic(), groups=at.groups)


def test_what_is_only_known_by_heart_is_not_decodable() -> None:
    common = np.tile(sampled_positions(MASK), (256, 1))
    assert common.max() < 3
    assert by_heart(SampledPositions(np.arange(256), common, groups_of(STRINGS))).score > 0.9
    assert abs(by_heart(sample_positions(MASK, STRINGS)).score) < 0.15


@pytest.mark.parametrize("seed", [0, 1])
def test_no_prefix_is_in_two_folds_and_all_of_a_row_is_read(seed: int) -> None:
    at = sample_positions(MASK, STRINGS, seed=seed)
    seen: dict[tuple[int, ...], set[int]] = {}
    for row, own, fold in zip(at.rows, at.positions, folds_of(at.groups), strict=True):
        assert MASK[row, own].all()
        assert (np.diff(own) > 0).all()
        for place in own:
            seen.setdefault(tuple(STRINGS[row, : place + 1]), set()).add(int(fold))
    assert all(len(folds) == 1 for folds in seen.values())
    assert set(at.positions.ravel()) == set(range(24))
    assert len(at.rows) >= 0.7 * 256
    assert sorted(set(folds_of(at.groups))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("letters", "scored"), [(2, [1, 2]), (3, [1])])
def test_whether_all_folds_have_rows_is_no_matter_of_the_seed(
    letters: int, scored: list[int]
) -> None:
    """Few distinct rows that share prefixes: of some seeds a fold once had no position left."""
    rows = np.concatenate([np.array(list(np.ndindex(letters, letters, 2)))] * 3)
    mask = np.zeros(rows.shape, dtype=bool)
    mask[:, scored] = True
    for seed in range(60):
        at = sample_positions(mask, rows, seed=seed)
        assert set(folds_of(at.groups)) == set(range(5)), seed
        assert mask[at.rows[:, None], at.positions].all()


def test_equal_rows_are_one_group_and_those_that_see_the_whole_row_keep_their_prefixes() -> None:
    twice = np.concatenate((STRINGS[:40], STRINGS[:40]))
    mask = np.ones(twice.shape, dtype=bool)
    at = sample_positions(mask, twice, causal=False)
    np.testing.assert_array_equal(at.positions, np.tile(sampled_positions(mask), (80, 1)))
    np.testing.assert_array_equal(at.groups[:40], at.groups[40:])
    expected = np.array([[tuple(a) == tuple(b) for a in twice] for b in twice])
    np.testing.assert_array_equal(at.groups[:, None] == at.groups, expected)
    np.testing.assert_array_equal(groups_of(STRINGS[[3, 1, 3, 2]]), [0, 1, 0, 2])


def test_real_inputs_share_no_prefix() -> None:
    mask = np.ones((20, 9), dtype=bool)
    at = sample_positions(mask, RNG.normal(size=(20, 9, 2)))
    assert (at.positions == sampled_positions(mask)).all()
    with pytest.raises(ArgumentError, match="mask must score a position, got none"):
        sample_positions(~mask, RNG.normal(size=(20, 9, 2)))


def test_a_program_that_random_weights_do_not_run() -> None:
    """On the first four positions random weights seemed to read E3 without a mistake."""
    model, task = zoo.load("depth-L4-layers2").model, zoo.load("depth-L4-layers2").task
    assert isinstance(task, PrefixPrediction)
    batch, hook = task.sample(256, seed=0), "blocks.1.hook_resid_mid"

    def score(of: object, positions: np.ndarray | None = None) -> float:
        found = collect(of, batch, [hook], positions=positions)
        groups = found.groups if positions is None else None
        features, latent = found.features[hook], found.latents["E3"]
        return decode(features, latent, probe=logistic(), groups=groups).score

    fresh = untrained_copy(model, seed=1)
    assert score(fresh, sampled_positions(batch.mask.numpy())) > 0.98
    assert score(fresh) < 0.85
    assert score(model) > 0.98
