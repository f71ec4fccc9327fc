"""The models that the claims of `memory` train, with the profile's sizes and a claim's changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyses.papers.base import Setting
from analyses.papers.experiment import Experiment
from prooflens.architectures import TransformerSpec
from prooflens.tasks import Task

__all__ = ["spec_of", "with_slower_terms"]


def spec_of(task: Task, options: Mapping[str, Any], **changes: Any) -> TransformerSpec:
    """A one-layer dot-product-free model of the profile's sizes for a task of real inputs."""
    batch = task.sample(1, seed=0)
    sizes: dict[str, Any] = {
        "input": "real",
        "d_in": batch.inputs.shape[-1],
        "d_out": batch.targets.shape[-1],
        "n_ctx": batch.inputs.shape[1],
        "d_model": options["d_model"],
        "n_layers": 1,
        "n_heads": options["heads"],
        "d_head": options["d_head"],
        "ffn": (options["ffn"],),
        "score": "none",
        "lag_bias": "lin",
    }
    return TransformerSpec(**{**sizes, **changes})


def with_slower_terms(setting: Setting) -> Experiment:
    """Return an experiment that trains the score terms with the profile's own learning rate for
    them."""
    return Experiment(setting, terms_learning_rate=setting.options["terms_learning_rate"])
