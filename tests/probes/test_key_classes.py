"""Classes of keys that follow from what a model does, against loops over positions."""

from dataclasses import replace

import pytest
import torch

from interp.hooks.site import Site
from interp.run import Mean, Run
from probes.roles.fitting import Fitting, pattern_of, read_places
from probes.roles.key_classes import (
    fixed_classes,
    matched_classes,
    mean_classes,
    predicted_classes,
    product_classes,
    relayed_tokens,
)
from probes.roles.surrogates import RELAYED, fit_roles
from trained import zoo


def _fitting_of(target: str, layer: int = 1, head: int = 0) -> Fitting:
    shipped = zoo.load("induction-attention")
    run = Run(shipped.model, shipped.task.sample(12, seed=4))
    row = type("Row", (), {"layer": layer, "head": head, "target": target})()
    return Fitting(row, run, run)


def _fetched_tokens(run: Run) -> list[list[int]]:
    """The token that gets most of L0H0's attention at each position, −1 where it gets less than
    half, in a slow loop."""
    _, cache = run.model.run_with_cache(run.batch.inputs)
    pattern, found = cache["blocks.0.attn.hook_pattern"][:, 0], []
    for row, tokens in enumerate(run.batch.inputs.tolist()):
        line = []
        for query in range(len(tokens)):
            share: dict[int, float] = {}
            for key, token in enumerate(tokens):
                share[token] = share.get(token, 0.0) + float(pattern[row, query, key])
            best = max(share, key=lambda token: share[token])
            line.append(best if share[best] >= 0.5 else -1)
        found.append(line)
    return found


def test_keys_where_an_earlier_head_fetched_the_querys_token() -> None:
    told = _fitting_of("K L0H0")
    (words, keys), (more, shares) = matched_classes(told).items()
    assert words == "where L0H0 fetched its token"
    assert more == "L0H0's attention there on its token"
    inputs, fetched, mine = (
        told.run.batch.inputs.tolist(),
        _fetched_tokens(told.run),
        keys(told.run),
    )
    pattern = pattern_of(told.run, 0, 0)
    for row in range(4):
        for query in range(0, len(inputs[0]), 5):
            for key in range(query + 1):
                token = inputs[row][query]
                after = key > 0 and inputs[row][key - 1] == token
                expected = fetched[row][key] == token != inputs[row][key] and not after
                assert bool(mine[row, query, key]) == expected
                share = sum(
                    float(pattern[row, key, at])
                    for at, other in enumerate(inputs[row])
                    if other == token
                )
                assert float(shares(told.run)[row, query, key]) == pytest.approx(share, abs=1e-5)
    assert not matched_classes(_fitting_of("nobody"))


def test_keys_with_what_was_fetched_for_the_query() -> None:
    told = _fitting_of("Q L0H0")
    (words, keys), (more, shares) = matched_classes(told).items()
    assert words == "what L0H0 fetched for it"
    assert more == "L0H0's attention on that token"
    assert torch.allclose(shares(told.run), _shares_of_keys(told.run), atol=1e-6)
    inputs, fetched, mine = (
        told.run.batch.inputs.tolist(),
        _fetched_tokens(told.run),
        keys(told.run),
    )
    found = 0
    for row in range(4):
        for query in range(len(inputs[0])):
            token = fetched[row][query]
            expected = [inputs[row][key] == token != inputs[row][query] for key in range(query + 1)]
            if sum(expected) > 1:  # it stands elsewhere, too
                assert mine[row, query, : query + 1].tolist() == expected
                found += 1
    assert found > 10


def _shares_of_keys(run: Run) -> torch.Tensor:
    pattern, tokens = pattern_of(run, 0, 0), run.batch.inputs
    found = torch.zeros_like(pattern)
    for key in range(tokens.shape[1]):
        same = (tokens == tokens[:, key : key + 1]).float()
        found[:, :, key] = (pattern * same[:, None]).sum(-1)
    return found


