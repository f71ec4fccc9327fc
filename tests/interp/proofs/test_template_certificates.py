"""Certificates of template models are functions of their weights: damage and rounding count."""

from copy import deepcopy
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.bounds.affine import Arithmetic, exactly
from interp.bounds.attention import fetch
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.mechanism import Certificate, Construction
from interp.proofs.random_basis import random_basis
from interp.proofs.template import certificate_of, construct_template
from interp.tasks.template import TemplateTask
from interp.tasks.template.task import wildcards

SMALL: dict[str, Any] = {"train": (0, 3), "test": (3, 6)}
ONE = TemplateTask(("αβα", "αββ", "xβα"), (1.0, -2.0, 0.5), **SMALL)
TWO = TemplateTask(("ααβ", "αγβ"), (1.0, -1.0), **SMALL)
COPY = TemplateTask(("αβα", "αββ", "xαα"), ("β", "α", "x"), **SMALL)
FIXED = TemplateTask(("αβγ",), ("β",), **SMALL)
TOKENS = TemplateTask(("αxβα", "xαββ", "yααβ"), (0.5, -2.0, 3.0), train=(0, 5), test=(5, 10))
ABSENT = TemplateTask(("αβα", "αβγ", "xαα"), ("β", "z", "x"), train=(0, 6), test=(6, 12))
BUILDERS = {
    "one layer": partial(construct_template, ONE),
    "two layers": partial(construct_template, TWO),
    "coherent": partial(construct_template, ONE, dimension=12, seed=1),
    "copies": partial(construct_template, COPY),
    "copies from one place": partial(construct_template, FIXED, dimension=24, seed=2),
}


def every_string(task: TemplateTask) -> tuple[Tensor, Tensor]:
    """All strings of all templates, on the tokens of both alphabets, and their answers."""
    rows, answers = [], []
    regular = {letter: i for i, letter in enumerate(task.regular)}
    for template, label in zip(task.templates, task.labels, strict=True):
        names = wildcards(template)
        for drawn in permutations(range(len(regular), task.vocabulary), len(names)):
            token = regular | dict(zip(names, drawn, strict=True))
            rows.append([token[letter] for letter in template])
            answers.append(token[label] if isinstance(label, str) else label)
    return torch.tensor(rows), torch.tensor(answers, dtype=torch.float64)


def largest_error(model: SequenceTransformer, task: TemplateTask) -> float:
    """Largest error over every string; of tokens, minus the least lead of a right one."""
    rows, answers = every_string(task)
    with torch.no_grad():
        found = model(rows)[:, -1]
    if not task.symbolic:
        return float((found[:, 0] - answers).abs().max())
    places = answers.long()[:, None]
    others = found.scatter(1, places, -torch.inf).max(1).values
    return float((others - found.gather(1, places)[:, 0]).max())


def error_bound(certificate: Certificate, task: TemplateTask) -> float:
    """What ``largest_error`` is at most."""
    return -certificate.parts["margin of the logits"] if task.symbolic else certificate.error


def damaged_copy(
    model: SequenceTransformer, name: str, place: int, by: float = 0.1
) -> SequenceTransformer:
    """A copy with one weight changed."""
    copy = deepcopy(model)
    dict(copy.named_parameters())[name].data.view(-1)[place] += by
    return copy


@pytest.mark.parametrize("task", [TOKENS, ABSENT], ids=["regular tokens", "absent label"])
@pytest.mark.parametrize("layers", [1, 2])
def test_every_string_is_within_the_certificate(task: TemplateTask, layers: int) -> None:
    built = construct_template(task, readout_layers=layers)
    assert largest_error(built.model, task) <= error_bound(built.certificate, task) + 1e-9
    assert error_bound(built.certificate, task) < 1e-6


@pytest.mark.parametrize(
    ("name", "hidden"),
    [*((name, False) for name in BUILDERS), ("one layer", True), ("copies", True)],
)
def test_a_damaged_weight_is_covered_by_its_certificate(name: str, hidden: bool) -> None:
    built = BUILDERS[name]()
    built = random_basis(built, 3) if hidden else built
    before = error_bound(built.certificate, built.task)
    generator, grown = torch.Generator().manual_seed(0), 0
    for key, weight in built.model.named_parameters():
        places = [int(weight.detach().abs().argmax())]
        places += torch.randint(weight.numel(), (1,), generator=generator).tolist()
        for place in places:
            model = damaged_copy(built.model, key, place)
            seen = largest_error(model, built.task)
            bound = error_bound(certificate_of(model, built.task), built.task)
            assert seen <= bound, (key, place)
            grown += bound > before + 1e-3 if built.task.symbolic else seen > before
    assert grown >= 3  # the certificate of the undamaged weights would not do


