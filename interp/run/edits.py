"""What is changed at a site, as a value: it prints as a sentence, compares, hashes, and goes into a
table and back.

    Mean, Zero        the mean over the run's rows, position by position; nothing
    Resample, Swap    what is there on another row, drawn or named, of these rows or of others
    DropKeys          attention is taken from some keys; the query's other keys get it
    KeepKeys          attention goes to some keys alone, at queries that have such keys
    Replace, Add      given values: a pattern, what a program says, a direction
    Through           one receiver alone sees what another edit changes: a path
    Lookup            what a table says of numbers that are read off the stream of the same layer

Each edit asks a run for what it needs (``fetch``) before anything is changed, and then says what
stands at its site instead of what is there (``instead``). Edits that are made together are a tuple.
Which values are kept from leaving the model's distribution is the user's choice: a mean or zero is
a value that the model may never see, another row's is one that it does.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from interp.errors import Problems, refuse_unless
from interp.hooks.site import Site

_NOTHING = 1e-6
"""A query whose other keys have less than this share of its attention spreads it evenly."""


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor that compares, hashes and is written by its content.

    Attributes:
        tensor: The numbers, on the CPU; they are not to be written into.
        name: What the array holds, in words; not compared.
    """

    tensor: Tensor
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensor", self.tensor.detach().cpu().contiguous().clone())

    @property
    def _bytes(self) -> bytes:
        flat = self.tensor.reshape(-1)
        whole = flat if flat.dtype in (torch.bool, torch.uint8) else flat.view(torch.uint8)
        return whole.numpy().tobytes()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of dtype, shape and numbers."""
        about = f"{self.tensor.dtype}{tuple(self.tensor.shape)}".encode()
        return hashlib.sha256(about + self._bytes).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return self.name or f"values {self.digest[:8]}"

    def rows(self, rows: Tensor) -> Tensor:
        """Some rows; the one row that there is for all, where there is one."""
        return self.tensor if len(self.tensor) == 1 else self.tensor[rows]

    def to_json(self) -> dict[str, Any]:
        """JSON data; the numbers are packed."""
        data = base64.b64encode(zlib.compress(self._bytes, 9)).decode()
        kind = str(self.tensor.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": kind, "shape": [*self.tensor.shape], "data": data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Array:
        """The array of :meth:`to_json`."""
        kind = getattr(torch, data["dtype"])
        numbers = bytearray(zlib.decompress(base64.b64decode(data["data"])))
        flat = torch.frombuffer(numbers, dtype=kind) if numbers else torch.empty(0, dtype=kind)
        return cls(flat.reshape(data["shape"]), data["name"])


@runtime_checkable
class Known(Protocol):
    """What an edit may ask of a run: clean values of rows, on the model's device."""

    causal: bool

    def mean(self, site: Site, inputs: Array | None = None) -> Tensor:
        """The mean over the run's rows, or over rows of other inputs, ``[1, …]``."""

    def clean_values(self, site: Site, rows: Tensor, inputs: Array | None = None) -> Tensor:
        """The values at a site on some of the run's rows, or on rows of other inputs."""

    def write_difference(self, edit: Edit, rows: Tensor) -> Tensor:
        """By how much an edit changes what its part writes to the stream."""

    def __len__(self) -> int:
        """The number of rows."""


Fetched = Any


