"""A model on fixed rows: its loss and activations, and how these change when parts are edited.

    run = Run(model, tokens)                  checks the rows, here and nowhere else
    run.value()                               the loss at each scored position  [row, pos]
    run.at([Site(3, "pattern")])              activations
    run.rise(Mean(Site(3, "z", head=2)))      by how much the loss rises        [row, pos]
    run.rises([edit, (edit, edit), …])        many of them, several in one batch
    run.with_(edit)                           the edited model, as a run: all of the above again
    run.scoring(mask)                         the same, with other positions scored
    run.gradient([site])                      of the loss, row by row
    run.slopes([edit, …])                     first-order estimates for many edits, in one backward
                                              pass

Values are remembered by edits, metric and row; nothing is run twice. A pass runs a few rows
(``tokens`` positions) at a time, clean streams are cached while there is room and recomputed
otherwise, and logits exist for some scored positions at a time. So memory does not grow with the
number of rows beyond a fixed size, except for the results that are asked for.

A slope is a first-order estimate. It is wrong where scores saturate, most of all for the parts that
are needed most: use it to run fewer rows (:mod:`interp.run.evidence`), never to decide.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interp.errors import ArgumentError, HookError, Problems, need
from interp.hooks.capture import evaluating, model_device
from interp.hooks.site import Site, stream_site
from interp.machine import keep_large_blocks_apart
from interp.ray_tasks import Backend, need_backend
from interp.run.edits import (
    Array,
    Edit,
    Edits,
    Fetched,
    Through,
    as_edits,
    sentence,
)
from interp.run.gate import admit_batch, need_finite, not_finite
from interp.run.layers import Acts, Layers, run_whole
from interp.run.metrics import Loss, Metric, Places, as_metric
from interp.run.plain import runners_of
from interp.run.spread import spread_rises
from interp.tasks.base import Batch

_TOKENS = 1024
_ROOM = 2**26
"""Number of values of clean residual streams that are cached, and of activations and gradients that
one computation of slopes holds. It bounds memory."""
_DEEP = 12
"""Number of layers from which only every second clean residual stream is cached. That halves the
memory and costs one more layer now and then (a thirtieth of a run of SmolLM2-135M)."""
_OUTPUTS = 2**23
"""Number of output values (positions times width of the output) that are computed at once. It
bounds memory."""
_GRADIENT = 8
"""Factor by which a pass with gradients takes fewer positions than one without, because it keeps
the activations of every layer."""
_LOSS = Loss()

Many = Sequence[Edit | Edits]


class Run:
    """A model on fixed input rows, with measurements of its activations, metrics and edits. Clean
    streams and measured values are shared with the edited runs that :meth:`with_` makes.

    Args:
        model: One of our models, a ``TransformerBridge`` or a wrapped module.
        batch: A batch of rows with targets; or token ids ``[row, pos]``, whose targets are the next
            tokens; or the output of a tokenizer (``input_ids``, ``attention_mask``).
        attention_mask: The attention mask of token ids; it must be all ones (no padding).
        causal: Whether attention is causal; by default as the model's spec says, true without one.
        tokens: The most positions in one forward pass (a pass has at least one row).
        room: The most numbers (tensor elements) of clean residual streams that are cached.

    Attributes:
        edits: The edits that are made in this run; empty unless it comes from :meth:`with_`.
        causal: Whether attention is causal.
        tokens: The most positions in one forward pass.
        passes: The number of forward passes so far, counted in rows: a row that went through all
            layers counts as 1, one that went through some of them as a fraction.

    Raises:
        ArgumentError: if the model cannot take the rows, or activations are not finite.
    """

    def __init__(
        self,
        model: Any,
        batch: Any,
        *,
        attention_mask: Tensor | None = None,
        causal: bool | None = None,
        tokens: int = _TOKENS,
        room: int = _ROOM,
    ) -> None:
        self.model, self.batch = model, admit_batch(model, batch, attention_mask)
        self.edits: Edits = ()
        told = bool(getattr(getattr(model, "spec", None), "causal", True))
        self.causal = told if causal is None else causal
        self.tokens, self._room, self._device = tokens, room, model_device(model)
        need("Run", tokens >= 1, "tokens", "must be at least 1", tokens, "take about 1024")
        self._layered = runners_of(model, self.batch.inputs.to(self._device))
        self._stride = stride_of(len(self._layered[0].layers)) if self._layered else 1
        self._values: dict[tuple[Edits, Metric], dict[int, Tensor]] = {}
        self._slopes: dict[tuple[Edits, Edits, Metric], dict[int, float]] = {}
        self._streams: dict[int, Tensor] = {}
        self._means: dict[Site, Tensor] = {}
        self._others: dict[Array, Run] = {}
        self._scored_more: list[Run] = []
        self._last: tuple[Any, Tensor] | None = None
        self._ran, self._wide = [0.0], list[int]()
        keep_large_blocks_apart()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.batch)

    @property
    def passes(self) -> float:  # noqa: D102
        return self._ran[0]

    def with_(self, *edits: Edit, only: bool = False) -> Run:
        """Return a run in which ``edits`` are made as well; with ``only``, no others are.

        Raises:
            HookError: if an edit at ``resid_mid`` would not reach the residual stream of a bridge.
        """
        for edit in edits:
            _need_reach(self.model, edit)
        changed = copy.copy(self)  # what is remembered is shared
        changed.edits = edits if only else (*self.edits, *edits)
        return changed

    def scoring(self, mask: Tensor) -> Run:
        """Return a run of the same rows that scores other positions: ``mask``, ``[row, pos]``.

        The two runs share clean streams and means. If ``mask`` contains all positions that this run
        scores, this run also reuses the values that the new run measures.
        """
        other = copy.copy(self)
        other.batch = admit_batch(self.model, replace(self.batch, mask=mask))
        other._values, other._slopes, other._scored_more = {}, {}, []
        if bool((other.batch.mask | ~self.batch.mask).all()):
            self._scored_more.append(other)
        return other

    def value(self, metric: Any = _LOSS, rows: Sequence[int] | None = None) -> Tensor:
        """Return the metric at each position, ``[row, pos, …]``, 0 where nothing is scored.

        Args:
            metric: A :class:`~interp.run.metrics.Metric`, or a function of outputs ``[place,
                output]`` and targets.
            rows: Indices of the rows; all by default.
        """
        which, measured = self._rows(rows), as_metric(metric)
        self._fill([self.edits], measured, which)
        return self._dense(self._values[self.edits, measured], which)

    def rise(
        self, edits: Edit | Edits, metric: Any = _LOSS, rows: Sequence[int] | None = None
    ) -> Tensor:
        """Measure by how much the metric rises at each position when edits are made together.

        Returns:
            The metric with the edits minus the metric without, ``[row, pos, …]``, 0 where nothing
            is scored. :meth:`by_row` averages it over positions.
        """
        return next(self.rises([edits], metric, rows))

    def rises(
        self,
        many: Many,
        metric: Any = _LOSS,
        rows: Sequence[int] | None = None,
        *,
        backend: Backend = "local",
    ) -> Iterator[Tensor]:
        """Yield the rise for each of many edits, each made on its own, as :meth:`rise` gives it.

        With ``backend="ray"`` they are spread over Ray tasks, and the results are not remembered.
        """
        which, measured = self._rows(rows), as_metric(metric)
        problems = Problems("Run.rises")
        need_backend(problems, backend)
        problems.raise_if_any()
        if backend == "ray":
            yield from spread_rises(self, [*map(as_edits, many)], measured, which.tolist())
            return
        all_ = [(*self.edits, *as_edits(edits)) for edits in many]
        for edit in {edit for edits in many for edit in as_edits(edits)}:
            _need_reach(self.model, edit)
        self._fill([self.edits, *all_], measured, which)
        before = self._dense(self._values[self.edits, measured], which)
        for edits in all_:
            yield self._dense(self._values[edits, measured], which) - before

    def by_row(self, values: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Return each row's mean over scored positions, ``[row, …]``, of ``[row, pos, …]``."""
        counts = self.batch.mask[self._rows(rows)].sum(1).clamp_min(1)
        return values.sum(1) / counts.reshape(-1, *[1] * (values.ndim - 2))

    def forget(self, *, streams: bool = False) -> None:
        """Drop all remembered metric values and slopes; with ``streams``, clean streams as well.

        Means are always kept.
        """
        self._values.clear()
        self._slopes.clear()
        self._scored_more.clear()
        if streams:
            self._streams.clear()

    def outputs(self, rows: Sequence[int] | None = None) -> Iterator[tuple[Places, Tensor]]:
        """Yield slices of the scored places, with the run's outputs there, ``[place, output]``.

        Raises:
            ArgumentError: if an output is infinite or not a number.
        """
        for piece in self._pieces(self._rows(rows)):
            with evaluating(self.model):
                for places, output in self._outputs([self.edits], piece):
                    if not bool(output.isfinite().all()):
                        if not self.edits:
                            raise not_finite(self.model, self._inputs(piece))
                        clean = self.with_(only=True)
                        list(clean.outputs(piece.tolist()))  # is the model itself so?
                        need_finite(output, f"the model with {sentence(self.edits)}")
                    yield places, output

    def at(
        self, sites: Sequence[Site | str] | Site | str, rows: Sequence[int] | None = None
    ) -> dict[Site, Tensor]:
        """Return activations, with the run's edits made.

        Args:
            sites: One site or several; text is read by :meth:`.Site.parse`.
            rows: Indices of the rows; all by default.

        Returns:
            Site → activation ``[row, …]`` (one head's, if the site names a head).
        """
        named = [sites] if isinstance(sites, str | Site) else sites
        wanted, found = [Site.parse(site) for site in named], dict[Site, Tensor]()
        which, start = self._rows(rows), 0
        for piece in self._pieces(which):
            some = self._read([*{site.every_head for site in wanted}], piece, self.edits)
            for site in wanted:
                own = site.take(some[site.every_head])
                if site not in found:
                    found[site] = own.new_empty(len(which), *own.shape[1:])
                found[site][start : start + len(piece)] = own
            start += len(piece)
        return found

    def gradient(
        self, sites: Sequence[Site | str], metric: Any = _LOSS, rows: Sequence[int] | None = None
    ) -> dict[Site, Tensor]:
        """Compute the gradient of a metric with respect to activations, by backpropagation.

        Args:
            sites: Where gradients are taken; for a site that names a head, that head's alone.
            metric: The metric; its mean over a row's scored positions is differentiated.
            rows: Indices of the rows; all by default.

        Returns:
            Site → gradient ``[row, …]``, in the shape of the activations.
        """
        wanted, found = [Site.parse(site) for site in sites], list[dict[Site, Tensor]]()
        for piece in self._pieces(self._rows(rows), share=_GRADIENT):
            inner = [*{site.every_head for site in wanted}]
            both = self._gradients(inner, as_metric(metric), piece)
            found.append({site: both[site][1] for site in inner})
        return {
            site: torch.cat([site.take(some[site.every_head]) for some in found]) for site in wanted
        }

    def slopes(self, many: Many, metric: Any = _LOSS, rows: Sequence[int] | None = None) -> Tensor:
        """Return the first-order estimate of each edit's rise, gradient · change, ``[edit, row]``.

        One forward and one backward pass over the rows serve all edits. It is of no use for metrics
        that compare with the clean output, whose gradient is zero there.
        """
        which, measured = self._rows(rows), as_metric(metric)
        all_ = [as_edits(edits) for edits in many]
        known = [self._slopes.setdefault((self.edits, one, measured), {}) for one in all_]
        lacking = [row for row in which.tolist() if any(row not in some for some in known)]
        for piece in self._pieces(torch.tensor(lacking, dtype=torch.long), share=_GRADIENT):
            self._slope(all_, measured, piece)
        return torch.tensor([[some[row] for row in which.tolist()] for some in known]).double()

    # What edits ask for.

    def mean(self, site: Site, inputs: Array | None = None) -> Tensor:
        """Return the mean ``[1, …]`` of clean values at a site over rows, its own or ``inputs``'.

        For kinds without a key axis, one pass computes the means of all layers.
        """
        if inputs is not None:
            return self._other(inputs).mean(site)
        if site not in self._means:
            layers = range(self.model.cfg.n_layers) if site.position_axis == 1 else [site.layer]
            sites = [Site(at, site.kind, None, site.term) for at in layers]
            sites = [one for one in sites if one.name in self.model.hook_dict] or [site]
            sums: dict[Site, Tensor] = {}
            types: dict[Site, torch.dtype] = {}
            for piece in self._pieces(self._rows(None)):
                for one, value in self._read(sites, piece, ()).items():
                    if one == site and not bool(value.isfinite().all()):
                        raise not_finite(self.model, self._inputs(piece))
                    total = value.sum(0, keepdim=True, dtype=torch.float64)
                    sums[one] = sums[one] + total if one in sums else total
                    types[one] = value.dtype
            for one, total in sums.items():
                self._means[one] = (total / len(self)).to(types[one])
        return self._means[site]

    def clean_values(self, site: Site, rows: Tensor, inputs: Array | None = None) -> Tensor:
        """Return the clean values at a site on some rows, of the run or of other inputs."""
        if inputs is not None:
            return self._other(inputs).clean_values(site, rows)
        key = site, tuple(rows.tolist())
        if self._last is None or self._last[0] != key:
            self._last = key, self._read([site], rows, ())[site]
        return self._last[1]

    def write_difference(self, edit: Edit, rows: Tensor) -> Tensor:
        """Return the change that an edit makes to what its own part writes to the residual stream:
        that at :func:`~interp.hooks.site.stream_site` of its site.

        Raises:
            ArgumentError: if the edit is at no head, FFN or residual stream of a layer.
            HookError: if an edit at ``resid_mid`` would not reach the residual stream of a bridge.
        """
        _need_reach(self.model, edit)
        written = stream_site(edit.site.every_head)
        rule = "must be at a head, an FFN or the residual stream of a layer"
        good, advice = written is not None, "take z, pattern, mlp_out or resid_pre"
        need("Run.write_difference", good, "edit", rule, str(edit.site), advice)
        site = written or edit.site
        return self._read([site], rows, (edit,))[site] - self._read([site], rows, ())[site]

    def _other(self, inputs: Array) -> Run:
        if inputs not in self._others:
            like, tensor = self.batch.inputs, inputs.tensor
            rule = f"must have rows of shape {tuple(like.shape[1:])}, as the run's"
            same = tensor.shape[1:] == like.shape[1:]
            shown = tuple(tensor.shape[1:])
            need("Run", same, "inputs to swap from", rule, shown, "pair the rows")
            places = torch.ones(tensor.shape[:2], dtype=torch.bool)
            rows = Batch(tensor, torch.zeros(tensor.shape[:2], dtype=torch.long), places)
            how: dict[str, Any] = {"causal": self.causal, "tokens": self.tokens}
            self._others[inputs] = Run(self.model, rows, **how, room=self._room // 2)
        return self._others[inputs]

    # How it is done.

    def _rows(self, rows: Sequence[int] | None) -> Tensor:
        return torch.arange(len(self)) if rows is None else torch.as_tensor(rows, dtype=torch.long)

    def _pieces(self, rows: Tensor, *, share: int = 1) -> list[Tensor]:
        """Split rows into even pieces of at most ``tokens / share`` positions or of one row."""
        most = max(1, self.tokens // share // self.batch.inputs.shape[1])
        return list(rows.tensor_split(-(-len(rows) // most))) if len(rows) else []

    def _runner(self, sites: Sequence[Site]) -> Layers | None:
        """Return the fastest way to run with functions at sites; None for the model as a whole."""
        knowing = (one for one in self._layered if all(map(one.knows, sites)))
        found = next(knowing, None)
        if found is not None:  # the streams may come from another one
            found.prepare(self.batch.inputs[:1].to(self._device))
        return found

    def _inputs(self, rows: Tensor) -> Tensor:
        return self.batch.inputs[rows].to(self._device)

    def _clean_stream(self, rows: Tensor, layer: int) -> Tensor:
        """Return the clean stream that enters ``layer``, or leaves the last; cached if possible."""
        lacking = [row for row in rows.tolist() if row not in self._streams]
        fresh = self._run_clean(torch.tensor(lacking), self._layered[0]) if lacking else {}
        known, at = {**self._streams, **fresh}, layer // self._stride
        stream = torch.stack([known[row][at] for row in rows.tolist()])
        first = self._layered[0]
        first.prepare(self.batch.inputs[:1].to(self._device))
        with torch.no_grad():
            return self._through(first, stream, range(at * self._stride, layer), {})

    def _run_clean(
        self, rows: Tensor, runner: Layers, acts: Acts | None = None
    ) -> dict[int, Tensor]:
        """Run rows unedited, with functions that only read; return each row's kept streams."""
        inputs = self._inputs(rows)
        with runner.acting(acts or {}):
            found = torch.stack(runner.streams(inputs), dim=1)
        self._ran[0] += len(rows)
        if not bool(found.isfinite().all()):
            raise not_finite(self.model, inputs)
        found = found[:, :: self._stride]
        fresh = dict(zip(rows.tolist(), found.unbind(0), strict=True))
        room = self._room // found[0].numel() - len(self._streams)
        self._streams.update((row, fresh[row].clone()) for row in [*fresh][: max(room, 0)])
        return fresh

    def _through(self, runner: Layers, stream: Tensor, layers: range, acts: Acts) -> Tensor:
        """Run a stream through some layers, with functions at sites; return the stream after."""
        for layer in layers:
            here = {site: act for site, act in acts.items() if site.layer == layer}
            self._ran[0] += len(stream) / len(runner.layers)
            if here:
                with runner.acting(here):
                    stream = runner.block(stream, layer)
            else:
                stream = runner.block(stream, layer)
        return stream

    def _acts(self, stack: Sequence[Edits], rows: Tensor) -> dict[Site, Callable[..., Any]]:
        """Build each site's function for a batch of copies of rows, each with its own edits."""
        todo: dict[Site, list[tuple[int, Edit, Fetched]]] = {}
        seen: dict[Site, Tensor] = {}
        for copy_, edits in enumerate(stack):
            for edit in edits:
                fetched = edit.fetch(self, rows)
                todo.setdefault(edit.site.every_head, []).append((copy_, edit, fetched))

        def act(value: Tensor, some: list[tuple[int, Edit, Fetched]]) -> Tensor:
            if len(value) != len(stack) * len(rows):
                site = some[0][1].site
                raise HookError(f"{site.name} has {len(value)} entries, not one a row")
            pieces = list(value.split(len(rows)))
            for copy_, edit, fetched in some:
                own = edit.site.take(pieces[copy_])
                if edit.read is not None:  # as it is in the changed run
                    fetched = seen[edit.read].split(len(rows))[copy_]
                new = edit.changed_values(own, fetched, rows)
                pieces[copy_] = edit.site.put(pieces[copy_], new)
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

        acts: dict[Site, Callable[..., Any]] = {
            site: lambda value, some=some: act(value, some) for site, some in todo.items()
        }
        for read in {edit.read for edits in stack for edit in edits if edit.read is not None}:
            acts[read] = _keeping(read, seen, acts.get(read))
        return acts

    def _read(self, sites: Sequence[Site], rows: Tensor, edits: Edits) -> dict[Site, Tensor]:
        """Read the values of all heads at sites, with edits made."""
        found: dict[Site, Tensor] = {}
        with evaluating(self.model):
            acts = self._acts([edits], rows) if edits else {}
            for site in sites:
                acts[site] = _keeping(site, found, acts.get(site))
            runner = self._runner([*acts])
            if runner is None:
                self._ran[0] += len(rows)
                run_whole(self.model, self._inputs(rows), acts)
            elif not edits and not any(row in self._streams for row in rows.tolist()):
                self._run_clean(rows, runner, acts)
            else:
                start, last = min(s.layer for s in acts), max(s.layer for s in sites)
                acts = {site: act for site, act in acts.items() if site.layer <= last}
                stream = self._clean_stream(rows, start)
                self._through(runner, stream, range(start, last + 1), acts)
        return found

    def _fill(self, many: Sequence[Edits], metric: Metric, rows: Tensor) -> None:
        """Measure the metric for those edits and rows whose values are not remembered."""
        missing: dict[tuple[int, ...], list[Edits]] = {}
        for edits in dict.fromkeys(many):
            known = self._recall(edits, metric, rows)
            lacking = tuple(row for row in rows.tolist() if row not in known)
            if lacking:
                missing.setdefault(lacking, []).append(edits)
        for lacking, some in missing.items():
            for piece in self._pieces(torch.tensor(lacking)):
                with evaluating(self.model):
                    self._measure(some, metric, piece)

    def _recall(self, edits: Edits, metric: Metric, rows: Tensor) -> dict[int, Tensor]:
        """Return remembered values of some rows, from this run or one that scores more."""
        known = self._values.setdefault((edits, metric), {})
        for other in self._scored_more:
            theirs = other._values.get((edits, metric), {})
            for row in {*rows.tolist()} & theirs.keys() - known.keys():
                known[row] = theirs[row][self.batch.mask[row][other.batch.mask[row]]]
        return known

    def _measure(self, many: Sequence[Edits], metric: Metric, rows: Tensor) -> None:
        """Measure the metric with each of many edits, on rows that fit into one pass."""
        counts = self.batch.mask[rows].sum(1).tolist()
        clean = None
        if metric.compares:
            clean = torch.cat([output for _, output in self._outputs([()], rows)])
        for stack in self._stacks(many, len(rows)):
            found, done = list[Tensor](), 0
            for places, output in self._outputs(stack, rows):
                against = None
                if clean is not None:
                    which = (done + torch.arange(len(output))) % len(clean)
                    against, done = clean[which], done + len(output)
                found.append(metric.at(output, places, against).detach().cpu())
            for edits, values in zip(stack, torch.cat(found).chunk(len(stack)), strict=True):
                if not edits and not bool(values.isfinite().all()):
                    raise not_finite(self.model, self._inputs(rows))
                need_finite(values, f"the model with {sentence(edits)}")
                known = self._values[edits, metric]
                for row, value in zip(rows.tolist(), values.split(counts), strict=True):
                    known[row] = value.clone()

    def _stacks(self, many: Sequence[Edits], rows: int) -> Iterator[list[Edits]]:
        """Yield edits that run as copies in one batch: of the same first layer and runner."""
        groups: dict[tuple[int, int], list[Edits]] = {}
        for edits in many:
            runner = self._runner([edit.site.every_head for edit in edits])
            at = -1 if runner is None else self._layered.index(runner)
            groups.setdefault((min((e.site.layer for e in edits), default=-2), at), []).append(
                edits
            )
        copies = max(1, self.tokens // (rows * self.batch.inputs.shape[1]))
        for _, some in sorted(groups.items(), key=lambda item: item[0]):
            for start in range(0, len(some), copies):
                yield some[start : start + copies]

    def _outputs(self, stack: Sequence[Edits], rows: Tensor) -> Iterator[tuple[Places, Tensor]]:
        """Yield outputs of copies of the rows, one copy per entry of ``stack``, in slices."""
        mask = self.batch.mask[rows].to(self._device)
        places, acts = self._places(rows, len(stack)), self._acts(stack, rows)
        runner = self._runner([*acts])
        if runner is None:
            self._ran[0] += len(stack) * len(rows)
            inputs = self._inputs(rows)
            copies = inputs.repeat(len(stack), *[1] * (inputs.ndim - 1))
            output = run_whole(self.model, copies, acts)
            yield places, output[mask.repeat(len(stack), 1)]
            return
        depth = len(runner.layers)
        start = min((site.layer for site in acts), default=depth)
        last = Site(start, "resid_post")
        if [site for site in acts if site.layer == start] == [last]:  # what is before it stays
            start += 1
        stream = self._clean_stream(rows, start).repeat(len(stack), 1, 1)
        if last in acts and last.layer < start:
            stream = acts[last](stream)
        stream = self._through(runner, stream, range(start, depth), acts)
        scored = stream[mask.repeat(len(stack), 1)]
        most = max(1, _OUTPUTS // self._width(runner, scored))
        for begin in range(0, len(scored), most):
            some = slice(begin, begin + most)
            yield places[some], runner.head(scored[some])

    def _places(self, rows: Tensor, copies: int = 1) -> Places:
        """Return the scored places of some rows, repeated ``copies`` times."""
        row, position = torch.nonzero(self.batch.mask[rows], as_tuple=True)
        row, position = rows[row].repeat(copies), position.repeat(copies)
        return Places(row, position, self.batch.targets[row, position])

    def _width(self, runner: Layers, scored: Tensor) -> int:
        if not self._wide:
            self._wide.append(int(runner.head(scored[:1]).shape[-1]))
        return self._wide[0]

    def _dense(self, known: dict[int, Tensor], rows: Tensor) -> Tensor:
        mask = self.batch.mask[rows]
        values = torch.cat([known[row] for row in rows.tolist()])
        found = values.new_zeros(*mask.shape, *values.shape[1:])
        found[mask] = values
        return found

    def _gradients(
        self, sites: Sequence[Site], metric: Metric, rows: Tensor
    ) -> dict[Site, tuple[Tensor, Tensor]]:
        """Return, for each site, its value and the gradient of each row's mean of the metric."""
        kept: dict[Site, Tensor] = {}
        mask = self.batch.mask[rows]
        places, counts = self._places(rows), mask.sum(1)
        weight = (1.0 / counts.double()).repeat_interleave(counts).to(self._device)
        with evaluating(self.model):
            acts = self._acts([self.edits], rows)
            for site in sites:
                acts[site] = _keeping(site, kept, acts.get(site), differentiating=True)
            runner = self._runner([*acts])
            with torch.enable_grad():
                if runner is None:
                    self._ran[0] += len(rows)
                    output = run_whole(self.model, self._inputs(rows), acts)[mask.to(self._device)]
                    total = (metric.at(output, places, None) * weight).sum()
                    _need_slope(total)
                    grads = torch.autograd.grad(total, [kept[s] for s in sites], allow_unused=True)
                else:
                    start = min(site.layer for site in acts)
                    stream = self._clean_stream(rows, start).detach().requires_grad_()
                    last = self._through(runner, stream, range(start, len(runner.layers)), acts)
                    after = self._after(runner, last, mask, places, weight, metric)
                    wanted = [kept[site] for site in sites]
                    grads = torch.autograd.grad(last, wanted, after, allow_unused=True)
        return {
            site: (kept[site].detach(), torch.zeros_like(kept[site]) if grad is None else grad)
            for site, grad in zip(sites, grads, strict=True)
        }

    def _after(
        self,
        runner: Layers,
        last: Tensor,
        mask: Tensor,
        places: Places,
        weight: Tensor,
        metric: Metric,
    ) -> Tensor:
        """Compute the gradient at the stream after the last layer, some places at a time."""
        here = mask.to(self._device)
        scored, pieces = last.detach()[here], []
        most = max(1, _OUTPUTS // self._width(runner, scored))
        for begin in range(0, len(scored), most):
            some = slice(begin, begin + most)
            piece = scored[some].requires_grad_()
            total = (metric.at(runner.head(piece), places[some], None) * weight[some]).sum()
            _need_slope(total)
            pieces.append(torch.autograd.grad(total, piece)[0])
        found = torch.zeros_like(last)
        found[here] = torch.cat(pieces)
        return found

    def _slope(self, many: Sequence[Edits], metric: Metric, rows: Tensor) -> None:
        sites = [*dict.fromkeys(edit.site.every_head for edits in many for edit in edits)]
        found = {edits: torch.zeros(len(rows), dtype=torch.float64) for edits in many}
        for some in self._site_groups(sites, len(rows)):
            for site, (value, grad) in self._gradients(some, metric, rows).items():
                for edits in many:
                    for edit in edits:
                        if edit.site.every_head == site:
                            found[edits] += self._first_order(edit, value, grad, rows)
        for edits, slopes in found.items():
            known = self._slopes[self.edits, edits, metric]
            known.update(zip(rows.tolist(), slopes.tolist(), strict=True))

    def _first_order(self, edit: Edit, value: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad():
            own = edit.site.take(value)
            change = edit.changed_values(own, edit.fetch(self, rows), rows) - own
            product = change * edit.site.take(grad)
        return product.flatten(1).sum(1, dtype=torch.float64).cpu()

    def _site_groups(self, sites: list[Site], rows: int) -> Iterator[list[Site]]:
        """Yield groups of sites whose values and gradients fit into memory together."""
        length = self.batch.inputs.shape[1]
        heads = int(getattr(self.model.cfg, "n_heads", 1) or 1)
        group, held = list[Site](), 0
        for site in sites:
            size = 2 * rows * length * (heads * length if site.position_axis == 2 else 1024)
            if group and held + size > self._room:
                yield group
                group, held = [], 0
            group.append(site)
            held += size
        if group:
            yield group


def _need_reach(model: Any, edit: Edit) -> None:
    """Refuse an edit at ``resid_mid`` of a bridge, where the hook feeds the FFN alone; and a path
    from a head to the FFN of its parallel block, which does not read it."""
    if edit.site.kind == "resid_mid" and getattr(model, "spec", None) is None:
        raise HookError(
            f"{edit.site.name} may only be read in {type(model).__name__}, where what is changed "
            "there does not reach the stream: change attn_out"
        )
    if isinstance(edit, Through) and edit.site.kind == "mlp_in":
        layer, own = edit.site.layer, stream_site(edit.sender.site)
        parallel = getattr(getattr(model, "cfg", None), "parallel_attn_mlp", False)
        if own == Site(layer, "attn_out") and parallel:
            raise HookError(
                f"{edit.site.name} does not read the heads of its own layer in "
                f"{type(model).__name__}, whose blocks are parallel: take an earlier part"
            )


def stride_of(layers: int) -> int:
    """Return the spacing, in layers, of cached clean streams: 2 from 12 layers on, else 1."""
    return 2 if layers >= _DEEP else 1


def _need_slope(total: Tensor) -> None:
    if not total.requires_grad:
        raise ArgumentError(
            "metric must have a gradient, got one that has none with respect to the outputs: "
            "compute it from them by differentiable operations"
        )


def _keeping(
    site: Site,
    kept: dict[Site, Tensor],
    first: Callable[..., Any] | None,
    *,
    differentiating: bool = False,
) -> Callable[[Tensor], Tensor | None]:
    """Return a function for a site that stores its value in ``kept``, after the function ``first``
    (if any) has changed it. With ``differentiating``, the stored value is one that has a
    gradient."""

    def keep(value: Tensor) -> Tensor | None:
        changed = None if first is None else first(value)
        now = value if changed is None else changed
        if differentiating:
            changed = now = now if now.requires_grad else now.detach().requires_grad_()
        kept[site] = now if differentiating else now.detach()
        return changed

    return keep
