"""What the claims of `coupling` train: the single-layer model and what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pandas as pd

from analyses.claims.base import Setting
from analyses.claims.training import train_runs
from interp.models.baselines import LSTMSpec, RNNSpec
from interp.models.convolution import ConvolutionSpec
from interp.models.coupling import coupling_spec
from interp.models.spec import TransformerSpec
from interp.tasks.base import Task
from interp.tasks.coupling import LinearKernel, PodCoupling
from trained.fit import Fit
from trained.run import Run
from trained.training import Training

__all__ = [
    "error_frame",
    "fits",
    "head_width",
    "order_specs",
    "pod_runs",
    "single_layer",
    "target_variance",
    "training",
]

_EVALUATION = 4096


def training(setting: Setting, seed: int, **changes: Any) -> Training:
    """The profile's ``steps``, ``batch`` and ``learning_rate`` with a seed."""
    options = {k: setting.options[k] for k in ("steps", "batch", "learning_rate")}
    return Training(**{**options, "seed": seed, **changes})


def single_layer(task: Any, m_h: int, width: int) -> Any:
    """The single-layer model for a real-valued task; learned positions where order matters.

    ``width`` is that of f̂'s and F̂'s hidden layers; with 0 both are linear, which is enough where
    the task supplies exact bases and F and f are the identity.
    """
    batch = task.sample(1, seed=0)
    ordered = isinstance(task, LinearKernel)
    spec = coupling_spec(
        batch.inputs.shape[-1],
        batch.targets.shape[-1],
        batch.inputs.shape[1],
        m_h=m_h,
        width=max(width, 1),
        positions="learned" if ordered else "none",
        mask_self=getattr(task, "mask_self", False),
    )
    return spec if width else replace(spec, input_ffn=(), ffn=())


def pod_runs(setting: Setting, task: PodCoupling, widths: Sequence[int]) -> list[Run]:
    """A run for every head width and seed."""
    width = setting.options["width"]
    return [
        Run(f"{task.name}-m{m}-seed{seed}", task, single_layer(task, m, width),
            training(setting, seed))
        for m in widths
        for seed in setting.seeds
    ]  # fmt: skip


def order_specs(task: LinearKernel, width: int, hidden: int) -> dict[str, Any]:
    """Name → spec: linear and tanh RNN, LSTM, convolution, and the transformer (n = m_h = 32)."""
    rnn = RNNSpec(1, 1, task.length, input="real", d_hidden=hidden, activation="linear")
    return {
        "linear RNN": rnn,
        "tanh RNN": replace(rnn, activation="tanh"),
        "LSTM": LSTMSpec(1, 1, task.length, input="real", d_hidden=hidden // 2),
        "convolution": ConvolutionSpec(1, 1, task.length, input="real"),
        "transformer": single_layer(task, 32, width),
    }


def head_width(run: Run) -> int:
    """m_h of a run's transformer."""
    return cast("TransformerSpec", run.spec).head_widths[0]


def fits(setting: Setting, runs: Sequence[Run]) -> list[Fit]:
    """The trained models, in order; what an interrupted run finished is kept."""
    return train_runs(setting, list(runs), "models")


def target_variance(task: Task) -> float:
    """Variance of the scored targets, summed over channels' means: the trivial predictor's loss."""
    batch = task.sample(_EVALUATION, seed=2**62)
    scored = batch.targets[batch.mask]
    return float((scored - scored.mean(0)).square().mean())


def error_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows of target, model, m_h, seed and error as a frame."""
    return pd.DataFrame(rows, columns=["target", "model", "m_h", "seed", "error"])