@dataclass(frozen=True)
class Edit:
    """A change at a site.

    Attributes:
        site: Where.
        at: The positions that are changed (of queries, for attention): one for all rows, or one a
            row; everywhere by default.
    """

    site: Site
    at: int | tuple[int, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        good, rule = isinstance(self.site, Site), "must be a Site"
        refuse_unless(good, "site", rule, self.site, "such as Site(1, 'z', head=0)")

    def fetch(self, known: Known, rows: Tensor) -> Fetched:
        """What :meth:`instead` needs for some rows of the run, or None if it needs nothing."""
        return None

    def instead(self, own: Tensor, fetched: Fetched) -> Tensor:
        """The values that replace the site's own values ``own``, ``[row, …]``.

        By default these are ``fetched``, the result of :meth:`fetch`.
        """
        return fetched

    @property
    def read(self) -> Site | None:
        """The site of the same layer, in front of this one, whose changed value is fetched."""
        return None

    @property
    def act(self) -> str:
        """A phrase that says what the edit puts at the site, such as ``its mean over rows``.

        ``str(edit)`` prints it after the site's name.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        where = "" if self.at is None else f", at position {self.at}"
        where = ", at one position a row" if isinstance(self.at, tuple) else where
        return f"{self.site}: {self.act}{where}"

    def changed_values(self, own: Tensor, fetched: Fetched, rows: Tensor) -> Tensor:
        """The site's values with the change made.

        Args:
            own: The site's values on ``rows`` (one head's, where it names a head).
            fetched: What :meth:`fetch` gave for these rows.
            rows: Numbers of the rows.
        """
        new = self.instead(own, fetched).to(own).expand_as(own)
        if self.at is None:
            return new
        return _at_positions(own, new, self.at, rows, self.site.position_axis)

    def to_json(self) -> dict[str, Any]:
        """JSON data that :func:`Edit.from_json` reads."""
        return {"edit": type(self).__name__} | {
            one.name: _encode_value(getattr(self, one.name)) for one in fields(self)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Edit:
        """The edit of :meth:`to_json`.

        Raises:
            ArgumentError: for an edit that there is not.
        """
        kinds = {kind.__name__: kind for kind in Edit.__subclasses__()}
        problems, name = Problems("Edit.from_json"), data.get("edit")
        rule = f"must be one of {', '.join(sorted(kinds))}"
        problems.need(name in kinds, "edit", rule, name, "correct it")
        problems.raise_if_any()
        return kinds[str(name)](**{k: _decode_value(v) for k, v in data.items() if k != "edit"})


Edits = tuple[Edit, ...]
"""Edits that are made together."""


@dataclass(frozen=True)
class Mean(Edit):
    """Replaces the value at the site by its mean over rows, position by position.

    Attributes:
        level: Whether to take the mean over positions as well.
        inputs: The inputs whose rows are averaged; the run's own by default.
    """

    level: bool = False
    inputs: Array | None = None

    @property
    def act(self) -> str:  # noqa: D102
        over = "rows and positions" if self.level else "rows"
        return f"its mean over {over}{_of(self.inputs)}"

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        found = self.site.take(known.mean(self.site.every_head, self.inputs))
        return found.mean(self.site.position_axis, keepdim=True) if self.level else found


@dataclass(frozen=True)
class Zero(Edit):
    """Replaces the value at the site by zero."""

    @property
    def act(self) -> str:  # noqa: D102
        return "nothing"

    def instead(self, own: Tensor, fetched: Fetched) -> Tensor:  # noqa: D102
        return torch.zeros_like(own[:1])


@dataclass(frozen=True)
class Resample(Edit):
    """Replaces the value at the site by its value on another row. Rows exchange along a random
    cycle, so that no row keeps its own.

    Attributes:
        seed: Seed of the cycle.
        inputs: The inputs whose rows stand in; the run's own by default. Where they are fewer, they
            are used again.
    """

    seed: int = 0
    inputs: Array | None = None

    @property
    def act(self) -> str:  # noqa: D102
        return f"what it is on another row{_of(self.inputs)} (seed {self.seed})"

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        count = len(known) if self.inputs is None else len(self.inputs.tensor)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        others = order.roll(1)[order.argsort()][rows % count]
        return self.site.take(known.clean_values(self.site.every_head, others, self.inputs))


@dataclass(frozen=True)
class Swap(Edit):
    """Activation patching: replaces the value at the site by its clean value on another input row.

    Attributes:
        rows: For each row of the run, the index of the source row; by default the same index.
            Entries index ``inputs`` if given, otherwise the run's own rows.
        inputs: The source inputs, with rows of the same shape as the run's; by default the run's
            own inputs.
    """

    rows: tuple[int, ...] | None = None
    inputs: Array | None = None

    @property
    def act(self) -> str:  # noqa: D102
        which = "the same row" if self.rows is None else "another row"
        return f"what it is on {which} of {'these inputs' if self.inputs is None else self.inputs}"

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        others = rows if self.rows is None else torch.tensor(self.rows)[rows]
        return self.site.take(known.clean_values(self.site.every_head, others, self.inputs))


@dataclass(frozen=True)
class DropKeys(Edit):
    """Takes a head's attention away from some keys. The other keys that the query may see get it,
    in their proportions (evenly if there was nothing); a query that sees no other key is left.

    Attributes:
        keys: ``[#row, query, key]``, true for the keys that lose it.
    """

    keys: Array

    @property
    def act(self) -> str:  # noqa: D102
        return f"no attention to {self.keys}"

    def fetch(self, known: Known, rows: Tensor) -> tuple[Tensor, bool]:  # noqa: D102
        return self.keys.rows(rows), known.causal

    def instead(self, own: Tensor, fetched: tuple[Tensor, bool]) -> Tensor:  # noqa: D102
        return _without(own, fetched[0].to(own.device), causal=fetched[1])


@dataclass(frozen=True)
class KeepKeys(Edit):
    """Lets a head attend to some keys alone, in their proportions, at queries that have such keys.

    Attributes:
        keys: ``[#row, query, key]``, true for the keys that keep it.
    """

    keys: Array

    @property
    def act(self) -> str:  # noqa: D102
        return f"attention to {self.keys} alone"

    def fetch(self, known: Known, rows: Tensor) -> tuple[Tensor, bool]:  # noqa: D102
        return self.keys.rows(rows), known.causal

    def instead(self, own: Tensor, fetched: tuple[Tensor, bool]) -> Tensor:  # noqa: D102
        keys = fetched[0].to(own.device)
        return _without(own, ~keys & keys.any(-1, keepdim=True), causal=fetched[1])


@dataclass(frozen=True)
class Replace(Edit):
    """Replaces the value at the site by given numbers: a pattern, say, or what a program computes.

    Attributes:
        values: ``[#row, …]`` as the site's (one head's, where the site names a head).
    """

    values: Array

    @property
    def act(self) -> str:  # noqa: D102
        return str(self.values)

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        return self.values.rows(rows)


@dataclass(frozen=True)
class Add(Edit):
    """Adds a given direction to the value at the site.

    Attributes:
        direction: ``[#row, #pos, …]``.
        times: The factor that the direction is multiplied with.
    """

    direction: Array
    times: float = 1.0

    @property
    def act(self) -> str:  # noqa: D102
        return f"itself + {self.times:g} × {self.direction}"

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        return self.direction.rows(rows)

    def instead(self, own: Tensor, fetched: Tensor) -> Tensor:  # noqa: D102
        return own + self.times * fetched.to(own)


@dataclass(frozen=True)
class Through(Edit):
    """Lets the site alone see what another edit changes in what its own site writes; everything
    between stays as it was. The sites are inputs: ``q_input``, ``k_input``, ``v_input`` of a head,
    ``mlp_in`` of a layer, or ``resid_post`` of the last layer.

    Attributes:
        sender: The other edit: of a head, an FFN or the stream, in front of the site.
    """

    sender: Edit

    def __post_init__(self) -> None:
        problems, where = Problems("Through"), self.sender.site
        late = self.site.kind in ("mlp_in", "resid_post") or where.kind == "resid_pre"
        same = late and where.layer == self.site.layer
        same &= where.kind != "mlp_out" or self.site.kind == "resid_post"
        rule = f"must come before the receiver, {self.site}"
        before = where.layer < self.site.layer or same
        problems.need(before, "sender", rule, str(where), "take an earlier part")
        problems.raise_if_any()

    @property
    def act(self) -> str:  # noqa: D102
        return f"sees ({self.sender}) alone"

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        return known.write_difference(self.sender, rows)

    def instead(self, own: Tensor, fetched: Tensor) -> Tensor:  # noqa: D102
        return own + fetched.to(own)


@dataclass(frozen=True)
class Lookup(Edit):
    """Replaces the value at the site by what a table says of numbers that are read, by a linear
    map, off another site of its layer, as that is in the changed run. Between two entries of the
    table is what lies between them, in every number; beyond the last is the last. A linear map of
    what is read may be added.

    Attributes:
        reads: Where the numbers are read, with values ``[row, pos, d]``.
        weights: ``[d + 1, number]``: how each is read; the last row is what is added.
        knots: ``[number, knot]``: at which values of each number the table has entries, in order
            and evenly apart.
        entries: ``[knot ** numbers, d_site]``, the last number's knots closest together. Without a
            number the table has one entry.
        linear: ``[d, d_site]``: the linear map of the values at ``reads`` that is added to the
            table's entry; by default nothing is added.
    """

    reads: Site
    weights: Array
    knots: Array
    entries: Array
    linear: Array | None = None

    @property
    def read(self) -> Site:  # noqa: D102
        return self.reads

    @property
    def act(self) -> str:  # noqa: D102
        more = "" if self.linear is None else f", and a linear map of it ({self.linear})"
        return f"{self.entries} by what is read at {self.reads}{more}"

    def fetch(self, known: Known, rows: Tensor) -> Tensor:  # noqa: D102
        return known.clean_values(self.reads, rows)

    def entry_weights(self, stream: Tensor) -> Tensor:
        """How much each entry counts at some places, ``[…, entry]``, of the stream there."""
        weights, knots = self.weights.tensor.to(stream), self.knots.tensor.to(stream)
        numbers = stream @ weights[:-1] + weights[-1]
        step = (knots[:, 1] - knots[:, 0]).clamp_min(torch.finfo(stream.dtype).tiny)
        found = torch.ones_like(numbers[..., :1])
        for at, number in enumerate(numbers.unbind(-1)):
            inside = number.clamp(knots[at, 0], knots[at, -1])
            near = (1 - (inside[..., None] - knots[at]).abs() / step[at]).clamp_min(0)
            found = (found[..., :, None] * near[..., None, :]).flatten(-2)
        return found

    def instead(self, own: Tensor, fetched: Tensor) -> Tensor:  # noqa: D102
        stream = fetched.to(own)
        found = self.entry_weights(stream) @ self.entries.tensor.to(own)
        return found if self.linear is None else found + stream @ self.linear.tensor.to(own)


def as_edits(edits: Edit | tuple[Edit, ...] | list[Edit]) -> Edits:
    """One edit, or several that are made together, as a tuple."""
    return (edits,) if isinstance(edits, Edit) else tuple(edits)


def sentence(edits: Edits) -> str:
    """What is changed, in words."""
    return "; ".join(map(str, edits)) or "nothing is changed"


def _of(inputs: Array | None) -> str:
    return "" if inputs is None else f" of {inputs}"


def _without(own: Tensor, keys: Tensor, *, causal: bool) -> Tensor:
    """Attention ``[row, (head,) query, key]`` without some keys."""
    if own.ndim == 4:
        keys = keys[:, None]
    allowed = torch.ones(own.shape[-2:], dtype=torch.bool, device=own.device)
    rest = (allowed.tril() if causal else allowed) & ~keys
    total = own.sum(-1, keepdim=True)
    left = torch.where(rest, own, 0.0)
    share = left.sum(-1, keepdim=True)
    few = share <= _NOTHING * total
    even = rest.to(own.dtype) / rest.sum(-1, keepdim=True).clamp_min(1)
    moved = torch.where(few, even * total, left * (total / share.where(~few, 1.0)))
    return torch.where(rest.any(-1, keepdim=True), moved, own)


def _at_positions(
    own: Tensor, new: Tensor, at: int | tuple[int, ...], rows: Tensor, axis: int
) -> Tensor:
    """``new`` at one position (of each row), ``own`` at all others."""
    wanted = torch.tensor(at)[rows] if isinstance(at, tuple) else torch.full((len(rows),), at)
    shape = [1] * own.ndim
    shape[0], shape[axis] = len(rows), own.shape[axis]
    here = wanted[:, None] == torch.arange(own.shape[axis])
    return torch.where(here.reshape(shape).to(own.device), new, own)


def _encode_value(value: Any) -> Any:
    if isinstance(value, Site):
        return {"site": value.name, "head": value.head}
    if isinstance(value, Array | Edit):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _decode_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "site" in value and "edit" not in value:
            return Site.of(value["site"], value["head"])
        return Edit.from_json(value) if "edit" in value else Array.from_json(value)
    return tuple(value) if isinstance(value, list) else value
