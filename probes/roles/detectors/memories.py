"""Detect heads that fetch a memory, in a model of any depth, for fixed, computed and kernel
locations, and layers that extract one round of nested memories.

What head h writes from lag s along the direction that encodes the memory after the layer is its
kernel over o = s − t_i (:func:`interp.attention.patterns.kernel_by_offset`). If tokens name the
location, the kernel is aligned query by query.

    behaviour  the memory is decodable after the layer's attention and was not before; the heads'
               summed kernel concentrates at o = 0 (for an essentially sparse memory: has the
               shape of ρ), and the head has its share of it
    cause      without the group of such heads the memory is less decodable and the output
               changes; without the head alone it is less decodable too

Spare heads may encode a memory as well, so that it can be decoded without the head and even without
the group; or they may write what no later layer reads and dominate the summed kernel. Then the
output is tested instead: the head has at least a tenth of its group's effect on the output, has it
by its attention at the location alone, and its own kernel concentrates even if the sum does not.

A head with a share of the kernel but no part at the memory itself only cancels what others write in
error: it is a ``memory-correction``. A head whose part in another memory of the layer is a hundred
times as large has none in this one: groups that cancel have coefficients up to 1e11, and the
smallest error of this memory's direction lets some of that through. Decodability is linear and
refitted after each ablation. But averages of the same inputs are nearly linear in each other, so
that a new probe would find in one what another has lost: for an average the clean probe is kept,
and the average must be decodable more exactly than from a thousand models with fresh weights, whose
own averages a probe can combine. If those are as exact, the heads must act through the average
alone: the output stays when all that they write is replaced by its linear fit on the average. In
that case a head may have a tenth of the group's effect on the output instead of its part of r², for
which the others' averages make up.

A *round* of nested memories belongs to a layer:

    nested-round r   behaviour  the layer is the first after whose attention x_{t−t_r} is decodable
                     cause      it no longer is when round r − 1 is patched away: the heads of the
                                layer where that round's content appeared are replaced by their
                                means over rows. For round 1 its location is patched away: the FFN
                                that computes it is mean-ablated or, if no FFN does, the part of
                                the stream entering the layer that the location predicts is taken
                                from another row

A memory that no round follows (a single one, or two at once) is not nested: if the embedding
supplies its location, the role stays a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.attention.patterns import kernel_by_offset
from interp.hooks.site import Site
from interp.interventions.components import Component, components
from interp.stats.nulls import paired_null
from interp.tasks.base import Batch, Memory
from probes.kernels import norm_site, writes_along, writes_identity
from probes.linear import direction
from probes.roles.decision import Found, Test, holds
from probes.roles.examined import Examined, of_head
from probes.roles.reader import FOLDS, Reader, share_gained


def memory_roles(of: Examined) -> list[Found]:
    """Test every head's part in every memory, at the layer after whose attention the memory first
    is decodable (causal models).

    Returns:
        A finding for each head with a share of a memory's kernel, whether its tests pass or not;
        none without a reader of latents.
    """
    reader = of.reader
    if reader is None:
        return []
    there = [(memory, _layer_of(reader, memory)) for memory in of.memories]
    kernels = [(m, layer, kernels_of(reader, layer, m)) for m, layer in there if layer is not None]
    most: dict[int, NDArray[np.float64]] = {}
    for _, layer, kernel in kernels:
        most[layer] = np.maximum(most.get(layer, 0.0), kernel.weights())
    return [
        found
        for memory, layer, kernel in kernels
        for found in _of(reader, memory, layer, kernel, most[layer])
    ]


def _layer_of(reader: Reader, memory: Memory) -> int | None:
    """Return the layer after whose attention a memory first is decodable, or an average is gained;
    None if that is after an FFN, or never."""
    if isinstance(memory.location, np.ndarray):
        return _gained_at(reader, memory)
    site = reader.first_site(memory.name)
    return None if site is None or not site[1].endswith("resid_mid") else site[0]


def _gained_at(reader: Reader, memory: Memory) -> int | None:
    """Return the first layer after whose attention an average is decodable, and whose attention
    adds half of what a probe missed before: the token alone may nearly determine the average."""
    floors = reader.floors
    for layer, hook in reader.sites():
        if hook.endswith("resid_mid"):
            after = reader.read(hook, memory.name).score
            before = reader.read(reader.before(layer), memory.name).score
            if after >= floors.decodable and share_gained(before, after) >= floors.readout_gain:
                return layer
    return None


def _of(
    reader: Reader,
    memory: Memory,
    layer: int,
    kernels: Kernels,
    most: NDArray[np.float64],
) -> Iterator[Found]:
    floors = reader.floors
    mid = Site(layer, "resid_mid").name
    before = reader.read(reader.before(layer), memory.name).score
    after = reader.present(mid, memory.name)
    shares = np.abs(kernels.mean).sum(1) / (np.abs(kernels.mean).sum() or 1.0)
    at = kernels.parts()
    enough = (shares >= floors.kernel_share) & (kernels.weights() >= floors.kernel_beside * most)
    group = [
        Component("head", layer, int(h))
        for h in np.flatnonzero(enough & (at >= floors.kernel_part))
    ]
    if not group:
        return
    averaged, drop = isinstance(memory.location, np.ndarray), floors.drop
    if averaged:
        gained = share_gained(before, after.score)
        new = Test("of what was missing gained here", gained, floors.readout_gain)
        drop = min(drop, floors.readout_drop * (after.score - before))
    else:
        new = Test("of it not there before", 1 - before, 1 - floors.absent)
    summed = _kernel(kernels, memory, floors.concentration)
    lost = partial(reader.drop_without, mid, memory.name, floor=drop, same=averaged)
    beyond = [_beyond_fresh(reader, mid, memory.name)] if averaged else []
    carried = (
        averaged and not holds(beyond) and holds([reader.effect_through_latent(group, memory.name)])
    )
    beyond = [reader.effect_through_latent(group, memory.name)] if carried else beyond
    together = [lost(without=group), *reader.necessity_tests(group)]
    for head in np.flatnonzero(enough).tolist():
        part = Component("head", layer, head)
        alone, kernel = lost(without=[part]), summed
        cause = [alone]
        corrects = at[head] < floors.kernel_part
        with_others = reader.necessity_tests([part]) if corrects else together
        if carried and not holds([alone]):
            cause = [_share(reader, part, together[-1])]
        elif not averaged and not holds([alone] if corrects else [alone, summed, *together]):
            taken = _take(reader, part, memory, together[-1])
            cause = taken or cause
            if taken and not corrects:
                own = _kernel(kernels, memory, floors.concentration, head)
                kernel, with_others = _better(summed, own), together[1:]
        cause += [test for test in with_others if test not in cause]  # a group of one head
        role, named = "memory-correction" if corrects else "memory-location", memory.name
        tests, strength = [kernel, after, new, *beyond], float(together[0].score)
        yield of_head((layer, head), role, tests, cause, strength, group=named, target=named)


def _kernel(kernels: Kernels, memory: Memory, floor: float, head: int | None = None) -> Test:
    """Test whether the summed kernel of a layer's heads, or the kernel of one of them, concentrates
    at a memory."""
    whose = "layer's" if head is None else "head's own"
    name = f"share of the {whose} kernel at {_where(memory)}"
    return Test(name, kernels.concentration(head), floor, kernels.p(head))


def _better(one: Test, other: Test) -> Test:
    """Return the test with the larger score; p is doubled, because it is the better of two."""
    best = one if one.score >= other.score else other
    return replace(best, p=min(1.0, 2 * best.p))


def _beyond_fresh(reader: Reader, hook: str, latent: str) -> Test:
    """Test whether an average is decodable more exactly than from models with fresh weights, whose
    own averages a probe combines."""
    found = reader.beyond_fresh(hook, latent)
    name = f"r² beyond that in {found.draws} untrained models (1 − p)"
    return Test(name, 1 - found.p, 0.95, found.p)


def _share(reader: Reader, part: Component, whole: Test) -> Test:
    """Test whether a head has enough of its group's effect on the output; the score is its change
    of the output divided by the group's."""
    alone = reader.necessity_tests([part])[-1]
    share = alone.score / whole.score if whole.score > 0 else 0.0
    name = f"of the change of the output without its group, without {part.name} alone"
    return Test(name, share, reader.floors.mixed, alone.p)


