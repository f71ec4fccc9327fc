"""Hook a module of your own, so that it can be used like every other model here.

    model = wrap(module, {"blocks.0.hook_resid_pre": "layers.0:in", …}, example=inputs)

``names`` maps TransformerLens' hook names to sites in the module (see
:mod:`interp.hooks.hook_sites` for the notation). The hooks then cache *and* intervene: what a hook
returns replaces the tensor in the module, and gradients flow through. The module's code is not
changed: its forward hooks are set while the wrapped model runs and removed afterwards.

A wrong mapping gives plausible numbers, so ``wrap`` runs the conformance check on the example and
raises an error if a relation fails. Hooks that are in no relation are not checked: see the limits
in :mod:`interp.hooks.conformance`.

Without ``names``, layers of ``nn.TransformerEncoder``, and blocks of your own around
``nn.MultiheadAttention``, are found and opened (:mod:`interp.models.open_attention`).

Not for tensors that never enter or leave a submodule (scores inside a fused attention): make them
do so, e.g. by passing them through an ``nn.Identity``. TransformerLens tools that read weights
(``W_O``, ``W_U``, ``ln_final``) need a model that has them under these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import ArgumentError, HookError, Problems, refuse_unless
from interp.hooks.capture import arguments_of
from interp.hooks.conformance import ConformanceReport, conformance
from interp.hooks.hook_names import nearest, unknown_in_block
from interp.hooks.hook_sites import HookSite, parse_hook_site
from interp.hooks.hooked import HookedModule
from interp.hooks.points import HookPoint
from interp.hooks.site import Site
from interp.models.open_attention import block_names, encoder_names, open_attention

__all__ = ["HookSite", "Output", "WrappedModule", "wrap"]

Output = int | str | Callable[[Any], Tensor] | None
"""Which part of what a module returns is the model's output: an index into a tuple, a key of a
mapping, a function that picks it, or None for all of it."""


class WrappedModule(HookedModule):
    """A module with hook points on its tensors; made by :func:`wrap`.

    Attributes:
        module: The user's module, which keeps its parameters.
        sites: Hook name → the site of its tensor in the module.
        cfg: The configuration that TransformerLens' tools read.
        report: The conformance report of the example; ``None`` if it was not checked.
    """

    report: ConformanceReport | None = None

    def __init__(
        self, module: nn.Module, sites: Mapping[str, HookSite], output: Output, cfg: Any
    ) -> None:
        super().__init__()
        self.module, self.sites, self.output, self.cfg = module, dict(sites), output, cfg
        self.hook_dict = {name: HookPoint() for name in sites}
        # HookedRootModule.setup would write a ``name`` onto each of the user's submodules.
        self.mod_dict = dict(self.hook_dict)
        for name, point in self.hook_dict.items():
            point.name = name
            point.read_only = sites[name].side == "read"
        self._fired: Counter[str] = Counter()
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module and return its output, or the part of it that ``output`` selects.

        Raises:
            HookError: if a hook fires twice, or one in use does not fire.
        """
        self._fired.clear()
        with self._attach_hooks(), _step_by_step():
            out = self.module(*args, **kwargs)
        silent = [
            name
            for name, point in self.hook_dict.items()
            if point.has_hooks() and not self._fired[name]
        ]
        if silent:
            raise HookError(f"these hooks did not fire: {self._describe_hooks(silent)}")
        return _pick_output(out, self.output)

    @contextmanager
    def _attach_hooks(self) -> Iterator[None]:
        handles = []
        try:
            for name, site in self.sites.items():
                submodule = self.module.get_submodule(site.module)
                if site.side == "out":
                    hook = self._output_hook(name, site)
                    handles.append(submodule.register_forward_hook(hook))
                else:
                    before = self._input_hook(name, site)
                    handles.append(submodule.register_forward_pre_hook(before, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _output_hook(self, name: str, site: HookSite) -> Callable[..., Any]:
        return lambda module, args, returned: self._pass(name, site, returned)

    def _input_hook(self, name: str, site: HookSite) -> Callable[..., Any]:
        return lambda module, args, kwargs: self._pass(name, site, (args, kwargs))

    def _pass(self, name: str, site: HookSite, container: Any) -> Any:
        """Send the tensor at a site through its hook point; return ``None`` if nothing changes."""
        self._fired[name] += 1
        if self._fired[name] > 1:
            raise HookError(
                f"{self._describe_hooks([name])} fires more than once in a run: the submodule is "
                "shared or called repeatedly, so the name would not say which call it means"
            )
        point = self.hook_dict[name]
        if not point.has_hooks():
            return None
        try:
            tensor = site.find(container)
        except (IndexError, KeyError, TypeError, StopIteration):
            raise HookError(f"{self._describe_hooks([name])} has no element there") from None
        if not isinstance(tensor, Tensor):
            raise HookError(
                f"{self._describe_hooks([name])} is a {type(tensor).__name__}, not a tensor: name "
                "an element, like ':out[0]' or ':in[1]'"
            )
        try:
            viewed = site.view(tensor)
        except HookError as error:
            raise HookError(f"{self._describe_hooks([name])}: {error}") from None
        if site.side == "read":
            return self._show(name, point, viewed)
        # A copy: what a hook changes in place must not reach another reader of the same memory.
        result = point(viewed.clone())
        if result.shape != viewed.shape:
            raise HookError(
                f"the hook on {name} must return the shape it was given, "
                f"{tuple(viewed.shape)}, got {tuple(result.shape)}"
            )
        return site.put(container, site.merge(tensor, result))

    def _show(self, name: str, point: HookPoint, viewed: Tensor) -> None:
        if point.has_hooks("bwd"):
            raise HookError(
                f"{self._describe_hooks([name])} may only be read: it takes no backward hook"
            )
        before = viewed.detach().clone()
        after = point(viewed)
        same = after.shape == before.shape and torch.allclose(
            after.detach(), before, rtol=0.0, atol=0.0, equal_nan=True
        )
        if not same:
            raise HookError(
                f"{self._describe_hooks([name])} may only be read: other code reads the same "
                "tensor and would not see the change"
            )

    def _describe_hooks(self, names: list[str]) -> str:
        paths: dict[int, list[str]] = {}
        for path, submodule in self.module.named_modules(remove_duplicate=False):
            paths.setdefault(id(submodule), []).append(path or "the module itself")
        shown = []
        for name in names:
            site = self.sites[name]
            known = paths[id(self.module.get_submodule(site.module))]
            shown.append(f"{name} ({site.side} of {' = '.join(known)})")
        return ", ".join(shown)


def wrap(
    module: nn.Module,
    names: Mapping[str, str | HookSite] | None = None,
    *,
    example: Any = None,
    cfg: Any = None,
    output: Output = None,
    normalizer: Callable[[Tensor], Tensor] | None = None,
    check: bool = True,
) -> WrappedModule:
    """Hook a module's tensors under TransformerLens' names, and check that they are what the names
    say.

    Args:
        module: Your model; it keeps its parameters and its code.
        names: Hook name, e.g. ``blocks.0.attn.hook_z`` → site, e.g. ``"layers.0.proj:in/4"``. By
            default those of the layers of ``nn.TransformerEncoder`` in the module, or of blocks
            with a norm before ``nn.MultiheadAttention``; then a copy with the same parameters and
            open attention is wrapped.
        example: Inputs of a row or two (a tuple is several arguments). It is needed for the check
            and for ``cfg``; without it nothing is run.
        cfg: The configuration that TransformerLens' tools read as ``model.cfg``. By default it
            holds what the example shows (``n_layers``, ``d_model``, ``n_heads``, ``d_head``,
            ``d_mlp`` and ``device``) and nothing that would have to be guessed.
        output: The index or key of the output in what the module returns, or a function from what
            it returns to the output; by default all of it, which must be one tensor ``[row, pos,
            …]`` with the rows and positions of the example.
        normalizer: The function from scores to pattern, for the check; by default a softmax.
        check: Whether to raise an error if the conformance check fails on the example.

    Returns:
        The hooked model: ``run_with_cache``, ``run_with_hooks``, ``hooks``, ``hook_dict``.

    Raises:
        ArgumentError: naming every site that is malformed or not in the module; or if the module
            returns something else than one tensor by position and ``output`` is not given.
        HookError: if a hook does not fire on the example, fires twice, or carries no tensor.
        ConformanceError: naming every relation that fails, unless ``check`` is off.
    """
    rule, advice = "must be a torch.nn.Module", "build it first; pl.load gives models by name"
    refuse_unless(isinstance(module, torch.nn.Module), "module", rule, module, advice)
    if names is None:
        module = open_attention(module)
        names = encoder_names(module) or block_names(module)
    model = WrappedModule(module, _sites(module, names), output, cfg)
    if example is None:
        return model
    args = arguments_of(model, example)
    with torch.no_grad():
        try:
            found, cache = model.run_with_cache(*args, return_cache_object=False)
        except (IndexError, RuntimeError) as error:
            raise ArgumentError(
                f"example must be inputs that {type(module).__name__} takes, got "
                f"{[tuple(getattr(one, 'shape', ())) for one in args]}, on which it stops: {error}"
            ) from error
    if output is None:
        _check_output(found, args[0])
    if cfg is None:
        model.cfg = _config_seen(cache)
    if check:
        reference = _plain_run(module, output)
        model.report = conformance(model, example, reference, normalizer=normalizer)
        model.report.raise_if_failed("the hooks are not what their names say")
    return model


def _sites(module: nn.Module, names: Mapping[str, str | HookSite]) -> dict[str, HookSite]:
    """Read all the sites, reporting every problem with them at once."""
    problems = Problems("wrap")
    advice = (
        "see docs/howto-wrap; layers of nn.TransformerEncoder, and blocks with norms around "
        "nn.MultiheadAttention, are found without names"
    )
    problems.need(bool(names), "names", "must map at least one hook", names, advice)
    submodules = {path for path, _ in module.named_modules(remove_duplicate=False)}
    sites: dict[str, HookSite] = {}
    for name, text in names.items():
        slip = unknown_in_block(name)
        problems.need(
            not slip, "names", "must be hook names of TransformerLens", name, "correct it"
        )
        try:
            sites[name] = parse_hook_site(text)
        except HookError as error:
            problems.need(False, name, str(error), text, "see interp.hooks.hook_sites")
            continue
        path = sites[name].module
        if path not in submodules:
            near = ", ".join(nearest(path, submodules)) or "see named_modules()"
            problems.need(False, name, "must name a submodule", path, f"near it: {near}")
    problems.raise_if_any()
    return sites


def _config_seen(cache: Mapping[str, Tensor]) -> SimpleNamespace:
    """Return the part of the configuration that a run's activations show; the rest is not
    guessed."""
    layers = [Site.of(name).layer for name in cache]
    seen: dict[str, Any] = {"n_layers": max(layers, default=-1) + 1, "attn_only": False}
    seen["n_key_value_heads"] = None
    for name, value in cache.items():
        kind = name.rsplit("hook_", 1)[-1]
        if kind in ("resid_pre", "resid_mid", "resid_post"):
            seen["d_model"] = value.shape[-1]
        elif kind == "pattern":
            seen["n_heads"] = value.shape[1]
        elif kind == "z" and value.ndim == 4:
            seen["n_heads"], seen["d_head"] = value.shape[2:]
        elif kind == "post":
            seen["d_mlp"] = value.shape[-1]
        seen["device"] = value.device
    heads = [value.shape[2] for name, value in cache.items() if name.endswith("attn.hook_v")]
    if heads and heads[0] != seen.get("n_heads"):
        seen["n_key_value_heads"] = heads[0]
    return SimpleNamespace(**seen)


def _plain_run(module: nn.Module, output: Output) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with _step_by_step():
            return _pick_output(module(*args), output)

    return run


@contextmanager
def _step_by_step() -> Iterator[None]:
    """Keep PyTorch from its fast path, which fuses layers and removes padding in nested tensors.

    With it hooks would see tensors without rows of one length, and padded positions would be zero.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _pick_output(returned: Any, output: Output) -> Any:
    """Return the output in what a module returned."""
    if output is None:
        return returned
    return output(returned) if callable(output) else returned[output]


def _check_output(found: Any, inputs: Any) -> None:
    """Refuse an output that is not one tensor with the example's rows and positions.

    Raises:
        ArgumentError: naming the argument ``output``.
    """
    problems = Problems("wrap")
    if not isinstance(found, Tensor):
        keys: list[Any] = list(found) if isinstance(found, Mapping) else []
        keys = keys or (list(range(len(found))) if isinstance(found, list | tuple) else [])
        tensors = {key: tuple(found[key].shape) for key in keys if isinstance(found[key], Tensor)}
        rule, advice = "must name the one tensor of what the module returns", "give a function"
        shown = f"a {type(found).__name__} with tensors {tensors}"
        advice = (
            f"give output={next(iter(tensors))!r}, or another key or function"
            if tensors
            else advice
        )
        problems.need(False, "output", rule, shown, advice)
    elif isinstance(inputs, Tensor) and inputs.dim() >= 2 and found.shape[:2] != inputs.shape[:2]:
        n, shape = inputs.shape[1], tuple(found.shape)
        rule = f"must be [row, pos, …] with the example's {tuple(inputs.shape[:2])}"
        advice = (
            f"of one answer a row give output=lambda out: out[:, None].expand(-1, {n}, -1) and "
            "score the last position alone, or output=lambda out: out to use its activations only"
        )
        problems.need(False, "output", rule, shape, advice)
    problems.raise_if_any()