def test_earlier_places_of_what_is_predicted() -> None:
    told = _fitting_of("", layer=1)
    ((_, keys),) = predicted_classes(told).items()
    run = told.run
    _, cache = run.model.run_with_cache(run.batch.inputs)
    with torch.no_grad():
        logits = run.model.unembed(run.model.ln_final(cache[Site(1, "resid_pre").name]))
    mine, inputs = keys(run), run.batch.inputs
    for row in range(4):
        for query in range(0, inputs.shape[1], 7):
            token = int(logits[row, query].argmax())
            above = float(logits[row, query, token] - logits[row, query].mean())
            told_so = above >= 1.0 and token != int(inputs[row, query])
            expected = [told_so and int(inputs[row, key]) == token for key in range(query)]
            assert mine[row, query, :query].tolist() == expected
            assert not mine[row, query, query:].any()


def test_what_was_fetched_is_what_earlier_components_fetch_in_that_run() -> None:
    told = _fitting_of("L0H0")
    own = relayed_tokens(told.run, (0, 0))
    inputs, fetched = told.run.batch.inputs, torch.tensor(_fetched_tokens(told.run))
    assert torch.equal(own, torch.where(fetched == inputs, -1, fetched))
    changed = told.run.with_(Mean(Site(0, "pattern", 0)))
    assert not torch.equal(relayed_tokens(changed, (0, 0)), own)


def test_a_head_that_writes_for_what_was_fetched_has_a_value_for_each_key() -> None:
    told = _fitting_of("L0H0")
    program = fit_roles("what", [RELAYED.of(told)], told)
    assert program is not None
    assert "that was fetched where it attends to" in program.words
    (edit,) = program.edits(told.run)
    values = edit.values.tensor
    tokens = relayed_tokens(told.run, (0, 0))
    same = [values[tokens == token] for token in tokens.unique().tolist()]
    assert all(torch.equal(some, some[:1].expand_as(some)) for some in same)


def test_products_of_coordinates_make_every_bilinear_form_of_what_the_head_reads() -> None:
    """A form of the stream's main directions is a sum of the classes."""
    told = _fitting_of("")
    classes = product_classes(told)
    assert len(classes) == 6 * 7
    assert not product_classes(_fitting_of("", layer=0))
    normed = Site.of("blocks.1.ln1.hook_normalized")
    site = normed if normed.name in told.run.model.hook_dict else Site(1, "resid_pre")
    seen = told.run.at([site])[site].double()
    near = seen[read_places(told.run, 0)]
    axes = torch.linalg.svd(near - near.mean(0), full_matrices=False)[2][:6]
    form = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    there = (seen - near.mean(0)) @ axes.T
    wanted = torch.einsum("rqa,ab,rkb->rqk", there, form, there).flatten()
    columns = torch.stack([keys(told.run) for keys in classes.values()], -1).flatten(0, 2).double()
    fitted = torch.linalg.lstsq(columns, wanted[:, None]).solution
    assert torch.allclose((columns @ fitted)[:, 0], wanted, atol=1e-3 * float(wanted.std()))


def test_mean_attention_holds_behind_the_last_query_that_was_seen() -> None:
    shipped, row = zoo.load("induction-attention"), _fitting_of("", layer=0).role
    run = Run(shipped.model, replace(shipped.task, length=36).sample(12, seed=4))
    ((_, keys),) = mean_classes(Fitting(row, run, run)).items()
    mean = pattern_of(run, 0, 0).mean(0)
    length = len(mean)
    assert torch.allclose(keys(run)[0].exp(), mean.clamp_min(1e-4), atol=1e-6)
    found = keys(Run(shipped.model, replace(shipped.task, length=41).sample(2, seed=1)))[0]
    for query in range(length, length + 5):
        for key in range(query + 1):
            at = max(length - 1 - (query - key), 0)
            assert float(found[query, key].exp()) == pytest.approx(
                max(float(mean[length - 1, at]), 1e-4), rel=1e-5
            )


def test_positions_beside_a_fixed_one() -> None:
    told = _fitting_of("i − 2", layer=0)
    classes = fixed_classes(told)
    length = told.run.batch.inputs.shape[1]
    for words, lag in (("i − 2", 2), ("1 after that", 1), ("3 before that", 5)):
        mine = classes[words](told.run)[0]
        for query in range(length):
            expected = [key == query - lag >= 0 for key in range(length)]
            if lag >= 2 or query >= 2:  # the fixed position lies within the row
                assert mine[query].tolist() == expected, (words, query)
