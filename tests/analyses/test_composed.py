"""Heads that read what earlier heads wrote: planted as said, by hand, and found; decoys are not."""

from functools import partial
from typing import Any

import pytest
import torch
from subjects_apart import need_apart

from analyses.benchmarks import by_content, composed, language
from analyses.benchmarks.known import LanguageSubject
from analyses.benchmarks.roles import measure_language
from analyses.benchmarks.scoring import COMPOSED
from interp.tasks.base import Batch
from interp.tasks.induction import RepeatedTokens

TUNED = {one.name: one for one in composed.subjects(tuning=True)}
DECOYS = {one.name: one for one in composed.decoys(tuning=True)}


def test_models_are_others_than_those_tuned_on_and_than_all_else() -> None:
    others = [one for some in (language, by_content) for one in (*some.subjects(), *some.decoys())]
    need_apart(composed, others)
    for kinds in (("lags", "taken-back", "found"), ("found", "pairs", "looked-for")):
        assert sum(one.name.split()[2].startswith(kinds) for one in composed.subjects()) >= 18


def test_two_heads_together_reach_the_token_that_is_said() -> None:
    """Where both attend, by multiplying their patterns; what is lost without the one that the
    target names, and that nothing is without the one that fetches the same."""
    subject = TUNED["language composed lags-15-25-2 hidden"]
    model, head, target = head_with_role(subject, "virtual-copying")
    writer = int(target.removeprefix("L0H"))
    assert subject.rows is not None
    batch = subject.rows()
    patterns = [patterns_of(model, batch, layer) for layer in range(2)]
    both = (patterns[1][:, head] @ patterns[0][:, writer]).mean(0)
    place = torch.arange(6, batch.inputs.shape[1])
    (lag,) = {int(at - both[at].argmax()) for at in place}
    assert float(both[place, place - lag].min()) > 0.95
    assert torch.equal(batch.targets[:, place], batch.inputs[:, place - lag])
    assert torch.allclose(patterns[0][:, 0], patterns[0][:, 1], atol=0.01), "the other looks alike"
    clean, *without = (losses(model, batch, silent) for silent in (None, writer, 1 - writer))
    assert without[0] - clean > 1
    assert abs(without[1] - clean) < 0.1


@pytest.mark.parametrize("kind", ["pairs-19-29-2 hidden", "looked-for-13-27-2"])
def test_the_comparing_head_attends_by_what_was_fetched(kind: str) -> None:
    """Of rows drawn here: K, where the token two before is the query's; Q, where the token some
    positions before the query stands; and nowhere any more without the head that fetches it."""
    model, head, target = head_with_role(TUNED[f"language composed {kind}"], "composed-equality")
    side, writer = target.split(" L0H")
    batch = RepeatedTokens(model.spec.d_in, 24, (6, 9), bos=0).sample(32, seed=1)
    x = batch.inputs
    back = {
        back: x.roll(back, 1)
        if side == "Q"
        else torch.where(torch.arange(24) < back, -1, x.roll(back, 1))
        for back in (2, 3)
    }
    if side == "K":
        keys = {lag: fetched[:, None, :] == x[:, :, None] for lag, fetched in back.items()}
    else:
        keys = {lag: fetched[:, :, None] == x[:, None, :] for lag, fetched in back.items()}
    earlier = torch.ones(24, 24, dtype=torch.bool).tril()

    def share(silent: int | None, lag: int) -> float:
        found = keys[lag] & earlier
        asked = found.any(-1) & batch.mask
        pattern = patterns_of(model, batch, 1, silent)[:, head]
        return float((pattern * found).sum(-1)[asked].mean())

    lag = max((2, 3), key=lambda lag: share(None, lag))
    assert share(None, lag) > 0.95
    assert share(int(writer), lag) < 0.3


@pytest.mark.parametrize(
    "name",
    [
        "language composed taken-back-13-25-2 hidden",
        pytest.param("language composed found-15-27-2", marks=pytest.mark.slow),
        pytest.param("language composed looked-for-16-29-3", marks=pytest.mark.slow),
    ],
)
def test_a_planted_head_is_found_with_the_head_that_it_reads(name: str) -> None:
    found = measure_language(TUNED[name])
    assert found["truth"]
    assert {claim for claim in found["found"] if claim[3] in COMPOSED} == found["truth"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window-16-25-2", "own-13-24-2", "pointed-15-25-2"])
def test_what_looks_alike_is_not_taken_for_it(kind: str) -> None:
    found = measure_language(DECOYS[f"decoy used composed {kind}"])
    assert not {claim for claim in found["found"] if claim[3] in COMPOSED}
    assert found["found"] or kind.startswith("own"), "it is of use, and something else"


def head_with_role(subject: LanguageSubject, role: str) -> tuple[Any, int, str]:
    """A model, the head with a role, and its target."""
    built = subject.make()
    ((_, _, head, _, target),) = (claim for claim in built.truth if claim[3] == role)
    return built.model, head, target


def off(z: torch.Tensor, hook: object, head: int) -> torch.Tensor:
    z = z.clone()
    z[:, :, head] = 0
    return z


@torch.no_grad()
def patterns_of(model: Any, batch: Batch, layer: int, silent: int | None = None) -> torch.Tensor:
    """The attention of a layer, with a head of the first one silent."""
    hooks = [] if silent is None else [("blocks.0.attn.hook_z", partial(off, head=silent))]
    name = f"blocks.{layer}.attn.hook_pattern"
    with model.hooks(fwd_hooks=hooks):
        _, cache = model.run_with_cache(
            batch.inputs, names_filter=[name], return_cache_object=False
        )
    found: torch.Tensor = cache[name]
    return found


@torch.no_grad()
def losses(model: Any, batch: Batch, silent: int | None) -> float:
    """The loss, with a head of the first layer silent."""
    hooks = [] if silent is None else [("blocks.0.attn.hook_z", partial(off, head=silent))]
    logits = model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
    return float(torch.nn.functional.cross_entropy(logits[batch.mask], batch.targets[batch.mask]))
