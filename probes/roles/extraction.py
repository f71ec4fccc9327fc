"""Memory-location heads in a model of any depth, for locations that are fixed, read, or kernels.

What head h puts, from lag s, into the direction that holds the memory after the layer is its
kernel over o = s − t_i (:func:`interp.heads.patterns.kernel_by_offset`). For a location that the
tokens name it is aligned query by query.

    behaviour  the memory is decodable after the layer's attention and was not before; the heads'
               summed kernel concentrates at o = 0 (of an essentially sparse memory: has the shape
               of ρ), and the head has its share of it
    cause      without its group the memory is less decodable and the output changes; without the
               head alone it is less decodable too

A head with a share of the kernel and no part at the memory itself only cancels what others leak: it
is a ``memory-correction``. A head whose part in another memory of the layer is a hundred times as
large has none in this one: groups that cancel have coefficients up to 1e11, and the least error of
this memory's direction lets some of that through. Decodability is linear and refitted after each
ablation; but averages of the same inputs are nearly linear in each other, so that a new probe finds
in one what another has lost: an average is read on as it was, and must be there more exactly than
in a thousand models with fresh weights, whose averages a probe can combine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr

from interp.heads.effects import Component, components
from interp.heads.nulls import (
    correlation_interval,
    correlation_squared,
    decodability_null,
    from_draws,
    swaps_null,
)
from interp.heads.patterns import kernel_by_offset
from interp.tasks.base import Batch
from probes.linear import Decoding, decode, direction, folds_of
from probes.places import is_causal, places
from probes.roles.activity import readable
from probes.roles.decision import Found, Test
from probes.roles.effects import Outputs
from probes.roles.fresh import Beyond, Fresh

__all__ = ["FOLDS", "ExtractionFloors", "Memory", "Reader", "memory_roles"]

FOLDS = 8
"""Of rows; as many are needed."""


@dataclass(frozen=True)
class Memory:
    """A content that a task says is fetched.

    Attributes:
        name: The latent that holds it.
        location: Its lag; the latent that holds it; or a kernel ρ ``[lag]`` for an average.
        round: Of a nested memory, from 1.
    """

    name: str
    location: int | str | NDArray[np.floating]
    round: int | None = None


@dataclass(frozen=True)
class ExtractionFloors:
    """The least that counts.

    Attributes:
        concentration: Of the summed kernel at the memory (or cosine with ρ).
        share: Of a head in the kernels' absolute weight.
        part: Of its own kernel at the memory, relative to the sum there.
        beside: Of its kernel's weight, relative to that for the memory it serves most.
        decodable: r² that is decodable.
        absent: Most that may be there before: nested locations can coincide.
        gain: Rise of r² where an average is half there already.
        drop: Fall of r² that counts as lost.
        change: Of the output, as a share of its variance.
    """

    concentration: float = 0.8
    share: float = 0.01
    part: float = 0.001
    beside: float = 0.01
    decodable: float = 0.9
    absent: float = 0.5
    gain: float = 0.05
    drop: float = 0.2
    change: float = 0.05


class Reader:
    """A model on a batch, read by probes with and without components."""

    def __init__(self, model: Any, batch: Batch, *, seed: int = 0) -> None:
        self.model, self.batch, self.seed = model, batch, seed
        mask, tokens = batch.mask.numpy(), batch.inputs.numpy()
        self.places = places(mask, tokens, causal=is_causal(model), seed=seed)
        self.outputs = Outputs(model, batch.inputs, batch.mask)
        drawn = getattr(model, "spec", None) is not None
        self.fresh = Fresh(model, batch.inputs, batch.mask, seed=seed) if drawn else None
        self._held: dict[str, torch.Tensor] = {}
        self._read: dict[tuple[str, str, bool], Decoding] = {}

    def held(self, hook: str) -> torch.Tensor:
        """An activation of the model as it is."""
        if hook not in self._held:
            self._held[hook] = self.outputs.kept(hook)
        return self._held[hook]

    def features(self, value: torch.Tensor) -> NDArray[np.float64]:
        """An activation at the sampled positions."""
        found: NDArray[np.float64] = self.places.of(value.cpu()).double().numpy()
        return found

    def sampled(
        self, value: torch.Tensor, latent: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """An activation of the first rows and a latent, at the sampled positions, and the fold of
        each row."""
        kept = self.places.rows < len(value)
        rows = torch.from_numpy(self.places.rows[kept])[:, None]
        at = torch.from_numpy(self.places.positions[kept])
        folds = torch.from_numpy(folds_of(self.places.groups[kept]))
        return value[rows, at], self.batch.latents[latent][rows, at].double(), folds

    def truth(self, latent: str) -> NDArray[np.float64]:
        """A latent at the sampled positions."""
        return self.features(self.batch.latents[latent])

    def read(self, hook: str, latent: str, *, lens: bool = False) -> Decoding:
        """A latent decoded from an activation; ``lens``: from what the output makes of it."""
        if (hook, latent, lens) not in self._read:
            found = self._decoded(self._seen(self.held(hook), lens), self.truth(latent))
            self._read[hook, latent, lens] = found
        return self._read[hook, latent, lens]

    def _decoded(self, features: NDArray[np.float64], truth: NDArray[np.float64]) -> Decoding:
        return decode(features, truth, groups=self.places.groups)

    def _seen(self, value: torch.Tensor, lens: bool) -> NDArray[np.float64]:
        if lens:
            with torch.no_grad():
                value = self.model.unembed(self.model.ln_final(value))
        return self.features(value)

    def present(self, hook: str, latent: str, floor: float, *, lens: bool = False) -> Test:
        """The test that a latent is decodable there."""
        found = self.read(hook, latent, lens=lens)
        truth = self.truth(latent)
        p = decodability_null(found.predicted, truth, seed=self.seed).p
        low, high = correlation_interval(found.predicted, truth, seed=self.seed)
        name = f"r² of {latent} after the sublayer"
        return Test(name, found.score, floor, p, low, high, "present")

    def lost(
        self, hook: str, latent: str, without: Sequence[Component], floor: float, *,
        lens: bool = False, same: bool = False,
    ) -> Test:  # fmt: skip
        """The test that a latent is less decodable there without some components; ``same``: by the
        probe that was fitted with them, as the rest of the model goes on reading."""
        truth, before = self.truth(latent), self.read(hook, latent, lens=lens)
        there = self._seen(self.outputs.kept(hook, *without), lens)
        if same:
            w = direction(self._seen(self.held(hook), lens), truth)
            after = Decoding(correlation_squared(there @ w, truth), there @ w)
        else:
            after = self._decoded(there, truth)
        drop = before.score - after.score
        draws = swaps_null(before.predicted, after.predicted, truth, seed=self.seed)
        p = from_draws(drop, draws, normal_tail=True).p
        name = f"r² of {latent} lost without {_told(without)}"
        low, high = correlation_interval(
            before.predicted, truth, than=after.predicted, seed=self.seed
        )
        return Test(name, drop, floor, p, low, high, f"lost without {min(len(without), 2)}")

    def changed(self, without: Sequence[Component], floor: float) -> Test:
        """The test that the output changes."""
        change = self.outputs.ablated(*without)
        name = f"without {_told(without)} the output changes by a share of its variance of"
        return change.test(name, floor, "changed")

    def first_site(
        self, latent: str, floor: float, *, lens: bool = False, level: float = 1.0
    ) -> tuple[int, str] | None:
        """Where, in order, a latent first becomes decodable, and with a p of at most ``level``:
        (layer, hook)."""
        for layer, hook in self.sites():
            if self.read(hook, latent, lens=lens).score < floor:
                continue
            if level >= 1 or self.present(hook, latent, floor, lens=lens).p <= level:
                return layer, hook
        return None

    def beyond_fresh(self, hook: str, latent: str) -> Beyond | None:
        """How much better a latent is read than from models with fresh weights; None where none
        can be drawn."""
        if self.fresh is None:
            return None
        return self.fresh.odds(hook, lambda value: readable(*self.sampled(value, latent)))

    def sites(self) -> Iterator[tuple[int, str]]:
        """The residual stream where it enters and after each sublayer."""
        yield -1, "blocks.0.hook_resid_pre"
        kinds = {(part.kind, part.layer) for part in components(self.model)}
        for layer in range(self.model.cfg.n_layers):
            if ("head", layer) in kinds:
                yield layer, f"blocks.{layer}.hook_resid_mid"
            if ("ffn", layer) in kinds:
                yield layer, f"blocks.{layer}.hook_resid_post"


def _told(parts: Sequence[Component]) -> str:
    return parts[0].name if len(parts) == 1 else f"its group of {len(parts)}"


def memory_roles(
    reader: Reader, memories: Sequence[Memory], *, floors: ExtractionFloors | None = None
) -> list[Found]:
    """Every head's part in every memory, tested at the layer where the memory appears.

    Args:
        reader: A causal model on rows with the memories among their latents.
        memories: What the task says is fetched.
        floors: The least that counts.
    """
    floors = floors or ExtractionFloors()
    there = [(memory, _layer_of(reader, memory, floors)) for memory in memories]
    kernels = [(m, layer, _kernels(reader, layer, m)) for m, layer in there if layer is not None]
    most: dict[int, NDArray[np.float64]] = {}
    for _, layer, kernel in kernels:
        most[layer] = np.maximum(most.get(layer, 0.0), kernel.weights())
    return [
        found
        for memory, layer, kernel in kernels
        for found in _of(reader, memory, layer, kernel, most[layer], floors)
    ]


def _layer_of(reader: Reader, memory: Memory, floors: ExtractionFloors) -> int | None:
    """The layer after whose attention a memory appears; None if it does elsewhere."""
    site = reader.first_site(memory.name, floors.decodable)
    return None if site is None or not site[1].endswith("resid_mid") else site[0]


def _of(
    reader: Reader,
    memory: Memory,
    layer: int,
    kernels: _Kernels,
    most: NDArray[np.float64],
    floors: ExtractionFloors,
) -> Iterator[Found]:
    mid = f"blocks.{layer}.hook_resid_mid"
    before = reader.read(f"blocks.{layer}.hook_resid_pre", memory.name).score
    after = reader.present(mid, memory.name, floors.decodable)
    shares = np.abs(kernels.mean).sum(1) / (np.abs(kernels.mean).sum() or 1.0)
    at = np.abs(kernels.mean @ kernels.shape)
    at = at / (abs(kernels.mean.sum(0) @ kernels.shape) or 1.0)
    enough = (shares >= floors.share) & (kernels.weights() >= floors.beside * most)
    group = [Component("head", layer, int(h)) for h in np.flatnonzero(enough & (at >= floors.part))]
    if not group:
        return
    averaged = isinstance(memory.location, np.ndarray)
    new = Test("of it new here", after.score - before, floors.gain)
    if not averaged:
        new = Test("of it not there before", 1 - before, 1 - floors.absent)
    kernel = Test(
        f"share of the layer's kernel at {_where(memory)}", kernels.concentration(),
        floors.concentration, kernels.p(),
    )  # fmt: skip
    lost = partial(reader.lost, mid, memory.name, floor=floors.drop, same=averaged)
    beyond = [_beyond_fresh(reader, mid, memory.name)] if averaged else []
    together = [lost(without=group), reader.changed(group, floors.change)]
    for head in np.flatnonzero(enough).tolist():
        part = Component("head", layer, head)
        alone = lost(without=[part])
        corrects = at[head] < floors.part
        cause = [alone, reader.changed([part], floors.change)] if corrects else [alone, *together]
        yield Found(
            "head", layer, "memory-correction" if corrects else "memory-location",
            float(together[0].score), [kernel, after, new, *beyond], cause,
            head=head, group=memory.name, target=memory.name,
        )  # fmt: skip


def _beyond_fresh(reader: Reader, hook: str, latent: str) -> Test:
    """That an average is read better than from heads with fresh weights, whose own averages a probe
    combines."""
    found = reader.beyond_fresh(hook, latent)
    if found is None:
        return Test("no untrained models of its shapes to compare r² with:", 0.0, 0.95, 1.0)
    name = f"r² beyond that in {found.draws} untrained models (1 − p)"
    return Test(name, 1 - found.p, 0.95, found.p)


def _where(memory: Memory) -> str:
    if isinstance(memory.location, np.ndarray):
        return "the task's kernel (cosine)"
    return f"lag {memory.location}"


@dataclass(frozen=True)
class _Kernels:
    """The heads' kernels around a memory, from all rows and from each of some folds of rows.

    Attributes:
        mean: ``[head, offset]``.
        folds: ``[fold, offset]``, the heads' sum.
        shape: ``[offset]``, of unit length: what the sum should look like.
    """

    mean: NDArray[np.float64]
    folds: NDArray[np.float64]
    shape: NDArray[np.float64]

    def weights(self) -> NDArray[np.float64]:
        """Each head's absolute weight over all lags, per the sum at the memory ``[head]``."""
        found: NDArray[np.float64] = np.abs(self.mean).sum(1)
        return found / (abs(float(self.mean.sum(0) @ self.shape)) or 1.0)

    def concentration(self) -> float:
        """|K(0)| / Σ|K|, or the cosine with ρ."""
        return self._of(self.mean.sum(0))

    def p(self) -> float:
        """A t test over folds that it is more than an even kernel's."""
        found = np.array([self._of(fold) for fold in self.folds])
        beyond = found - self._of(np.ones_like(self.shape))
        error = float(beyond.std(ddof=1)) / len(beyond) ** 0.5
        return float(stdtr(len(beyond) - 1, -beyond.mean() / error)) if error > 0 else 0.0

    def _of(self, kernel: NDArray[np.float64]) -> float:
        single = (self.shape != 0).sum() == 1
        size = np.abs(kernel).sum() if single else np.linalg.norm(kernel)
        return float(abs(kernel @ self.shape) / (size or 1.0))


