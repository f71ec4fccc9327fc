"""An FFN beside fresh ones in its place, which read the same stream.

    fresh      the entries of each of the FFN's weight matrices are shuffled; its biases stay
    same size  what a fresh one writes, less its mean, is scaled to the size of what the FFN
               itself writes, less its mean

    computed   is a latent better read from the stream after the FFN, by a linear probe, than from
               the stream after fresh ones? or does it explain more of what the FFN writes?
    moved      the FFN is kept from seeing a part of its input, and what it writes changes. Does
               the output change more than when what it writes changes as much, but as fresh ones'
               writes do?

A random FFN bends what it reads, so that functions of its input become linear; and any change of
the stream changes the output. What the FFN of a trained model does beyond fresh ones in its place
is not due to that. The models around the FFN stay as they are: a fresh model differs from a
trained one in everything (:mod:`probes.roles.reinit_null`), this one in its FFN alone. Not for
FFNs whose weights lie elsewhere than in the matrices of ``blocks[layer].mlp``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.interventions.components import components
from interp.models.transformer import SequenceTransformer
from interp.run.layers import HookedLayers, close
from interp.run.plain import runners_of
from probes.roles.activity import Folds, Latent, explained_variance, readable
from probes.roles.decision import Test
from probes.roles.reinit_null import Beyond, beyond_draws

_DRAWS = 250
_TINY = 1e-12
_PADDED = ("W_in", "W_out")
"""Weight matrices of our own FFNs that may have more hidden units than the layer uses. The entries
of the others are zero and stay zero in fresh FFNs."""

Stream = Float[Tensor, "row pos d_model"]
Scored = Bool[Tensor, "row pos"]


def has_own_ffns(model: Any) -> bool:
    """Whether every FFN of a model is found as ``blocks[layer].mlp``, and its norm as
    ``blocks[layer].ln2``, which fresh FFNs need."""
    layers = [part.layer for part in components(model) if part.kind == "ffn"]
    blocks = getattr(model, "blocks", ())
    return all(
        len(blocks) > layer and hasattr(blocks[layer], "mlp") and hasattr(blocks[layer], "ln2")
        for layer in layers
    )


def has_own_layers(model: Any, inputs: Tensor) -> bool:
    """Whether a model can be run layer by layer, starting from a residual stream that is given at
    any layer; for models not of our own make this is tried on ``inputs``."""
    ours = isinstance(model, SequenceTransformer)
    return ours or any(isinstance(way, HookedLayers) for way in runners_of(model, inputs))


def beyond_fresh(p: float, least: float = 0.95) -> Test:
    """The test that an FFN is beyond fresh ones in its place, with the least 1 − p that counts."""
    return Test("beyond fresh FFNs in its place (1 − p)", 1 - p, least, p)


def not_asked() -> Test:
    """The same test where nothing would come of it: it fails, and counts in its family."""
    return beyond_fresh(1.0)


class FreshFFNs:
    """Fresh FFNs in the places of a model's own.

    Args:
        model: A hooked model in evaluation mode, whose blocks have ``ln2`` and ``mlp``.
        seed: Seed of the shuffled weights.
    """

    def __init__(self, model: Any, *, seed: int = 0) -> None:
        self.model, self.seed = model, seed

    @torch.no_grad()
    def ffn_output(self, layer: int, stream: Stream) -> Stream:
        """The output of a layer's own FFN for a given residual stream, on the CPU.

        Args:
            layer: The layer.
            stream: The residual stream before the FFN's norm, which is applied here.
        """
        found: Tensor = self._run(layer, stream)
        return found.cpu()

    @torch.no_grad()
    def writes(self, layer: int, stream: Stream, written: Stream) -> bool:
        """Return whether a layer's FFN, called by itself on a stream, gives what it wrote in a
        full pass.

        It does not if the block does more, such as a norm behind the FFN or a choice among several
        FFNs, or if the FFN cannot be called by itself. Fresh FFNs cannot be compared with it then.

        Args:
            layer: The layer.
            stream: The residual stream before the FFN's norm.
            written: What the layer's FFN added to that stream in the full pass.
        """
        try:
            found = self._run(layer, stream)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # FFNs of other makes may ask for anything
            return False
        return isinstance(found, Tensor) and close(found.cpu(), self._here(written).cpu())

    def _run(self, layer: int, stream: Stream) -> Any:
        block = self.model.blocks[layer]
        return block.mlp(block.ln2(self._here(stream)))

    @torch.no_grad()
    def compare_latent(self, layer: int, stream: Stream, latent: Latent, folds: Folds) -> Beyond:
        """How far out, among fresh FFNs, a layer's FFN is in what it says of a latent.

        Two scores tell: the squared correlation with which the latent is read off the stream after
        the FFN, and the share of what the FFN writes that the latent explains. The one that is
        further out counts, and p pays for both. How the output reads it would not do: what comes
        after an FFN is made for that FFN, be it a random one.

        Args:
            layer: The layer.
            stream: What its FFN reads, at the sampled positions, before the norm.
            latent: The latent's values there.
            folds: The fold of each row.
        """
        block, stream = self.model.blocks[layer], self._here(stream)
        normed, kept = block.ln2(stream), float(getattr(block, "residual", True))
        own = block.mlp(normed)
        size = (own - own.mean((0, 1))).norm()

        def score(ffn: nn.Module) -> list[float]:
            written = ffn(normed)
            moved = written - written.mean((0, 1))
            moved = moved * (size / moved.norm().clamp_min(_TINY))
            after = kept * stream + moved
            found = readable(after.cpu(), latent, folds), explained_variance(moved.cpu(), latent)
            return [share / max(1 - share, _TINY) for share in map(float, found)]

        return self._beyond(layer, score)

    @torch.no_grad()
    def compare_change(
        self, layer: int, inputs: Tensor, stream: Stream, lost: Stream, scored: Scored
    ) -> tuple[Beyond, float]:
        """How far out, among fresh FFNs, the change of the output is when a layer's FFN alone does
        not see a part of the stream; and how much of that change is there when the part is gone
        from the whole stream: 1 where the FFN passes it on, 0 where it only takes it away.

        Args:
            layer: The layer.
            inputs: The model's inputs.
            stream: What the layer's FFN reads on them, before the norm.
            lost: The part of it that the FFN does not see.
            scored: Where the output counts.
        """
        block, layers = self.model.blocks[layer], HookedLayers(self.model)
        stream, lost = self._here(stream), self._here(lost)
        layers.prepare(inputs.to(stream.device))
        seen, unseen = block.ln2(stream), block.ln2(stream - lost)
        own, blind = block.mlp(seen), block.mlp(unseen)
        scored, kept = scored.to(stream.device), float(getattr(block, "residual", True))

        def output(at: Stream) -> Tensor:
            for later in range(layer + 1, len(layers.layers)):
                at = layers.block(at, later)
            return layers.head(at[scored]).double()

        after = kept * stream + own
        clean = output(after)
        without = output(kept * stream + blind) - clean
        gone = output(kept * (stream - lost) + blind) - clean
        same = float((without * gone).sum() / without.square().sum().clamp_min(_TINY))

        def score(ffn: nn.Module) -> list[float]:
            change = ffn(unseen) - ffn(seen)
            change = change * ((blind - own).norm() / change.norm().clamp_min(_TINY))
            return [float((output(after + change) - clean).square().sum())]

        return self._beyond(layer, score), same

    def _here(self, value: Tensor) -> Tensor:
        return value.to(next(self.model.parameters()))

    def _beyond(self, layer: int, score: Callable[[nn.Module], list[float]]) -> Beyond:
        """How far out the FFN's own score is, or the one of several that is furthest out."""
        ffn = self.model.blocks[layer].mlp
        return beyond_draws(score(ffn), map(score, self._fresh(ffn)))

    def _fresh(self, ffn: nn.Module) -> Iterator[nn.Module]:
        """The same module each time, with other weights."""
        fresh = copy.deepcopy(ffn)
        order = partial(torch.randperm, generator=torch.Generator().manual_seed(self.seed))
        own = {name: weight for name, weight in ffn.named_parameters() if weight.ndim > 1}
        used = {name: _used_entries(name, weight) for name, weight in own.items()}
        for _ in range(_DRAWS):
            for name, weight in fresh.named_parameters():
                if name in own:
                    values = own[name][used[name]]
                    weight[used[name]] = values[order(len(values)).to(values.device)]
            yield fresh


def _used_entries(name: str, weight: Tensor) -> Tensor:
    """Which entries of a matrix belong to hidden units that the layer uses."""
    every = torch.ones_like(weight, dtype=torch.bool)
    if name not in _PADDED:
        return every
    units = weight.any(0) if name == "W_in" else weight.any(1)[:, None]
    return every & units
