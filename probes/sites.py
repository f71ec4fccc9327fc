"""The hooks that a model fires or a store holds, in order, and which of them can be probed.

A probe reads hooks ``[row, pos, …]``. The order is the network's: the one in which a forward pass
fires them, whatever the order in which they were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from interp.errors import HookError
from interp.hooks.axes import axis_labels
from interp.hooks.capture import attached, evaluating, model_device
from interp.hooks.hook_names import nearest
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import stream_after
from interp.store import ActivationStore
from interp.store.rows import as_batch


@dataclass(frozen=True)
class Site:
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
        """Whether a probe can read the hook."""
        return self.labels[1:2] == ("pos",)

    def __str__(self) -> str:
        """The name, the axes, and whether a probe can read the hook, in one line."""
        axes = " × ".join(
            f"{label} {n}" for label, n in zip(self.labels[1:], self.shape, strict=True)
        )
        return f"{self.name}  {axes}" + ("" if self.probed else "  (cannot be probed)")


def hook_sites(source: Any, inputs: Any) -> list[Site]:
    """All hooks of a store, or all that a model fires on the first two of the inputs' rows, in the
    order of firing."""
    if isinstance(source, ActivationStore):
        shapes = {name: hook["shape"] for name, hook in source.manifest["hooks"].items()}
        return [Site(name, source.labels(name), tuple(shapes[name])) for name in source.hooks]
    found: dict[str, Site] = {}
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
            found[name] = Site(name, labels, tuple(values.shape[1:]))

    with evaluating(source), attached(source, points, see):
        source(rows)
    return list(found.values())


def usual_hooks(source: Any, sites: list[Site]) -> list[str]:
    """The residual stream between sublayers of a transformer; of stores and other models all that
    can be probed.

    Raises:
        HookError: if there is no such hook.
    """
    if not isinstance(source, ActivationStore) and hasattr(source.cfg, "n_layers"):
        return list(residual_sites(source))
    usual = [site.name for site in sites if site.probed]
    if not usual:
        raise HookError(f"{source} holds nothing to probe: store the residual stream, hook_resid_*")
    return usual


def chosen_hooks(source: Any, sites: list[Site], wanted: list[str]) -> list[str]:
    """The hooks that names or globs ask for, in the order they fire; those that do not fire come
    last.

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
    """Hooks of the residual stream in order: of the embedding, and after each sublayer."""
    return ("hook_embed", *(hook for _, hook in stream_after(model)))
