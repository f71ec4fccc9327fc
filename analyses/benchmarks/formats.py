"""The language models in Llama's and Pythia's formats, and those trained around planted heads.

They were added after the floors had been chosen: no floor was moved for them. Tuning and scored
models differ in sizes and seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from analyses.benchmarks.circuits import Sizes, Wiring
from analyses.benchmarks.known import Built, LanguageSubject
from analyses.benchmarks.planted import Planting, plant_model
from analyses.benchmarks.rotary import (
    ROTARY_NEEDED,
    construct_rotary,
    construct_rotary_needed,
    untrained_model,
)
from analyses.benchmarks.rotary_formats import FORMATS, RotarySizes

__all__ = ["more_decoys", "more_subjects"]

_SCORED: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "induction": ((14, 30, 2, 0), (18, 36, 4, 1), (12, 28, 8, 2)),
    "previous-copy": ((16, 30, 2, 0), (20, 34, 4, 1)),
    "previous-negative": ((11, 24, 2, 0), (12, 28, 4, 1)),
    "duplicate-negative": ((8, 20, 2, 0), (9, 24, 4, 1)),
    "first-negative": ((12, 30, 2, 0), (20, 34, 4, 1)),
}
_TUNED: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "induction": ((15, 31, 2, 0),),
    "previous-copy": ((15, 31, 2, 0),),
    "previous-negative": ((12, 25, 2, 0),),
    "duplicate-negative": ((9, 22, 2, 0),),
    "first-negative": ((15, 31, 2, 0),),
}
"""Circuit → sizes of its models: vocabulary, length, heads per layer, and idle layers."""

_NEEDED, _NEEDED_TUNED = ((16, 30, 4, 0), (20, 34, 4, 1)), ((15, 31, 4, 0),)
_WIRED = ("induction", "previous-copy", "duplicate-negative")
_WIRINGS: tuple[Wiring, ...] = ("unread", "silent", "constant")

_PLANTED = (
    Planting("induction", Sizes(16, 28, 2, True), 2, (0, 1)),
    Planting("induction", Sizes(18, 30, 4, True), 3, (0, 2)),
    Planting("induction", Sizes(14, 26, 8, True), 4, (1, 3)),
    Planting("induction", Sizes(15, 28, 4, True), 2, (0,)),
    Planting("induction", Sizes(20, 32, 2, True), 3, (1,)),
    Planting("pointer", Sizes(16, 26, 4, True), 3, (0, 1)),
    Planting("duplicate-negative", Sizes(12, 24, 2, True), 2, (1,)),
    Planting("previous-copy", Sizes(26, 19, 4, True), 1, (0,)),
)
_PLANTED_TUNED = (Planting("induction", Sizes(17, 27, 3, True), 3, (0, 2)),)


def more_subjects(*, tuning: bool = False) -> Iterator[LanguageSubject]:
    """Yield every rotary circuit in both formats, as it is and hidden, and the planted models."""
    for number, (kind, sizes) in enumerate(_each(_TUNED if tuning else _SCORED)):
        for hidden in (False, True):
            seed = (1300 if tuning else 51_000) + 2 * number + hidden
            make = partial(_rotary, kind, sizes, seed, hidden=hidden)
            yield LanguageSubject(f"{_name_of(kind, sizes)}{' hidden' * hidden}", make, seed)
    for number, one in enumerate(_PLANTED_TUNED if tuning else _PLANTED):
        seed = (1400 if tuning else 54_000) + number
        of = one.sizes
        shape = f"{of.vocabulary}-{of.length}-{one.layers}x{of.heads}"
        name = f"planted {one.circuit}-{shape} at {' '.join(map(str, one.at))}"
        yield LanguageSubject(name, partial(plant_model, one, seed), seed)


def more_decoys(*, tuning: bool = False) -> Iterator[LanguageSubject]:
    """Yield the decoys: circuits whose answer is not read, not written or the same from every key,
    untrained models, and models with a head that is needed for everything."""
    start = 1500 if tuning else 53_000
    for number, (kind, sizes) in enumerate(_each(_TUNED if tuning else _SCORED)):
        if kind not in _WIRED or sizes.idle:
            continue
        for i, wiring in enumerate(_WIRINGS):
            seed = start + 3 * number + i
            make = partial(_rotary, kind, sizes, seed, hidden=bool(i % 2), wiring=wiring)
            yield LanguageSubject(f"decoy {wiring} {_name_of(kind, sizes)}", make, seed, decoy=True)
    for number, form in enumerate(FORMATS):
        for i, layers in enumerate((2,) if tuning else (1, 3)):
            seed, sizes = start + 200 + 10 * number + i, RotarySizes(form, 20, 32, 2 + 2 * i)
            blank = partial(_build_untrained, sizes, layers, seed)
            name = f"decoy untrained {form} {layers}x{sizes.heads}"
            yield LanguageSubject(name, blank, seed, decoy=True)
    wanted = dict.fromkeys(ROTARY_NEEDED, _NEEDED_TUNED if tuning else _NEEDED)
    for number, (role, sizes) in enumerate(_each(wanted)):
        seed = start + 400 + number
        make = partial(_build_needed, role, sizes, seed)
        name = f"decoy needed {_name_of(role, sizes)}"
        yield LanguageSubject(name, make, seed, decoy=True, needed=role)


def _each(
    sizes: Mapping[str, tuple[tuple[int, int, int, int], ...]],
) -> Iterator[tuple[str, RotarySizes]]:
    for kind in sorted(sizes):
        for form in FORMATS:
            for size in sizes[kind]:
                yield kind, RotarySizes(form, *size)


def _name_of(kind: str, sizes: RotarySizes) -> str:
    shape = f"{sizes.vocabulary}-{sizes.length}-{sizes.heads}"
    return f"{sizes.format} {kind}-{shape}" + f" and {sizes.idle} idle" * bool(sizes.idle)


def _rotary(
    kind: str, sizes: RotarySizes, seed: int, *, hidden: bool, wiring: Wiring = "used"
) -> Built:
    made, truth = construct_rotary(kind, sizes, seed=seed, hidden=hidden, wiring=wiring)
    rests = frozenset((*c[:3], "bos-gated", "") for c in truth if c[3] == "duplicate-token")
    return Built(made, truth, rests, 0)


def _build_untrained(sizes: RotarySizes, layers: int, seed: int) -> Built:
    return Built(untrained_model(sizes, layers, seed), frozenset(), frozenset(), 0)


def _build_needed(role: str, sizes: RotarySizes, seed: int) -> Built:
    made, exempt = construct_rotary_needed(role, sizes, seed=seed, hidden=bool(seed % 2))
    return Built(made, frozenset(), exempt, 0)
