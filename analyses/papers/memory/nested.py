"""Round after round: how many layers do nested memories take, and does width replace depth?

R rounds are constructed in R + 1 layers, exactly. Memories that depend on the same round are one
more round together, however many they are. Trained models are heads with relative keys, so
that a token can name a lag, and FFNs; they are judged on what they reach and, where they solve the
task, on the *order* of the rounds: the address read in round r must be decodable before that of
round r + 1, the answer last, and patching it away must make the later one less decodable
(:mod:`analyses.papers.memory.rounds`). R + 1 is an upper bound: fewer layers are no contradiction.

Values are Gaussian and the answer is the mean of all arguments, so that every memory counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from analyses.figures.dots import strips
from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import (
    Experiment,
    Planned,
    by_seed,
    decide,
    medians,
    spread,
    status_of,
    verdict,
)
from analyses.papers.memory.adaptive import task_of
from analyses.papers.memory.models import spec_of
from analyses.papers.memory.rounds import round_order
from prooflens.probes import decode, sampled_positions
from prooflens.proofs import construct_adaptive_memory
from prooflens.tasks import AdaptiveMemory
from prooflens.trained import evaluate, zoo

__all__ = ["concurrent_fetches", "in_order", "rounds_in_layers", "width_for_depth"]

_DECODABLE, _DROP, _PROBED = 0.9, 0.1, 160
_KEYS: dict[str, Any] = {"lag_bias": "relative_keys"}
_WIDE, _DEEP = "one wide layer", "R + 1 layers"


def rounds_in_layers(setting: Setting) -> Verdict:
    """Test that R rounds need R + 1 layers (ledger: ``memory-rounds``)."""
    if setting.profile == "zoo":
        return _judge_shipped(setting)
    options, experiment = setting.options, _decay_experiment(setting)
    tasks = {r: task_of(options["candidates"], options["length"], r) for r in options["rounds"]}
    for rounds, task in tasks.items():
        for layers in range(1 if options["fewer_layers"] else rounds + 1, rounds + 2):
            spec = spec_of(task, options, n_layers=layers, **_KEYS)
            labels = {"rounds": f"R = {rounds}", "layers": layers}
            experiment.add(labels, task, spec)
    table, fits = experiment.run()
    middle = medians(table, ["rounds", "layers"])
    fewest = {r: _fewest_layers(middle, (f"R = {r}",), options["level"]) for r in tasks}
    orders = _orders(experiment.planned, fits, tasks, options["level"])
    exact = {r: _construction_error(options["candidates"], r) for r in tasks}
    built = all(error <= bound for error, bound in exact.values())
    enough = all(middle[f"R = {r}", r + 1] <= options["level"] for r in tasks)
    ordered = sum(orders.values()) >= 0.8 * len(orders) if orders else False
    status = decide(built and enough and ordered, built)
    found = [
        "R + 1 layers leave "
        + ", ".join(_words(table, r, r + 1) for r in tasks)
        + " of the variance"
    ]
    if options["fewer_layers"]:
        told = "; ".join(f"R = {r}: {n or 'none'}" for r, n in fewest.items())
        found.append(f"fewest layers that reach {options['level']}, {told}")
    words = (
        f"Constructions of R + 1 layers are right to {max(e for e, _ in exact.values()):.1g} for R "
        f"= {', '.join(map(str, exact))}. Trained, {'; '.join(found)}. "
        f"Of {len(orders)} trained models of two rounds and more that solve their task, "
        f"{sum(orders.values())} show the rounds in their order."
    )
    numbers = {
        "constructed": {str(r): {"error": e, "certificate": b} for r, (e, b) in exact.items()},
        "fewest_layers": {str(r): n for r, n in fewest.items() if options["fewer_layers"]},
        "in_order": orders,
        "errors": by_seed(table, ["rounds", "layers"]),
    }
    figure = sweep(
        table,
        x="layers",
        across="layers",
        by="rounds",
        log_x=False,
        label="mean square error, share of variance",
        levels={f"error {options['level']}": options["level"]},
    )
    drawing = Drawing(figure, "Error against layers, a colour for each number of rounds.")
    return verdict(status, words, found[-1], numbers, name="errors", table=table, drawing=drawing)


def _judge_shipped(setting: Setting) -> Verdict:
    """Apply the same rule to shipped models, one seed each; candidates are the models' own."""
    rows, orders, exact = [], {}, {}
    for name in setting.options["models"]:
        shipped: Any = zoo.load(name)
        task, layers = shipped.task, shipped.model.spec.n_layers
        error = evaluate(shipped.model, task)["error"]
        rows.append((name, task.rounds, layers, error))
        exact[task.rounds] = _construction_error(len(task.locations), task.rounds)
        if task.rounds >= 2:
            orders[name] = in_order(shipped.model, task)
    table = pd.DataFrame(rows, columns=["model", "rounds", "layers", "error"])
    built = all(error <= bound for error, bound in exact.values())
    solved = bool((table["error"] <= setting.options["level"]).all())
    enough = bool((table["layers"] <= table["rounds"] + 1).all())
    whole = built and solved and enough and sum(orders.values()) >= 0.8 * len(orders)
    words = (
        "; ".join(f"{r.model}: {r.layers} layers, error {r.error:.3f}" for r in table.itertuples())
        + f". In the order of the rounds: {sum(orders.values())} of {len(orders)}."
    )
    numbers = {"errors": dict(zip(table["model"], table["error"], strict=True)), "order": orders}
    figure = strips(
        table.assign(by="shipped"),
        group="model",
        y="error",
        by="by",
        label="mean square error, share of variance",
    )
    return Verdict(
        decide(whole, built),
        words,
        f"{len(table)} shipped models, errors up to {table['error'].max():.3f}",
        numbers,
        {"errors": table},
        {"errors": Drawing(figure, "Errors of the shipped models.")},
        tuple(table["model"]),
    )


