"""Find out which hooks a model fires, and run it only as far as the last hook that is wanted.

First, a *survey* runs one or two rows through the whole model and records for each wanted hook its
tensor's shape and dtype, the order of firing, the other hook names that fire the same memory, and
whether the model later overwrites that memory in place (then it must be copied). After that, every
batch is stopped by an exception that is raised inside the last wanted hook, so that neither later
blocks nor the unembedding are computed.

A hook that fires twice in a forward pass, fires no tensor, or fires a tensor without one entry per
row is refused. TransformerLens' own cache keeps the last value in such cases, or drops it, without
a warning. That hooks carry what their names say is not checked here: see
``interp.hooks.conformance``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.errors import HookError, Problems, StoreError
from interp.hooks.hook_names import axis_labels, is_standard
from interp.hooks.limits import need_hooks, need_within

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel

Hooked = Callable[[str, Any], None]


class _LastHookFired(BaseException):
    """Ends a forward pass early; not an ``Exception``, so that no model's code can catch it."""


@dataclass(frozen=True)
class Firing:
    """The tensor that one hook fires in a forward pass.

    Attributes:
        name: The canonical name, under which the tensor is stored.
        shape: The tensor's shape ``[row, …]`` on the surveyed rows.
        dtype: The tensor's torch dtype as text, such as ``float32``.
        labels: The names of the tensor's axes.
        rewritten: Whether the model changes the tensor in place after the hook has fired.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    labels: tuple[str, ...]
    rewritten: bool


@dataclass(frozen=True)
class Survey:
    """The wanted hooks in the order in which they fire, and their other names.

    Attributes:
        hooks: One entry per distinct tensor.
        aliases: Other name of a hook → canonical name.
        silent: Hooks that did not fire, if the glob ``*`` asked for all hooks.
    """

    hooks: tuple[Firing, ...]
    aliases: dict[str, str]
    silent: tuple[str, ...] = ()


def match_hooks(model: HookedModel, patterns: Sequence[str]) -> tuple[list[str], bool]:
    """Return the hook names that match globs, and whether the glob ``*`` is among them.

    A pattern that starts with ``!`` takes names out again.

    Raises:
        HookError: naming every pattern that matches nothing.
    """
    known = list(model.hook_dict)
    asked = [p for p in patterns if not p.startswith("!")]
    dropped = [p[1:] for p in patterns if p.startswith("!")]
    lost = [p for p in asked + dropped if not any(fnmatchcase(name, p) for name in known)]
    if lost or not asked:
        what = ", ".join(map(repr, lost)) or "nothing"
        near = [name for p in lost for name in get_close_matches(p, known, 2)]
        raise HookError(
            f"hooks: {what} matches none of the model's {len(known)} hooks"
            f" (such as {', '.join(near or known[:4])}): give names or globs of hooks it has"
        )
    names = [
        name
        for name in known
        if any(fnmatchcase(name, p) for p in asked)
        and not any(fnmatchcase(name, p) for p in dropped)
    ]
    if not names:
        raise HookError(f"hooks: {' '.join(patterns)} leaves no hook: drop a pattern with '!'")
    return names, "*" in asked


def model_device(model: Any) -> torch.device:
    """Return the device of the model's parameters; raise :exc:`ArgumentError` if it has no
    hooks."""
    need_hooks(model)
    first = next(iter(model.parameters()), None)
    return torch.device("cpu") if first is None else first.device


def arguments_of(model: Any, inputs: Any) -> tuple[Any, ...]:
    """Return ``inputs``, one or a tuple, as a tuple of arguments with tensors on the model's
    device."""
    device = model_device(model)
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(one.to(device) if isinstance(one, torch.Tensor) else one for one in given)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put the model in evaluation mode without gradients, and restore its mode afterwards."""
    was_training = bool(getattr(model, "training", False))
    if was_training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_training:
            model.train()


@contextmanager
def attach_function(model: HookedModel, names: Iterable[str], function: Hooked) -> Iterator[None]:
    """Call ``function(name, tensor)`` whenever one of the named hooks fires, inside the ``with``.

    If several names are aliases of one hook point, the function is attached to it only once, under
    the first of these names. The function's result is ignored.
    """
    handles, seen, points = [], set(), model.hook_dict
    try:
        for name in names:
            point = points[name]
            if id(point) not in seen:
                seen.add(id(point))
                handles.append((point, point.add_hook(_calling(function, name))))
        yield
    finally:
        for point, handle in handles:
            handle.hook.remove()
            point.fwd_hooks.remove(handle)


def _calling(function: Hooked, name: str) -> Callable[..., None]:
    def hook_function(tensor: Any, hook: Any) -> None:
        function(name, tensor)

    return hook_function


def _run(model: Any, inputs: Tensor) -> Any:
    parameters = inspect.signature(model.forward).parameters
    return model(inputs, return_type=None) if "return_type" in parameters else model(inputs)


def survey(model: HookedModel, inputs: Tensor, patterns: Sequence[str]) -> Survey:
    """Run ``inputs`` (a row or two) and record what each wanted hook fires.

    Raises:
        HookError: if a pattern matches nothing, or a wanted hook does not fire, fires more than
            once, or fires something that is not one tensor entry per row.
        ArgumentError: if the rows have more positions than the model, or ids outside its
            vocabulary.
        StoreError: if the model raises an error on the rows.
    """
    problems = Problems("rows")
    need_within(problems, model, inputs)
    problems.raise_if_any()
    wanted, whatever_fires = match_hooks(model, patterns)
    points = {name: id(point) for name, point in model.hook_dict.items()}
    fired = _watch(model, inputs, points, wanted)
    silent = [n for n in wanted if points[n] not in fired]
    if silent and not whatever_fires:
        raise HookError(
            f"hooks: the model does not fire {_some(silent)}: leave them out (with '!GLOB'),"
            " or switch them on in the model (such as model.set_use_attn_result(True))"
        )
    _refuse_unusable(fired, len(inputs))
    found = _distinct(model, points, [n for n in wanted if n not in silent], fired, inputs)
    return replace(found, silent=tuple(silent))


