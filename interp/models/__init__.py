"""Who learns it: one hooked transformer for every task, baselines, and the door to other models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.models.kinds import build

__all__ = ["build"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: reading a store must not import torch."""
    if name in __all__:
        from interp.models import kinds

        return getattr(kinds, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
