"""A place in a model, and the name of its hook. No other module builds or parses hook names.

    Site(3, "z", head=2)        the output of head 2 of layer 3, before W_O  blocks.3.attn.hook_z
    Site(3, "pattern", head=2)  its attention pattern, query by key    blocks.3.attn.hook_pattern
    Site(3, "score", term="t")  a term of the scores            blocks.3.attn.terms.t.hook_score
    Site(3, "mlp_out")          the output of the FFN of layer 3           blocks.3.hook_mlp_out
    Site(3, "resid_pre")        the residual stream that enters layer 3  blocks.3.hook_resid_pre
    Site(-1, "embed")           outside the layers                                    hook_embed

Names are TransformerLens'. Any other hook's name is a site too, with the rest of the name as its
kind; ``Site.of(name).name == name`` for every text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from interp.errors import HookError, Problems

_PARTS = {
    "": ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "attn_in", "mlp_in"),
    "attn.": (
        *("q", "k", "v", "z", "result", "pattern", "attn_scores", "rot_q", "rot_k"),
        *("q_input", "k_input", "v_input"),
    ),
    "mlp.": ("pre", "post", "pre_linear"),
}  # fmt: skip
_IN_LAYER = {kind: f"{part}hook_{kind}" for part, kinds in _PARTS.items() for kind in kinds}
_OUTSIDE = {"embed": "hook_embed", "pos_embed": "hook_pos_embed"}
_KIND_OF = {rest: kind for kind, rest in (*_IN_LAYER.items(), *_OUTSIDE.items())}
_LAYER = re.compile(r"blocks\.(0|[1-9][0-9]*)\.(.+)", re.DOTALL)
_TERM = re.compile(r"attn\.terms\.([^.]+)\.hook_score", re.DOTALL)
_SHORT = re.compile(r"L([0-9]+)(?:H([0-9]+))?(?: (.+))?")
_RAW = ":"
"""Prefix of a kind that is a hook name's remainder taken literally. It is needed where the
remainder by itself would be read as the name of a known kind."""

STREAM = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
"""Kinds that are in the residual stream or added to it, in the order of a layer."""
_BY_HEAD = {"q", "k", "v", "z", "result", "rot_q", "rot_k", "q_input", "k_input", "v_input"}
_BY_QUERY = {"pattern", "attn_scores", "score"}
"""Kinds of sites with attention values ``[row, head, query, key]``. The kinds in ``_BY_HEAD`` have
values ``[row, pos, head, …]``."""


@dataclass(frozen=True)
class Site:
    """A place in a model.

    Attributes:
        layer: The layer, counted from 0; −1 outside the layers.
        kind: The activation's kind: ``z``, ``pattern``, ``mlp_out``, ``resid_pre`` …
        head: The head, for kinds that have heads; None for all of them at once.
        term: The score term, for the kind ``score``.

    Raises:
        ArgumentError: if the kind has no heads, or no terms, but one is given.
    """

    layer: int
    kind: str
    head: int | None = None
    term: str | None = None

    def __post_init__(self) -> None:
        problems = Problems("Site")
        good = self.layer >= -1
        problems.need(
            good, "layer", "must be at least 0, or -1 outside", self.layer, "count from 0"
        )
        problems.need(bool(self.kind), "kind", "must not be empty", self.kind, "such as 'z'")
        headed = self.head is None or (self.head >= 0 and self.head_axis is not None)
        rule = "must be at least 0, and goes with kinds that have heads"
        problems.need(headed, "head", rule, (self.kind, self.head), "leave it out")
        good = (self.term is None) == (self.kind != "score") and "." not in (self.term or "")
        problems.need(good, "term", "goes with the kind 'score', and it with a term", self.term,
                      "name both, without dots")  # fmt: skip
        problems.raise_if_any()

    @classmethod
    def of(cls, name: str, head: int | None = None) -> Site:
        """Return the site of a hook's name."""
        found = _LAYER.fullmatch(name)
        if found is None:
            return cls(-1, _kind_of(name, _OUTSIDE), head)
        layer, rest = int(found[1]), found[2]
        term = _TERM.fullmatch(rest)
        if term is not None:
            return cls(layer, "score", head, term[1])
        return cls(layer, _kind_of(rest, _IN_LAYER), head)

    @classmethod
    def parse(cls, text: str | Site) -> Site:
        """Return the site that a text names.

        Args:
            text: A short form (``L3H2``, ``L3H2 pattern``, ``L3 FFN``, ``L3 resid_pre``), the name
                of a hook, or a site, which is returned as it is.

        Raises:
            HookError: if the text is a layer alone, such as ``L3``.
        """
        if isinstance(text, Site):
            return text
        found = _SHORT.fullmatch(text)
        if found is None:
            return cls.of(text)
        layer, head, kind = int(found[1]), found[2], found[3]
        if head is None and kind is None:
            raise HookError(f"{text!r} is a layer, not a place: name a head (L0H1) or 'L0 FFN'")
        kind = "mlp_out" if kind == "FFN" else kind or "z"
        kind, _, term = kind.partition(" of ")
        return cls(layer, kind, None if head is None else int(head), term or None)

    @property
    def name(self) -> str:
        """The name of the hook; a head's hook is the one with all heads of its layer."""
        known = _OUTSIDE if self.layer < 0 else _IN_LAYER
        rest = known.get(self.kind, self.kind.removeprefix(_RAW))
        if self.kind == "score":
            rest = f"attn.terms.{self.term}.hook_score"
        return rest if self.layer < 0 else f"blocks.{self.layer}.{rest}"

    def __str__(self) -> str:
        if self.layer < 0:
            return self.name
        head = "" if self.head is None else f"H{self.head}"
        kind = {"mlp_out": "FFN", "z": "" if head else "z"}.get(self.kind, self.kind)
        kind = f"score of {self.term}" if self.kind == "score" else kind
        return f"L{self.layer}{head} {kind}".rstrip()

    @property
    def every_head(self) -> Site:
        """The same site without a head: all heads of the layer."""
        return self if self.head is None else replace(self, head=None)

    @property
    def head_axis(self) -> int | None:
        """The axis of heads in the hook's tensor; None for kinds without heads."""
        return 2 if self.kind in _BY_HEAD else 1 if self.kind in _BY_QUERY else None

    def take(self, value: Tensor) -> Tensor:
        """Return the head's part of a hook's tensor; the whole tensor if the site names no head.

        Raises:
            HookError: if the tensor has no such head.
        """
        if self.head is None or self.head_axis is None:
            return value
        if self.head >= value.shape[self.head_axis]:
            heads = value.shape[self.head_axis]
            raise HookError(
                f"{self.name} has {heads} heads, counted from 0, and no head {self.head}"
            )
        return value.select(self.head_axis, self.head)

    def put(self, value: Tensor, part: Tensor) -> Tensor:
        """Return a hook's tensor with the head's part replaced; ``part`` is broadcast over rows."""
        if self.head is None or self.head_axis is None:
            return part.expand_as(value).contiguous()
        changed = value.clone()
        changed.select(self.head_axis, self.head).copy_(part)
        return changed

    @property
    def position_axis(self) -> int:
        """The axis of positions (of queries, for attention) in the result of :meth:`take`."""
        return 2 if self.kind in _BY_QUERY and self.head is None else 1


