"""Classes of keys that follow from what a model does, against loops over positions."""

import torch

from interp.hooks.site import Site
from interp.run import Mean, Run
from probes.roles.fitting import Fitting
from probes.roles.key_classes import matched_classes, predicted_classes, relayed_tokens
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
    ((words, keys),) = matched_classes(told).items()
    assert words == "where L0H0 fetched its token"
    inputs, fetched, mine = (
        told.run.batch.inputs.tolist(),
        _fetched_tokens(told.run),
        keys(told.run),
    )
    for row in range(4):
        for query in range(0, len(inputs[0]), 5):
            for key in range(query + 1):
                token = inputs[row][query]
                after = key > 0 and inputs[row][key - 1] == token
                expected = fetched[row][key] == token != inputs[row][key] and not after
                assert bool(mine[row, query, key]) == expected
    assert not matched_classes(_fitting_of("nobody"))


def test_keys_with_what_was_fetched_for_the_query() -> None:
    told = _fitting_of("Q L0H0")
    ((words, keys),) = matched_classes(told).items()
    assert words == "what L0H0 fetched for it"
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
