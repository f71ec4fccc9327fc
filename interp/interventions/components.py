"""The parts of a model that can be ablated, and the hooks at which they are replaced.

A head is replaced at ``hook_result`` (all it writes, including the identity term; in bridges and
wrapped models at ``hook_z``, before W_O, which is equivalent there), an FFN at ``hook_mlp_out``, a
position in the residual stream that enters its layer, a layer as all its heads and its FFN
together.

:mod:`interp.interventions.replacement` lists the values that can replace them. A missing effect can
mean that another component compensates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from interp.errors import HookError, Problems, need
from interp.hooks.limits import need_hooks
from interp.hooks.site import Site
from interp.hooks.transformer_lens_adapter import HookedModel

_KINDS = ("head", "ffn", "layer", "position")
_NAME = re.compile(r"L(\d+)(?:H(\d+)|( FFN))?")


@dataclass(frozen=True, order=True)
class Component:
    """A part of a model whose output can be replaced.

    Attributes:
        kind: ``head``, ``ffn``, ``layer`` (its heads and its FFN) or ``position`` (the residual
            stream that enters the layer there).
        layer: The layer, counted from 0.
        head: The head's number, for a head; −1 otherwise.
        position: The position, for a position; −1 otherwise.
    """

    kind: str
    layer: int
    head: int = -1
    position: int = -1

    @property
    def name(self) -> str:
        """The component's short name: ``L0H1``, ``L0 FFN``, ``L0`` or ``L0 position 3``."""
        position = f" position {self.position}"
        last = {"head": f"H{self.head}", "ffn": " FFN", "layer": "", "position": position}
        return f"L{self.layer}{last.get(self.kind, f' {self.kind}')}"

    @property
    def hook(self) -> str:
        """The hook at which a head's or an FFN's output, or a position's stream, can be replaced.

        Raises:
            HookError: for a layer, which has no hook of its own.
        """
        kinds = {"head": "result", "ffn": "mlp_out", "position": "resid_pre"}
        if self.kind not in kinds:
            raise HookError(f"{self.name} has no hook of its own: name its heads and its FFN")
        return Site(self.layer, kinds[self.kind]).name


def named_components(parts: Sequence[Component | str] | Component | str) -> list[Component]:
    """Return one or several components, given as such or by name, as a list of components."""
    several = parts if isinstance(parts, Iterable) and not isinstance(parts, str) else [parts]
    return [named_component(part) for part in several]


def named_component(part: Any) -> Component:
    """Return the component that a name such as ``L2H0``, ``L2 FFN`` or ``L2`` stands for.

    A component is returned as it is.

    Raises:
        ArgumentError: if the argument is anything else.
    """
    if isinstance(part, Component):
        return part
    found = _NAME.fullmatch(part) if isinstance(part, str) else None
    rule = "must be components, or names such as L2H0, L2 FFN or L2"
    need("parts", found is not None, "part", rule, part, "see pl.interventions.components(model)")
    layer, head, ffn = found.groups() if found else ("0", None, None)
    if head is not None:
        return Component("head", int(layer), int(head))
    return Component("ffn" if ffn else "layer", int(layer))


def components(model: HookedModel) -> tuple[Component, ...]:
    """Return all heads and FFNs of a model, layer by layer, without heads that only pad a narrower
    layer.

    Raises:
        HookError: if the model has no attention blocks, such as a recurrent network, or is a
            wrapped module that does not say how many layers or heads it has.
    """
    need_hooks(model)
    return tuple(_components(model))


def _components(model: Any) -> Iterator[Component]:
    if model.cfg is None:
        raise HookError(
            f"{type(model).__name__} does not say which layers it has: give wrap() an example, "
            "such as two rows of token ids, on which its hooks are checked, or a cfg"
        )
    if not hasattr(model.cfg, "n_layers"):
        raise HookError(f"{type(model).__name__} has no attention heads: probe its hooks instead")
    for layer in range(model.cfg.n_layers):
        heads = _heads(model, layer)
        if heads is None:
            raise HookError(
                f"{type(model).__name__} does not say how many heads it has: wrap "
                "attn.hook_pattern or attn.hook_z, with an example, or give wrap() a cfg"
            )
        yield from (Component("head", layer, head) for head in range(heads))
        if has_ffn(model, layer):
            yield Component("ffn", layer)


