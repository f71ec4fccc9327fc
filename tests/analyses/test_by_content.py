"""Planted heads do what they are said to, written out by hand, and are found; decoys are not."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from subjects_apart import need_apart

from analyses.benchmarks import by_content, language
from analyses.benchmarks.roles import measure_language
from analyses.benchmarks.scoring import is_open
from interp.tasks.induction import RepeatedTokens

TUNED = {one.name: one for one in by_content.subjects(tuning=True)}
DECOYS = {one.name: one for one in by_content.decoys(tuning=True)}


def test_models_are_others_than_those_tuned_on_and_than_the_circuits() -> None:
    scored = need_apart(by_content, [*language.subjects(), *language.decoys()])
    for role in by_content.PLANTED:
        assert sum(f" {role} " in one.name and one.decoy for one in scored) >= 6


def silent(layer: int, head: int) -> list[tuple[str, Any]]:
    """Hooks that put zeros in the place of what a head writes."""

    def off(z: torch.Tensor, hook: object) -> torch.Tensor:
        z = z.clone()
        z[:, :, head] = 0
        return z

    return [(f"blocks.{layer}.attn.hook_z", off)]


@pytest.mark.parametrize("kind", ["bigram-13-26-2", "looked-up-14-27-2"])
@torch.no_grad()
def test_the_suppressing_head_takes_back_what_is_predicted(kind: str) -> None:
    """The wrong prediction is read off with the head's write set to zero, its place by hand."""
    built = TUNED[f"language copy-suppression {kind}"].make()
    ((_, layer, head, _, _),) = (claim for claim in built.truth if claim[3] == "copy-suppression")
    model, size = built.model, built.model.spec.d_in
    batch = RepeatedTokens(size, 24, (6, 9), bos=0).sample(64, seed=1)

    logits, cache = model.run_with_cache(batch.inputs, return_cache_object=False)
    without = model.run_with_hooks(batch.inputs, fwd_hooks=silent(layer, head))
    predicted = without.argmax(-1)
    lag = torch.arange(24)[:, None] - torch.arange(24)
    places = (batch.inputs[:, None] == predicted[..., None]) & (lag > 0)
    wrong = places.any(-1) & batch.mask & (predicted != batch.targets)
    wrong &= without.amax(-1) - without.mean(-1) > 1
    assert float(wrong.double().mean()) > 0.15
    pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, head]
    assert float((pattern * places).sum(-1)[wrong].mean()) > 0.95
    losses = [F.cross_entropy(some[wrong], batch.targets[wrong]) for some in (without, logits)]
    assert float(losses[0] - losses[1]) > 2


@pytest.mark.parametrize("kind", ["next-19-25-2 hidden", "map-17-23-2"])
@torch.no_grad()
def test_a_map_is_all_that_the_successor_head_knows(kind: str) -> None:
    """On rows drawn here: what is due is the image of the token before, and the head says it."""
    subject = TUNED[f"language successor {kind}"]
    built = subject.make()
    ((_, _, head, _, target),) = (claim for claim in built.truth if claim[3] == "successor")
    assert subject.rows is not None
    batch = subject.rows()
    images = {}
    for row in batch.inputs[:, int(built.bos >= 0) :].tolist():
        for token, image in zip(row, row[2:], strict=False):
            assert images.setdefault(token, image) == image
    steps = [image - token for token, image in images.items()]
    assert (sum(step == 1 for step in steps) >= len(steps) - 1) == (target == "+1")
    assert len(set(images.values())) == len(images)

    right = [
        float((logits.argmax(-1) == batch.targets)[batch.mask].double().mean())
        for logits in (
            built.model(batch.inputs),
            built.model.run_with_hooks(batch.inputs, fwd_hooks=silent(0, head)),
        )
    ]
    assert right[0] == 1
    assert right[1] < 0.2


@pytest.mark.parametrize("kind", ["class-15-25-2 hidden", "came-before-16-24-2"])
@torch.no_grad()
def test_the_gated_head_rests_and_is_of_no_use_where_it_rests(kind: str) -> None:
    """Of rows drawn here: all or nothing on the first position, by the token alone or by whether it
    came before; without the head something is lost only where it does not rest."""
    built = TUNED[f"language bos-gated {kind}"].make()
    ((_, _, head, _, _),) = (claim for claim in built.truth if claim[3] == "bos-gated")
    tokens = torch.randint(1, built.model.spec.d_in, (64, 24), generator=torch.manual_seed(2))
    tokens[:, 0] = 0

    logits, cache = built.model.run_with_cache(tokens, return_cache_object=False)
    rests = cache["blocks.0.attn.hook_pattern"][:, head, 1:, 0]
    event = rests < 0.5
    assert float(((rests < 0.1) | (rests > 0.9)).double().mean()) > 0.99
    if "class" in kind:
        assert not {*tokens[:, 1:][event].tolist()} & {*tokens[:, 1:][~event].tolist()}
    else:
        earlier = torch.ones(24, 24, dtype=torch.bool).tril(-1)
        before = ((tokens[:, :, None] == tokens[:, None]) & earlier).any(-1)[:, 1:]
        assert torch.equal(event, before)
    without = built.model.run_with_hooks(tokens, fwd_hooks=silent(0, head))
    moved = (without.log_softmax(-1) - logits.log_softmax(-1))[:, 1:].abs().amax(-1)
    assert float(moved[event].min()) > 1
    assert float(moved[~event].max()) < 0.2, "means of norms write a little"


@pytest.mark.parametrize(
    "name",
    [
        "language copy-suppression looked-up-14-27-2 hidden",
        "language successor next-19-25-2",
        "language bos-gated class-15-25-2",
    ],
)
def test_a_planted_head_is_found(name: str) -> None:
    found = measure_language(TUNED[name])
    assert found["truth"]
    assert {claim for claim in found["found"] if not is_open(claim, found)} == found["truth"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "decoy used copy-suppression previous-13-26-2",
        "decoy used successor random-19-25-2",
        "decoy used successor beside-19-25-2",
        "decoy used bos-gated half-15-25-2",
    ],
)
def test_what_looks_alike_is_not_taken_for_it(name: str) -> None:
    found = measure_language(DECOYS[name])
    assert not found["found"] - found["exempt"]
    assert found["found"], "it is something else"