def _take(reader: Reader, part: Component, memory: Memory, whole: Test) -> list[Test]:
    """Test whether the output depends on a memory in a head, though other heads encode it as well.

    The head must have its share of the group's effect on the output, and have it by its attention
    at the memory's location alone. Empty if a test fails.
    """
    share = _share(reader, part, whole)
    tests = (
        [share, reader.effect_through_keys(part, _keys(reader.batch, memory))]
        if holds([share])
        else []
    )
    return tests if holds(tests) else []


def _keys(batch: Batch, memory: Memory) -> Tensor:
    """Return a mask of the position at which a memory lies, ``[row, query, key]``."""
    at = torch.arange(batch.mask.shape[1])
    return at == (at - torch.from_numpy(_distances(batch, memory)).long())[..., None]


def _where(memory: Memory) -> str:
    if isinstance(memory.location, np.ndarray):
        return "the task's kernel (cosine)"
    return f"lag {memory.location}"


@dataclass(frozen=True)
class Kernels:
    """The heads' kernels around a memory, over all rows and over each of some folds of rows.

    Attributes:
        mean: Each head's kernel, averaged over rows, ``[head, offset]``.
        folds: Each head's kernel in each fold of rows, ``[fold, head, offset]``.
        shape: The kernel that the sum should have, ``[offset]``, of unit length.
    """

    mean: NDArray[np.float64]
    folds: NDArray[np.float64]
    shape: NDArray[np.float64]

    def weights(self) -> NDArray[np.float64]:
        """Return each head's total kernel weight, relative to the summed kernel at the memory.

        A head's total weight is Σ_o |K_h(o)| over offsets o. The denominator is
        |Σ_o shape(o) Σ_h K_h(o)|, the summed kernel's projection onto the memory's shape; it is
        replaced by 1 if it is 0. The ratio is large for heads whose kernels cancel each other.

        Returns:
            Non-negative ratios ``[head]``, not bounded by 1.
        """
        found: NDArray[np.float64] = np.abs(self.mean).sum(1)
        return found / (abs(float(self.mean.sum(0) @ self.shape)) or 1.0)

    def parts(self) -> NDArray[np.float64]:
        """Return each head's own kernel at the memory, relative to the sum over heads there,
        ``[head]``."""
        at = np.abs(self.mean @ self.shape)
        found: NDArray[np.float64] = at / (abs(float(self.mean.sum(0) @ self.shape)) or 1.0)
        return found

    def concentration(self, head: int | None = None) -> float:
        """Return how much a kernel concentrates at the memory, in [0, 1].

        It is |K(0)| / Σ|K| or, for a kernel memory, the cosine with ρ.

        Args:
            head: The index of a head; by default the heads' summed kernel is used.
        """
        return self._of(self.mean.sum(0) if head is None else self.mean[head])

    def p(self, head: int | None = None) -> float:
        """Return the p-value of a t test over folds that the concentration exceeds that of an even
        kernel."""
        folds = self.folds.sum(1) if head is None else self.folds[:, head]
        found = np.array([self._of(fold) for fold in folds])
        beyond = found - self._of(np.ones_like(self.shape))
        return paired_null(beyond).p

    def _of(self, kernel: NDArray[np.float64]) -> float:
        single = (self.shape != 0).sum() == 1
        size = np.abs(kernel).sum() if single else np.linalg.norm(kernel)
        return float(abs(kernel @ self.shape) / (size or 1.0))


