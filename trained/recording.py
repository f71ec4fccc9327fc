"""Record the kernels of a computation of fixed shapes, and replay it by calling them directly.

A training step of a small model is hundreds of operations of a few microseconds each, and choosing
them takes more time than their arithmetic: modules, hooks, the rules of ``vmap``, autograd's graph,
views. None of that depends on the numbers. So one call is recorded at the lowest level, where only
kernels are left, and the same kernels are called again:

    recorded     y_1 = k_1(x_1) … y_n = k_n(x_n)      inputs, outputs and kernels are noted
    replayed     k_1(x_1, out=y_1) … k_n(x_n, out=y_n)

with the same strides, and so with the same bits. Views are not made again, since they show the same
memory as before. Kernels whose inputs never change (masks, codes of positions) are not run again.
Outputs that are not needed at the same time share memory, as they did when they were freed.

Not for computations whose kernels or shapes depend on numbers (``item()``, boolean indices), that
draw random numbers or change the caller's tensors: for these :meth:`Recording.of` returns None. Nor
for large models, whose time is arithmetic, or for graphics cards, which have their own form of
this. Numbers that leave PyTorch on the way (``tolist``, NumPy) are not seen by the recording:
:class:`Repeated` compares a recording with the computation on other numbers before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_MOST_BYTES = 1 << 28
"""Largest memory in bytes of all outputs of a recorded step. Steps with larger outputs spend their
time on arithmetic, so that recording them saves little."""


@dataclass(frozen=True)
class _Call:
    """One call of a kernel, with its inputs and outputs.

    Attributes:
        kernel: The kernel.
        args: Its positional arguments.
        options: Its keyword arguments.
        given: The tensors among its arguments.
        made: The tensors that it returned.
    """

    kernel: Any
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    given: list[Tensor]
    made: list[Tensor]

    @property
    def mutates(self) -> bool:
        """Whether the call changes one of its inputs."""
        return bool(self.kernel._schema.is_mutable)

    @property
    def changed_memory(self) -> set[int]:
        """Addresses of the memory of those inputs that the call changes."""
        known = self.kernel._schema.arguments
        named = {one.name: one for one in known}
        pairs = [*zip(known, self.args, strict=False)]
        pairs += [(named[name], value) for name, value in self.options.items()]
        changed = [value for one, value in pairs if one.alias_info and one.alias_info.is_write]
        return set(map(_memory, _tensors(changed)))

    @property
    def is_new(self) -> bool:
        """Whether some output of the call shares memory with none of its inputs."""
        return not set(map(_memory, self.made)) <= set(map(_memory, self.given))

    @property
    def is_view(self) -> bool:
        """Whether the call changes no input and all its outputs, at least one, are views of its
        inputs."""
        return not self.mutates and bool(self.made) and not self.is_new


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record every kernel that is called; stop recording at the first that cannot be replayed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self._bytes, self._own, self.repeats = 0, set[int](), True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        made = func(*args, **options)
        if self.repeats:
            call = _Call(func, args, options, _tensors((args, options)), _tensors(made))
            self.calls.append(call)
            self.repeats = _repeats(call) and self._fits(call)
            if not self.repeats:
                self.calls.clear()
        return made

    def _fits(self, call: _Call) -> bool:
        """Return whether there is room for a call, and it does not change the caller's tensors."""
        if call.is_new:
            self._own |= set(map(_memory, call.made)) - set(map(_memory, call.given))
            self._bytes += sum(one.nbytes for one in call.made)
        return self._bytes <= _MOST_BYTES and call.changed_memory <= self._own


class Recording:
    """The kernels of a computation, which can be replayed on the present contents of its inputs."""

    def __init__(self, calls: Sequence[_Call], inputs: Sequence[Tensor], out: Sequence[Tensor]):
        again = list(_again(calls, inputs))
        moved = _shared_memory(again, {*map(_memory, inputs), *map(_memory, out)})
        self._out = tuple(out)
        self._calls = [_runner(call, moved) for call in again]

    @classmethod
    def of(
        cls, compute: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Recording | None]:
        """Run a computation once, and record it.

        Args:
            compute: A function that reads ``inputs`` and changes nothing that existed before.
            inputs: The tensors whose numbers differ from call to call; they keep their memory.

        Returns:
            The outputs, and the recording; None for the recording if the computation cannot be
            replayed.
        """
        with _Watch() as watch:
            out = [one.detach() for one in compute()]
        return out, cls(watch.calls, inputs, out) if watch.repeats else None

    def gives(self, wanted: Sequence[Tensor]) -> bool:
        """Return whether the recording, replayed on the present contents of its inputs, reproduces
        given outputs bit for bit.

        False if replaying it fails with a RuntimeError.

        Args:
            wanted: The outputs of the computation itself on the same inputs.
        """
        try:
            found = self()
        except RuntimeError:  # a kernel that wants gradients to be kept
            return False
        return all(map(_same_bits, found, wanted))

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, ...]:
        """Replay the computation; the same output tensors are written and returned at every
        call."""
        for call in self._calls:
            call()
        return self._out


