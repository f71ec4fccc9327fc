"""Run the transformers layers under a bridge directly, without the bridge: two to three times as
fast.

A bridge wraps every module of a transformers model. Its twin is a model of the same class with the
same configuration, made without weights, whose parameters *are* the bridge's (it takes no memory).
The positions of the bridge's hooks are read from the bridge's own table of names, so no model
family is named here:

    hook of a submodule   a forward hook of torch on the twin's module of that name
    hook_z                the input of the output projection, split into heads
    hook_pattern          the family's own eager attention, called through transformers' registry of
                          attention functions; z is recomputed from an edited pattern

The twin's linear layers are computed by oneDNN instead of MKL. On an AMD EPYC that multiplies the
matrices of a language model twice as fast; on an Intel Xeon it takes 7 % longer. Sums are computed
in another order: the largest rounding error is 1e-6 of the largest output, two to three times
MKL's.

A twin is used if it gives the bridge's outputs and activations on two rows, both unedited and with
changes at each kind of site; otherwise the bridge itself is run. A twin does not call hooks that a
user has set on the bridge, so no twin is made for such a bridge. :func:`runners_of` lists the ways
in which a model can be run; they are found and checked once per model.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import HookError
from interp.hooks.capture import evaluating
from interp.hooks.site import Site
from interp.run.layers import Acts, HookedLayers, Layers, all_called, close

_NAME = "prooflens"
_WRAPPED = "._original_component"
_STREAM = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
_CHECKED = 64
"""Number of positions, from the start of two rows, on which it is checked that a replay gives the
full pass's output."""

_MODELS = 2
"""Number of models whose runners are cached. A runner holds its model in memory."""
_KNOWN: dict[Any, tuple[Any, list[Layers]]] = {}


def runners_of(model: Any, inputs: Tensor) -> list[Layers]:
    """Find the ways in which a model can be run layer by layer from a given residual stream.

    A runner is kept only if it reproduces the model's residual streams and output on two rows. The
    results for two models are cached, until parameters or hooks of the model change.

    Args:
        model: A hooked model.
        inputs: Inputs ``[row, pos, …]``; the check uses the first 64 positions of two rows.

    Returns:
        The runners, fastest first; an empty list if none reproduces the model.
    """
    weights = [*model.parameters()] if hasattr(model, "parameters") else []
    watched = [name for name, point in model.hook_dict.items() if point.has_hooks()]
    mark = tuple((one.data_ptr(), one.dtype) for one in weights), tuple(watched)
    known = _KNOWN.get(model)
    if known is not None and known[0] == mark:
        return known[1]
    few, found = inputs[:2, :_CHECKED], list[Layers]()
    with evaluating(model):
        layered = all(hasattr(model, part) for part in ("blocks", "ln_final", "unembed"))
        if layered and len(model.blocks):
            output, plain, ours = model(few), None, HookedLayers(model)
            if hasattr(model, "original_model") and not watched:  # a twin would pass them by
                plain = plain_layers(model, few, output)
            if plain is not None:
                found.append(plain)
            if ours.agrees(few, output):
                found.append(ours)
    _KNOWN.pop(model, None)
    while len(_KNOWN) >= _MODELS:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[model] = mark, found
    return found


