"""The evidence that roles are decided from: a model's clean runs, and causes on demand.

An :class:`Evidence` holds no more than detectors need. Every kind of rows has one run of the model
(:class:`interp.run.Run`), which caches its activations; attention is measured when it is first
requested, or read from a store that holds it. The effects of edits are in
:mod:`probes.roles.effects`. A store without a model gives behaviour and no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.attention.key_sets import positional_key_sets, token_key_sets
from interp.attribution.unembedding import SCALE
from interp.errors import need
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import vocabulary_of
from interp.run import Array, Run, Site, head_sites, output_site
from interp.run.evidence import LEAST_ROWS, looks_of, row_order
from interp.run.run import stride_of
from interp.store import ActivationStore
from interp.store.rows import AttentionMask, Rows, attention_mask_of, layer_hooks, read_batches
from interp.tasks.base import Batch
from probes.activations import SampledPositions, sample_positions
from probes.roles.acting import LEAST, WITHIN, Acting, acting
from probes.roles.looking import Looks, Share, hooks_to_read, scores_of, shares_of, single_lags
from probes.roles.profile import PROFILES, Floors, Profile
from probes.roles.reinit_null import ReinitNull
from probes.roles.selecting import Seen
from probes.roles.views import DRAWN, ELSEWHERE, View, elsewhere, first_alone, positions_scored

_BLOCK = 32
"""Largest number of rows whose attention is read in one pass."""

_PATTERNS = 2**23
"""Largest number of attention values, of all heads, that are read in one pass. It bounds memory."""

_KEPT = 2**24
"""Number of attention values up to which the patterns of a kind of rows are cached once they are
measured. Larger ones are read again when needed."""

ROOM = 3 * 2**25
"""Largest number of residual-stream values that are cached, for all kinds of rows together. It
bounds memory."""

_OUTPUTS_FIRST = 64
"""Number of rows after which changes of the output may be decided for the first time. These changes
have heavy tails, so that fewer rows would mislead, and they are quick to run."""

_NUMBERS = 2**19
"""Number of residual-stream values of one layer in a forward pass. A pass takes as many positions
as that allows, so that narrow models run many rows at once."""

_KEYS = {
    "previous": "the token before",
    "first": "the first position",
    "local": "the last few positions",
    "own": "itself",
    "same": "earlier equal tokens",
    "after_same": "what followed equal tokens",
}

Keys = Bool[Tensor, "#row query key"]
KeysOf = Callable[[str], Keys]
"""A head's own keys, of a class that differs from head to head: kind of rows → the keys."""

Place = tuple[int, int]
"""Layer and number of a head."""


