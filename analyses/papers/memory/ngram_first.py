"""Claim: training fits the n-gram first, and induction heads come later (arXiv 2410.11474).

The paper is by authors of `memory`. Its abstract says of training on an n-gram part mixed with an
induction part that a transformer passes from the one to the other. *Our reading:* the walks of
:mod:`.own_successors`, where an n-gram knows the common map and an induction head the row's own;
two layers, softmax and dot products; one rate after a warm-up, so that no schedule makes stages.

    B   the first kept step whose loss is at most L_1 − 0.9 (L_1 − L_2), L_n the counted n-gram's
    I   the first kept step at which one head gives 0.5 of its attention to keys that hold an
        earlier successor, and its mean in its place costs 1 nat where the row's map is its own

N-gram first: I ≥ 1.5 B, and at B no head has 0.1 more attention there than even attention has, or
costs 0.3 nats. The paper's theory is about a gradient flow on other targets; nothing here tests
its rates, or that there is a plateau.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, decide
from analyses.papers.memory.own_successors import OwnSuccessors, ngram_loss
from analyses.papers.sequential import in_turn
from prooflens.architectures import TransformerSpec
from prooflens.interventions import components, replacement
from prooflens.run import Run
from prooflens.tasks import Batch

__all__ = ["measure_induction", "run", "stages"]

_FALLEN, _LATER, _SEEDS = 0.9, 1.5, 0.8
_NONE, _SOME = (0.1, 0.3), (0.5, 1.0)
"""(Attention, cost) of a head. With less than ``_NONE`` it does no induction (the attention is then
counted above even attention), with ``_SOME`` or more it does."""
_JUDGED = 10**9


def run(setting: Setting) -> Verdict:
    """Train and measure every kept step (ledger: ``memory-ngram-first``).

    Options: ``shares`` of tokens that rows deal anew; ``tokens``, ``length``, ``jump``; sizes of
    the model and its training; ``every`` so many steps weights are kept; ``counted`` rows for the
    n-grams, ``rows`` on which models are measured.
    """
    o = setting.options
    spec = TransformerSpec(
        d_in=o["tokens"] + 1,
        d_out=o["tokens"] + 1,
        n_ctx=o["length"],
        d_model=o["d_model"],
        n_layers=2,
        n_heads=o["heads"],
        d_head=o["d_model"] // o["heads"],
        ffn=(o["ffn"],),
        norm="layernorm",
        positions="sinusoidal",
    )
    tasks = {s: OwnSuccessors(o["tokens"], o["length"], s, o["jump"]) for s in o["shares"]}
    judged = {share: task.sample(o["rows"], seed=_JUDGED) for share, task in tasks.items()}
    grams = {
        share: ngram_loss(task, o["counted"], judged[share], seed=_JUDGED + 1)
        for share, task in tasks.items()
    }
    table = pd.DataFrame()

    def first(cases: list[tuple[float, int]]) -> list[list[bool]]:
        nonlocal table
        training = {"decay": "none", "snapshots": o["every"], "weight_decay": 0.01, "warmup": 100}
        experiment, answers = Experiment(setting, part=f"models-{len(table)}", **training), []
        for share, seed in cases:
            experiment.add({"share": share}, tasks[share], spec, seeds=[seed])
        for (share, seed), fit in zip(cases, experiment.run()[1], strict=True):
            rows = []
            for step, weights in fit.snapshots.items():
                fit.model.load_state_dict(weights)
                found = measure_induction(fit.model, judged[share])
                rows.append({"share": share, "seed": seed, "step": step, **found})
            answers.append([stages(pd.DataFrame(rows), grams[share])[2]])
            table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
        return answers

    needed = ceil(_SEEDS * len(setting.seeds))
    in_turn(setting.seeds, {share: [needed] for share in tasks}, first)
    return _verdict(table, grams, needed / len(setting.seeds))


@torch.no_grad()
def measure_induction(model: Any, batch: Batch) -> dict[str, float]:
    """Measure a model's loss, in nats per scored position, and the head that does most of its
    induction.

    Returns:
        ``loss``; ``own``, the loss at tokens whose successor the row has dealt anew; ``attention``,
        the largest attention of a head to keys with an earlier successor, and ``even``, that of
        even attention; ``cost``, the largest rise of ``own`` when a head's output is replaced by
        its mean.
    """
    heads = [part for part in components(model) if part.kind == "head"]
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in {part.layer for part in heads}]
    output, cache = model.run_with_cache(
        batch.inputs, names_filter=hooks, return_cache_object=False
    )
    loss = torch.nn.functional.cross_entropy(output.mT, batch.targets, reduction="none")
    own, found = batch.mask & batch.latents["own"], batch.latents["found"]
    edits = [replacement(model, part, "mean") for part in heads]
    every = torch.arange(1, found.shape[1] + 1)

    def mean(values: Tensor, where: Tensor) -> float:
        return float(values[where].double().mean())

    masses = [(cache[hook] * found[:, None]).sum(-1).unbind(1) for hook in hooks]
    return {
        "loss": mean(loss, batch.mask),
        "own": mean(loss, own),
        "attention": max(mean(mass, batch.mask) for layer in masses for mass in layer),
        "even": mean(found.sum(-1) / every, batch.mask),
        "cost": max(mean(rise, own) for rise in Run(model, batch).rises(edits)),
    }


def stages(rows: pd.DataFrame, grams: Mapping[int, float]) -> tuple[int, int, bool]:
    """Return the steps B and I of one training (−1 for never), and whether the n-gram came first.

    Args:
        rows: The kept steps in order, as :func:`measure_induction` gives them.
        grams: n → the n-gram's loss.
    """
    fallen = rows[rows["loss"] <= grams[1] - _FALLEN * (grams[1] - grams[2])]
    heads = rows[(rows["attention"] >= _SOME[0]) & (rows["cost"] >= _SOME[1])]
    began, ended = (int(r["step"].min()) if len(r) else -1 for r in (fallen, heads))
    if -1 in (began, ended):
        return began, ended, False
    first = fallen.iloc[0]
    none = first["attention"] < first["even"] + _NONE[0] and first["cost"] < _NONE[1]
    return began, ended, bool(none and ended >= _LATER * began)


def _verdict(
    table: pd.DataFrame, grams: Mapping[float, Mapping[int, float]], needed: float
) -> Verdict:
    one = {share: table[table["share"] == share] for share in grams}
    found = pd.DataFrame(
        [
            (share, seed, *stages(rows[rows["seed"] == seed], grams[share]))
            for share, rows in one.items()
            for seed in rows["seed"].unique()
        ],
        columns=["share", "seed", "n-gram at", "induction at", "first"],
    )
    by_share = {share: found[found["share"] == share] for share in grams}
    held = {share: float(rows["first"].mean()) for share, rows in by_share.items()}
    told = [
        f"{share:g} of the tokens dealt anew: the bigram's loss ({grams[share][2]:.2f} nats) after "
        f"{rows['n-gram at'].median():g} steps, induction after {rows['induction at'].median():g} "
        f"({rows['first'].sum()} of {len(rows)} seeds by the rule)"
        for share, rows in by_share.items()
    ]
    enough = [share >= needed for share in held.values()]
    figure = _figure(table, grams)
    return Verdict(
        decide(all(enough), any(enough)),
        "; ".join(told) + ".",
        "; ".join(
            f"{rows['n-gram at'].median():g} and {rows['induction at'].median():g} steps"
            for rows in by_share.values()
        ),
        {
            "grams": {f"{share:g}": losses for share, losses in grams.items()},
            "first": {f"{share:g}": value for share, value in held.items()},
            "stages": found.to_dict("records"),
        },
        {"steps": table, "stages": found},
        {"steps": Drawing(figure, "Loss and the best head's attention over training: " + told[0])},
    )


def _figure(table: pd.DataFrame, grams: Mapping[float, Mapping[int, float]]) -> Figure:
    """Draw losses as shares of the unigram's loss, and attention, over the kept steps."""
    losses = {n: table["share"].map({share: of[n] for share, of in grams.items()}) for n in (1, 2)}
    lines = {
        "loss": table["loss"] / losses[1],
        "loss of the bigram": losses[2] / losses[1],
        "attention of the head": table["attention"],
    }
    panels = [f"{share:g} of the tokens dealt anew" for share in table["share"]]
    drawn = pd.concat([table.assign(line=n, value=v, panel=panels) for n, v in lines.items()])
    return sweep(
        drawn,
        x="step",
        across="training steps",
        by="line",
        label="share of loss, of attention",
        y="value",
        panel="panel",
        dashed=["loss of the bigram"],
        log_x=False,
        log_y=False,
    )
