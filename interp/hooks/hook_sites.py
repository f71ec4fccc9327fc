"""Say where in a module a tensor is: which submodule, input or output, element, part and heads.

A site is written as text, or as a :class:`HookSite` when it needs more:

    "layers.0"                 what the submodule ``layers.0`` returns
    "layers.0:in"              its (first) argument
    "layers.0:in[mask]"        its argument ``mask``;  ``:in[1]`` is the second
    "layers.0:out[0]"          the first element of the tuple it returns (or a key of a dict)
    "layers.0.v/4"             [batch, pos, 4·d_head] split into [batch, pos, 4, d_head]
    "layers.0.norm2:read"      its argument, to look at only

``read`` is for a tensor that other code reads too: in ``x = x + mlp(norm(x))`` the residual stream
is the argument of ``norm``, but replacing that argument would change what ``norm`` sees and not
what the sum sees. A hook that tries is refused.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from interp.errors import HookError, Problems

_TEXT = re.compile(
    r"(?P<module>[^:\[\]/]*)(:(?P<side>in|out|read))?(\[(?P<element>\w+)\])?(/(?P<heads>[1-9]\d*))?"
)


@dataclass(frozen=True)
class HookSite:
    """A tensor on its way into or out of a submodule.

    Attributes:
        module: Path of the submodule, as ``named_modules`` gives it; "" is the module itself.
        side: ``out``, ``in``, or ``read`` (``in``, but it may not be replaced).
        element: Which argument (position or name), or which element of what is returned (index or
            key); ``None`` for the only one.
        heads: Split the last axis into this many heads.
        part: ``(i, n)``: the i-th of n equal parts of the last axis, e.g. the keys, ``(1, 3)``, of
            a projection that gives queries, keys and values side by side.

    Raises:
        ArgumentError: for an unknown side, or numbers out of range.
    """

    module: str
    side: Literal["out", "in", "read"] = "out"
    element: int | str | None = None
    heads: int | None = None
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        problems = Problems("HookSite")
        sides = ("out", "in", "read")
        rule = f"must be one of {', '.join(sides)}"
        problems.need(self.side in sides, "side", rule, self.side, "pick one")
        good = self.heads is None or self.heads >= 1
        problems.need(good, "heads", "must be at least 1", self.heads, "leave it out for no split")
        good = self.part is None or 0 <= self.part[0] < self.part[1]
        problems.need(good, "part", "must be (i, n) with 0 <= i < n", self.part, "count from 0")
        problems.raise_if_any()

    def find(self, container: Any) -> Any:
        """Return the site's element of a returned value, or of ``(args, kwargs)`` for an input."""
        if self.side == "out":
            return container if self.element is None else container[self.element]
        args, kwargs = container
        if isinstance(self.element, str):
            return kwargs[self.element]
        if self.element is None and not args:
            return next(iter(kwargs.values()))
        return args[self.element or 0]

    def put(self, container: Any, value: Tensor) -> Any:
        """Return the container with the site's element replaced; the original object is not
        changed."""
        if self.side == "out":
            return (
                value if self.element is None else _replace_element(container, self.element, value)
            )
        args, kwargs = container
        if isinstance(self.element, str):
            return args, {**kwargs, self.element: value}
        if self.element is None and not args:
            return args, {**kwargs, next(iter(kwargs)): value}
        return _replace_element(args, self.element or 0, value), kwargs

    def view(self, tensor: Tensor) -> Tensor:
        """Return the hooked part of the tensor, with heads as an axis of their own.

        Raises:
            HookError: if the last axis cannot be split into these parts or heads.
        """
        parts, heads = self.part[1] if self.part else 1, self.heads or 1
        width = tensor.shape[-1] if tensor.ndim else 0
        if width % (parts * heads):
            raise HookError(
                f"the last axis of {tuple(tensor.shape)} does not split into {parts} part(s) of "
                f"{heads} head(s): change heads or part"
            )
        if self.part is not None:
            tensor = tensor.chunk(parts, dim=-1)[self.part[0]]
        if self.heads is None:
            return tensor
        return rearrange(tensor, "... (head d) -> ... head d", head=heads)

    def merge(self, tensor: Tensor, viewed: Tensor) -> Tensor:
        """Return ``tensor`` with the hooked part replaced by ``viewed``."""
        if self.heads is not None:
            viewed = rearrange(viewed, "... head d -> ... (head d)")
        if self.part is None:
            return viewed
        parts = list(tensor.chunk(self.part[1], dim=-1))
        parts[self.part[0]] = viewed
        return torch.cat(parts, dim=-1)


def parse_hook_site(place: str | HookSite) -> HookSite:
    """Read a hook site from text; a :class:`HookSite` is returned as it is.

    Raises:
        HookError: if the text is malformed, saying what is wrong with it.
    """
    if isinstance(place, HookSite):
        return place
    match = _TEXT.fullmatch(place) if isinstance(place, str) else None
    if match is None:
        raise HookError("must be a HookSite or text like 'layers.0.attn:out[0]/4'")
    element, heads = match["element"], match["heads"]
    return HookSite(
        module=match["module"],
        side=match["side"] or "out",  # type: ignore[arg-type]
        element=int(element) if element and element.isdigit() else element,
        heads=int(heads) if heads else None,
    )


def _replace_element(container: Any, element: int | str, value: Tensor) -> Any:
    if isinstance(container, tuple):
        items: Any = [*container]
        items[element] = value
        return type(container)(*items) if hasattr(container, "_fields") else tuple(items)
    if isinstance(container, Mapping | list):
        changed: Any = copy.copy(container)
        changed[element] = value
        return changed
    raise HookError(f"cannot replace an element of a {type(container).__name__}: use side 'read'")
