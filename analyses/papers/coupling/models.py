"""The models that the claims of `coupling` train: the single-layer model and its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analyses.papers.coupling.convolution import ConvolutionSpec
from analyses.papers.experiment import Experiment
from prooflens.architectures import LSTMSpec, Positions, RNNSpec, TransformerSpec
from prooflens.tasks import LinearKernel, PodCoupling, Task

__all__ = [
    "add_pods",
    "coupling_spec",
    "error_frame",
    "order_specs",
    "single_layer",
    "target_variance",
]

_EVALUATION = 4096


def coupling_spec(
    d_in: int,
    d_out: int,
    n_ctx: int,
    *,
    m_h: int,
    n: int = 32,
    width: int = 128,
    positions: Positions = "none",
    mask_self: bool = False,
) -> TransformerSpec:
    """The spec of the single-layer model of `coupling` §4.1.

        H_t(x) = F̂( Σ_s softmax_s[⟨W_Q f̂(x_t), W_K f̂(x_s)⟩ / √m_h] W_V f̂(x_s) )

    One head that looks both ways, no residual, no norm; f̂ (the input FFN) and F̂ (the FFN) are dense
    pointwise networks of three layers. Positions, where a task needs them, are learned codes added
    to the embedded input before f̂, so that f̂ can tell positions apart: the paper shifts each
    position's inputs into a range of their own, which is one such code. The head's values are as
    wide as its queries, m_v = m_h (the paper's n = 2 m_h + m_v lets them differ).

    Args:
        d_in: Number of channels of the input.
        d_out: Number of channels of the output.
        n_ctx: Longest input, in positions.
        m_h: Width of the head, which is the largest rank that its scores can have.
        n: Width of the features, the output of f̂.
        width: Width of the two hidden layers of f̂ and of F̂.
        positions: ``learned`` where the target depends on positions.
        mask_self: Whether a position is kept from attending to itself.

    Raises:
        ArgumentError: naming every size that is out of range.
    """
    return TransformerSpec(
        input="real",
        d_in=d_in,
        d_out=d_out,
        n_ctx=n_ctx,
        d_model=n,
        n_layers=1,
        n_heads=1,
        d_head=m_h,
        input_ffn=(width, width),
        ffn=(width, width),
        residual=False,
        causal=False,
        positions=positions,
        mask_self=mask_self,
    )


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
    """Add a run for every head width to an experiment, labelled with ``target`` and ``m_h``."""
    for m_h in widths:
        spec = single_layer(task, m_h, experiment.setting.options["width"])
        experiment.add({"target": target, "m_h": m_h}, task, spec)


def order_specs(task: LinearKernel, width: int, hidden: int) -> dict[str, Any]:
    """Return the specs that are compared on a task in which order matters.

    Returns:
        Name → spec: linear and tanh RNN, LSTM, convolution, and the transformer (n = m_h = 32).
        Recurrent networks start from PyTorch's initial weights.
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
    """Make a table of errors from rows of (target, model, m_h, seed, error)."""
    return pd.DataFrame(rows, columns=["target", "model", "m_h", "seed", "error"])
