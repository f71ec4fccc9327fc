"""The language models that role detectors are judged on.

    circuits   :mod:`analyses.benchmarks.circuits`: written down, with idle heads and heads that
               imitate the circuit beside it; plain, and in a random basis with random gains
    trained    two layers on random walks that come back, one layer on α β α, trained here in
               seconds; which head does what is located by attention and ablation
               (:mod:`analyses.benchmarks.located`); where that is unclear, a head is not scored
    rotary     :mod:`analyses.benchmarks.rotary`: circuits in the formats of Llama and Pythia
    planted    :mod:`analyses.benchmarks.planted`: planted heads, and all else trained around them
    needed     :mod:`analyses.benchmarks.needed`: heads that look as a role says, and are needed for
               everything; decoys that must be called so
    decoys     the circuits' attention with an answer that is not read, not written, or the same
               from every key; untrained models; circuits and trained models whose weights are
               shuffled within each matrix

All but the rotary ones are exported in GPT-2's format, with LayerNorm. Each is saved as a folder
and loaded from it as anybody's would be. Tuning and scored models differ in sizes, seeds and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from analyses.benchmarks.circuits import CIRCUITS, Sizes, Wiring, construct_circuit, with_gains
from analyses.benchmarks.formats import more_decoys, more_subjects
from analyses.benchmarks.known import Built, Claim, LanguageSubject
from analyses.benchmarks.located import locate_roles
from analyses.benchmarks.needed import NEEDED, construct_needed
from analyses.benchmarks.rotary_formats import FORMATS
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.proofs import random_basis
from prooflens.tasks import InContextTemplate, RepeatedTokens, SuccessorWalk

__all__ = ["decoys", "subjects"]

_SCORED: Mapping[str, tuple[tuple[int, int, int, bool], ...]] = {
    "induction": ((10, 16, 1, False), (16, 20, 2, True), (40, 24, 3, False)),
    "pointer": ((10, 18, 2, True), (24, 20, 1, False), (36, 26, 2, False)),
    "previous-copy": ((16, 18, 2, True), (30, 24, 1, False), (48, 30, 3, True)),
    "previous-negative": ((11, 22, 1, False), (12, 24, 2, False), (12, 28, 3, True)),
    "duplicate-negative": ((8, 18, 1, False), (9, 20, 2, True), (10, 22, 3, False)),
    "first-negative": ((12, 16, 1, True), (20, 20, 2, True), (30, 24, 3, True)),
    "window-copy": ((40, 20, 1, True), (56, 24, 2, False), (64, 28, 2, False)),
    "window-negative": ((16, 20, 1, True), (20, 24, 2, False), (24, 30, 3, False)),
}
_TUNED: Mapping[str, tuple[tuple[int, int, int, bool], ...]] = {
    "induction": ((13, 19, 2, False),),
    "pointer": ((15, 22, 2, False),),
    "previous-copy": ((22, 21, 2, False),),
    "previous-negative": ((11, 23, 2, False),),
    "duplicate-negative": ((9, 19, 2, False),),
    "first-negative": ((15, 17, 2, True),),
    "window-copy": ((48, 22, 2, False),),
    "window-negative": ((18, 22, 2, False),),
}
"""Circuit → sizes of its models: vocabulary, length, heads per layer, and whether token 0 begins
every row."""

_MORE: Mapping[str, tuple[tuple[int, int, int, bool], ...]] = {
    "induction": ((14, 18, 2, False), (28, 30, 4, True)),
    "pointer": ((12, 20, 3, False), (30, 22, 2, True)),
    "previous-copy": ((20, 26, 2, False), (36, 20, 4, False)),
    "previous-negative": ((12, 22, 2, True), (11, 26, 4, False)),
    "duplicate-negative": ((8, 20, 2, True), (10, 18, 2, False)),
    "first-negative": ((16, 18, 2, True), (24, 28, 4, True)),
    "window-copy": ((44, 26, 2, False), (50, 20, 3, True)),
    "window-negative": ((18, 24, 2, True), (22, 20, 1, False)),
}
"""The same for models that were added after all floors had been chosen."""

_NEEDED = ((14, 22, 2), (16, 24, 3), (12, 20, 4))
_NEEDED_TUNED = ((13, 21, 3),)
"""(Vocabulary, length, heads) of models with a head that is needed for everything."""

_STEPS = 1200


def subjects(*, tuning: bool = False) -> list[LanguageSubject]:
    """Return every circuit, as it is and hidden, and the trained models."""
    found = []
    for number, (kind, sizes) in enumerate(_sizes(tuning)):
        seed = (800 if tuning else 41_000) + 2 * number
        for hidden in (False, True):
            make = partial(_circuit, kind, sizes, seed + hidden, hidden=hidden)
            label = f"language {_name_of(kind, sizes)}" + " hidden" * hidden
            found.append(LanguageSubject(label, make, seed + hidden))
    for number, (kind, sizes) in enumerate(() if tuning else _further()):
        for hidden in (False, True):
            seed = 48_000 + 2 * number + hidden
            make = partial(_circuit, kind, sizes, seed, hidden=hidden)
            label = f"language {_name_of(kind, sizes)}" + " hidden" * hidden
            found.append(LanguageSubject(label, make, seed))
    for number, (name, run) in enumerate(_runs(tuning)):
        found.append(LanguageSubject(name, run, (900 if tuning else 43_000) + number))
    return [*found, *more_subjects(tuning=tuning)]


def decoys(*, tuning: bool = False) -> list[LanguageSubject]:
    """Return models in which no role should be found."""
    start, found = (850 if tuning else 45_000), []
    wirings: tuple[Wiring, ...] = ("unread", "silent", "constant")
    for number, (kind, sizes) in enumerate(_sizes(tuning)):
        if number % (1 if tuning else 3):
            continue
        for i, wiring in enumerate(wirings if not tuning else wirings[number % 3 :][:1]):
            seed = start + 3 * number + i
            make = partial(_circuit, kind, sizes, seed, hidden=bool(i % 2), wiring=wiring)
            found.append(
                LanguageSubject(f"decoy {wiring} {_name_of(kind, sizes)}", make, seed, decoy=True)
            )
    shapes = ((1, 2, 32, 16), (2, 2, 32, 24), (2, 4, 64, 40), (3, 2, 48, 64), (4, 4, 64, 32))
    for number, shape in enumerate(shapes[: 1 if tuning else None]):
        seed = start + 200 + number
        untrained = partial(_build_untrained, *shape, seed)
        found.append(
            LanguageSubject(f"decoy untrained {shape} {seed}", untrained, seed, decoy=True)
        )
    for number, one in enumerate(_shuffle_sources(tuning)):
        shuffled = partial(_build_shuffled, one.make, start + 300 + number)
        found.append(_decoy(f"shuffled {one.name}", shuffled, start + 300 + number))
    return [*found, *_needed_subjects(tuning), *more_decoys(tuning=tuning)]


def _needed_subjects(tuning: bool) -> Iterator[LanguageSubject]:
    """Yield a model for each role and size in which one head is needed for everything."""
    for number, role in enumerate(NEEDED):
        for i, size in enumerate(_NEEDED_TUNED if tuning else _NEEDED):
            seed = (890 if tuning else 49_000) + 10 * number + i
            sizes = Sizes(*size, bos=role == "sink")
            make = partial(_everything, role, sizes, seed)
            name = f"decoy needed {_name_of(role, sizes)}"
            yield LanguageSubject(name, make, seed, decoy=True, needed=role)


def _everything(role: str, sizes: Sizes, seed: int) -> Built:
    model, exempt = construct_needed(role, sizes, seed=seed)
    return Built(with_gains(model, seed), frozenset(), exempt, 0 if sizes.bos else -1)


def _decoy(name: str, make: Callable[[], Built], seed: int) -> LanguageSubject:
    return LanguageSubject(f"decoy {name}", make, seed, decoy=True)


def _sizes(tuning: bool) -> Iterator[tuple[str, Sizes]]:
    for kind in CIRCUITS:
        for sizes in (_TUNED if tuning else _SCORED)[kind]:
            yield kind, Sizes(*sizes)


def _further() -> Iterator[tuple[str, Sizes]]:
    for kind in CIRCUITS:
        for sizes in _MORE[kind]:
            yield kind, Sizes(*sizes)


def _name_of(kind: str, sizes: Sizes) -> str:
    return f"{kind}-{sizes.vocabulary}-{sizes.length}-{sizes.heads}"


def _shuffle_sources(tuning: bool) -> list[LanguageSubject]:
    """Return the models whose weights are shuffled to make decoys: some two-layer circuits and some
    trained models."""
    found = [one for one in subjects(tuning=tuning) if "hidden" not in one.name]
    trained = [one for one in found if one.name.startswith("trained")]
    deep = [one for one in found if " induction" in one.name or " pointer" in one.name]
    circuits = [one for one in deep if one.name.startswith("language")]
    rotary = [one for one in deep if one.name.startswith(FORMATS)]
    return [*trained[::3], *circuits[::2], *rotary[::2]]


def _circuit(kind: str, sizes: Sizes, seed: int, *, hidden: bool, wiring: Wiring = "used") -> Built:
    made = construct_circuit(kind, sizes, seed=seed, wiring=wiring)
    if hidden:
        made = random_basis(made, seed)
        with_gains(made.model, seed)
    truth, exempt = set[Claim](), set[Claim]()
    for part in made.mechanism.parts:
        role = part.role.removeprefix("unscored:")
        head = -1 if part.head is None else part.head
        (truth if role == part.role else exempt).add((part.component, part.layer, head, role, ""))
    return Built(made.model, frozenset(truth), frozenset(exempt), 0 if sizes.bos else -1)


def _spec(layers: int, heads: int, width: int, vocabulary: int, length: int) -> TransformerSpec:
    return TransformerSpec(
        input="tokens",
        d_in=vocabulary,
        d_out=vocabulary,
        n_ctx=length,
        d_model=width,
        n_layers=layers,
        n_heads=heads,
        d_head=width // heads,
        positions="sinusoidal",
        norm="layernorm",
    )


def _build_untrained(layers: int, heads: int, width: int, vocabulary: int, seed: int) -> Built:
    model = SequenceTransformer(_spec(layers, heads, width, vocabulary, 32), seed=seed)
    return Built(model, frozenset(), frozenset(), -1)


def _build_shuffled(make: Callable[[], Built], seed: int) -> Built:
    """Return a model with the entries of every weight matrix in random order."""
    built, generator = make(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in built.model.parameters():
            if weight.ndim > 1:
                order = torch.randperm(weight.numel(), generator=generator)
                weight.copy_(weight.flatten()[order].view_as(weight))
    return Built(built.model, frozenset(), frozenset(), built.bos)


def _runs(tuning: bool) -> Iterator[tuple[str, Callable[[], Built]]]:
    """Yield name and builder of the trained models: two layers on random walks that return, and one
    layer on α β α."""
    walks = ((18, 30, 1, 9),) if tuning else ((20, 32, 1, 0), (24, 36, 1, 1), (16, 28, 2, 2))
    for vocabulary, length, heads, seed in walks:
        task = SuccessorWalk(vocabulary, length, symbols=8, jump=0.2)
        name = f"trained walk-{vocabulary}-{length}-{heads}"
        yield name, partial(_build_trained, task, 2, heads, seed)
    examples = ((26, 7, 2, 9),) if tuning else ((30, 8, 1, 0), (40, 8, 2, 1), (32, 7, 1, 2))
    for vocabulary, count, heads, seed in examples:
        aba = InContextTemplate("aba", vocabulary=vocabulary, bos=-1, examples=count)
        name = f"trained aba-{vocabulary}-{3 * count}-{heads}"
        yield name, partial(_build_trained, aba, 1, heads, seed)


def _build_trained(
    task: SuccessorWalk | InContextTemplate, layers: int, heads: int, seed: int
) -> Built:
    from prooflens.trained import Training, TrainingRun, fit

    length = task.sample(1, seed=0).inputs.shape[1]
    spec = _spec(layers, heads, 48, task.vocabulary, length)
    training = Training(
        _STEPS, batch=32, learning_rate=5e-3, weight_decay=0.01, seed=seed, stop_at=0.02
    )
    model = fit(TrainingRun(f"language-{seed}", task, spec, training)).model
    longest = min((length - 2) // 2, task.vocabulary - 2)
    repeated = RepeatedTokens(task.vocabulary, length, (max(2, longest // 3), longest), bos=-1)
    truth, exempt = locate_roles(model, task.sample(96, seed=78), repeated.sample(96, seed=77))
    return Built(model, truth, exempt, -1)
