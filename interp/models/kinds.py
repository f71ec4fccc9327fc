"""The kinds of models: the transformer, and the baselines that it is compared with.

A spec written as JSON or TOML names its ``kind``; a spec without one is a transformer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interp.errors import Problems, need
from interp.machine import need_bytes
from interp.models.baselines import LSTM, MLP, RNN, Baseline, LSTMSpec, MLPSpec, RNNSpec
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

Spec = TransformerSpec | MLPSpec | RNNSpec | LSTMSpec
Model = SequenceTransformer | Baseline

KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "transformer": (TransformerSpec, SequenceTransformer),
    "mlp": (MLPSpec, MLP),
    "rnn": (RNNSpec, RNN),
    "lstm": (LSTMSpec, LSTM),
}
"""Kind of model, as it stands in a checkpoint → (class of its spec, class of the model)."""


def register_model(kind: str, spec: type[Any], model: type[Any]) -> None:
    """Register a kind of model of your own, so that recipes and checkpoints can name it.

    Args:
        kind: The kind's name, as in ``spec.to_dict()["kind"]``.
        spec: A frozen dataclass, preferably a :class:`~interp.models.baselines.BaselineSpec`.
        model: The model's class, built as ``model(spec, seed=0)``, preferably a
            :class:`~interp.models.baselines.Baseline`.

    Raises:
        ArgumentError: if the kind belongs to other classes already.
    """
    free = KINDS.get(kind, (spec, model)) == (spec, model)
    rule = "must not be the kind of other classes"
    need("register_model", free, "kind", rule, kind, "choose another")
    KINDS[kind] = (spec, model)


def build(spec: Any, *, seed: int = 0) -> Any:
    """Build the model that a spec describes, with initial weights drawn from ``seed``.

    Args:
        spec: A spec of any kind in :data:`KINDS`.
        seed: Seed of the initial weights; the same seed gives the same weights.

    Raises:
        ArgumentError: if the spec is not one, or the model is larger than the free memory.
    """
    kind = kind_of(spec)
    if isinstance(spec, TransformerSpec):
        weights = spec.least_weights
        need_bytes(
            weights * spec.torch_dtype.itemsize, f"a model of {weights:,} weights", "shrink it"
        )
    return KINDS[kind][1](spec, seed=seed)


def kind_of(spec: Any) -> str:
    """Return the kind of a spec, as named in :data:`KINDS`.

    Raises:
        ArgumentError: if the object is not a spec.
    """
    found = [kind for kind, (known, _) in KINDS.items() if type(spec) is known]
    rule = f"must be the spec of one of {', '.join(KINDS)}"
    need("build", bool(found), "spec", rule, type(spec).__name__, "see interp.models.spec")
    return found[0]


def spec_from_dict(data: Mapping[str, Any]) -> Any:
    """Rebuild a spec of any kind from the result of its ``to_dict``.

    Raises:
        ArgumentError: if the kind is unknown, keys are unknown or missing, or the spec refuses a
            value.
    """
    kind, problems = data.get("kind", "transformer"), Problems("spec")
    rule = f"must be one of {', '.join(KINDS)}"
    good = isinstance(kind, str) and kind in KINDS
    problems.need(good, "kind", rule, kind, "pick one, or leave it out for a transformer")
    problems.raise_if_any()
    return KINDS[str(kind)][0].from_dict({k: v for k, v in data.items() if k != "kind"})
