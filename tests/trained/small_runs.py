"""Runs that train in a second: a sum of signs at two lags, learned by tiny models."""

from typing import Any

from interp.models.spec import TransformerSpec
from interp.tasks.memory import FixedMemory
from trained.run import Training, TrainingRun

TASK = FixedMemory(lags=(1, 2), readout="majority", length=6)
SPEC: dict[str, Any] = {
    "d_in": 1, "d_out": 1, "n_ctx": 6, "d_model": 4, "n_layers": 1, "n_heads": 2, "d_head": 2,
    "ffn": (5,), "input": "real", "lag_bias": "table", "norm": "layernorm",
}  # fmt: skip


def tiny(name: str = "a", *, spec: Any = None, task: Any = TASK, **training: Any) -> TrainingRun:
    options: dict[str, Any] = {"steps": 12, "batch": 8, "weight_decay": 0.1, **training}
    return TrainingRun(name, task, spec or TransformerSpec(**SPEC), Training(**options))
