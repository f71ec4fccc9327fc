"""What a component is needed for: the model run again without it.

Mean ablation replaces a component's output at every position by its mean over rows at that
position, so what is removed is its variation and not its offset. A head is ablated at
``hook_result`` (all it writes, the identity term included; of wrapped models at ``hook_z``, before
W_O, which is the same there), an FFN at ``hook_mlp_out``.

Here the model runs once for each ablation, and any hooked model will do; many components at once,
and other replacements, are in :mod:`interp.heads.ablate`.

An effect shows that the rest of the model relies on the component as it is now. It does not show
what the component computes, and a missing effect can mean that another one stands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import HookError, Problems
from interp.heads.replay import has_ffn
from interp.lens import HookedModel

__all__ = [
    "Component", "components", "mean_outputs", "need_parts", "place_of", "places_of", "replaced",
    "run_without",
]  # fmt: skip

_KINDS = ("head", "ffn", "layer", "position")


@dataclass(frozen=True, order=True)
class Component:
    """A part of a model whose output can be replaced.

    Attributes:
        kind: ``head``, ``ffn``, ``layer`` (its heads and its FFN) or ``position`` (the residual
            stream that enters the layer there).
        layer: Counted from 0.
        head: Of a head; −1 otherwise.
        position: Of a position; −1 otherwise.
    """

    kind: str
    layer: int
    head: int = -1
    position: int = -1

    @property
    def name(self) -> str:
        """``L0H1``, ``L0 FFN``, ``L0`` or ``L0 position 3``."""
        position = f" position {self.position}"
        last = {"head": f"H{self.head}", "ffn": " FFN", "layer": "", "position": position}
        return f"L{self.layer}{last.get(self.kind, f' {self.kind}')}"

    @property
    def hook(self) -> str:
        """The hook at which a head's or an FFN's output, or a position's stream, can be replaced;
        :exc:`HookError` for a layer, which has none of its own."""
        kinds = {"head": "attn.hook_result", "ffn": "hook_mlp_out", "position": "hook_resid_pre"}
        if self.kind not in kinds:
            raise HookError(f"{self.name} has no hook of its own: name its heads and its FFN")
        return f"blocks.{self.layer}.{kinds[self.kind]}"


def components(model: HookedModel) -> tuple[Component, ...]:
    """Every layer's heads, then its FFN; heads that only pad a narrower layer are left out.

    Raises:
        HookError: for a model without blocks of attention, such as a recurrent network, and for a
            wrapped module of which nothing tells how many heads it has.
    """
    return tuple(_components(model))


def _components(model: Any) -> Iterator[Component]:
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


def _heads(model: Any, layer: int) -> int | None:
    spec = getattr(model, "spec", None)
    return spec.heads[layer] if spec is not None else getattr(model.cfg, "n_heads", None)


def need_parts(
    problems: Problems, model: HookedModel, parts: Sequence[Component], length: int
) -> None:
    """Record, as one problem, every component that a model does not have.

    Args:
        problems: Where.
        model: Which.
        parts: Components that were asked for.
        length: Of the model's inputs, in positions.
    """
    reasons = [(part.name, _lacking(model, part, length)) for part in parts]
    wrong = "; ".join(f"{name} ({reason})" for name, reason in reasons if reason)
    problems.need(not wrong, "parts", "must be in the model", wrong, "see components(model)")


def _lacking(model: Any, part: Component, length: int) -> str:
    """Why a component is not one of the model's; nothing where it is."""
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


def place_of(model: HookedModel, part: Component) -> str:
    """The hook at which a model lets a component be replaced."""
    ours = getattr(model, "spec", None) is not None
    return part.hook if ours else part.hook.replace("hook_result", "hook_z")


def places_of(model: HookedModel, parts: Sequence[Component]) -> list[str]:
    """The hooks of :func:`place_of`, each once.

    Raises:
        HookError: naming those that the model lacks.
    """
    places = sorted({place_of(model, part) for part in parts})
    lacking = [name for name in places if name not in model.hook_dict]
    if lacking:
        raise HookError(
            f"{type(model).__name__} has no hook {', '.join(lacking)}, where what is ablated would "
            "be replaced: wrap it there too, or name the components that have theirs"
        )
    return places


@torch.no_grad()
def mean_outputs(
    model: HookedModel, inputs: Tensor, parts: Sequence[Component]
) -> dict[str, Float[Tensor, "pos ..."]]:
    """Hook → mean over rows of what is there, position by position.

    Raises:
        ArgumentError: for a component that the model does not have.
        HookError: where a component has no hook.
    """
    _check("mean_outputs", model, inputs, parts)
    hooks = places_of(model, parts)
    _, cache = model.run_with_cache(inputs, names_filter=hooks)
    return {hook: cache[hook].mean(dim=0) for hook in hooks}


@torch.no_grad()
def run_without(
    model: HookedModel,
    inputs: Tensor,
    parts: Sequence[Component],
    means: Mapping[str, Tensor],
    keep: Sequence[str] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output without some components, and the activations kept on the way.

    Heads that work in a signed combination are to be ablated together: without one of them the
    others' cancelling parts are left standing, far from anything the model ever computes.

    Args:
        model: Any hooked model.
        inputs: ``[row, pos(, channel)]``.
        parts: What to ablate, all at once: heads, FFNs, positions.
        means: From :func:`mean_outputs`.
        keep: Hooks to return, under the names (or aliases) given here.

    Raises:
        ArgumentError: for a component that the model does not have.
    """
    _check("run_without", model, inputs, parts)
    kept: dict[str, Tensor] = {}

    def keep_value(value: Tensor, hook: Any, name: str) -> None:
        kept[name] = value

    places = [(place_of(model, part), part) for part in parts]
    ablate = [(place, partial(replaced, part=part, instead=means[place])) for place, part in places]
    hooks = [*ablate, *((name, partial(keep_value, name=name)) for name in keep)]
    output = model.run_with_hooks(inputs, fwd_hooks=hooks)
    return output, kept


def _check(subject: str, model: HookedModel, inputs: Tensor, parts: Sequence[Component]) -> None:
    problems = Problems(subject)
    need_parts(problems, model, parts, inputs.shape[1])
    problems.raise_if_any()


def replaced(value: Tensor, hook: Any, part: Component, instead: Tensor) -> Tensor:
    """A hook on one of a component's places: what it writes there, replaced.

    Args:
        value: ``[row, pos, …]`` of every head, or of the FFN or stream.
        hook: The hook point.
        part: Whose values are replaced; of a ``layer``, all that is there.
        instead: What stands in, shaped as ``value`` or one row of it.
    """
    instead = instead.expand_as(value)
    if part.kind in ("ffn", "layer"):
        return instead
    value = value.clone()
    if part.kind == "head":
        value[:, :, part.head] = instead[:, :, part.head]
    else:
        value[:, part.position] = instead[:, part.position]
    return value
