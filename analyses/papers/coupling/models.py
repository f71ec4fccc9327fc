"""The models that the claims of `coupling` train: the single-layer model and its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analyses.papers.coupling.convolution import ConvolutionSpec
from analyses.papers.coupling.spec import coupling_spec
from analyses.papers.experiment import Experiment
from prooflens.architectures import LSTMSpec, RNNSpec
from prooflens.tasks import LinearKernel, PodCoupling, Task

__all__ = [
    "add_pods",
    "error_frame",
    "order_specs",
    "single_layer",
    "target_variance",
]

_EVALUATION = 4096


def single_layer(task: Any, m_h: int, width: int) -> Any:
    """The spec of the single-layer model for a real-valued task, with positions if order matters.

    ``width`` is that of f̂'s and F̂'s hidden layers; with 0 both are linear, which is enough where
    the task supplies exact bases and F and f are the identity.
    """
    batch = task.sample(1, seed=0)
    spec = coupling_spec(
        batch.inputs.shape[-1],
        batch.targets.shape[-1],
        batch.inputs.shape[1],
        m_h=m_h,
        width=max(width, 1),
        positions="learned" if getattr(task, "ordered", False) else "none",
        mask_self=getattr(task, "mask_self", False),
    )
    return spec if width else replace(spec, input_ffn=(), ffn=())


def add_pods(experiment: Experiment, target: str, task: PodCoupling, widths: Sequence[int]) -> None:
    """Add runs for every head width, labelled with ``target`` and ``m_h``."""
    for m_h in widths:
        spec = single_layer(task, m_h, experiment.setting.options["width"])
        experiment.add({"target": target, "m_h": m_h}, task, spec)


def order_specs(task: LinearKernel, width: int, hidden: int) -> dict[str, Any]:
    """Name → spec: linear and tanh RNN, LSTM, convolution, and the transformer (n = m_h = 32).

    Recurrent networks start as PyTorch's do.
    """
    start: dict[str, Any] = {"input": "real", "initial": "uniform"}
    rnn = RNNSpec(1, 1, task.length, d_hidden=hidden, activation="linear", **start)
    return {
        "linear RNN": rnn,
        "tanh RNN": replace(rnn, activation="tanh"),
        "LSTM": LSTMSpec(1, 1, task.length, d_hidden=hidden // 2, **start),
        "convolution": ConvolutionSpec(1, 1, task.length, input="real"),
        "transformer": single_layer(task, 32, width),
    }


def target_variance(task: Task) -> float:
    """The variance of the scored targets, which is the loss of the best constant prediction."""
    batch = task.sample(_EVALUATION, seed=2**62)
    scored = batch.targets[batch.mask]
    return float((scored - scored.mean(0)).square().mean())


def error_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A table of errors from rows of target, model, m_h, seed and error."""
    return pd.DataFrame(rows, columns=["target", "model", "m_h", "seed", "error"])