def _some(names: Sequence[str]) -> str:
    rest = len(names) - 6
    return ", ".join(names[:6]) + (f" and {rest} more" if rest > 0 else "")


@dataclass
class _FiredHook:
    name: str
    values: Any
    order: int
    version: int
    times: int = 1
    echoes: list[str] = field(default_factory=list)


def _watch(
    model: HookedModel, inputs: Tensor, points: Mapping[str, int], wanted: Iterable[str]
) -> dict[int, _FiredHook]:
    asked = {points[name] for name in wanted}
    fired: dict[int, _FiredHook] = {}

    def see(name: str, values: Any) -> None:
        point = points[name]
        version = values._version if isinstance(values, Tensor) else 0
        if point in fired:
            fired[point].times += 1
        elif point in asked:
            fired[point] = _FiredHook(name, values, len(fired), version)
        elif isinstance(values, Tensor):
            for seen in fired.values():
                if _same_memory(seen, values):
                    seen.echoes.append(name)

    with evaluating(model), attach_function(model, points, see):
        try:
            _run(model, inputs)
        except Exception as error:
            raise StoreError(
                f"the model fails on rows of shape {list(inputs.shape[1:])} {inputs.dtype}: {error}"
            ) from error
    return fired


def _refuse_unusable(fired: Mapping[int, _FiredHook], rows: int) -> None:
    for seen in fired.values():
        if not isinstance(seen.values, Tensor):
            kind = type(seen.values).__name__
            raise HookError(f"hooks: {seen.name} fires a {kind}, not a tensor: leave it out")
        if seen.times > 1:
            raise HookError(
                f"hooks: {seen.name} fires {seen.times} times in a forward pass: which is meant "
                "is not clear, leave it out"
            )
        if seen.values.ndim == 0 or len(seen.values) != rows:
            raise HookError(
                f"hooks: {seen.name} fires shape {list(seen.values.shape)} for {rows} rows, not "
                "one entry per row: leave it out"
            )


def _memory(values: Tensor) -> tuple[Any, ...]:
    return (values.data_ptr(), values.shape, values.stride(), values.dtype)


def _same_memory(seen: _FiredHook, values: Tensor) -> bool:
    return (
        isinstance(seen.values, Tensor)
        and seen.version == values._version
        and _memory(seen.values) == _memory(values)
    )


def _distinct(
    model: HookedModel,
    points: Mapping[str, int],
    wanted: Sequence[str],
    fired: Mapping[int, _FiredHook],
    inputs: Tensor,
) -> Survey:
    named: dict[int, list[str]] = {}
    for name, point in points.items():
        named.setdefault(point, []).append(name)
    groups: dict[tuple[Any, ...], list[tuple[_FiredHook, str]]] = {}
    for name in wanted:
        seen = fired[points[name]]
        groups.setdefault((*_memory(seen.values), seen.version), []).append((seen, name))
    found: list[tuple[int, Firing]] = []
    aliases: dict[str, str] = {}
    for group in groups.values():
        group.sort(key=lambda entry: (not is_standard(entry[1]), entry[0].order, entry[1]))
        seen, name = group[0]
        found.append((seen.order, _firing(model, name, seen, inputs)))
        same = {other for _, member in group for other in named[points[member]]}
        same |= {echo for member, _ in group for echo in member.echoes}
        aliases |= dict.fromkeys(sorted(same - {name}), name)
    found.sort(key=lambda entry: entry[0])
    return Survey(tuple(firing for _, firing in found), aliases)


def _firing(model: HookedModel, name: str, seen: _FiredHook, inputs: Tensor) -> Firing:
    shape = tuple(seen.values.shape)
    labels = axis_labels(
        name,
        shape,
        length=inputs.shape[1] if inputs.ndim > 1 else None,
        n_heads=getattr(model.cfg, "n_heads", None),
        pos_axis=getattr(model.hook_dict[name], "pos_dim", None),
    )
    kind = str(seen.values.dtype).removeprefix("torch.")
    return Firing(name, shape, kind, labels, seen.values._version != seen.version)


class Capture:
    """Runs a model up to its last wanted hook and returns what the wanted hooks fired.

    Use as a context manager: the hooks are attached once.

    Args:
        model: The model to run.
        hooks: The wanted hooks, in the order in which they fire.
    """

    def __init__(self, model: HookedModel, hooks: Sequence[Firing]) -> None:
        self._model = model
        self._copied = {h.name for h in hooks if h.rewritten}
        self._names = [h.name for h in hooks]
        self._caught: dict[str, Tensor] = {}

    def _catch(self, name: str, values: Tensor) -> None:
        self._caught[name] = values.clone() if name in self._copied else values
        if name == self._names[-1]:
            raise _LastHookFired

    @contextmanager
    def running(self) -> Iterator[Callable[[Tensor], dict[str, Tensor]]]:
        """Give a function that runs the model on inputs and returns ``{hook name: tensor}``."""
        with evaluating(self._model), attach_function(self._model, self._names, self._catch):
            yield self._forward

    def _forward(self, inputs: Tensor) -> dict[str, Tensor]:
        self._caught = {}
        with torch.no_grad(), suppress(_LastHookFired):  # gradients are a thread's own setting
            _run(self._model, inputs)
        missing = [name for name in self._names if name not in self._caught]
        if missing:
            raise HookError(f"hooks: the model did not fire {_some(missing)} for a batch")
        caught, self._caught = self._caught, {}
        return caught