def kernels_of(reader: Reader, layer: int, memory: Memory) -> Kernels:
    """Estimate how much each head of a layer writes of a memory from each lag.

    A head's kernel is, for each lag, its attention to that key times what it writes from there
    along w, averaged over scored queries (:func:`~interp.attention.patterns.kernel_by_offset`). w
    is the direction from which a linear fit predicts the memory in the stream after attention. For
    a memory whose lag is a latent, the kernel is over offsets from the memory's position.

    Args:
        reader: The model's activations and the rows' latents.
        layer: The layer.
        memory: The memory.

    Returns:
        The kernels over all rows, and in each fold of rows, with the shape that is expected.
    """
    model, batch = reader.model, reader.batch
    heads = [part.head for part in components(model) if part.kind == "head" and part.layer == layer]
    pattern_site = Site(layer, "pattern")
    sites = [pattern_site, Site(layer, "v"), *[norm_site(layer)] * writes_identity(model)]
    inside = reader.inside(layer, tuple(site.name for site in sites))
    pattern = inside[pattern_site.name][:, heads].double().numpy()
    stream = reader.features(Site(layer, "resid_mid").name)
    w = direction(stream, reader.truth(memory.name))
    values = writes_along(model, layer, inside, w, heads)
    mask, n = batch.mask.numpy(), pattern.shape[-1]
    shape = np.zeros(2 * n - 1)
    if isinstance(memory.location, np.ndarray):
        shape[n - 1 :] = memory.location[:n]
        lags = np.zeros(mask.shape)
    else:
        shape[n - 1] = 1.0
        lags = _distances(batch, memory)
    folds = [
        kernel_by_offset(pattern[rows], values[rows], mask[rows], lags[rows])
        for rows in np.array_split(np.arange(len(mask)), FOLDS)
    ]
    mean = kernel_by_offset(pattern, values, mask, lags)
    return Kernels(mean, np.stack(folds), shape / np.linalg.norm(shape))