@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "hidden"])
def test_damage_whose_effect_is_known_is_counted_exactly(hidden: bool) -> None:
    built = BUILDERS["one layer"]()
    at = int(built.model.unembed.W_U.argmax())
    model = damaged_copy(built.model, "unembed.W_U", at)
    built = random_basis(Construction("m", ONE, model, built.mechanism, built.certificate,
                                      built.certify), 1) if hidden else built  # fmt: skip
    found = certificate_of(built.model if hidden else model, ONE)
    assert found.error == pytest.approx(0.1 * 2.0, abs=1e-8)  # a tenth of the largest label
    assert found.parts["margin of the labels"] == pytest.approx(0.25 - 0.2, abs=1e-8)


@pytest.mark.parametrize("name", ["one layer", "two layers", "coherent"])
def test_hidden_real_labels_have_a_bound_that_rounding_meets(name: str) -> None:
    built = BUILDERS[name]()
    for seed in range(2):
        hidden = random_basis(built, seed)
        again = random_basis(hidden, seed + 10)
        for made in (hidden, again):
            seen = largest_error(made.model, made.task)
            assert 0 < seen <= made.certificate.error < 1e-7
            assert made.certificate.parts["margin of the labels"] > 0.2
            assert made.certificate.error > built.certificate.error


def test_the_worst_string_that_a_search_finds_lies_below_the_bound() -> None:
    task = TemplateTask(("αββγα", "αβγγα", "αβγδα"), (3.0, -1.0, 8.0), train=(0, 20), test=(20, 40))
    hidden = random_basis(construct_template(task), 4)
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for template, label in zip(task.templates, map(float, task.labels), strict=True):
        names = wildcards(template)
        drawn = torch.rand(64, task.vocabulary, generator=generator).argsort(1)[:, : len(names)]
        for _ in range(6):  # the worst rows stay, with one token exchanged
            rows = torch.stack([drawn[:, names.index(letter)] for letter in template], 1)
            with torch.no_grad():
                errors = (hidden.model(rows)[:, -1, 0] - label).abs()
            worst = max(worst, float(errors.max()))
            kept = drawn[errors.topk(8).indices].repeat_interleave(8, 0)
            column = torch.randint(len(names), (64, 1), generator=generator)
            new = torch.randint(task.vocabulary, (64, 1), generator=generator)
            free = (kept != new).all(1, keepdim=True)
            drawn = torch.where(free, kept.scatter(1, column, new), kept)
    assert 0 < worst <= hidden.certificate.error < 1e-6


@pytest.mark.parametrize("name", ["copies", "copies from one place"])
@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "hidden"])
def test_the_margin_of_the_logits_is_the_least_lead(name: str, hidden: bool) -> None:
    built = BUILDERS[name]()
    built = random_basis(built, 2) if hidden else built
    least = -largest_error(built.model, built.task)
    assert least - 0.5 < built.certificate.parts["margin of the logits"] <= least


def test_a_margin_that_is_gone_claims_nothing() -> None:
    model = BUILDERS["copies"]().model
    model.blocks[-1].attn.W_O.data *= 0.3
    found = certificate_of(model, COPY)
    assert found.parts["margin of the logits"] < 0
    assert found.error == 1.0


def test_values_that_all_keys_share_are_fetched_exactly() -> None:
    """However uncertain the pattern, and wherever its middles lie: Σ A_j v = v."""
    low, high = np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.7, 0.9])
    shared = exactly(np.broadcast_to([2.0, -3.0], (1, 3, 1, 2)))
    at = (1, 1, 1, 3)
    found = fetch(low.reshape(at), high.reshape(at), shared, True, Arithmetic("real"))
    least, most = found.bounds()
    np.testing.assert_allclose(least, [[[[2.0, -3.0]]]], atol=1e-12)
    np.testing.assert_allclose(most, [[[[2.0, -3.0]]]], atol=1e-12)


def test_models_of_another_shape_are_refused() -> None:
    shape = {"d_in": 7, "d_out": 1, "n_ctx": 3, "d_model": 4, "n_layers": 1}
    biased = SequenceTransformer(TransformerSpec(**shape, lag_bias="lin"))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="first layer whose scores are dot products alone"):
        certificate_of(biased, ONE)
    short = SequenceTransformer(TransformerSpec(**shape | {"d_in": 5, "n_ctx": 2}))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"7 tokens and 3 positions, got \(5, 2\)"):
        certificate_of(short, ONE)
    with pytest.raises(ArgumentError, match="must have 7 outputs"):
        certificate_of(SequenceTransformer(TransformerSpec(**shape)), COPY)  # type: ignore[arg-type]
