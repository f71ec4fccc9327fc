"""Detect groups of heads that fetch several memories as a mixture, for an FFN to unmix.

Two heads can fetch x_{t−1} and x_{t−3} in two ways: one memory per head, or each head an average of
both, from which the next network solves for either. The second is as accurate, and no single head
then has a memory. A location that tokens name can be handled in the same way: heads fetch the
contents of *all* lags that it may have, whatever the token says, and an FFN selects one.

    contents   memories at fixed lags; for a named location, x_{t−l} for each lag l that it takes
    behaviour  all of a layer's contents are decodable after its attention, and were not before;
               some head has a share of the kernels of two of them (what heads write along the
               direction that encodes a content: :mod:`probes.roles.detectors.memories`), and two
               are less decodable without it; at least one is without the head itself
    cause      without the group every one of them is less decodable and the output changes; the
               output also changes without the FFN that reads them

In a proof's groups, and in trained models that find them, each head serves one memory. What is lost
without a head does not show that alone: when one of several heads that cancel is ablated, the
others flood the stream, and no probe can decode anything there. Averages (kernels) are nearly
linear in each other and cannot be told apart in this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from interp.hooks.site import Site
from interp.interventions.components import Component, components
from interp.tasks.base import Memory
from probes.roles.decision import Found, Test
from probes.roles.detectors.memories import kernels_of
from probes.roles.examined import Examined, of_head
from probes.roles.reader import Reader


def mixture_roles(of: Examined) -> Iterator[Found]:
    """Test groups of heads for fetching several memories as a mixture.

    A layer is tested if at least two contents are first decodable after its attention, and it has
    at least two heads and an FFN.

    Yields:
        One finding for each head of such a layer, whether its tests pass or not.
    """
    reader = of.reader
    if reader is None or len(reader.contents) < 2:
        return
    first = {name: reader.first_site(name) for name in reader.contents}
    parts = components(reader.model)
    for layer in sorted({part.layer for part in parts}):
        heads = [part for part in parts if (part.kind, part.layer) == ("head", layer)]
        ffn = [part for part in parts if (part.kind, part.layer) == ("ffn", layer)]
        mid = Site(layer, "resid_mid").name
        names = [name for name, site in first.items() if site == (layer, mid)]
        if len(names) >= 2 and len(heads) >= 2 and ffn:
            yield from _of(reader, layer, heads, ffn, names)


def _of(
    reader: Reader,
    layer: int,
    heads: Sequence[Component],
    ffn: Sequence[Component],
    names: Sequence[str],
) -> Iterator[Found]:
    mid, floors = Site(layer, "resid_mid").name, reader.floors
    lost = {
        head: sorted(
            (reader.drop_without(mid, name, [head], floors.drop) for name in names),
            key=lambda test: -test.score,
        )
        for head in heads
    }
    group = [head for head, tests in lost.items() if tests[0].score >= floors.drop]
    shared = max((tests[1] for tests in lost.values()), key=lambda test: test.score)
    there = min((reader.present(mid, name) for name in names), key=lambda test: test.score)
    before = max(reader.read(reader.before(layer), name).score for name in names)
    behaviour = [
        replace(there, name=f"least r² of {len(names)} contents after the layer's attention"),
        Test("of them not there before", 1 - before, 1 - floors.absent),
        replace(shared, name="r² that a second one loses without some head", family="second lost"),
    ]
    served = _kernel_count(reader, layer, names)
    behaviour.append(Test("contents whose kernel some head has a share of", served, 2.0))
    joint = min(shared.score - floors.drop, served - 2, len(group) - 2) >= 0
    together = _causes(reader, mid, names, group, ffn) if joint else []
    for head, tests in lost.items():
        one = replace(tests[0], name="r² that one loses without this head", family="one lost")
        place, cause = (layer, head.head), together if head in group else []
        tests, named = [*behaviour, one], " + ".join(names)
        yield of_head(place, "memory-mixture", tests, cause, there.score, group=named)


def _kernel_count(reader: Reader, layer: int, names: Sequence[str]) -> float:
    """Return the largest number of contents in whose kernels one head has a share.

    A head whose weight in one kernel is less than a hundredth of its largest has no share in that
    kernel.
    """
    floors = reader.floors
    kernels = [kernels_of(reader, layer, Memory(name, _lag(name))) for name in names]
    weights = np.stack([kernel.weights() for kernel in kernels])
    shares = np.stack([np.abs(kernel.mean).sum(1) for kernel in kernels])
    shares /= np.maximum(shares.sum(1, keepdims=True), 1e-300)
    enough = weights >= floors.kernel_beside * weights.max(0)
    return float((enough & (shares >= floors.mixed)).sum(0).max())


def _lag(name: str) -> int:
    return int(name.removeprefix("x[t-").removesuffix("]"))


def _causes(
    reader: Reader,
    mid: str,
    names: Sequence[str],
    group: Sequence[Component],
    ffn: Sequence[Component],
) -> list[Test]:
    lost = min(
        (reader.drop_without(mid, name, group, reader.floors.drop) for name in names),
        key=lambda test: test.score,
    )
    return [
        replace(lost, name="least r² that is lost without the group"),
        *reader.necessity_tests(ffn),
        *reader.necessity_tests(group),
    ]
