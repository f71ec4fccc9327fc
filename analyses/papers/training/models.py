"""The runs that diagrams train: from a profile's options and a seed to a task and a model.

A function a diagram gives what is sought in one setting (:class:`Sought`). Seeds draw the weights
and the rows, of memories also the tables that name the locations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from analyses.papers.training.steps import Step, layers_of_steps, weakest
from prooflens.architectures import TransformerSpec
from prooflens.proofs import Construction, construct
from prooflens.tasks import (
    AdaptiveMemory,
    PrefixPrediction,
    SuccessorWalk,
    Task,
    TemplateTask,
    TokenRelation,
)

__all__ = ["POSITIONS", "Sought", "counting", "equality", "induction", "memory"]

Options = Mapping[str, Any]

POSITIONS: Mapping[str, Mapping[str, Any]] = {
    "relative keys": {"score": "none", "lag_bias": "relative_keys"},
    "a bias a lag": {"score": "none", "lag_bias": "table"},
    "bumps": {"score": "none", "lag_bias": "bump"},
    "rotary": {"score": "dot", "positions": "rope"},
    "learned": {"score": "dot", "positions": "learned"},
    "sines": {"score": "dot", "positions": "sinusoidal"},
    "no positions": {"score": "dot"},
}
"""Name on the page of a way in which positions enter the attention scores → the options of the
spec."""


@dataclass(frozen=True)
class Sought:
    """One setting of a task whose proof training may find.

    Attributes:
        task: What is learned.
        spec: The model.
        steps: What heads do in the proof, layer after layer.
        otherwise: The same with another latent in its place, where a model that works as the proof
            does may hold either; empty where there is none.
        reached: Metric and bound: what a model that solved the task reaches.
        proof: Builds the construction whose statements are checked (:mod:`probes.agreement`).
        test: Where metrics are taken; None for the task itself.
    """

    task: Task
    spec: TransformerSpec
    steps: tuple[Step, ...]
    reached: tuple[str, float]
    proof: Callable[[], Construction]
    test: Task | None = None
    otherwise: tuple[Step, ...] = ()

    def locate_steps(self, table: pd.DataFrame) -> tuple[tuple[int, ...], float]:
        """The layers that do the steps (``()`` if there are none), and the share of the least held
        latent (:mod:`.steps`), each in the form that comes nearer."""
        forms = [form for form in (self.steps, self.otherwise) if form]
        layers = (layers_of_steps(table, form) for form in forms)
        shares = [weakest(table, form) for form in forms]
        return next(filter(None, layers), ()), float(pd.Series(shares).max())

    def is_solved(self, metrics: Mapping[str, float]) -> bool:
        """Whether a model with these metrics solved the task."""
        metric, bound = self.reached
        return metrics[metric] <= bound if metric == "error" else metrics[metric] >= bound


def memory(options: Options, seed: int) -> Sought:
    """Return a setting of adaptive memory (``rounds`` 1) or nested memory (one round per layer).

    The proof for lags 1 and 2 is used for all lags: float64 cannot hold the ramps of lag 10, and
    the proof's statements name no lags.
    """
    rounds, lags = int(options["rounds"]), tuple(map(int, options["locations"].split()))
    task = AdaptiveMemory(
        lags,
        rounds=rounds,
        bits=max(2, (len(lags) - 1).bit_length()),
        readout="single" if rounds == 1 else "mean",
        inputs="gaussian",
        length=max(lags) + 10,
        table_seed=seed,
    )
    fetched = [f"token[t-t_{r}]" for r in range(1, rounds)] + [f"x[t-t_{rounds}]"]
    steps: tuple[Step, ...] = tuple(
        ((f"t_{r}", "attention"), (name, "output")) for r, name in enumerate(fetched, start=1)
    )
    first = (options["first"],) if options["first"] else ()
    sizes = {"d_in": 1 + task.bits, "d_out": 1, "n_ctx": task.length}
    spec = _spec(options, input="real", input_ffn=first, **sizes)
    readout = "single" if rounds == 1 else "parity"
    small = AdaptiveMemory((1, 2), rounds=rounds, readout=readout, length=16)
    return Sought(task, spec, steps, ("error", options["solved"]), partial(construct, small))


def induction(options: Options, seed: int) -> Sought:
    """Return a setting of walks on a circle that each row draws anew: one layer finds the token
    before, a later one its successor."""
    names = ("vocabulary", "length", "symbols", "jump")
    task = SuccessorWalk(*(options[name] for name in names))
    sizes = {"d_in": task.vocabulary, "d_out": task.vocabulary, "n_ctx": task.length}
    steps: tuple[Step, ...] = (
        (("previous", "output"),),
        (("source", "attention"), ("answer", "output")),
    )
    small = TokenRelation("induction", "copy")
    reached = ("accuracy", options["solved"])
    return Sought(
        task, _spec(options, norm="layernorm", **sizes), steps, reached, partial(construct, small)
    )


def equality(options: Options, seed: int) -> Sought:
    """Return a setting of same or different (`template` §2): equal symbols attend to each other,
    and an FFN reads that."""
    task, small = (
        TemplateTask(("αα", "αβ"), (1.0, -1.0), (0, size // 2), (size // 2, size))
        for size in (options["symbols"], 32)
    )
    factor = options["identity"]
    spec = _spec(
        options,
        d_in=task.vocabulary,
        d_out=1,
        n_ctx=2,
        identity_qk=factor > 0,
        identity_multiplier=factor or 1.0,
    )
    steps: tuple[Step, ...] = ((("label", "attention"),),)
    reached = ("accuracy", options["solved"])
    return Sought(task, spec, steps, reached, partial(construct, small), task.unseen())


def counting(options: Options, seed: int) -> Sought:
    """Return a setting of the last block of L_k: each layer counts the positions at which the line
    of the layer before holds.

    Of the last count a head may hold the line alone, as in the proof, or the answer, which is the
    line together with the current symbol (the proof leaves that to the FFN). The model is tested on
    strings of up to four times the length. ``spare`` layers are added to the k − 2 that are needed.
    """
    blocks, longest = int(options["blocks"]), int(options["longest"])
    language = f"L_{blocks}"
    task, test, small = (
        PrefixPrediction(language, (bins,))
        for bins in ((blocks, longest), (3 * longest + 1, 4 * longest), (blocks, 16))
    )
    lines = [f"E{i}" for i in range(2, blocks)]
    alone, answered = (
        tuple(((line, "output"),) for line in (*lines[:-1], last)) for last in (lines[-1], "last")
    )
    deep = {**options, "layers": blocks - 2 + options["spare"]}
    sizes = {"d_in": 4, "d_out": 2, "n_ctx": 4 * longest + 1}
    spec = _spec(deep, norm="layernorm", activation="gelu", **sizes)
    reached = ("exact", options["solved"])
    return Sought(task, spec, alone, reached, partial(construct, small), test, answered)


def _spec(options: Options, **fixed: Any) -> TransformerSpec:
    """Return a spec from the options that all diagrams share."""
    sizes: dict[str, Any] = {
        "d_model": options["d_model"],
        "n_layers": options["layers"],
        "n_heads": options["heads"],
        "d_head": options["d_head"],
        "ffn": (options["ffn"],) if options["ffn"] else (),
    }
    return TransformerSpec(**sizes, **POSITIONS[options["positions"]], **fixed)