def _kind_of(rest: str, known: dict[str, str]) -> str:
    kind = _KIND_OF.get(rest)
    if kind is not None and kind in known:
        return kind
    return _RAW + rest if rest in known or rest == "score" or rest.startswith(_RAW) else rest


def stream_site(site: Site) -> Site | None:
    """Return the site at which a change at ``site`` reaches the residual stream of its layer.

    It is ``attn_out`` for places in attention, ``mlp_out`` for places in the FFN (its input and its
    hidden layers), and ``site`` itself in the stream; None for other places, such as embeddings or
    norms.
    """
    if site.layer < 0:
        return None
    rest = _IN_LAYER.get(site.kind, site.kind.removeprefix(_RAW))
    if rest.startswith("attn.") or site.kind in ("attn_in", "score"):
        return Site(site.layer, "attn_out")
    if rest.startswith("mlp.") or site.kind == "mlp_in":
        return Site(site.layer, "mlp_out")
    return site if site.kind in STREAM else None


def head_sites(model: Any) -> tuple[Site, ...]:
    """Return the output site of every head, layer by layer, without heads that only pad a narrower
    layer.

    The kind is ``z``, or ``result`` in models whose heads write more than z W_O.

    Raises:
        HookError: if the model does not say how many layers or heads it has.
    """
    heads = list(_heads(model))
    return tuple(output_site(model, at, head) for at, n in enumerate(heads) for head in range(n))


def output_site(model: Any, layer: int, head: int = -1) -> Site:
    """Return the output site of one head, or of the layer's FFN if no head is given."""
    if head < 0:
        return Site(layer, "mlp_out")
    spec = getattr(model, "spec", None)
    return Site(layer, "result" if spec is not None and spec.identity_ov else "z", head)


def ffn_sites(model: Any) -> tuple[Site, ...]:
    """Return the output site of every FFN, layer by layer."""
    spec, layers = getattr(model, "spec", None), range(len(list(_heads(model))))
    if spec is None:
        return () if model.cfg.attn_only else tuple(Site(layer, "mlp_out") for layer in layers)
    return tuple(Site(layer, "mlp_out") for layer in layers if spec.ffn_widths[layer])


def _heads(model: Any) -> Iterator[int]:
    cfg, spec = getattr(model, "cfg", None), getattr(model, "spec", None)
    heads = getattr(cfg, "n_heads", None)
    if not hasattr(cfg, "n_layers") or (spec is None and heads is None):
        raise HookError(
            f"{type(model).__name__} does not say how many layers and heads it has: wrap "
            "attn.hook_pattern or attn.hook_z, with an example, or give wrap() a cfg"
        )
    for layer in range(cfg.n_layers):  # type: ignore[union-attr]
        yield int(heads or 0) if spec is None else int(spec.heads[layer])
