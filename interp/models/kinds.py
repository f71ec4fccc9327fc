"""Which model a spec makes: the transformer, or a baseline it is compared with.

A spec written as JSON or TOML names its ``kind``; without one it is a transformer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.errors import Problems
from interp.models.baselines import LSTM, MLP, RNN, Baseline, LSTMSpec, MLPSpec, RNNSpec
from interp.models.convolution import Convolution, ConvolutionSpec
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

__all__ = ["KINDS", "Model", "Spec", "build", "kind_of", "spec_from_dict"]

Spec = TransformerSpec | MLPSpec | RNNSpec | LSTMSpec | ConvolutionSpec
Model = SequenceTransformer | Baseline

KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "transformer": (TransformerSpec, SequenceTransformer),
    "mlp": (MLPSpec, MLP),
    "rnn": (RNNSpec, RNN),
    "lstm": (LSTMSpec, LSTM),
    "convolution": (ConvolutionSpec, Convolution),
}
"""Kind → class of the spec, class of the model."""


def build(spec: Any, *, seed: int = 0) -> Any:
    """The model of a spec, with the initial weights of ``seed``.

    Args:
        spec: Of any kind in :data:`KINDS`.
        seed: The same seed gives the same weights.

    Raises:
        ArgumentError: for something that is no spec.
    """
    return KINDS[kind_of(spec)][1](spec, seed=seed)


def kind_of(spec: Any) -> str:
    """The name of a spec's kind.

    Raises:
        ArgumentError: for something that is no spec.
    """
    found = [kind for kind, (known, _) in KINDS.items() if type(spec) is known]
    problems = Problems("build")
    rule = f"must be the spec of one of {', '.join(KINDS)}"
    problems.need(bool(found), "spec", rule, type(spec).__name__, "see interp.models.spec")
    problems.raise_if_any()
    return found[0]


def spec_from_dict(data: Mapping[str, Any]) -> Any:
    """The spec of a ``to_dict``, of any kind.

    Raises:
        ArgumentError: for an unknown kind, unknown or missing keys, or values the spec refuses.
    """
    kind, problems = data.get("kind", "transformer"), Problems("spec")
    rule = f"must be one of {', '.join(KINDS)}"
    problems.need(kind in KINDS, "kind", rule, kind, "pick one, or leave it out for a transformer")
    problems.raise_if_any()
    return KINDS[str(kind)][0].from_dict({k: v for k, v in data.items() if k != "kind"})