def plain_layers(bridge: Any, inputs: Tensor, output: Tensor) -> Layers | None:
    """Return the plain layers of a bridge, or None if they do not give the bridge's numbers.

    Args:
        bridge: A ``TransformerBridge`` in evaluation mode.
        inputs: One or two rows to compare on.
        output: The bridge's output on these rows.
    """
    try:
        found = _PlainLayers(bridge)
        same = found.agrees(inputs, output) and found.changes_as(bridge, inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # families differ in everything; the bridge is there for those
        return None
    return found if same else None


class _PlainLayers(Layers):
    """The layers of the twin of a bridge."""

    def __init__(self, bridge: Any) -> None:
        super().__init__()
        self._heads = int(bridge.cfg.n_heads)
        self._twin = _twin_of(bridge.original_model)
        use_onednn(self._twin)
        blocks = list(bridge.blocks)
        body, _, self._list = blocks[0].name.rpartition(".")[0].rpartition(".")
        self._body: Any = self._twin.get_submodule(body)
        self.layers = [self._twin.get_submodule(block.name) for block in blocks]
        self._modules: dict[Site, tuple[nn.Module, str]] = {}
        self._attention: dict[Site, nn.Module] = {}
        for layer, block in enumerate(blocks):
            self._place(layer, block)

    def knows(self, site: Site) -> bool:
        return site in self._modules or site in self._attention

    def head(self, stream: Tensor) -> Tensor:
        # A body of one layer that gives these streams: the model's own norm, scale and cap follow.
        whole = self._body._modules[self._list]
        self._body._modules[self._list] = nn.ModuleList([_Given(stream[:, None])])
        try:
            tokens = torch.zeros(len(stream), 1, dtype=torch.long, device=stream.device)
            found: Tensor = self._twin(input_ids=tokens, use_cache=False).logits[:, 0]
        finally:
            self._body._modules[self._list] = whole
        return found

    @contextmanager
    def acting(self, acts: Acts) -> Iterator[None]:
        with ExitStack() as stack:
            for site, call in stack.enter_context(all_called(acts)).items():
                if site in self._attention:
                    module = self._attention[site]
                    module._pattern_act = call  # type: ignore[assignment]
                    stack.callback(delattr, module, "_pattern_act")
                    continue
                module, side = self._modules[site]
                heads = self._heads if site.kind == "z" else None
                if side == "in":
                    hook = partial(_entering, call=call, heads=heads)
                    stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
                else:
                    hook = partial(_leaving, call=call)
                    stack.enter_context(module.register_forward_hook(hook))
            yield

    def changes_as(self, bridge: Any, inputs: Tensor) -> bool:
        """Return whether all sites have the same values as in the bridge, and edits have the same
        effect.

        Both run on ``inputs`` with the same changes at sites of the first and the last layer,
        except at ``resid_mid``, whose values are compared but not changed.
        """
        sites = [s for s in (*self._modules, *self._attention) if s.name in bridge.hook_dict]
        last = len(self.layers) - 1
        seen: list[dict[Site, Tensor]] = [{}, {}]

        def act(value: Tensor, site: Site, kept: dict[Site, Tensor]) -> Tensor | None:
            kept[site] = value.detach()
            if site.layer not in (0, last) or site.kind == "resid_mid":
                return None
            if site.kind != "pattern":
                return value * (1 + 0.1 * (site.layer + 1))
            return value.roll(1, -1).tril()

        acts = [{site: partial(act, site=site, kept=kept) for site in sites} for kept in seen]
        with torch.no_grad():
            stream = self.streams(inputs)[0]
            for layer in range(len(self.layers)):
                here = {site: one for site, one in acts[0].items() if site.layer == layer}
                with self.acting(here):
                    stream = self.block(stream, layer)
            ours = self.head(stream.flatten(0, 1))
            hooks = [(s.name, lambda value, hook, a=a: a(value)) for s, a in acts[1].items()]
            theirs = bridge.run_with_hooks(inputs, fwd_hooks=hooks).flatten(0, 1)
        same = all(site in seen[1] and close(seen[0][site], seen[1][site]) for site in sites)
        return same and close(ours, theirs)

    def _forward(self, inputs: Tensor) -> None:
        self._body(input_ids=inputs, use_cache=False)

    def _place(self, layer: int, block: Any) -> None:
        """Find the twin's modules for the sites of a layer."""
        for kind in _STREAM:
            path = self._path(block, block.hook_aliases.get(f"hook_{kind}"))
            if path is not None:
                self._modules[Site(layer, kind)] = path
        attention = block.submodules.get("attn")
        if attention is None or attention.name is None:
            return
        inner = self._path(attention, attention.hook_aliases.get("hook_z"), block.name + ".")
        if inner is not None and inner[1] == "in":
            self._modules[Site(layer, "z")] = inner
        module = self._twin.get_submodule(f"{block.name}.{attention.name}")
        if hasattr(sys.modules[type(module).__module__], "eager_attention_forward"):
            self._attention[Site(layer, "pattern")] = module

    def _path(self, part: Any, alias: Any, above: str = "") -> tuple[nn.Module, str] | None:
        """Return the twin's module at which a bridge's hook lies, and its side, ``in`` or
        ``out``."""
        if not isinstance(alias, str):
            return None
        *names, hook = alias.split(".")
        path = above + part.name
        for name in names:
            part = part.submodules.get(name)
            if part is None or part.name is None:
                return None
            path += f".{part.name}"
        side = hook.removeprefix("hook_")
        return (self._twin.get_submodule(path), side) if side in ("in", "out") else None


class _Given(nn.Module):
    """A layer that returns a fixed residual stream."""

    def __init__(self, stream: Tensor) -> None:
        super().__init__()
        self._stream = stream

    def forward(self, *args: Any, **keywords: Any) -> Tensor:
        """Return the fixed stream, whatever the arguments."""
        return self._stream


def _twin_of(wrapped: Any) -> Any:
    """Return an unwrapped model of the same class and configuration that shares all tensors."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, eager_mask)
    config = copy.deepcopy(wrapped.config)
    with torch.device("meta"):
        twin = type(wrapped)._from_config(config, attn_implementation=_NAME).eval()
    tensors = {
        name.replace(_WRAPPED, ""): tensor
        for named in (wrapped.named_buffers, wrapped.named_parameters)
        for name, tensor in named(remove_duplicate=False)
    }
    for name, own in [*twin.named_parameters(remove_duplicate=False)]:
        tensor = tensors[name]
        if tensor.shape != own.shape:
            raise HookError(f"{name} has another shape in the bridge")
        module, _, leaf = name.rpartition(".")
        held = nn.Parameter(tensor.detach(), requires_grad=False)
        twin.get_submodule(module)._parameters[leaf] = held
    for name, _ in [*twin.named_buffers(remove_duplicate=False)]:
        module, _, leaf = name.rpartition(".")
        twin.get_submodule(module)._buffers[leaf] = tensors[name]
    return twin


def use_onednn(model: nn.Module) -> None:
    """Replace the ``forward`` of a model's linear layers by one that calls oneDNN.

    Nothing is done if this build of torch has no oneDNN. The layers still call torch's own product
    on other devices than the CPU, in other number formats than float32, and where a gradient is
    needed, because the oneDNN operator supports none of these.
    """
    from transformers.pytorch_utils import Conv1D

    there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not (there and torch.backends.mkldnn.is_available()):
        return
    for module in model.modules():
        if type(module) in (nn.Linear, Conv1D):
            transposed = isinstance(module, Conv1D)
            module.forward = partial(_multiply, module, module.forward, transposed)


def _multiply(
    module: Any, plain: Callable[[Tensor], Tensor], transposed: bool, value: Tensor
) -> Tensor:
    weight = module.weight.t() if transposed else module.weight
    single = value.dtype == weight.dtype == torch.float32 and value.device.type == "cpu"
    if not single or (torch.is_grad_enabled() and value.requires_grad):
        return plain(value)
    with torch.no_grad():
        multiply = torch.ops.mkldnn._linear_pointwise
        found: Tensor = multiply(value, weight, module.bias, "none", [], "")
    return found


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **keywords: Any
) -> tuple[Tensor, Tensor]:
    """Run the family's eager attention; recompute z if a function changes the pattern."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    z, pattern = eager(module, query, key, value, mask, **keywords)
    call: Callable[[Tensor], Tensor | None] | None = getattr(module, "_pattern_act", None)
    changed = None if call is None else call(pattern)
    if changed is None:
        return z, pattern
    shared = value.repeat_interleave(pattern.shape[1] // value.shape[1], dim=1)
    return (changed.to(shared.dtype) @ shared).transpose(1, 2).contiguous(), changed


def _entering(
    module: nn.Module,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    call: Callable[[Tensor], Tensor | None],
    heads: int | None,
) -> Any:
    value = args[0] if args else keywords["hidden_states"]
    new = call(value if heads is None else value.unflatten(-1, (heads, -1)))
    if new is None:
        return None
    new = new if heads is None else new.flatten(-2)
    return ((new, *args[1:]), keywords) if args else ((), {**keywords, "hidden_states": new})


def _leaving(
    module: nn.Module, args: Any, out: Any, *, call: Callable[[Tensor], Tensor | None]
) -> Any:
    new = call(out if isinstance(out, Tensor) else out[0])
    if new is None:
        return None
    return new if isinstance(out, Tensor) else (new, *out[1:])