def every_component(model: HookedModel, length: int = 0) -> tuple[Component, ...]:
    """Return all heads, FFNs and layers; for ``length`` > 0 also every position before every
    layer."""
    layers = range(model.cfg.n_layers)
    return (
        *components(model),
        *(Component("layer", layer) for layer in layers),
        *(Component("position", layer, position=p) for layer in layers for p in range(length)),
    )


def has_ffn(model: Any, layer: int) -> bool:
    """Return whether a layer has an FFN."""
    spec = getattr(model, "spec", None)
    return bool(spec.ffn_widths[layer]) if spec is not None else not model.cfg.attn_only


def stream_after(model: Any) -> Iterator[tuple[int, str]]:
    """Yield the layer and the hook of the residual stream after each sublayer."""
    for layer in range(model.cfg.n_layers):
        if _heads(model, layer) != 0:
            yield layer, Site(layer, "resid_mid").name
        if has_ffn(model, layer):
            yield layer, Site(layer, "resid_post").name


def read_by_ffn(model: Any, layer: int) -> Site:
    """Return the site of the residual stream that a layer's FFN reads, before its norm.

    This is the stream after the layer's heads. In parallel blocks, where heads and FFN read the
    same stream, it is the one that enters the layer. In a layer without heads it is the stream
    after the previous sublayer.
    """
    entering = Site(layer, "resid_pre")
    if _heads(model, layer) != 0:
        between = Site(layer, "resid_mid")
        return between if between.name in model.hook_dict else entering
    before = [hook for at, hook in stream_after(model) if at < layer]
    return Site.of(before[-1]) if before else entering


def _heads(model: Any, layer: int) -> int | None:
    spec = getattr(model, "spec", None)
    return spec.heads[layer] if spec is not None else getattr(model.cfg, "n_heads", None)


def need_parts(
    problems: Problems, model: HookedModel, parts: Sequence[Component], length: int
) -> None:
    """Record, as one problem, every component that a model does not have.

    Args:
        problems: The collection that the problem is added to.
        model: The model that should have the components.
        parts: The components that were asked for.
        length: Length of the model's inputs, in positions.
    """
    reasons = [(part.name, _lacking(model, part, length)) for part in parts]
    wrong = "; ".join(f"{name} ({reason})" for name, reason in reasons if reason)
    problems.need(not wrong, "parts", "must be in the model", wrong, "see components(model)")


def _lacking(model: Any, part: Component, length: int) -> str:
    """Return the reason why the model does not have a component; empty if it has it."""
    if part.kind not in _KINDS:
        return f"kinds are {', '.join(_KINDS)}"
    layers = getattr(model.cfg, "n_layers", 0)
    if not 0 <= part.layer < layers:
        return f"layers are {_count(layers)}"
    if part.kind == "ffn" and not has_ffn(model, part.layer):
        return f"layer {part.layer} has no FFN"
    heads = _heads(model, part.layer)
    if part.kind == "head" and not 0 <= part.head < (part.head + 1 if heads is None else heads):
        return f"heads of layer {part.layer} are {_count(heads or 0)}"
    if part.kind == "position" and not 0 <= part.position < length:
        return f"positions are {_count(length)}"
    extra = {"head": part.head, "position": part.position}
    named = [f"{kind}={at}" for kind, at in extra.items() if kind != part.kind and at != -1]
    return f"{' and '.join(named)} does not go with its kind" if named else ""


def _count(n: int) -> str:
    return f"0 to {n - 1}" if n > 1 else "0 alone" if n else "none"


def hook_of(model: HookedModel, part: Component) -> str:
    """Return the name of the hook at which the model's component can be replaced."""
    ours = getattr(model, "spec", None) is not None
    return part.hook if ours else part.hook.replace("hook_result", "hook_z")
