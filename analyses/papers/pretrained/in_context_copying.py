"""Do the heads with the strongest diagonals carry in-context copying? (`template` §2.4)

The k heads with the largest positive trace share of W_K W_Qᵀ (symbol equality), and the k of
W_V W_Oᵀ (copying), are replaced by their means over rows, all k at once. The rise of the loss on
repeated random tokens and on in-context templates is compared with that of matched sets: as many
other heads of the same layers, drawn at random. A set of heads that only adds up to k large ones
would beat small heads too; equal layers are what is matched, not equal norms.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import status_of
from prooflens.architectures import Pretrained, load_pretrained
from prooflens.errors import CheckpointError, MissingDependencyError
from prooflens.inspection import Performance, performance
from prooflens.interventions import Component, components, replacement
from prooflens.pages import strongest
from prooflens.plot import PALETTE, size, style
from prooflens.roles import Trial, token_trials
from prooflens.run import Run
from prooflens.trained import folder_of, zoo
from prooflens.weights import HeadWeights, head_weights, weight_table

__all__ = ["run"]

_CIRCUITS = {"QK": "symbol equality (W_K W_Qᵀ)", "OV": "copying (W_V W_Oᵀ)"}
_SHARE, _RISE, _P = 0.95, 0.05, 0.01
"""Numbers of the claim's rule: least share of matched sets of heads that must cost less, least rise
of the loss in nats, largest p."""


def run(setting: Setting) -> Verdict:
    """Judge the claim on the model that the options or ``PROOFLENS_MODEL`` name."""
    named = os.environ.get("PROOFLENS_MODEL")
    name = named or str(setting.options.get("model", "gpt2"))
    try:
        factors, model = _open(name, setting)
    except (CheckpointError, MissingDependencyError) as error:
        shipped = None if named else zoo.stand_in()
        if shipped is None:
            return Verdict("not run", f"Needs a pretrained model (PROOFLENS_MODEL): {error}.")
        name, (factors, model) = zoo.STAND_IN, _open(str(shipped), setting)
    sets = _top_heads(factors, _heads(factors, int(setting.options.get("heads", 8))))
    rows = [line for seed in setting.seeds for line in _one_seed(model, sets, setting, seed)]
    if not rows:
        words = f"{name} does not continue repeated random tokens: there is no copying to carry."
        return Verdict("not run", words)
    return _verdict(name, sets, pd.DataFrame(rows))


def _open(name: str, setting: Setting) -> tuple[HeadWeights, Pretrained]:
    place = folder_of(name)
    factors = head_weights(place, download=False)
    return factors, load_pretrained(place, device=setting.device)


def _heads(factors: HeadWeights, count: int) -> int:
    """Return how many heads are replaced: ``count``, but at most a sixth of all heads if that is 2
    or more.

    Of GPT-2's 144 heads eight may be replaced, since random sets can be drawn from the others of
    their layers. Eight of 24 would leave too few.
    """
    return min(count, max(2, factors.n_layers * factors.n_heads // 6))


def _top_heads(factors: HeadWeights, count: int) -> dict[str, list[Component]]:
    table = weight_table(factors, ["trace_share"])
    return {
        circuit: [
            Component("head", int(layer), int(head))
            for layer, head in strongest(table, circuit, "trace_share", count, sign=1)[
                ["layer", "head"]
            ].to_numpy()
        ]
        for circuit in _CIRCUITS
    }


def _performance(model: Pretrained, trial: Trial) -> Performance:
    control = None if trial.control is None else Run(model.model, trial.control)
    return performance(Run(model.model, trial.batch), trial.name, control)


def _one_seed(
    model: Pretrained, sets: Mapping[str, Sequence[Component]], setting: Setting, seed: int
) -> list[dict[str, Any]]:
    """Return a row for each trial and circuit; none if the model cannot do the repeated tokens."""
    options = setting.options
    trials, _ = token_trials(
        model, rows=int(options.get("rows", 16)), length=int(options.get("length", 48)), seed=seed
    )
    done = {trial.name: _performance(model, trial) for trial in trials}
    able = [t for t in trials if done[t.name].p < _P and done[t.name].loss < done[t.name].control]
    if not any(trial.name == "repeated" for trial in able):
        return []
    rng = np.random.default_rng(seed)
    return [
        {
            "seed": seed,
            "trial": trial.name,
            "circuit": circuit,
            "loss": done[trial.name].loss,
            **_compare(model, trial, heads, int(options.get("draws", 100)), rng),
        }
        for trial in able
        for circuit, heads in sets.items()
    ]


def _compare(
    model: Pretrained,
    trial: Trial,
    heads: Sequence[Component],
    draws: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    everything = [part for part in components(model.model) if part.kind == "head"]
    run = Run(model.model, trial.batch)
    mean = {part: replacement(model.model, part, "mean") for part in everything}
    sets = [heads, *(_draw_matched(everything, heads, rng) for _ in range(draws))]
    edits = [tuple(edit for part in parts for edit in mean[part]) for parts in sets]
    top, *others = (float(run.by_row(rise).mean()) for rise in run.rises(edits))
    matched = np.array(others)
    return {
        "rise": top,
        "matched_mean": float(matched.mean()),
        "matched_std": float(matched.std()),
        "matched_largest": float(matched.max()),
        "share_beaten": float((matched < top).mean()),
        "draws": draws,
    }


def _draw_matched(
    everything: Sequence[Component], heads: Sequence[Component], rng: np.random.Generator
) -> list[Component]:
    """Draw as many random heads of each layer as are given, other ones if the layer has enough."""
    found: list[Component] = []
    for layer in sorted({head.layer for head in heads}):
        mine = [head for head in heads if head.layer == layer]
        others = [p for p in everything if p.layer == layer and p not in mine]
        pool = others if len(others) >= len(mine) else [p for p in everything if p.layer == layer]
        found += [pool[i] for i in rng.permutation(len(pool))[: len(mine)]]
    return found


def _verdict(name: str, sets: Mapping[str, Sequence[Component]], table: pd.DataFrame) -> Verdict:
    repeated = table[table["trial"] == "repeated"]
    passed = {
        circuit: bool((part["share_beaten"] >= _SHARE).all() and (part["rise"] >= _RISE).all())
        for circuit, part in repeated.groupby("circuit")
    }
    words = "; ".join(
        f"{_CIRCUITS[str(c)]}: loss +{part['rise'].mean():.2f} nats without "
        f"{len(sets[str(c)])} heads, matched sets +{part['matched_mean'].mean():.2f}, "
        f"{part['share_beaten'].min():.0%} of them beaten at least"
        for c, part in repeated.groupby("circuit", sort=False)
    )
    ov = repeated[repeated["circuit"] == "OV"]["rise"]
    spread = float(ov.std(ddof=0))
    return Verdict(
        status_of({str(circuit): held for circuit, held in passed.items()}),
        f"Repeated random tokens, on {name}: {words}.",
        key=f"+{ov.mean():.2f} ± {spread:.2f} nats without the copying heads",
        numbers={
            "passed": passed,
            "heads": {c: [h.name for h in parts] for c, parts in sets.items()},
            "rise": {c: p["rise"].tolist() for c, p in repeated.groupby("circuit")},
            "share_beaten": {c: p["share_beaten"].tolist() for c, p in repeated.groupby("circuit")},
            "spread_of_rise": {
                c: float(p["rise"].std(ddof=0)) for c, p in repeated.groupby("circuit")
            },
        },
        tables={"ablations": table},
        drawings={"ablations": _drawing(name, table)},
    )


def _drawing(name: str, table: pd.DataFrame) -> Drawing:
    trials = list(table["trial"].unique())
    with style():
        figure = Figure(figsize=size(1, 1.2 * len(_CIRCUITS)))
        for i, circuit in enumerate(_CIRCUITS):
            axes = figure.add_subplot(1, len(_CIRCUITS), i + 1)
            for place, trial in enumerate(trials):
                part = table[(table["trial"] == trial) & (table["circuit"] == circuit)]
                axes.errorbar(
                    place - 0.1,
                    part["matched_mean"].mean(),
                    2 * part["matched_std"].mean(),
                    fmt="s",
                    color=PALETTE["orange"],
                    label="matched sets ± 2 sd" if place == 0 else None,
                )
                axes.plot(
                    [place + 0.1] * len(part),
                    part["rise"],
                    "o",
                    color=PALETTE["blue"],
                    label="top diagonals, a seed" if place == 0 else None,
                )
            axes.set(title=_CIRCUITS[circuit], xlabel="trial", ylabel="rise of the loss (nats)")
            axes.set_xticks(range(len(trials)), trials)
            axes.margins(x=0.3)
            axes.legend(loc="best")
    words = f"Rise of the loss of {name} without its top-diagonal heads and without matched sets."
    return Drawing(figure, words)
