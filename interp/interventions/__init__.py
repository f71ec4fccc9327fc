"""What changes without it: ablation, patching, counterfactual rows, paths, prefix reuse."""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
