"""Restrict a batch or a store to some of its positions, for probes.

Only the chosen positions then count as scored; the rows themselves stay whole. In a store that
keeps only some positions, the others are not scored either.

*Hooks* are those that fire in a model or that a store holds; a probe can read hooks ``[row, pos,
…]``. They are in the order in which a forward pass fires them, whatever the order in which they
were requested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import ArgumentError, HookError
from interp.hooks.capture import attach_function, evaluating, model_device
from interp.hooks.hook_names import axis_labels, nearest
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import stream_after
from interp.store import ActivationStore
from interp.store.pipeline import parse_positions
from interp.store.rows import as_batch, scored_mask
from interp.tasks.base import Batch
from probes.activations import Samples


@dataclass(frozen=True)
class HookAxes:
    """A hook with its axes.

    Attributes:
        name: The name of the hook.
        labels: The names of its axes, such as ``("row", "pos", "d_model")``.
        shape: The sizes of its axes, without the row axis.
    """

    name: str
    labels: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def probed(self) -> bool:
        """Whether a probe can read the hook: its axis after the row axis is the position."""
        return self.labels[1:2] == ("pos",)

    def __str__(self) -> str:
        """Return the name, the axes, and whether a probe can read the hook, in one line."""
        axes = " × ".join(
            f"{label} {n}" for label, n in zip(self.labels[1:], self.shape, strict=True)
        )
        return f"{self.name}  {axes}" + ("" if self.probed else "  (cannot be probed)")


def hook_sites(source: Any, inputs: Any) -> list[HookAxes]:
    """Return the hooks of a store or model, with their axes and shapes.

    Args:
        source: A store, or a hooked model.
        inputs: Inputs of the model; it is run on their first two rows. Not used for a store.

    Returns:
        All hooks of a store, or all at which the model has a tensor, in the order of its run.
    """
    if isinstance(source, ActivationStore):
        shapes = {name: hook["shape"] for name, hook in source.manifest["hooks"].items()}
        return [HookAxes(name, source.labels(name), tuple(shapes[name])) for name in source.hooks]
    found: dict[str, HookAxes] = {}
    points = source.hook_dict
    rows = as_batch(inputs).inputs[:2].to(model_device(source))

    def see(name: str, values: Any) -> None:
        if isinstance(values, Tensor) and name not in found and values.ndim:
            labels = axis_labels(
                name,
                tuple(values.shape),
                length=rows.shape[1],
                n_heads=getattr(source.cfg, "n_heads", None),
                pos_axis=getattr(points[name], "pos_dim", None),
            )
            found[name] = HookAxes(name, labels, tuple(values.shape[1:]))

    with evaluating(source), attach_function(source, points, see):
        source(rows)
    return list(found.values())


def usual_hooks(source: Any, sites: list[HookAxes]) -> list[str]:
    """Return the hooks that are probed by default.

    These are the residual stream between sublayers of a transformer; for stores and other models,
    all hooks that can be probed.

    Args:
        source: A store, or a hooked model.
        sites: Its hooks, from :func:`hook_sites`.

    Raises:
        HookError: if there is no such hook.
    """
    if not isinstance(source, ActivationStore) and hasattr(source.cfg, "n_layers"):
        return list(residual_sites(source))
    usual = [site.name for site in sites if site.probed]
    if not usual:
        raise HookError(f"{source} holds nothing to probe: store the residual stream, hook_resid_*")
    return usual


def chosen_hooks(source: Any, sites: list[HookAxes], wanted: list[str]) -> list[str]:
    """Return the hooks that names or globs select, in the order in which they fire; those that do
    not fire come last.

    Args:
        source: A store, or a hooked model.
        sites: Its hooks, from :func:`hook_sites`.
        wanted: The names or globs.

    Raises:
        HookError: if a glob matches nothing.
    """
    wanted = [wanted] if isinstance(wanted, str) else wanted
    stored = isinstance(source, ActivationStore)
    known = [*source.hooks, *source.aliases] if stored else list(source.hook_dict)
    for glob in wanted:
        if not any(fnmatchcase(name, glob) for name in known):
            near = nearest(glob, known)
            hint = f" (near it: {', '.join(near)})" if near else ""
            raise HookError(
                f"hooks {glob} matches none of {len(known)} hooks{hint}: --hooks '*' lists them"
            )
    points = {name: source.canonical(name) for name in known} if stored else source.hook_dict
    place = {points[site.name]: at for at, site in enumerate(sites)}
    chosen = [name for name in known if any(fnmatchcase(name, glob) for glob in wanted)]
    return sorted(chosen, key=lambda name: place.get(points[name], len(place)))


def residual_sites(model: HookedModel) -> tuple[str, ...]:
    """Return the hooks of the residual stream in order: of the embedding, and after each
    sublayer."""
    return ("hook_embed", *(hook for _, hook in stream_after(model)))


def wanted_positions(text: str | None) -> slice:
    """Read ``5``, ``last``, ``START:STOP[:STEP]``, ``all`` or None (for all) as a slice.

    Raises:
        ArgumentError: if the text has another form.
    """
    try:
        number = int(text) if text is not None else None
    except ValueError:
        number = None
    if number is not None:
        return slice(number, number + 1 or None)
    try:
        return parse_positions(text or "all")
    except ValueError:
        rule = "a number, all, last or START:STOP[:STEP]"
        raise ArgumentError(f"positions must be {rule}, got {text!r}: such as 5 or 2:9") from None


def at_positions(source: Any, inputs: Any, text: str | None) -> tuple[Any, Any]:
    """Return a model's batch, or a store, in which only the chosen positions are scored.

    Args:
        source: A hooked model, or a store.
        inputs: The inputs of a model; None for a store.
        text: The chosen positions, as for :func:`wanted_positions`.

    Returns:
        Source and inputs for :mod:`probes`.

    Raises:
        ArgumentError: if no position is left that is scored.
    """
    wanted = wanted_positions(text)
    if isinstance(source, ActivationStore):
        if wanted == slice(None) and source.manifest["plan"].get("positions", "all") == "all":
            return source, inputs
        found = SomePositions(source, wanted)
        masks = [scored_mask(source, part.rows) for part in source.batches(256)]
        left = any(scored_mask(found, part.rows).any() for part in source.batches(256))
        _need_some(left, text or "all", masks, found.kept)
        return found, inputs
    if wanted == slice(None):
        return source, inputs
    batch = as_batch(inputs)
    mask = batch.mask & torch.from_numpy(_among(batch.mask.shape[1], wanted))
    _need_some(bool(mask.any()), str(text), [batch.mask.numpy()], "all")
    return source, Batch(batch.inputs, batch.targets, mask, batch.latents)


def _need_some(left: bool, text: str, masks: list[NDArray[np.bool_]], kept: str) -> None:
    if left:
        return
    scored = sorted({int(at) for mask in masks for at in np.flatnonzero(mask.any(axis=0))})
    told = f"{scored[0]} to {scored[-1]}" if scored else "none"
    stored = "" if kept == "all" else f", the store keeps {kept}"
    raise ArgumentError(
        f"positions {text} hold nothing to probe (scored in some row: {told}{stored}): name others"
    )


def _among(length: int, *chosen: slice) -> NDArray[np.bool_]:
    """Return which of ``length`` positions are in every slice."""
    numbers = np.arange(length)
    parts = [np.isin(numbers, numbers[some]) for some in chosen]
    among: NDArray[np.bool_] = np.logical_and.reduce(parts)
    return among


class SomePositions(ActivationStore):
    """A store in which only the chosen positions are scored, if it keeps them.

    Activations are given at every position, NaN at those that are not stored.

    Args:
        store: The store.
        wanted: The chosen positions of the inputs.

    Attributes:
        kept: The positions that are stored, as the plan of the extraction says it.
    """

    def __init__(self, store: ActivationStore, wanted: slice) -> None:
        super().__init__(store.path)
        self._store = store
        plan = self.manifest["plan"]
        self.kept = str(plan.get("positions", "all"))
        self._stored, self._wanted = parse_positions(self.kept), wanted
        self._masked = all("mask" in part.shapes for part in super().parts)
        self.manifest = {**self.manifest, "plan": {**plan, "positions": "all"}}

    @property
    def parts(self) -> Any:
        """The store's sealed parts. Each one lists the array ``mask`` with the shape of its inputs,
        since :meth:`mask` gives a mask even if none is stored."""
        return tuple(
            replace(part, shapes={**part.shapes, "mask": part.shapes["inputs"][:2]})
            for part in super().parts
        )

    def mask(self, rows: Any = None) -> NDArray[Any]:
        """Return where targets are scored and activations are chosen and stored, ``[row, pos]``."""
        shape = self.inputs(rows).shape[:2]
        scored = super().mask(rows) if self._masked else np.ones(shape, dtype=bool)
        return scored & _among(shape[1], self._stored, self._wanted)

    def latents(self, rows: Any = None) -> dict[str, NDArray[Any]]:
        """Return the latents of the store, or the user's labels in their place."""
        return self._store.latents(rows)

    def activation(
        self, hook: str, rows: Any = None, *, heads: Any = None, positions: Any = None
    ) -> NDArray[Any]:
        """Return a hook's activations, with NaN at positions of the inputs that are not stored."""
        values, labels = super().activation(hook, rows, heads=heads), self.labels(hook)
        if "pos" not in labels or self._stored == slice(None):
            return values if positions is None else values[:, positions]
        length, axis = self.inputs(rows).shape[1], labels.index("pos")
        shape = (*values.shape[:axis], length, *values.shape[axis + 1 :])
        whole = np.full(shape, np.nan, dtype=np.result_type(values.dtype, np.float32))
        index = [slice(None)] * whole.ndim
        index[axis] = self._stored
        whole[tuple(index)] = values
        return whole if positions is None else whole.take(positions, axis=axis)


def positions_in_words(samples: Samples) -> str:
    """Return the sampled positions as text: ``2,3,5``, or their range if each row has its own."""
    places = samples.positions
    if (places == places[:1]).all():
        return ",".join(str(place) for place in dict.fromkeys(places[0].tolist()))
    return f"{places.min()} to {places.max()}, each row its own"