class Repeated:
    """A computation that is recorded at its first call and compared with its recording at the
    second.

    If these agree, the recording is replayed from then on, else the computation itself is run.

    Attributes:
        inputs: The tensors whose numbers differ from call to call.
    """

    def __init__(self, compute: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        self.inputs, self._next = tuple(inputs), self._record
        self._compute = compute

    def __call__(self) -> Sequence[Tensor]:
        """Return the outputs of the computation on the present contents of its inputs."""
        return self._next()

    def _record(self) -> Sequence[Tensor]:
        found, recording = Recording.of(self._compute, self.inputs)
        self._next = self._compute if recording is None else partial(self._check, recording)
        return found

    def _check(self, recording: Recording) -> Sequence[Tensor]:
        wanted = self._compute()
        self._next = recording if recording.gives(wanted) else self._compute
        return wanted


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, the same for all its views."""
    return int(tensor.untyped_storage().data_ptr())


def _same_bits(one: Tensor, other: Tensor) -> bool:
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _plain(leaf: Any) -> bool:
    """Return whether an argument is no tensor, or one whose numbers lie in memory as they are: not
    on a graphics card, not sparse, not complex or marked as negated."""
    if not isinstance(leaf, Tensor):
        return not isinstance(leaf, torch.UntypedStorage | torch.TypedStorage)
    dense = leaf.is_cpu and leaf.layout is torch.strided and not leaf.is_quantized
    return dense and not (leaf.is_complex() or leaf.is_neg() or leaf._is_zerotensor())


_NOT_AGAIN = (
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
    torch.Tag.inplace_view,
)
"""PyTorch tags of kernels that cannot be replayed: they return numbers to Python, draw random
numbers, or change the shape of a tensor in place."""


def _repeats(call: _Call) -> bool:
    """Return whether a call can be replayed: neither its shapes nor later calls depend on its
    numbers, and it reads and writes only plain memory."""
    tags = call.kernel.tags
    told = bool(call.given) and not call.made and not call.mutates
    if told or any(tag in tags for tag in _NOT_AGAIN):
        return False
    if not all(map(_plain, (*tree_leaves((call.args, call.options)), *call.made))):
        return False
    masks = any(one.dtype in (torch.bool, torch.uint8) for one in call.given[1:])
    known = call.kernel is torch.ops.aten.index.Tensor and not masks
    return known or torch.Tag.dynamic_output_shape not in tags


def _again(calls: Sequence[_Call], inputs: Sequence[Tensor]) -> Iterator[_Call]:
    """Yield the calls whose outputs may differ next time."""
    written = set[int]().union(*(call.changed_memory for call in calls))
    changing = {*map(_memory, inputs)}
    for call in calls:
        made = set(map(_memory, call.made))
        reads = changing & set(map(_memory, call.given))
        if call.mutates or (not call.is_view and (reads or written & made)):
            changing |= made | call.changed_memory
            yield call


def _shared_memory(calls: Sequence[_Call], kept: set[int]) -> Callable[[Any], Any]:
    """Give outputs that are not needed at the same time the same memory.

    Returns:
        A function from a tensor to its view in its new memory; other objects are returned as they
        are.
    """
    last: dict[int, int] = {}
    for number, call in enumerate(calls):
        last |= dict.fromkeys(map(_memory, (*call.made, *call.given)), number)
    free: list[torch.UntypedStorage] = []
    place: dict[int, torch.UntypedStorage] = {}
    seen = set(kept)
    for number, call in enumerate(calls):
        seen |= set(map(_memory, call.given))
        for one in call.made:
            memory, size = _memory(one), one.untyped_storage().nbytes()
            if memory not in seen:  # it is made here
                seen.add(memory)
                fits = [there for there in free if there.nbytes() >= size]
                new = torch.empty(0 if fits else size, dtype=torch.uint8).untyped_storage()
                place[memory] = min(fits, key=len, default=new)
                free = [there for there in free if there is not place[memory]]
        done = set(map(_memory, (*call.made, *call.given)))
        free += [place[one] for one in done if last[one] == number and one in place]

    def move_tensor(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        there = place.get(_memory(one))
        if there is None:
            return one.detach()
        empty = torch.empty(0, dtype=one.dtype)
        return empty.set_(there, one.storage_offset(), one.size(), one.stride())

    return move_tensor


def _runner(call: _Call, moved: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a function that replays a call on the tensors' new memory and writes its outputs
    there."""
    args, options = tree_map(moved, call.args), tree_map(moved, dict(call.options))
    if call.mutates and not call.is_new:
        return partial(call.kernel, *args, **options)
    made, (form, names) = [moved(one) for one in call.made], _out_form(call.kernel)
    if not call.mutates and len(names) == len(made):  # outputs not asked for are None
        return partial(form, *args, **options, **dict(zip(names, made, strict=True)))

    def copy_outputs() -> None:
        for there, value in zip(made, _tensors(call.kernel(*args, **options)), strict=True):
            there.copy_(value)

    return copy_outputs


@cache
def _out_form(kernel: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the variant of a kernel that writes into given tensors, and the names of these
    arguments; None if there is none."""
    space, _, name = kernel._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name)
    wanted = [(a.name, str(a.type)) for a in kernel._schema.arguments]
    for form in (getattr(packet, overload) for overload in packet.overloads()):
        arguments = form._schema.arguments
        names = tuple(a.name for a in arguments if a.is_out and str(a.type) == "Tensor")
        if names and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted:
            return form, names
    return None, ()
