"""A change at a site, as a value: it prints as a sentence, compares, hashes, and can be written to
a table and read back.

    Mean, Zero        put the mean over the run's rows, position by position; put zero
    Resample, Swap    put the value of another row, drawn at random or named, of the same inputs or
                      of others
    DropKeys          take attention away from some keys and give it to the query's other keys
    KeepKeys          restrict attention to some keys, at queries that have such keys
    Replace, Add      put given values (a pattern, or what a program computes); add a direction
    Through           let one receiver alone see what another edit changes: a path
    Lookup            put what a table gives for numbers that are read linearly from another site of
                      the same layer

Before anything is changed, each edit asks the run for the clean values that it needs (``fetch``).
Then it computes the values that replace its site's own (``instead``). A tuple of edits is made
together, in one run. It is the user's choice whether the replaced values stay in the model's
distribution: the model may never see a mean or a zero; another row's value is one that it does see.
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
from interp.hooks.site import STREAM, Site, stream_site

_NOTHING = 1e-6
"""If the keys that are left have no more than this share of a query's attention, the attention that
is taken away is spread evenly over them. Otherwise they keep their proportions."""


@dataclass(frozen=True, eq=False)
class Array:
    """A read-only tensor that is compared and hashed by its content and can be written to JSON.

    Attributes:
        tensor: A copy of the given tensor, on the CPU. It must not be written into.
        name: A description of the content. It is not compared.
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
        """The SHA-256, in hexadecimal, of the tensor's dtype, shape and numbers."""
        about = f"{self.tensor.dtype}{tuple(self.tensor.shape)}".encode()
        return hashlib.sha256(about + self._bytes).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return self.name or f"values {self.digest[:8]}"

    def rows(self, rows: Tensor) -> Tensor:
        """Return the entries ``rows`` of the first axis; all of it if its length is 1."""
        return self.tensor if len(self.tensor) == 1 else self.tensor[rows]

    def to_json(self) -> dict[str, Any]:
        """Return JSON data with the name, dtype, shape and compressed numbers."""
        data = base64.b64encode(zlib.compress(self._bytes, 9)).decode()
        kind = str(self.tensor.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": kind, "shape": [*self.tensor.shape], "data": data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Array:
        """Return the array that :meth:`to_json` encoded as ``data``."""
        kind = getattr(torch, data["dtype"])
        numbers = bytearray(zlib.decompress(base64.b64decode(data["data"])))
        flat = torch.frombuffer(numbers, dtype=kind) if numbers else torch.empty(0, dtype=kind)
        return cls(flat.reshape(data["shape"]), data["name"])


@runtime_checkable
class Known(Protocol):
    """The part of a run that edits may use: clean values of rows, on the model's device.

    Attributes:
        causal: Whether attention is causal.
    """

    causal: bool

    def mean(self, site: Site, inputs: Array | None = None) -> Tensor:
        """Return the mean over the run's rows, or over the rows of ``inputs``: ``[1, …]``."""

    def clean_values(self, site: Site, rows: Tensor, inputs: Array | None = None) -> Tensor:
        """Return unedited values at a site on some of the run's rows, or on those of ``inputs``."""

    def write_difference(self, edit: Edit, rows: Tensor) -> Tensor:
        """Return the edit's change of what the edited part writes to the residual stream."""

    def __len__(self) -> int:
        """Return the number of rows."""


Fetched = Any


@dataclass(frozen=True)
class Edit:
    """A change of the activation at one site.

    Attributes:
        site: Where the activation is changed.
        at: The position at which the site is changed (a query position, for attention): one for all
            rows, or a tuple with one per row of the run. None, the default, changes all positions.
    """

    site: Site
    at: int | tuple[int, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        good, rule = isinstance(self.site, Site), "must be a Site"
        refuse_unless(good, "site", rule, self.site, "such as Site(1, 'z', head=0)")

    def fetch(self, known: Known, rows: Tensor) -> Fetched:
        """Return what :meth:`instead` needs for some rows of the run; None if it needs nothing."""
        return None

    def instead(self, own: Tensor, fetched: Fetched) -> Tensor:
        """Return the values that replace the site's own values ``own``, ``[row, …]``.

        By default these are ``fetched``, the result of :meth:`fetch`.
        """
        return fetched

    @property
    def read(self) -> Site | None:
        """An earlier site of the same layer whose value in the edited run is passed to
        :meth:`instead`.

        None, the default, means that :meth:`instead` gets what :meth:`fetch` returned.
        """
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
        """Return the site's values after the edit; positions other than ``at`` keep their own
        values.

        Args:
            own: The site's values on ``rows`` (one head's, if the site names a head).
            fetched: What :meth:`fetch` gave for these rows.
            rows: Indices of these rows in the run.
        """
        new = self.instead(own, fetched).to(own).expand_as(own)
        if self.at is None:
            return new
        return _at_positions(own, new, self.at, rows, self.site.position_axis)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data that :meth:`Edit.from_json` reads."""
        return {"edit": type(self).__name__} | {
            one.name: _encode_value(getattr(self, one.name)) for one in fields(self)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Edit:
        """Return the edit that :meth:`to_json` encoded as ``data``.

        Raises:
            ArgumentError: if the data names no known kind of edit.
        """
        kinds = {kind.__name__: kind for kind in Edit.__subclasses__()}
        problems, name = Problems("Edit.from_json"), data.get("edit")
        rule = f"must be one of {', '.join(sorted(kinds))}"
        problems.need(name in kinds, "edit", rule, name, "correct it")
        problems.raise_if_any()
        return kinds[str(name)](**{k: _decode_value(v) for k, v in data.items() if k != "edit"})


Edits = tuple[Edit, ...]
"""Edits that are made in the same forward pass."""


@dataclass(frozen=True)
class Mean(Edit):
    """Replaces the value at the site by its mean over rows, position by position.

    Attributes:
        level: Whether to average over positions as well.
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
    """Replaces the value at the site by its value on another row. The rows are permuted along a
    random cycle, so no row keeps its own value.

    Attributes:
        seed: Seed of the random cycle.
        inputs: The inputs that provide the values; the run's own by default. If they have fewer
            rows than the run, their rows are used more than once.
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
    """Takes a head's attention away from some keys. It goes to the other keys that the query may
    see, in proportion to their attention (evenly, if they had almost none). A query that may see no
    other key keeps its pattern.

    Attributes:
        keys: Boolean mask ``[row or 1, query, key]``, true for the keys that lose their attention.
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
    """Restricts a head's attention to some keys, in proportion to their own attention. A query that
    may see none of these keys keeps its pattern.

    Attributes:
        keys: Boolean mask ``[row or 1, query, key]``, true for the keys that keep their attention.
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
    """Replaces the value at the site by given numbers, such as an attention pattern or a program's
    output.

    Attributes:
        values: The new values, ``[row or 1, …]``, in the shape of the site's values (one head's, if
            the site names a head).
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
        direction: The direction, ``[row or 1, pos or 1, …]``.
        times: The factor by which the direction is multiplied.
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


_BEFORE = {"mlp_in": STREAM[:3], "resid_post": STREAM}
"""Receiver → where a sender of its layer may write; for inputs of heads ``resid_pre`` alone."""


@dataclass(frozen=True)
class Through(Edit):
    """Path patching: applies another edit, the sender, but lets only this edit's site, the
    receiver, see how the sender changes the residual stream. Everything between the two keeps its
    clean value.

    Attributes:
        site: The receiver: ``q_input``, ``k_input`` or ``v_input`` of a head, ``mlp_in`` of a
            layer, or ``resid_post`` of the last layer.
        sender: An edit of a head, an FFN or the residual stream that comes before the receiver. The
            receiver sees how it changes what is read at the :func:`~interp.hooks.site.stream_site`
            of its site.

    Raises:
        ArgumentError: if the sender is at another place, or does not come before the receiver.
    """

    sender: Edit

    def __post_init__(self) -> None:
        problems, where = Problems("Through"), self.sender.site
        written = stream_site(where)
        rule = "must be at a head, an FFN or the residual stream of a layer"
        advice = "take z, pattern, mlp_out or resid_pre"
        problems.need(written is not None, "sender", rule, str(where), advice)
        problems.raise_if_any()
        earlier = _BEFORE.get(self.site.kind, ("resid_pre",))
        same = where.layer == self.site.layer and written is not None and written.kind in earlier
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
    """Replaces the value at the site by an entry of a table. The table is indexed by numbers that a
    linear map reads from another site of the same layer, as it is in the edited run. Between two
    entries the value is interpolated linearly in every number; beyond the table's ends its last
    entry holds. A linear map of the values that are read may be added.

    Attributes:
        reads: The site that the numbers are read from, with values ``[row, pos, d]``.
        weights: The linear map ``[d + 1, number]``; its last row is the bias.
        knots: ``[number, knot]``: the values of each number at which the table has entries,
            ascending and evenly spaced; NaN at the end where a number has fewer than others.
        entries: The table ``[entry, d_site]``, one entry for each combination of knots; the last
            number's knots vary fastest. Without a number it has one entry.
        linear: ``[d, d_site]``: the linear map that is added; by default none is.
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
        """Return the interpolation weight of each table entry, ``[…, entry]``, for values
        ``stream`` ``[…, d]`` of the site that is read."""
        weights, knots = self.weights.tensor.to(stream), self.knots.tensor.to(stream)
        numbers = stream @ weights[:-1] + weights[-1]
        step = (knots[:, 1] - knots[:, 0]).clamp_min(torch.finfo(stream.dtype).tiny)
        found = torch.ones_like(numbers[..., :1])
        for at, number in enumerate(numbers.unbind(-1)):
            own = knots[at][knots[at].isfinite()]
            inside = number.clamp(own[0], own[-1])
            near = (1 - (inside[..., None] - own).abs() / step[at]).clamp_min(0)
            found = (found[..., :, None] * near[..., None, :]).flatten(-2)
        return found

    def instead(self, own: Tensor, fetched: Tensor) -> Tensor:  # noqa: D102
        stream = fetched.to(own)
        found = self.entry_weights(stream) @ self.entries.tensor.to(own)
        return found if self.linear is None else found + stream @ self.linear.tensor.to(own)


def as_edits(edits: Edit | tuple[Edit, ...] | list[Edit]) -> Edits:
    """Return one edit, or several that are made together, as a tuple."""
    return (edits,) if isinstance(edits, Edit) else tuple(edits)


def sentence(edits: Edits) -> str:
    """Return a sentence that says what the edits change."""
    return "; ".join(map(str, edits)) or "nothing is changed"


def _of(inputs: Array | None) -> str:
    return "" if inputs is None else f" of {inputs}"


def _without(own: Tensor, keys: Tensor, *, causal: bool) -> Tensor:
    """Return attention ``[row, (head,) query, key]`` moved from ``keys`` to the other keys."""
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
    """Return ``new`` at the position ``at`` (one, or one per row), ``own`` elsewhere."""
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
