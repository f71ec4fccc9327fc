"""Locations that tokens name, one round: what attention without content cannot do, and what can.

*Floor*: without content in the scores and without an FFN a layer is one kernel for all tokens; the
best such prediction is known in closed form (:mod:`interp.proofs.memory.fixed`). *Gating*: an FFN
that switches one group of heads for each candidate gets below it; constructions say what that costs
against a shifted kernel, and trained models how many neurons it takes. *Softmax and dot product*:
the attention of real models, with every way of positions, on the same task. *Query-side scalar*:
⟨w_h, X_t⟩ in place of the dot product, in a model that cannot gate.

Values are Gaussian, so that no head holds a code of several of them. Locations are tables of two
address bits (three for more than four locations), not affine in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analyses.figures.dots import strips
from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, decide, medians, spread, status_of, verdict
from analyses.papers.memory.fixed_lags import fixed_lag_floor, gating_costs
from analyses.papers.memory.models import spec_of, with_slower_terms
from prooflens.plot import PALETTE, size, style
from prooflens.tasks import AdaptiveMemory
from prooflens.trained import EVALUATION_SEED

__all__ = ["floor", "gating", "query_scalar", "softmax_dot", "task_of"]

_LIN, _TABLE = "lin, 8 heads", "learned bias a lag"
_FFN, _CONTENT = "learned bias a lag, FFN", "relative keys, FFN before only"
_ABOVE, _NEAR, _SOLVED, _NAMED = 0.97, 1.1, 0.1, 0.9
_DOT, _NO_CONTENT = "dot product", "no content"
_FALLS, _SHARE = 0.8, 0.8
_LOOKED = 256  # rows


def task_of(candidates: int, length: int, rounds: int = 1) -> AdaptiveMemory:
    """Locations 1 … A; with one round the answer is the memory, else the mean of all arguments."""
    return AdaptiveMemory(
        tuple(range(1, candidates + 1)),
        rounds=rounds,
        bits=max(2, (candidates - 1).bit_length()),
        readout="single" if rounds == 1 else "mean",
        inputs="gaussian",
        length=length,
    )


def floor(setting: Setting) -> Verdict:
    """Measure the floor of attention without content (ledger: ``memory-fixed-lag-floor``)."""
    options, experiment = setting.options, with_slower_terms(setting)
    ways: dict[str, dict[str, Any]] = {
        _LIN: {"n_heads": 8, "ffn": ()},
        _TABLE: {"lag_bias": "table", "ffn": ()},
        _FFN: {"lag_bias": "table"},
        _CONTENT: _content(options["ffn"]),
    }
    tasks = {count: task_of(count, options["length"]) for count in options["candidates"]}
    for count, task in tasks.items():
        for way, changes in ways.items():
            spec = spec_of(task, options, **{"n_heads": count, **changes})
            experiment.add({"model": way, "candidates": count}, task, spec)
    table, fits = experiment.run()
    named = [
        _attention_named(fit.model, tasks[labels["candidates"]])
        if labels["model"] == _CONTENT
        else float("nan")
        for (labels, _), fit in zip(experiment.planned, fits, strict=True)
    ]
    table = table.assign(named=named)
    shares = {count: fixed_lag_floor(task).share for count, task in tasks.items()}
    middle = medians(table, ["model", "candidates"])
    looks = medians(table, ["model", "candidates"], "named")
    statements = _of_the_floor(table, shares)
    words = "; ".join(
        f"{count} candidates: floor {shares[count]:.3f}, "
        + ", ".join(f"{way} {_errors(table, way, count)}" for way in ways)
        + f"; attention on the lag that the token names {looks[_CONTENT, count]:.2f}"
        for count in tasks
    )
    needed = list(statements)[2:]
    numbers = {
        "statements": statements,
        "floor": {str(count): share for count, share in shares.items()},
        "errors": by_seed(table, ["model", "candidates"]),
        "attention_where_named": by_seed(
            table[table["model"] == _CONTENT], ["model", "candidates"], "named"
        ),
    }
    most = max(tasks)
    key = (
        f"{most} candidates: floor {shares[most]:.3f}, {_TABLE} {middle[_TABLE, most]:.3f}, "
        f"{_FFN} {middle[_FFN, most]:.3f}, {_CONTENT} {middle[_CONTENT, most]:.2g}"
    )
    return Verdict(
        status_of(statements, needed=needed),
        words + ".",
        key,
        numbers,
        {"errors": table},
        {"errors": _above_the_floor(table, shares)},
    )


def _of_the_floor(table: pd.DataFrame, shares: Mapping[int, float]) -> dict[str, bool]:
    """Return the four statements of the claim and whether they hold, from every model's error and
    attention."""
    middle = medians(table, ["model", "candidates"])
    looks = medians(table, ["model", "candidates"], "named")
    linear = table[table["model"].isin((_LIN, _TABLE))]
    return {
        "no model without FFN below the floor": bool(
            (linear["error"] >= _ABOVE * linear["candidates"].map(shares)).all()
        ),
        "learned biases reach the floor": all(
            middle[_TABLE, count] <= _NEAR * share for count, share in shares.items()
        ),
        "with content the task is solved": all(
            middle[_CONTENT, count] <= _SOLVED for count in shares
        ),
        "with content attention is where the token says": all(
            looks[_CONTENT, count] >= _NAMED for count in shares
        ),
    }


@torch.no_grad()
def _attention_named(model: Any, task: AdaptiveMemory) -> float:
    """Return the mean attention to the lag that the token names, for a model with one head."""
    batch = task.sample(_LOOKED, seed=EVALUATION_SEED)
    name = "blocks.0.attn.hook_pattern"
    _, cache = model.run_with_cache(batch.inputs, names_filter=name, return_cache_object=False)
    place = torch.arange(task.length) - batch.latents["t_1"].long()
    found = cache[name][:, 0].gather(2, place.clamp(min=0)[..., None])[..., 0]
    return float(found[batch.mask].mean())


def _above_the_floor(table: pd.DataFrame, shares: Mapping[int, float]) -> Drawing:
    """Draw the errors of all models beside the closed form of the floor."""
    closed = pd.DataFrame(
        [("floor, closed form", count, 0, share) for count, share in shares.items()],
        columns=["model", "candidates", "seed", "error"],
    )
    figure = sweep(
        pd.concat([closed, table]),
        x="candidates",
        across="candidate locations A",
        by="model",
        label="mean square error, share of variance",
        dashed=("floor, closed form",),
        log_x=False,
        log_y=False,
    )
    words = "Errors with and without content, beside the floor of models without."
    return Drawing(figure, words)


def gating(setting: Setting) -> Verdict:
    """Measure what gating costs against the number of candidates (ledger:
    ``memory-gating-cost``)."""
    options, experiment = setting.options, with_slower_terms(setting)
    for count in options["candidates"]:
        task = task_of(count, options["length"])
        ways: dict[str, dict[int, dict[str, Any]]] = {
            _FFN: {
                n: {"lag_bias": "table", "n_heads": count, "ffn": (n,)}
                for n in options["neurons"]["gated"]
            },
            _CONTENT: {n: _content(n) for n in options["neurons"]["content"]},
        }
        for way, sizes in ways.items():
            for neurons, changes in sizes.items():
                spec = spec_of(task, options, **changes)
                labels = {"model": way, "candidates": count, "neurons": neurons}
                experiment.add(labels, task, spec)
    table, _ = experiment.run(levels=[options["level"]])
    costs = gating_costs(options["largest"])
    needed = {
        way: _neurons_needed(table[table["model"] == way], options["level"])
        for way in (_FFN, _CONTENT)
    }
    heads = costs.pivot(index="candidates", columns="way", values="heads")
    ratio = (heads["gated"] / heads["shifted"]).tolist()
    order = sorted(options["candidates"])
    gated = [needed[_FFN][count] for count in order]
    moved = [needed[_CONTENT][count] for count in order]
    grow = "trained: neurons of gating at least double"
    statements = {
        "constructed: heads of gating over those of shifting grow": (
            ratio == sorted(ratio) and ratio[-1] >= 2
        ),
        grow: gated == sorted(gated) and 2 * gated[0] <= gated[-1] < float("inf"),
        "trained: neurons of content do not grow": moved[-1] <= moved[0] < float("inf"),
        "trained: content needs fewer neurons for the most candidates": moved[-1] < gated[-1],
    }
    words = (
        f"Constructed, for {', '.join(map(str, heads.index))} candidates: "
        f"{', '.join(map(str, heads['gated']))} heads when gated, "
        f"{', '.join(map(str, heads['shifted']))} when shifted. Trained to an error of "
        f"{options['level']}, for {', '.join(map(str, order))} candidates: fewest neurons "
        f"{_counts(gated)} when gated, {_counts(moved)} with content in the scores."
    )
    numbers = {
        "statements": statements,
        "heads": {way: [int(v) for v in heads[way]] for way in ("gated", "shifted")},
        "neurons_needed": {
            way: {str(k): None if v == float("inf") else v for k, v in n.items()}
            for way, n in needed.items()
        },
        "errors": by_seed(table, ["model", "candidates", "neurons"]),
    }
    drawings = {
        "trained": _against_neurons(table, options["level"]),
        "constructed": Drawing(gating_costs_figure(costs), "Costs of both constructions."),
    }
    key = (
        f"neurons for error ≤ {options['level']}: gated {_counts(gated)}, content {_counts(moved)}"
    )
    tables = {"errors": table, "constructions": costs}
    return Verdict(status_of(statements, needed=[grow]), words, key, numbers, tables, drawings)


def _against_neurons(table: pd.DataFrame, level: float) -> Drawing:
    figure = sweep(
        table.assign(candidates=table["candidates"].map(lambda a: f"A = {a} candidates")),
        x="neurons",
        across="FFN neurons",
        by="model",
        panel="candidates",
        label="mean square error, share of variance",
        levels={f"error {level}": level},
    )
    return Drawing(figure, "Error against neurons, a panel for each number of locations.")


def softmax_dot(setting: Setting) -> Verdict:
    """Train real attention on Task II (ledger: ``memory-softmax-dot``)."""
    options, experiment = setting.options, with_slower_terms(setting)
    task = task_of(options["candidates"], options["length"])
    none: dict[str, Any] = {"lag_bias": "none", "score": "dot"}
    ways: dict[str, dict[str, Any]] = {
        "dot product, lin": {"score": "dot"},
        "dot product, log": {"score": "dot", "lag_bias": "log"},
        "dot product, learned bias a lag": {"score": "dot", "lag_bias": "table"},
        "dot product, learned positions": {**none, "positions": "learned"},
        "dot product, rotary": {**none, "positions": "rope"},
        "relative keys": {"lag_bias": "relative_keys"},
        "no content: learned bias a lag": {"lag_bias": "table"},
    }
    for way, changes in ways.items():
        for layers in options["layers"]:
            spec = spec_of(task, options, n_layers=layers, **changes)
            labels = {"model": way, "layers": f"{layers} layer{'s' * (layers > 1)}"}
            own = options["slopes"] if way.endswith(("lin", "log")) else {}
            experiment.add(labels, task, spec, **own)
    share = fixed_lag_floor(task).share
    table, _ = experiment.run(levels=(options["level"], share / 2))
    middle = medians(table, ["model", "layers"])
    best = {way: min(v for (w, _), v in middle.items() if w == way) for way in ways}
    dots = [way for way in ways if way.startswith("dot")]
    solved = [way for way in dots if best[way] <= options["level"]]
    below = [way for way in dots if best[way] <= share / 2]
    words = (
        f"Median errors at the better depth: {', '.join(f'{w} {e:.3f}' for w, e in best.items())} "
        f"(floor without content and gating {share:.2f}). Solved (at most {options['level']}): "
        f"{', '.join(solved) or 'none'}."
    )
    numbers = {"best": best, "floor": share, "errors": by_seed(table, ["model", "layers"])}
    figure = strips(
        table,
        group="model",
        y="error",
        by="layers",
        chance=share,
        label="mean square error, share of variance (dashed: floor)",
    )
    key = f"{len(solved)} of {len(dots)} kinds of positions solve it"
    status = decide(len(solved) == len(dots), bool(below))
    drawing = Drawing(figure, "Errors by kind of positions.")
    return verdict(status, words, key, numbers, name="errors", table=table, drawing=drawing)


def query_scalar(setting: Setting) -> Verdict:
    """Train a scalar of the query in place of the dot product (ledger: ``memory-query-scalar``)."""
    options, experiment = setting.options, with_slower_terms(setting)
    task = task_of(options["candidates"], options["length"])
    before: dict[str, Any] = {"input_ffn": (options["ffn"],), "ffn": ()}
    ways: dict[str, dict[str, Any]] = {
        _DOT: {"score": "dot"},
        "scalar in the slope": {"score": "slope"},
        "scalar, no softmax": {"score": "scalar_gate", "normalizer": "none"},
        _NO_CONTENT: {"score": "none"},
    }
    for way, changes in ways.items():
        spec = spec_of(task, options, **before, **changes)
        experiment.add({"model": way}, task, spec)
    table, _ = experiment.run()
    middle, sizes = medians(table, ["model"]), medians(table, ["model"], "parameters")
    gain = middle[_NO_CONTENT] - middle[_DOT]
    scalars = [way for way in ways if way.startswith("scalar")]
    shares = {way: (middle[_NO_CONTENT] - middle[way]) / gain for way in scalars}
    falls = f"the dot product leaves at most {_FALLS:g} of the error without content"
    statements = {falls: middle[_DOT] <= _FALLS * middle[_NO_CONTENT]} | {
        f"{way}: at least {_SHARE:g} of the dot product's gain, with fewer weights": (
            share >= _SHARE and sizes[way] < sizes[_DOT]
        )
        for way, share in shares.items()
    }
    ok = list(statements.values())
    words = (
        ", ".join(
            f"{way} {spread(table[table['model'] == way]['error'].tolist())} with "
            f"{int(sizes[way])} weights"
            for way in ways
        )
        + f" (floor without content and gating {fixed_lag_floor(task).share:.2f}). Of the dot "
        "product's gain: " + ", ".join(f"{way} {share:.2f}" for way, share in shares.items()) + "."
    )
    figure = strips(
        table.assign(by="one layer, FFN before it only"),
        group="model",
        y="error",
        by="by",
        label="mean square error, share of variance",
    )
    numbers = {"statements": statements, "shares": shares, "errors": by_seed(table, ["model"])}
    key = "of the dot product's gain: " + ", ".join(f"{w} {s:.2f}" for w, s in shares.items())
    status = decide(all(ok), ok[0] and any(ok[1:]))
    drawing = Drawing(figure, "Errors with a dot product, with scalars of the query, and without.")
    return verdict(status, words, key, numbers, name="errors", table=table, drawing=drawing)


def _content(neurons: int) -> dict[str, Any]:
    """Return the options of a model with one head of relative keys behind an FFN and no FFN after
    it, so that nothing in it can gate."""
    return {"lag_bias": "relative_keys", "n_heads": 1, "input_ffn": (neurons,), "ffn": ()}


def _errors(table: pd.DataFrame, way: str, count: int) -> str:
    rows = table[(table["model"] == way) & (table["candidates"] == count)]
    return spread(rows["error"].tolist())


def _neurons_needed(table: pd.DataFrame, level: float) -> dict[int, float]:
    """Return candidates → the smallest number of neurons whose median error is at most ``level``; ∞
    if there is none."""
    middle = medians(table, ["candidates", "neurons"])
    return {
        int(count): min(
            (float(n) for (at, n), e in middle.items() if at == count and e <= level),
            default=float("inf"),
        )
        for count in dict.fromkeys(table["candidates"])
    }


def _counts(values: list[float]) -> str:
    return " / ".join("none" if v == float("inf") else f"{v:g}" for v in values)


_WAYS = {
    "gated": ("one group a candidate, gated by the FFN (1 layer)", "orange", "o"),
    "shifted": ("one group, shifted by the location (2 layers)", "blue", "s"),
}
_MEASURES = {"heads": "heads", "neurons": "FFN neurons", "weights": "weights that are not 0"}


def gating_costs_figure(table: pd.DataFrame) -> Figure:
    """Heads, neurons and weights against the number of candidate lags.

    Args:
        table: Columns ``candidates``, ``way`` (``gated`` or ``shifted``), ``heads``, ``neurons``,
            ``weights``.
    """
    with style():
        figure = Figure(figsize=size(1.2, len(_MEASURES)))
        grid = figure.subplots(1, len(_MEASURES))
        for axes, (column, name) in zip(grid, _MEASURES.items(), strict=True):
            for way, (legend, colour, marker) in _WAYS.items():
                rows = table[table["way"] == way].sort_values("candidates")
                axes.plot(
                    rows["candidates"],
                    rows[column],
                    marker=marker,
                    color=PALETTE[colour],
                    label=legend,
                )
            axes.set(xlabel="candidate lags A (locations 1 … A)", ylabel=name)
            axes.set_ylim(bottom=0)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