def width_for_depth(setting: Setting) -> Verdict:
    """Test whether width replaces depth at equal size (ledger: ``memory-width-depth``)."""
    options, experiment = setting.options, _decay_experiment(setting)
    for rounds in options["rounds"]:
        task = task_of(options["candidates"], options["length"], rounds)
        shapes = {_WIDE: (1, *options["wide"]), _DEEP: (rounds + 1, *options["deep"])}
        for name, (layers, width, heads, neurons) in shapes.items():
            shape = {"n_layers": layers, "d_model": width, "n_heads": heads, "ffn": (neurons,)}
            spec = spec_of(task, options, **shape, **_KEYS)
            experiment.add({"model": name, "rounds": rounds, "layers": layers}, task, spec)
    table, _ = experiment.run()
    middle = medians(table, ["model", "rounds"])
    sizes = medians(table, ["model", "rounds"], "parameters")
    holds = {
        f"{r} rounds: R + 1 layers solve them and no fewer weights in one layer do": (
            sizes[_WIDE, r] >= sizes[_DEEP, r]
            and middle[_DEEP, r] <= options["level"] < middle[_WIDE, r]
            and middle[_WIDE, r] >= 3 * middle[_DEEP, r]
        )
        for r in options["rounds"]
    }
    words = "; ".join(
        f"{r} rounds: {name} ({group['layers'].iloc[0]}, {group['parameters'].iloc[0]} "
        f"parameters) {spread(group['error'].tolist())}"
        for (r, name), group in table.groupby(["rounds", "model"], sort=False)
    )
    numbers = {
        "statements": holds,
        "parameters": {f"{name}, {r} rounds": int(n) for (name, r), n in sizes.items()},
        "errors": by_seed(table, ["model", "rounds"]),
    }
    figure = strips(
        table.assign(task=[f"{r} rounds" for r in table["rounds"]]),
        group="task",
        y="error",
        by="model",
        label="mean square error, share of variance",
    )
    key = "; ".join(
        f"{r} rounds: one wide layer {middle[_WIDE, r]:.2g}, {r + 1} layers {middle[_DEEP, r]:.2g}"
        for r in options["rounds"]
    )
    drawing = Drawing(figure, f"Errors of one wide layer and of R + 1 layers. {key}.")
    status = status_of(holds)
    return verdict(status, f"{words}.", key, numbers, name="errors", table=table, drawing=drawing)


def concurrent_fetches(setting: Setting) -> Verdict:
    """Test that memories of one round take one round (ledger: ``memory-concurrent``)."""
    options, experiment = setting.options, _decay_experiment(setting)
    most = max(options["together"])
    nested = (max(options["first"]) + most, 0)
    cells = [(first, more) for first in options["first"] for more in options["together"]]
    for first, more in (*cells, nested):
        task = replace(
            task_of(options["candidates"], options["length"], max(first, 1)),
            rounds=first,
            concurrent=more,
            readout="mean",
        )
        for layers in options["layers"]:
            spec = spec_of(task, options, n_layers=layers, **_KEYS)
            labels = {"nested": first, "together": more, "layers": layers}
            experiment.add(labels, task, spec)
    level = options["level"]
    table, _ = experiment.run(levels=[level])
    middle = medians(table, ["nested", "together", "layers"])
    fewest = {cell: _fewest_layers(middle, cell, level) for cell in (*cells, nested)}
    last = max(options["first"])
    there = fewest[last, most]
    statements = {
        "R + 1 layers are enough": all(
            (fewest[first, more] or first + 3) <= first + 2 for first, more in cells
        ),
        f"after {last} round, more memories take no more layers": there is not None
        and len({fewest[last, more] for more in options["together"]}) == 1,
        "as many memories one after another are not solved in as few": there is not None
        and middle[(*nested, there)] > level,
    }
    words = (
        f"Fewest of {', '.join(map(str, options['layers']))} layers with a median error of at most "
        f"{level:g}: "
        + "; ".join(
            f"{first} nested and {more} together: {fewest[first, more] or 'none'}"
            for first, more in (*cells, nested)
        )
        + "."
    )
    named = [
        f"{first} nested, {more} together"
        for first, more in zip(table["nested"], table["together"], strict=True)
    ]
    drawn = table.assign(
        memories=named, depth=[f"{n} layer{'s' * (n > 1)}" for n in table["layers"]]
    )
    figure = strips(
        drawn,
        group="memories",
        y="error",
        by="depth",
        chance=level,
        label="mean square error, share of variance (dashed: asked for)",
    )
    numbers = {
        "statements": statements,
        "errors": by_seed(table, ["nested", "together", "layers"]),
    }
    key = "fewest layers, " + "; ".join(
        f"{first} + {more}: {fewest[first, more] or 'none'}" for first, more in (*cells, nested)
    )
    seen = "Errors by how many memories are nested and how many are fetched together after them."
    status = status_of(statements, needed=list(statements)[:1])
    drawing = Drawing(figure, seen)
    return verdict(status, words, key, numbers, name="errors", table=table, drawing=drawing)


