"""The only module that imports TransformerLens.

Importing ``transformer_lens`` takes seconds, so nothing else in the library imports it and this
module does so only when a name is first used (:pep:`562`): where a bridge is built, or where an
``ActivationCache`` or a method of its ``HookedRootModule`` is asked for. Our models have hook
points of their own (:mod:`~interp.hooks.points`) and run without it.

The rest of the library is typed against :class:`HookedModel`, the part of TransformerLens'
interface that our measurements need: our own models, ``TransformerBridge`` and any other
``HookedRootModule`` fit it.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from transformer_lens import ActivationCache as ActivationCache
    from transformer_lens.head_detector import detect_head as detect_head
    from transformer_lens.HookedRootModule import HookedRootModule as HookedRootModule
    from transformer_lens.model_bridge import TransformerBridge as TransformerBridge

_HOMES = {
    "ActivationCache": "transformer_lens",
    "HookedRootModule": "transformer_lens.HookedRootModule",
    "TransformerBridge": "transformer_lens.model_bridge",
    "detect_head": "transformer_lens.head_detector",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        if name == "TransformerBridge":
            _never_install()
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def wrapped_architectures() -> frozenset[str]:
    """Return the names of the transformers classes that ``TransformerBridge`` has an adapter
    for."""
    factory = import_module("transformer_lens.factories.architecture_adapter_factory")
    return frozenset(factory.SUPPORTED_ARCHITECTURES)


def _never_install() -> None:
    """Keep TransformerLens 4.3 from running pip if torchvision is missing; it does without it."""
    helpers = import_module("transformer_lens.model_bridge.sources.transformers.helpers")
    there = importlib.util.find_spec("torchvision") is not None
    helpers._ensure_torchvision = lambda: there  # type: ignore[attr-defined]


@runtime_checkable
class HookedModel(Protocol):
    """The methods and attributes that prooflens needs of a hooked model.

    ``hook_dict`` maps hook names to hook points; ``run_with_cache(inputs, names_filter=…)`` returns
    the output and a mapping from hook name to tensor; ``run_with_hooks(inputs, fwd_hooks=[(name,
    fn), …])`` returns the output of a run in which ``fn(tensor, hook)`` may replace the tensor at
    ``name``.
    """

    hook_dict: dict[str, Any]
    cfg: Any

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Run and return ``(output, cache)``."""

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Run with temporary hooks and return the output."""


def vocabulary_of(model: Any) -> int | None:
    """Return the number of a model's token ids; None for real inputs or if the model does not
    say."""
    spec: Any = getattr(model, "spec", None)
    if hasattr(spec, "input"):
        return int(spec.d_in) if spec.input == "tokens" else None
    size = getattr(getattr(model, "cfg", None), "d_vocab", None)
    return size if isinstance(size, int) and size > 0 else None
