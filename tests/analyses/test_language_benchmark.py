"""Circuits that are written down do what they are said to, and the language cases are in order."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from subjects_apart import need_apart

from analyses.benchmarks import by_content, composed, language
from analyses.benchmarks.circuits import CIRCUITS, Sizes, construct_circuit, with_gains
from analyses.benchmarks.known import load_back
from analyses.benchmarks.language import decoys, subjects
from analyses.benchmarks.rotary_formats import FORMATS
from analyses.benchmarks.scoring import LANGUAGE_ROLES
from interp.proofs.random_basis import random_basis
from interp.tasks.induction import InContextTemplate, RepeatedTokens

SMALL = Sizes(vocabulary=16, length=20, heads=2, bos=False)
KEYS = {
    "previous-token": lambda same, lag: lag == 1,
    "sink": lambda same, lag: torch.arange(len(lag)) == 0,
    "duplicate-token": lambda same, lag: same,
    "induction": lambda same, lag: F.pad(same, (1, 0))[..., :-1],
    "positional": lambda same, lag: (lag >= 2) & (lag <= 8),
}
"""Role → its keys, ``[row, query, key]``."""


def sizes(kind: str) -> Sizes:
    """What may come next in a window must be few of the tokens that there are."""
    return replace(SMALL, vocabulary=40) if kind == "window-copy" else SMALL


def rows(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    bos = 0 if kind == "first-negative" else -1
    task = RepeatedTokens(sizes(kind).vocabulary, SMALL.length, (3, 9), bos=bos)
    if kind in ("previous-copy", "window-negative"):
        task = InContextTemplate("aba", vocabulary=16, bos=-1, examples=4)
    batch = task.sample(48, seed=3)
    return batch.inputs, batch.targets, batch.mask


def even(layer: int, head: int) -> list[tuple[str, Any]]:
    """Hooks that let a head attend to all earlier positions alike."""

    def evened(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        pattern = pattern.clone()
        pattern[:, head] = 1 / torch.arange(1, pattern.shape[-1] + 1)[:, None]
        return pattern.tril()

    return [(f"blocks.{layer}.attn.hook_pattern", evened)]


@pytest.mark.parametrize("kind", CIRCUITS)
@torch.no_grad()
def test_every_head_attends_by_its_role_and_is_needed(kind: str) -> None:
    made = construct_circuit(kind, sizes(kind), seed=4)
    tokens, targets, mask = rows(kind)
    lag = torch.arange(tokens.shape[1])[:, None] - torch.arange(tokens.shape[1])
    same = (tokens[:, :, None] == tokens[:, None, :]) & (lag > 0)
    output, cache = made.model.run_with_cache(tokens, return_cache_object=False)
    for part in made.mechanism.parts:
        pattern = cache[f"blocks.{part.layer}.attn.hook_pattern"][:, part.head]
        role = part.role.removeprefix("unscored:")
        if role in KEYS:
            keys = KEYS[role](same, lag).expand_as(pattern)
            seen = mask & keys.any(-1)
            if seen.any():
                assert float((pattern * keys).sum(-1)[seen].mean()) > 0.9, role

        without = made.model.run_with_hooks(tokens, fwd_hooks=even(part.layer, part.head))
        rise = F.cross_entropy(without[mask], targets[mask]) - F.cross_entropy(
            output[mask], targets[mask]
        )
        assert float(rise) > 0.05, part


@pytest.mark.parametrize("wiring", ["unread", "silent", "constant"])
@torch.no_grad()
def test_decoys_attend_alike_and_nothing_depends_on_it(wiring: str) -> None:
    used = construct_circuit("induction", SMALL, seed=4)
    decoy = construct_circuit("induction", SMALL, seed=4, wiring=wiring)
    tokens, _, mask = rows("induction")
    last = next(part for part in used.mechanism.parts if part.role == "induction")
    name = f"blocks.{last.layer}.attn.hook_pattern"
    patterns = [
        one.model.run_with_cache(tokens, return_cache_object=False)[1][name][:, last.head]
        for one in (used, decoy)
    ]
    torch.testing.assert_close(*patterns)
    assert decoy.mechanism.parts == ()

    logits = decoy.model(tokens)
    changed = decoy.model.run_with_hooks(tokens, fwd_hooks=even(last.layer, last.head))
    moved = (changed.log_softmax(-1) - logits.log_softmax(-1))[mask].abs().max()
    assert float(moved) < 0.1, "norms alone may change a little"


@torch.no_grad()
def test_a_random_basis_and_gains_keep_the_function() -> None:
    made = construct_circuit("pointer", SMALL, seed=1)
    tokens, _, _ = rows("pointer")
    hidden = random_basis(made, 5)
    with_gains(hidden.model, 7)
    assert float(hidden.model.blocks[0].ln1.w.std()) > 0.1
    torch.testing.assert_close(hidden.model(tokens), made.model(tokens))


def test_language_cases_are_many_and_none_was_tuned_on() -> None:
    names = [one.name for one in need_apart(language, [])]
    assert len(subjects()) >= 80
    assert len(decoys()) >= 40
    assert sum(bool(one.needed) for one in decoys()) >= 15
    for form in FORMATS:
        assert sum(one.name.startswith(form) for one in subjects()) >= 20
    for sort in ("unread", "silent", "constant", "untrained", "shuffled"):
        assert sum(sort in name for name in names) >= 5


def test_every_role_is_there_five_times() -> None:
    models = [*subjects(), *by_content.subjects(), *composed.subjects()]
    left = ("trained", "planted", *FORMATS)
    circuits = [one.make() for one in models if not one.name.startswith(left)]
    for role in LANGUAGE_ROLES:
        assert sum(claim[3] == role for built in circuits for claim in built.truth) >= 5, role


@torch.no_grad()
def test_a_subject_comes_back_from_its_folder_with_the_same_function() -> None:
    built = next(one for one in subjects() if "previous-negative" in one.name).make()
    back = load_back(built, "back")
    tokens = torch.randint(built.model.spec.d_in, (3, 12), generator=torch.manual_seed(0))
    expected = built.model(tokens).log_softmax(-1).float()
    torch.testing.assert_close(back.model(tokens).log_softmax(-1), expected, atol=1e-4, rtol=1e-4)
    assert (back.name, back.bos, back.vocabulary) == ("back", -1, built.model.spec.d_in)