def _distances(batch: Batch, memory: Memory) -> NDArray[np.float64]:
    """Return how many positions back a memory lies, ``[row, pos]``."""
    if not isinstance(memory.location, str):
        return np.full(batch.mask.shape, float(memory.location))
    found: NDArray[np.float64] = batch.latents[memory.location].double().numpy()
    return found


def round_roles(of: Examined) -> list[Found]:
    """Test at which layer each round of nested memories is extracted.

    Returns:
        A finding for each round that is first decodable after a layer's attention; none without a
        reader of latents.
    """
    reader, nested = of.reader, [memory for memory in of.memories if memory.round is not None]
    if reader is None:
        return []
    sites = {m.name: reader.first_site(m.name) for m in nested}
    return [found for m in nested for found in _round(reader, m, nested, sites)]


def _round(
    reader: Reader,
    memory: Memory,
    nested: Sequence[Memory],
    sites: Mapping[str, tuple[int, str] | None],
) -> Iterator[Found]:
    site = sites[memory.name]
    if site is None or not site[1].endswith("resid_mid"):
        return
    layer, mid = site
    patched = _before(reader, memory, nested, sites)
    cause = [reader.drop_without(mid, memory.name, patched, reader.floors.stops)] if patched else []
    deeper = any((other.round or 0) > 1 for other in nested)
    if memory.round == 1 and deeper and not (cause and holds(cause)):
        cause = [reader.drop_without_location(layer, mid, memory.name, str(memory.location))]
    yield Found(
        "layer",
        layer,
        "nested-round",
        cause[0].score if cause else 0.0,
        [reader.present(mid, memory.name)],
        cause,
        target=memory.name,
    )


def _before(
    reader: Reader,
    memory: Memory,
    nested: Sequence[Memory],
    sites: Mapping[str, tuple[int, str] | None],
) -> list[Component]:
    """Return the components to ablate for a round's cause: those of an earlier layer that extract
    the round before or, for round 1, the FFN that computes its location."""
    own = sites[memory.name]
    if own is None:
        return []
    if memory.round == 1:
        location = str(memory.location)
        found = reader.first_site(location)
        if found is None or not found[1].endswith("resid_post") or found[0] >= own[0]:
            return []
        return [Component("ffn", found[0])]
    earlier = [sites[m.name] for m in nested if m.round == (memory.round or 0) - 1]
    layers = {site[0] for site in earlier if site is not None and site[0] < own[0]}
    return [p for p in components(reader.model) if p.kind == "head" and p.layer in layers]
