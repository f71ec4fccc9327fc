"""How an architecture stores its attention weights, described as data.

Every family stores the four matrices of a head in other tensors and in another order. A
:class:`WeightPart` names the tensor and says, as an einops pattern, how to rearrange it into a
stack of head matrices. A :class:`Layout` collects the parts and the facts that no tensor shows. The
axes of the patterns are ``h`` query heads, ``g`` key/value heads, ``d`` model width, ``k`` head
width and ``p`` matrices stored side by side (then ``p`` comes first and ``pick`` chooses one). If
one tensor holds more query than key heads, the axis ``s`` counts blocks of a head's width (slots),
comes first, and ``slots`` chooses a range of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from einops import EinopsError, rearrange
from torch import Tensor

from interp.errors import CheckpointError
from interp.weights.head_weights.rope import Rope

PartName = Literal[
    "W_Q",
    "W_K",
    "W_V",
    "W_O",
    "b_Q",
    "b_K",
    "b_V",
    "b_O",
    "norm_gain",
    "norm_bias",
    "out_gain",
    "q_gain",
    "k_gain",
    "sinks",
    "identity_a",
    "identity_b",
]


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of a model: layers, query heads, key/value heads, model width, head width.

    Raises:
        CheckpointError: if there are heads but their width is 0, as with more heads than
            ``d_model``.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int

    def __post_init__(self) -> None:
        if self.n_heads and not self.d_head:
            raise CheckpointError(
                f"{self.n_heads} heads do not fit into a width of {self.d_model}: the "
                "configuration is of another model"
            )

    @property
    def axes(self) -> dict[str, int]:
        """The lengths of the einops axes."""
        return {"h": self.n_heads, "g": self.n_kv_heads, "d": self.d_model, "k": self.d_head}


def at_layer(name: str, layer: int) -> str:
    """Replace ``{layer}`` in a tensor's name by the layer's number; other braces are kept."""
    return name.replace("{layer}", str(layer))


@dataclass(frozen=True)
class WeightPart:
    """A tensor's name (``{layer}`` stands for the layer's number) and how to arrange its axes.

    Args:
        name: the tensor's name: in a :class:`Layout` its whole name in the checkpoint, in a row of
            ``FAMILIES`` its name within the layer (what follows ``layers.0.`` in the row's mark).
        pattern: einops pattern; ``p`` leads the result if several matrices share the tensor.
        pick: which of the ``p`` matrices stored side by side to take.
        offset: a number added to every entry (1 for norms stored as 1 + w).
        factor: a number that every entry is multiplied by.
        slots: the range (start, stop) of the leading axis ``s`` to take.
        then: an einops pattern that is applied after ``pick`` and ``slots``; empty for none.
    """

    name: str
    pattern: str
    pick: int | None = None
    offset: float = 0.0
    factor: float = 1.0
    slots: tuple[int, int] | None = None
    then: str = ""

    def arrange(
        self, tensor: Tensor, axes: Mapping[str, int], trim: Mapping[str, int] | None = None
    ) -> Tensor:
        """Convert a checkpoint tensor to the standard axis order.

        The steps are, in this order: rearrange by ``pattern``, select by ``pick`` and ``slots``,
        rearrange by ``then``, trim, multiply by ``factor``, add ``offset``.

        Args:
            tensor: the tensor as it is stored.
            axes: axis name in ``pattern`` → length; names that the pattern lacks are ignored.
            trim: axis name → length to which that axis is cut. The names are matched with the
                axes on the right-hand side of ``pattern``, so it fits only parts without ``pick``
                and ``then``.

        Returns:
            The converted tensor.

        Raises:
            CheckpointError: if the tensor's shape does not fit the pattern.
        """
        used = set(re.findall(r"[a-z]+", self.pattern))
        lengths = {axis: n for axis, n in axes.items() if axis in used}
        try:
            arranged = rearrange(tensor, self.pattern, **lengths)
        except EinopsError as error:
            raise CheckpointError(
                f"{self.name!r} has shape {list(tensor.shape)}, which does not fit "
                f"{self.pattern!r} with {lengths}"
            ) from error
        last = self.slots[1] - 1 if self.slots is not None else self.pick
        if last is not None and last >= arranged.shape[0]:
            raise CheckpointError(
                f"{self.name!r} has {arranged.shape[0]} parts by {self.pattern!r}, so there is no "
                f"part {last}: parts are counted from 0"
            )
        picked = arranged if self.pick is None else arranged[self.pick]
        picked = picked if self.slots is None else picked[slice(*self.slots)]
        picked = rearrange(picked, self.then) if self.then else picked
        if trim:
            letters = self.pattern.split("->")[1].split()
            picked = picked[tuple(slice(trim.get(axis)) for axis in letters)]
        if self.factor != 1.0:
            picked = picked * self.factor
        return picked + self.offset if self.offset else picked


@dataclass(frozen=True)
class Tokens:
    """Where the embedding and the unembedding are stored; arranged, each is [vocab, d_model]."""

    embedding: WeightPart
    unembedding: WeightPart

    @classmethod
    def rows(cls, embedding: str, unembedding: str, *, tied: bool) -> Tokens:
        """Describe the token matrices of a model that stores one row per token.

        If ``tied``, the unembedding is the embedding's tensor.
        """
        pattern = "v d -> v d"
        return cls(
            WeightPart(embedding, pattern), WeightPart(embedding if tied else unembedding, pattern)
        )


@dataclass(frozen=True)
class Layout:
    """Everything that is needed to read the head factors of one checkpoint.

    Attributes:
        family: the architecture's name, for the reader.
        sizes: the model's sizes.
        parts: where each factor is stored; a part whose tensor is missing is not in the model.
        attention: the prefix of the names of an attention layer's tensors. Every tensor with it
            must be a part, or the checkpoint is refused: a bias or norm that is not read would
            silently change the circuit. Empty for no such check.
        norm: the norm before attention whose scale can be folded.
        rope: the rotary positions, if the model has them.
        tokens: where the token matrices are stored.
        trims: for each layer, the lengths to cut axes to, if tensors are padded to the largest
            layer.
        needed: the parts that every layer must have.
        notes: what a reader of the numbers should know about this architecture.
    """

    family: str
    sizes: HeadSizes
    parts: Mapping[PartName, WeightPart]
    attention: str = ""
    norm: Literal["LayerNorm", "RMSNorm"] | None = None
    rope: Rope | None = None
    tokens: Tokens | None = None
    trims: tuple[Mapping[str, int], ...] | None = None
    needed: tuple[PartName, ...] = ("W_Q", "W_K", "W_V", "W_O")
    notes: tuple[str, ...] = ()
