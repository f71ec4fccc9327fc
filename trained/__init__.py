"""How the shipped models came to be, and the models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trained.zoo import Shipped, load, names

__all__ = ["Shipped", "load", "names"]


def __getattr__(name: str) -> Any:
    """Loaded when first used, so that the command line starts at once."""
    if name in __all__:
        from trained import zoo

        return getattr(zoo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