class Evidence:
    """A model (or stores of its activations) on the rows of a profile.

    Args:
        model: The model in evaluation mode; None if there are only stores.
        views: The profile's rows, by kind (:mod:`probes.roles.views`).
        profile: The profile: which rows are used for which keys, the unit of effects, the floors.
        targets: Whether the rows' targets may be used.
        stores: Kind of rows → a store of these rows that holds the attention patterns, which are
            then read from it instead of from a pass of the model.
        sites: Names of the hooks whose activations are kept at the sampled positions of the
            ``given`` rows.
        mask: Which keys a query may attend to; by default that of the model's spec or of the store,
            else causal.
        seed: Seed of the permutations and of the freshly initialised models.
        exhaustive: Whether to run every edit on all rows, instead of stopping when a test is
            settled.

    Attributes:
        tables: Kind of rows → the head table of attention there; filled on request by
            :meth:`table`.
    """

    def __init__(
        self,
        model: Any,
        views: Mapping[str, View],
        profile: Profile,
        *,
        targets: bool = True,
        stores: Mapping[str, ActivationStore] | None = None,
        sites: Sequence[str] = (),
        mask: AttentionMask | None = None,
        seed: int = 0,
        exhaustive: bool = False,
    ) -> None:
        self.model, self.views, self.profile, self.seed = model, views, profile, seed
        self.exhaustive = exhaustive
        self._features: dict[str, list[NDArray[np.float64]]] = {name: [] for name in sites}
        self.targets, self.stores = targets, stores or {}
        source = model if model is not None else next(iter(self.stores.values()), None)
        self._mask = mask or attention_mask_of(source)
        self._runs: dict[tuple[str, bool], Run] = {}
        self._room = ROOM
        self._arrays: dict[tuple[str, str, KeysOf | None], Array] = {}
        self._elsewhere: dict[str, View] = {}
        self.tables: dict[str, pd.DataFrame] = {}
        self._by_null: dict[tuple[str, str], Mapping[tuple[int, int, str], Share]] = {}
        self._patterns: dict[tuple[str, int], list[Tensor]] = {}

    @property
    def floors(self) -> Floors:
        """The floors of the profile: the least scores that pass."""
        return self.profile.floors

    @property
    def causal(self) -> bool:
        """Whether attention is causal, so that no query sees a later key; True where no mask is
        known."""
        return self._mask is None or self._mask.causal

    @cached_property
    def heads(self) -> tuple[Place, ...]:
        """The layer and number of every head whose attention can be read."""
        if self.model is not None:
            return tuple((s.layer, s.head) for s in head_sites(self.model) if s.head is not None)
        table = self.table(self.profile.rows["own"])
        places = table[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
        return tuple(places.itertuples(index=False, name=None))

    @cached_property
    def fresh(self) -> ReinitNull:
        """The null distribution of scores under freshly initialised weights, on the first of the
        given rows."""
        batch = self.views["given"].batch
        # half the level, since a score is looked at twice
        far = 0.0 if self.exhaustive else self.profile.level / 2
        return ReinitNull(self.model, batch.inputs, batch.mask, seed=self.seed, far=far)

    def kind(self, keys: str) -> str:
        """Return the kind of rows on which attention to a key set is read.

        It is the one that the profile names, or ``given`` if the model has no rows of that kind
        because its tokens are too few, or its rows too short, to be repeated.

        Args:
            keys: The name of the key set.
        """
        kind = self.profile.rows.get(keys, self.profile.rows["own"])
        if kind not in self.views and self.model is not None and "given" in self.views:
            return "given"
        return kind

    def table(self, kind: str) -> pd.DataFrame:
        """Return the head table of attention on rows of one kind: every head's scores with their
        nulls."""
        if kind not in self.tables:
            if kind in self.stores:
                self.tables[kind] = self._stored_looks(kind)
            else:
                self._look(kind)
        return self.tables[kind]

    def share(self, place: Place, keys: str, null: str = "positions") -> Share | None:
        """Return the share of a head's attention that goes to a key set, compared with a null.

        Args:
            place: Layer and number of the head.
            keys: The name of the key set (:meth:`keys`): ``previous``, ``first``, ``local``,
                ``own``, ``same``, ``after_same``, or ``lag 2`` and so on within the window.
            null: ``positions`` for attention permuted over positions, or ``tokens`` for the keys
                that other rows' tokens give.

        Returns:
            The share; None where it was not measured.

        Raises:
            ArgumentError: if no profile has a key set of this name.
        """
        self._need_known(keys)
        kind = self.kind(keys)
        if kind not in self.views:
            return None
        if (kind, null) not in self._by_null:
            self._by_null[kind, null] = shares_of(self.table(kind), null)
        return self._by_null[kind, null].get((*place, keys))

    def _need_known(self, keys: str) -> None:
        profiles = (self.profile, *PROFILES.values())
        self._need_one_of(keys, *self._placed, *chain.from_iterable(one.rows for one in profiles))

    def _need_one_of(self, keys: str, *known: str) -> None:
        rule = f"must be one of {', '.join(dict.fromkeys(known))}"
        need("roles", keys in known, "keys", rule, keys, "or give keys of your own")

    @property
    def _placed(self) -> tuple[str, ...]:
        """The names of the key sets that are computed from positions and tokens alone."""
        return (*_KEYS, *single_lags(self.floors.window))

    def acting(self, place: Place, keys: str) -> Acting | None:
        """Find the range of positions over which a head attends to a key set
        (:func:`probes.roles.acting.acting`).

        Args:
            place: Layer and number of the head.
            keys: The name of the key set.

        Returns:
            The range and its scores. None if the range covers all counted positions or too few, if
            the key set is not one of :data:`WITHIN`, if the share over all positions is less than a
            quarter of its floor, or if there is no model.
        """
        whole, kind = self.share(place, keys), self.kind(keys)
        few = whole is None or whole.score < self.floors.share * LEAST
        if self.model is None or keys not in WITHIN or few:
            return None
        tokens = keys in ("same", "after_same") and kind != "given"
        seen, chosen = self.head_attention(place, kind), self.keys(kind, keys)
        return acting(seen, chosen, self.floors.share, tokens=tokens)

    def score(self, place: Place, metric: str, kind: str) -> Share | None:
        """Return a head's score of a metric on rows of one kind, compared with its null.

        Args:
            place: Layer and number of the head.
            metric: ``positional`` or ``copying``.
            kind: The kind of rows.

        Returns:
            The score; None where it was not measured.
        """
        if kind not in self.views:
            return None
        if (kind, metric) not in self._by_null:
            self._by_null[kind, metric] = scores_of(self.table(kind), metric)
        return self._by_null[kind, metric].get((*place, ""))

    def batch(self, kind: str) -> Batch:
        """Return the rows of one kind.

        Args:
            kind: The kind of rows. ``KIND elsewhere`` is the rows on which the transfer of a cause
                found on KIND is tested (:func:`probes.roles.views.elsewhere`).
        """
        return self._view(kind).batch

    def _view(self, kind: str) -> View:
        if kind.endswith(ELSEWHERE) and kind not in self._elsewhere:
            own = kind.removesuffix(ELSEWHERE)
            renamed = own in DRAWN
            found = elsewhere(self.views[own].batch, renamed=renamed, seed=self.seed)
            self._elsewhere[kind] = View(found, found.mask)
        return self._elsewhere[kind] if kind in self._elsewhere else self.views[kind]

    def run(self, kind: str, *, everywhere: bool = False) -> Run:
        """Return the model's run on the rows of one kind.

        Args:
            kind: The kind of rows.
            everywhere: Whether to score all positions of the rows (with a very large vocabulary
                some of them, :func:`probes.roles.views.positions_scored`), and not only those of
                the rows' mask.
        """
        if (kind, everywhere) not in self._runs:
            if everywhere:
                own, size = self.batch(kind).mask, vocabulary_of(self.model) or 0
                mask = own | positions_scored(torch.ones_like(own), size)
                self._runs[kind, everywhere] = self.run(kind).scoring(mask)
            else:
                self._runs[kind, everywhere] = self._new(self.batch(kind))
        return self._runs[kind, everywhere]

    def _new(self, batch: Batch) -> Run:
        """Return a run of the model on some rows, which caches residual streams as far as the
        memory left allows."""
        cfg = self.model.cfg
        width, layers = (int(getattr(cfg, name, 1) or 1) for name in ("d_model", "n_layers"))
        kept = len(range(0, layers + 1, stride_of(layers)))
        room = min(self._room, batch.mask.numel() * width * kept)
        self._room -= room
        tokens = max(1024, _NUMBERS // width)
        return Run(self.model, batch, causal=self.causal, tokens=tokens, room=room)

    def close_controls(self) -> None:
        """Free the cached streams of the rows on which transfer was tested."""
        for (kind, _), run in self._runs.items():
            if kind.endswith(ELSEWHERE):
                run.forget(streams=True)

    @property
    def passes(self) -> float:
        """The number of forward passes through the model, as an average over its rows.

        A pass through some of the layers counts as a fraction. Runs of models with fresh
        (re-initialised) weights are not counted.
        """
        runs = [run for (_, everywhere), run in self._runs.items() if not everywhere]
        return sum(run.passes for run in runs) / max(sum(map(len, runs)), 1)

    def looks(self, kind: str) -> list[list[int] | None]:
        """Return the sets of rows after which a test may be decided: few at first, and at last all.

        Args:
            kind: The kind of rows.

        Returns:
            The row numbers of each set; None stands for all rows.
        """
        count = len(self.batch(kind))
        first = 1 if self._compared else _OUTPUTS_FIRST // LEAST_ROWS
        looks = [first * look for look in looks_of(-(-count // first)) if look >= LEAST_ROWS]
        order = row_order(count, self.seed).tolist()
        some = [order[:look] for look in looks if look < count and not self.exhaustive]
        return [*some, None]

    def odds(self, kind: str, share: float = 0.0) -> float:
        """Return the p-value at which a test on some of the rows counts as settled.

        It is the profile's level times ``share``, divided by the number of times at which the test
        may be decided.

        Args:
            kind: The kind of rows.
            share: The share of the model's heads assumed to pass; one head by default.
        """
        share = max(share, 1 / max(len(self.heads), 1))
        return self.profile.level * share / len(self.looks(kind))

    def site(self, place: Place) -> Site:
        """Return the hook site of a head's output, at which it can be replaced.

        It is ``result`` for a model whose spec has ``identity_ov``, else ``z``.

        Args:
            place: Layer and number of the head.
        """
        return output_site(self.model, *place)

    def blocks(self, kind: str) -> list[range]:
        """Return the rows of one kind in blocks for which all heads' attention patterns fit in
        memory."""
        count, length = self.batch(kind).inputs.shape[:2]
        block = max(1, min(_BLOCK, _PATTERNS // max(len(self.heads) * length**2, 1)))
        return [range(at, min(at + block, count)) for at in range(0, count, block)]

    def _look(self, kind: str) -> None:
        """Measure the model's attention on rows of one kind, in blocks of rows, and on the given
        rows keep the activations of ``sites`` as well."""
        view, seen = self._view(kind), kind in {*self.tables, *self.stores}
        looks = None if seen else self._looks(kind)
        sites = self._features if kind == "given" else {}
        names = [] if looks is None else hooks_to_read(self.model, behaviour=self._compared)
        hooks = [Site.of(name) for name in dict.fromkeys([*names, *sites]) if name != SCALE]
        for rows in self.blocks(kind):
            some = slice(rows.start, rows.stop)
            found = self.run(kind).at(hooks, rows)
            values = {
                site.name: self._without_pads(site, value.cpu()) for site, value in found.items()
            }
            if SCALE in names:
                values[SCALE] = self.final_scale(kind, rows).cpu()
            batch = view.batch[some]
            read = Rows(batch.inputs, batch.mask, batch.latents, values, None, {}, self._mask)
            if looks is not None:
                looks.add(read, view.counted[some])
            for name, pieces in sites.items():
                pieces.append(self.at_places(some, values[name]))
            if not seen:
                self._keep(kind, values, len(view.batch) / len(rows))
        if looks is not None:
            self.tables[kind] = looks.table()

    def _without_pads(self, site: Site, value: Tensor) -> Tensor:
        """Return an attention pattern without the padding heads of a layer that has fewer heads
        than others."""
        spec = getattr(self.model, "spec", None)
        return value[:, : spec.heads[site.layer]] if spec and site.kind == "pattern" else value

    def final_scale(self, kind: str, rows: Sequence[int] | None = None) -> Tensor:
        """Return the denominators of the final norm in the clean pass, ``[row, query, 1]``.

        Args:
            kind: The kind of rows.
            rows: The numbers of the rows; all by default.
        """
        last = Site(self.model.cfg.n_layers - 1, "resid_post")
        found: list[Tensor] = []
        stream = self.run(kind).at([last], rows)[last]
        with (
            evaluating(self.model),
            self.model.hooks(fwd_hooks=[(SCALE, lambda value, hook: found.append(value))]),
        ):
            self.model.ln_final(stream)
        return found[0]

    @cached_property
    def places(self) -> SampledPositions:
        """The sampled positions of the given rows."""
        batch = self.views["given"].batch
        mask, inputs = batch.mask.numpy(), batch.inputs.numpy()
        return sample_positions(mask, inputs, causal=self.causal, seed=self.seed)

    def sampled_activation(self, hook: str) -> NDArray[np.float64]:
        """Return the activation of one of the ``sites`` at the sampled positions of the given rows,
        ``[row, sample, feature]``."""
        if not self._features[hook]:
            self._look("given")
        return np.concatenate(self._features[hook])

    def at_places(self, rows: slice, value: Tensor) -> NDArray[np.float64]:
        """Return an activation at the sampled positions of some of the given rows.

        Args:
            rows: The range of rows.
            value: The activation on these rows, ``[row, pos, feature]``.

        Returns:
            The activation ``[row, sample, feature]``.
        """
        kept = (self.places.rows >= rows.start) & (self.places.rows < rows.stop)
        which = torch.from_numpy(self.places.rows[kept] - rows.start)[:, None]
        found: NDArray[np.float64] = value[which, self.places.positions[kept]].double().numpy()
        return found

    @cached_property
    def normalised(self) -> bool:
        """Whether each query's attention over its keys sums to one, as after a softmax."""
        spec = getattr(self.model, "spec", None)
        return spec is None or spec.normalizer == "softmax"

    def head_attention(self, place: Place, kind: str = "given") -> Seen:
        """Return one head's attention on all rows of one kind, normalised to sum to one over the
        keys, with the rows' inputs and the queries that count."""
        layer, head = place
        view, inputs = self.views[kind], self.views[kind].batch.inputs
        pattern = torch.cat([some[:, head] for some in self.patterns(kind, layer)])
        allowed = torch.ones(2 * (inputs.shape[1],), dtype=torch.bool)
        allowed = allowed.tril() if self.causal else allowed
        begun = inputs.ndim == 2 and first_alone(inputs)
        share = pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-12)
        return Seen(share, inputs, view.counted, allowed, begun)

    def patterns(self, kind: str, layer: int) -> list[Float[Tensor, "row head query key"]]:
        """Return the attention patterns of a layer's heads on rows of one kind, as a list of blocks
        of rows."""
        if kind not in {*self.tables, *self.stores} and self._looks(kind) is not None:
            self._look(kind)  # and keeps them, where they are few numbers
        if (kind, layer) not in self._patterns:
            site = Site(layer, "pattern")
            others = {key: one for key, one in self._patterns.items() if key[0] != kind}
            self._patterns = others | {(kind, layer): [self.run(kind).at([site])[site].cpu()]}
        return self._patterns[kind, layer]

    def _keep(self, kind: str, activations: Mapping[str, Tensor], times: float) -> None:
        """Keep the attention patterns of some rows, if those of all rows together are small; only
        in a profile whose unit is not nats."""
        named = {Site.of(name): value for name, value in activations.items()}
        found = {site.layer: value for site, value in named.items() if site.kind == "pattern"}
        size = times * sum(pattern.numel() for pattern in found.values())
        if self._compared or size > _KEPT:
            return
        for layer, pattern in found.items():
            self._patterns.setdefault((kind, layer), []).append(pattern)

    def keys(self, kind: str, name: str, own: KeysOf | None = None) -> Keys:
        """Look up which keys belong to a key set for each query.

        Args:
            kind: The kind of rows.
            name: The key set: ``previous``, ``first``, ``local``, ``own``, ``same``,
                ``after_same``, or ``lag 2`` and so on. It is ignored if ``own`` is given.
            own: A function from the kind of rows to the keys, for key sets that differ from head
                to head.

        Returns:
            A mask ``[row, query, key]``; it has one row if all rows share the keys.

        Raises:
            ArgumentError: for another name.
        """
        if own is not None:
            return own(kind)
        self._need_one_of(name, *self._placed)
        inputs = self.batch(kind).inputs
        if name in ("same", "after_same"):
            return token_key_sets(inputs, causal=self.causal)[name]
        if name.startswith("lag "):
            place = torch.arange(inputs.shape[1])
            return (place[:, None] - place == int(name.removeprefix("lag ")))[None]
        window = self.floors.window
        return positional_key_sets(1, inputs.shape[1], window, causal=self.causal)[name]

    def key_array(self, kind: str, name: str, own: KeysOf | None = None) -> Array:
        """Return a key set (:meth:`keys`) as an array with a name, from which edits can be made."""
        if (kind, name, own) not in self._arrays:
            self._arrays[kind, name, own] = Array(self.keys(kind, name, own), _KEYS.get(name, name))
        return self._arrays[kind, name, own]

    @property
    def _compared(self) -> bool:
        """Whether attention is also compared between rows and heads' outputs are read as logits: in
        unit nats."""
        return self.profile.unit == "nats"

    def _looks(self, kind: str) -> Looks | None:
        """Return the accumulator of what is measured on rows of one kind; None if no role uses this
        kind."""
        if kind not in {*self.profile.rows.values(), "text", "rows"}:
            return None
        writes = self.model if self._compared and has_readout(self.model) else None
        return Looks(self.floors.window, model=writes, behaviour=self._compared)

    def _stored_looks(self, kind: str) -> pd.DataFrame:
        store, view, start = self.stores[kind], self.views[kind], 0
        looks = self._looks(kind)
        hooks = layer_hooks(store, "attn.hook_pattern")
        if self.model is not None and self._compared:
            hooks = hooks_to_read(self.model, behaviour=True)
        for rows in read_batches(store, None, hooks, batch=_BLOCK):
            if looks is not None:
                looks.add(rows, view.counted[start : start + len(rows)])
            start += len(rows)
        return looks.table() if looks is not None else pd.DataFrame()


def has_readout(model: Any) -> bool:
    """Return whether a head's output can be read as logits.

    It can if the model has the weights ``W_O``, ``W_U`` and the norm ``ln_final``, by these names
    of TransformerLens.
    """
    return all(hasattr(model, name) for name in ("W_O", "W_U", "ln_final"))
