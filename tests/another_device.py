"""A pretended device: tensors that say they are on a GPU, and refuse what tensors of one refuse.

CI has no GPU. What goes wrong on one is nearly always the same: a tensor of the model meets one
that stayed in the host's memory, or is asked for as an array. Both can be refused without a device.
:class:`Pretended` is a tensor on ``cuda:0`` by its own account, whose numbers are in the host's
memory; within :class:`PretendedDevice` a factory with ``device=`` makes such tensors. Kernels that
a real device lacks, and its rounding, are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode

__all__ = ["DEVICE", "Pretended", "PretendedDevice", "move_model"]

DEVICE = torch.device("cuda", 0)

_ACROSS = ("to", "copy_", "type_as", "__setitem__", "__deepcopy__")
"""What may read from one device and write to another."""

_ARRAYS = ("numpy", "__array__")


def _answer(
    _: Any,
    func: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """What PyTorch asks of a class of tensors, and of a mode."""
    return call(func, args, dict(kwargs or {}))


class Pretended(Tensor):
    """A tensor that says it is on :data:`DEVICE`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    __torch_function__ = classmethod(_answer)


class PretendedDevice(TorchFunctionMode):
    """Within it, ``device="cuda"`` makes tensors of the pretended device; modules move there."""

    def __enter__(self) -> PretendedDevice:
        nn.Module.to = _module_to  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *about: Any) -> None:
        nn.Module.to = _moves  # type: ignore[method-assign]
        super().__exit__(*about)  # type: ignore[no-untyped-call]

    __torch_function__ = _answer


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function gives, on the device on which it would be.

    Raises:
        RuntimeError: if tensors of two devices meet.
        TypeError: if a tensor of the device is asked for as an array.
    """
    name = getattr(func, "__name__", "")
    here = args[0] if args and isinstance(args[0], Tensor) else None
    if name == "__get__" and here is not None:
        return _attribute(func, here)
    if name in _ARRAYS and isinstance(here, Pretended):
        raise TypeError("a tensor of the pretended device is no array: copy it to the host first")
    target = _target(name, args, kwargs)
    _check_devices(func, args, kwargs)
    plain = [_plain(one) for one in args], {key: _plain(one) for key, one in kwargs.items()}
    with torch._C.DisableTorchFunction():
        out = func(*plain[0], **plain[1])
    if name.endswith("_") and not name.endswith("__") and here is not None and out is not None:
        return here
    there = any(isinstance(one, Pretended) for one in _tensors((args, kwargs)))
    if target is not None:
        there = target.type == DEVICE.type
    return _place_output(out, there)


def move_model(model: Any, kind: type[Tensor] = Pretended) -> Any:
    """The model with its parameters and buffers on the pretended device (or, for plain tensors, on
    the host), in place."""
    for module in model.modules():
        for name, one in list(module._parameters.items()):
            if one is not None:
                there = one.detach().as_subclass(kind)
                module._parameters[name] = nn.Parameter(there, requires_grad=one.requires_grad)
        for name, held in list(module._buffers.items()):
            if held is not None:
                module._buffers[name] = held.as_subclass(kind)
        for name, held in list(vars(module).items()):
            if isinstance(held, Tensor):
                vars(module)[name] = held.detach().as_subclass(kind)
    if hasattr(model, "cfg"):
        model.cfg.device = str(DEVICE) if kind is Pretended else "cpu"
    return model


_moves = nn.Module.to


def _module_to(module: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """``Module.to``, with the pretended device among the devices."""
    devices = [one for one in (*args, *options.values()) if isinstance(one, str | torch.device)]
    rest = [one for one in (*args, *options.values()) if isinstance(one, torch.dtype)]
    module = _moves(module, rest[0]) if rest else module
    for one in devices:
        module = move_model(module, Pretended if torch.device(one).type == DEVICE.type else Tensor)
    return module


def _attribute(func: Callable[..., Any], here: Tensor) -> Any:
    about = getattr(getattr(func, "__self__", None), "__name__", "")
    if isinstance(here, Pretended) and about in ("device", "is_cuda", "is_cpu"):
        return {"device": DEVICE, "is_cuda": True, "is_cpu": False}[about]
    with torch._C.DisableTorchFunction():
        out = func(here)
    if about in ("grad", "_grad", "data", "T", "mT", "H", "real", "imag"):
        return _place_output(out, isinstance(here, Pretended))
    return out


def _target(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that the call asks for, which is then taken from what it was given."""
    if name == "cpu":
        return torch.device("cpu")
    asked = kwargs.get("device")
    if name == "to" and len(args) > 1 and isinstance(args[1], Tensor | str | torch.device):
        asked = args[1].device if isinstance(args[1], Tensor) else args[1]
    return None if asked is None else torch.device(asked)


def _check_devices(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = getattr(func, "__name__", "")
    if name in _ACROSS:
        return
    met = [one for one in _tensors((args, kwargs)) if one.ndim]
    if name in ("__getitem__", "index") and isinstance(met[0] if met else None, Pretended):
        return  # a tensor of the device may be indexed by one of the host
    if any(is_batchedtensor(one) for one in met):
        return  # vmap hides where its tensors are
    if len({isinstance(one, Pretended) for one in met}) == 2:
        raise RuntimeError(f"{name}: tensors of the pretended device and of the host meet")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)


def _plain(value: Any) -> Any:
    """The value as the host holds it."""
    if isinstance(value, torch.device) and value.type == DEVICE.type:
        return torch.device("cpu")
    if isinstance(value, str) and value.startswith(DEVICE.type):
        return "cpu"
    return value


def _place_output(out: Any, there: bool) -> Any:
    if isinstance(out, Tensor):
        kind = Pretended if there else Tensor
        if isinstance(out, nn.Parameter) or type(out) is kind:
            return out
        with torch._C.DisableTorchFunction():
            return out.as_subclass(kind)
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return type(out)(*(_place_output(one, there) for one in out))
    if type(out) in (tuple, list):
        return type(out)(_place_output(one, there) for one in out)
    if type(out).__module__ == "torch.return_types":
        return type(out)([_place_output(one, there) for one in out])
    return out