def _fewest_layers(middle: Mapping[Any, float], cell: tuple[Any, ...], level: float) -> int | None:
    """Return the smallest number of layers with which a cell's median error is at most ``level``;
    None if there is none.

    Args:
        middle: Median errors by cell and number of layers.
        cell: The part of a key before the number of layers.
        level: The error that must be reached.
    """
    rows = ((key[-1], error) for key, error in middle.items() if key[:-1] == cell)
    return min((layers for layers, error in rows if error <= level), default=None)


def _decay_experiment(setting: Setting) -> Experiment:
    """An experiment with the profile's weight decay."""
    return Experiment(setting, weight_decay=setting.options["weight_decay"])


def _words(table: pd.DataFrame, rounds: int, layers: int) -> str:
    rows = table[(table["rounds"] == f"R = {rounds}") & (table["layers"] == layers)]
    return spread(rows["error"].tolist())


@torch.no_grad()
def _construction_error(candidates: int, rounds: int) -> tuple[float, float]:
    """Return the construction's largest error on fresh rows of ±1 values, and its certificate."""
    task = replace(
        task_of(candidates, 24, rounds),
        inputs="signs",
        readout="parity",
        locations=tuple(range(1, min(candidates, 3) + 1)),
    )
    built = construct_adaptive_memory(task)
    batch = task.sample(200, seed=2**62)
    wrong = (built.model(batch.inputs) - batch.targets)[batch.mask].abs().max()
    return float(wrong), float(built.certificate.error)


def _orders(
    planned: list[Planned], fits: list[Any], tasks: Mapping[int, AdaptiveMemory], level: float
) -> dict[str, bool]:
    """Return, for models of R + 1 layers and at least two rounds that solve their task, whether
    rounds are computed in order."""
    found = {}
    for (_, run), fit in zip(planned, fits, strict=True):
        rounds = next(r for r, task in tasks.items() if task == run.task)
        layers = fit.model.spec.n_layers
        if rounds >= 2 and layers == rounds + 1 and fit.metrics["error"] <= level:
            found[run.name] = in_order(fit.model, tasks[rounds])
    return found


@torch.no_grad()
def in_order(model: Any, task: AdaptiveMemory) -> bool:
    """Return whether each round's address, and at last the answer, becomes decodable only after the
    one before and depends on it."""
    batch = task.sample(_PROBED, seed=2**61)
    chain = [f"a[t-t_{r}]" for r in range(1, task.rounds)] + ["f"]
    hooks = ["hook_embed"]
    for layer in range(model.spec.n_layers):
        hooks += [f"blocks.{layer}.hook_resid_mid", f"blocks.{layer}.hook_resid_post"]
    _, cache = model.run_with_cache(batch.inputs, names_filter=hooks)
    at = sampled_positions(batch.mask.numpy())
    latents = dict(batch.latents)
    for name in chain[:-1]:
        latents[name] = _code(latents[name])
    places = {}
    for name in chain:
        truth = latents[name][:, at].double().numpy()
        scores = [decode(cache[h][:, at].double().numpy(), truth).score for h in hooks]
        first = [h for h, score in zip(hooks, scores, strict=True) if score >= _DECODABLE]
        if not first:
            return False
        places[name] = first[0]
    order = [hooks.index(places[name]) for name in chain]
    if order != sorted(order) or len(set(order)) < len(order):
        return False
    coded = replace(batch, latents=latents)
    table = round_order(model, coded, chain, places)
    return bool((table["score"] >= _DROP).all() and (table["low"] > 0).all())


def _code(bits: torch.Tensor) -> torch.Tensor:
    """Convert addresses of ±1 to whole numbers."""
    places = 2.0 ** torch.arange(bits.shape[-1] - 1, -1, -1)
    return ((bits > 0) * places).sum(-1)