def _kernels(reader: Reader, layer: int, memory: Memory) -> _Kernels:
    model, batch = reader.model, reader.batch
    at, attn = f"blocks.{layer}.", model.blocks[layer].attn
    heads = [part.head for part in components(model) if part.kind == "head" and part.layer == layer]
    pattern = reader.held(at + "attn.hook_pattern")[:, heads].double().numpy()
    v = reader.held(at + "attn.hook_v")[:, :, heads].double().numpy()
    w = direction(reader.features(reader.held(at + "hook_resid_mid")), reader.truth(memory.name))
    values = np.einsum("rkhd,hd->rkh", v, attn.W_O.detach().double().numpy()[heads] @ w)
    if getattr(getattr(model, "spec", None), "identity_ov", False):
        x = reader.held(at + "ln1.hook_normalized").double().numpy()
        values += (x @ w)[..., None] * attn.effective_b.detach().double().numpy()[heads]
    mask, n = batch.mask.numpy(), pattern.shape[-1]
    shape = np.zeros(2 * n - 1)
    if isinstance(memory.location, np.ndarray):
        shape[n - 1 :] = memory.location[:n]
        lags = np.zeros(mask.shape)
    else:
        shape[n - 1] = 1.0
        fixed = not isinstance(memory.location, str)
        lags = np.full(mask.shape, float(memory.location)) if fixed else _lags(batch, memory)
    folds = [
        kernel_by_offset(pattern[rows], values[rows], mask[rows], lags[rows]).sum(0)
        for rows in np.array_split(np.arange(len(mask)), FOLDS)
    ]
    mean = kernel_by_offset(pattern, values, mask, lags)
    return _Kernels(mean, np.stack(folds), shape / np.linalg.norm(shape))


def _lags(batch: Batch, memory: Memory) -> NDArray[np.float64]:
    found: NDArray[np.float64] = batch.latents[str(memory.location)].double().numpy()
    return found
