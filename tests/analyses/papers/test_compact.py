"""Proofs whose factors are apart are no better than those that they simplify."""

from itertools import pairwise

import pytest
import torch
from certified_models import trained_maximum

from analyses.papers.compact.rank_one import by_factors, exact_weights, rank_one_weights
from analyses.papers.compact.understanding import lengths
from interp.bounds.three_paths import tables_of
from probes.certify.maximum import brute_force, by_cubes


@pytest.mark.parametrize("seed", range(6))
def test_each_proof_is_below_the_one_it_simplifies(seed: int) -> None:
    model = trained_maximum(6, 3, seed)
    tables = tables_of(model, 3)
    product = rank_one_weights(model, tables)
    assert product is not None
    bounds = [brute_force(tables).bound, by_cubes(tables).bound]
    bounds += [by_factors(tables, known)[0] for known in (exact_weights(tables), product)]
    assert all(less <= more + 1e-12 for more, less in pairwise(bounds))


def test_scores_that_saturate_do_not_carry_rank_one_beyond_brute_force() -> None:
    """Weights that underflow are raised by more than any number: they must not count as nothing."""
    for size, said in ((1.0, True), (300.0, True), (1e5, False)):
        model = trained_maximum(6, 3, 5)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            keys = model.blocks[0].attn.W_K
            keys += 0.3 * torch.randn(keys.shape, generator=generator)
            keys *= size
        tables = tables_of(model, 3)
        product = rank_one_weights(model, tables)
        bound = 0.0 if product is None else by_factors(tables, product)[0]
        assert bound <= brute_force(tables).bound
        assert (bound > 0) == said


def test_a_proof_that_settles_every_row_costs_what_it_is_itself() -> None:
    told = lengths(trained_maximum(12, 3, 1), 3)
    rest = (1 - told["rank one bound"]) * 12**3 * 12
    assert rest < told["rank one"] < told["brute force"] + rest
