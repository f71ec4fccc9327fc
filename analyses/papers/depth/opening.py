"""Claim: trained predictors of L_k compute what the program nests, layer by layer.

    run    E_{j+1} can be read after layer j and not before, the task is lost without the layer, and
           E_{j+1} exchanged between strings there has the consequences that the program says
    even   the heads of those models count evenly, as those of the compiled program do

The compiled program is the yardstick; each trained model of depth k − 2 is asked the same questions
(:mod:`analyses.papers.depth.inside`, :mod:`analyses.papers.depth.exchange`). A model that solves
the task another way makes the claim fail; that refutes this account of trained models and not the
theorem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyses.figures.dots import strips
from analyses.figures.layers import layer_comparison
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.depth.exchange import Exchange, exchanges
from analyses.papers.depth.inside import ablations, counting, decoding, first_sites
from analyses.papers.depth.predictors import (
    bins_of,
    exact_match,
    letter_id,
    predictor_run,
    shipped_predictor,
    strings_of,
)
from analyses.papers.experiment import train_runs
from prooflens.crasp import prediction_program
from prooflens.plot import Panel
from prooflens.proofs import compile_program

__all__ = ["even", "judge", "judge_evenness", "run"]

_GENERALISES, _DECODED, _SHUFFLED, _EVEN, _BROKEN = 0.9, 0.95, 0.6, 0.25, 0.5
_AFTER, _BEFORE = 0.9, 0.75
_MEASURES = {
    "broken": "right strings made wrong without\nthe layer's attention (share)",
    "before": "formula exchanged before the layer\n(counterfactual accuracy)",
    "after": "formula exchanged after the layer\n(counterfactual accuracy)",
}


@dataclass(frozen=True)
class Opened:
    """The measurements of one model.

    Attributes:
        name: The name of the model.
        k: The number of blocks in its language L_k.
        match: The share of whole strings that are right at the longer lengths.
        decoded: The table of :func:`~analyses.papers.depth.inside.decoding`.
        summary: A row for each layer j: ``placed``, ``shuffled``, ``broken``, ``before``,
            ``after``, ``even`` and others.
    """

    name: str
    k: int
    match: float
    decoded: pd.DataFrame
    summary: pd.DataFrame


def run(setting: Setting) -> Verdict:
    """Measure every model beside the compiled program of its language.

    Options: ``models`` (shipped ones, by name) or ``blocks`` and those of
    :func:`~analyses.papers.depth.predictors.predictor_run`; ``rows`` strings; ``bins``;
    ``exchange``, the options of :class:`~analyses.papers.depth.exchange.Exchange`.
    """
    options = setting.options
    lengths, how = bins_of(options)[-1], Exchange(**options["exchange"])
    opened: list[Opened] = []
    compiled: dict[int, Opened] = {}
    theory: dict[int, Mapping[int, Any]] = {}
    for name, k, model in _models(setting):
        batch = strings_of(k, lengths, int(options["rows"]))
        if k not in compiled:
            made = compile_program(prediction_program(k), longest=batch.inputs.shape[1] - 1)
            name_of = f"compiled, k = {k}"
            compiled[k], theory[k] = open_model(name_of, k, made.model, batch, None, how)
        opened.append(open_model(name, k, model, batch, theory[k], how)[0])
    return verdict(opened, compiled)


def even(setting: Setting) -> Verdict:
    """Test that trained heads count evenly (ledger: ``depth-even-counting``).

    Options: as :func:`run`, without ``exchange``.
    """
    options = setting.options
    lengths, found = bins_of(options)[-1], []
    for name, k, model in _models(setting):
        batch = strings_of(k, lengths, int(options["rows"]))
        match, heads = exact_match(model, batch), counting(model, batch)
        found.append(heads.assign(model=name, k=k, match=match, layer=heads["layer"] + 1))
    table = pd.concat(found, ignore_index=True)
    judged = table[table["match"] >= _GENERALISES]
    status, words = judge_evenness(judged)
    near = judged["even"]
    key = f"distance from even {near.min():.2f} to {near.max():.2f} (at most {_EVEN} is asked for)"
    shown = table.melt(
        ["model", "layer"], ["even", "bos", "self"], var_name="ideal", value_name="distance"
    )
    shown["place"] = shown["model"] + ", layer " + shown["layer"].astype(str)
    label = "distance of the attention (total variation)"
    figure = strips(shown, group="place", y="distance", label=label, by="ideal")
    seen = "How far each layer's attention is from even, from BOS alone and from its own position."
    return Verdict(
        status,
        words,
        key if len(judged) else "",
        {"heads": _records(table)},
        {"heads": table},
        {"even": Drawing(figure, seen)},
        tuple(dict.fromkeys(table["model"])),
    )


def open_model(
    name: str,
    k: int,
    model: Any,
    batch: Any,
    theory: Mapping[int, Any] | None,
    how: Exchange,
) -> tuple[Opened, Mapping[int, Any]]:
    """Make all measurements of one model, and find the strings that each ablation breaks.

    Args:
        name: The name of the model.
        k: The number of blocks in its language L_k.
        model: The model.
        batch: Strings of L_k.
        theory: For each layer, the strings that break in the compiled model.
        how: The options of the exchange of formulas.
    """
    decoded, heads = decoding(model, batch), counting(model, batch)
    lost, wrong = ablations(model, batch, letter_id(k))
    first, exchanged = dict(first_sites(decoded, _DECODED)), exchanges(model, k, how)
    rows = []
    for layer in range(model.spec.n_layers):
        formula = f"E{layer + 2}"
        site = first.get(formula)
        control = decoded[decoded["formula"] == formula]["shuffled"]
        both = heads[heads["layer"] == layer][["even", "bos", "self"]].mean()
        rows.append(
            {
                "model": name,
                "k": k,
                "layer": layer + 1,
                "formula": formula,
                "first_site": site,
                "placed": site is not None and site.startswith(f"blocks.{layer}."),
                "shuffled": float(control.max()) if len(control) else float("nan"),
                **both.to_dict(),
                **lost.iloc[layer][["broken", "on_last_letter"]].to_dict(),
                **exchanged.iloc[layer][["before", "after"]].to_dict(),
                "same_as_theory": float((wrong[layer] == theory[layer]).double().mean())
                if theory is not None
                else 1.0,
            }
        )
    found = Opened(name, k, exact_match(model, batch), decoded, pd.DataFrame(rows))
    return found, wrong


def judge(summary: pd.DataFrame) -> tuple[Any, str]:
    """Apply the rule to the layers of all models that generalise.

    Args:
        summary: Columns ``k``, ``layer``, ``placed``, ``shuffled``, ``broken``, ``before``,
            ``after``.

    Returns:
        The status, and a sentence or two.
    """
    if summary.empty:
        return "not reproduced", "No model generalised, so there was nothing to open."
    checked = summary.assign(
        placed=summary["placed"] & (summary["shuffled"] < _SHUFFLED),
        used=(summary["after"] >= _AFTER) & (summary["before"] <= _BEFORE),
        breaks=summary["broken"] >= _BROKEN,
    )
    cells = _by_layer(checked, ["placed", "used", "breaks"])
    share = cells.mean()
    said = (
        f"Of {len(cells)} (k, layer) pairs, the nested formula first appears at its layer in "
        f"{share['placed']:.0%}, exchanged there and not before it has the program's consequences "
        f"in {share['used']:.0%}, and ablating the layer breaks most strings in "
        f"{share['breaks']:.0%}."
    )
    if bool(cells.all().all()):
        return "reproduced", said
    return ("partly" if bool(cells.all().any()) else "not reproduced"), said


def judge_evenness(heads: pd.DataFrame) -> tuple[Any, str]:
    """Apply the rule about even counting to the heads of models that generalise.

    Args:
        heads: Columns ``k``, ``layer``, and the distances ``even``, ``bos`` and ``self``.
    """
    if heads.empty:
        return "not run", "No model generalised, so there was nothing to open."
    nearest = heads["even"] < heads[["bos", "self"]].min(axis=1)
    cells = _by_layer(heads.assign(counts=(heads["even"] <= _EVEN) & nearest), ["counts"])
    share = float(cells["counts"].mean())
    said = f"Of {len(cells)} (k, layer) pairs the head counts evenly in {share:.0%}."
    return ("reproduced" if share == 1 else "partly" if share >= 0.5 else "not reproduced"), said


def _by_layer(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return, for each k and layer, whether the median over models has each of some properties."""
    kept = table[["k", "layer", *columns]].astype(float)
    return kept.groupby(["k", "layer"]).median() >= 0.5


def verdict(opened: Sequence[Opened], compiled: Mapping[int, Opened]) -> Verdict:
    """Return the verdict that the ledger's rule gives for the measurements."""
    summaries = [model.summary.assign(match=model.match) for model in opened]
    everything = pd.concat(
        [*summaries, *(m.summary.assign(match=m.match) for m in compiled.values())]
    )
    judged = [s for s, model in zip(summaries, opened, strict=True) if model.match >= _GENERALISES]
    status, words = judge(pd.concat(judged) if judged else pd.DataFrame())
    words += f" {len(judged)} of {len(opened)} models generalise and are judged."
    numbers = {
        "exact_match": {model.name: model.match for model in opened},
        "layers": _records(everything),
    }
    first = words.split(". ")[0]
    key = f"{len(judged)} models judged; {first[:1].lower()}{first[1:]}"
    shown = [model for model in opened if model.match >= _GENERALISES] or list(opened)
    decoded = [m.decoded.assign(model=m.name) for m in (*opened, *compiled.values())]
    tables = {"layers": everything, "decoding": pd.concat(decoded)}
    drawing = Drawing(
        _figure(shown, compiled),
        "Above, two maps of formulas and counts by sites of the residual stream, trained beside "
        "compiled: what linear probes read. Below, for each layer of every model: the strings that "
        "break without it, and the counterfactual accuracy of its formula exchanged before it and "
        "after it.",
    )
    names = tuple(model.name for model in opened)
    return Verdict(status, words, key, numbers, tables, {"layers": drawing}, names)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON data, with None for NaN."""
    return [
        {
            str(name): None if isinstance(value, float) and np.isnan(value) else value
            for name, value in row.items()
        }
        for row in table.to_dict("records")
    ]


def _figure(judged: Sequence[Opened], compiled: Mapping[int, Opened]) -> Any:
    """A figure with maps of the models with the most blocks, and every model's measures."""
    k = max(model.k for model in judged)
    mine = [model for model in judged if model.k == k]
    shown = pd.concat([model.decoded for model in mine])
    title = f"trained, k = {k}" + (f", median of {len(mine)}" if len(mine) > 1 else "")
    panels = [_map(title, shown), _map(f"compiled, k = {k}", compiled[k].decoded)]
    columns = ["in", *(f"{part} {layer + 1}" for layer in range(k - 2) for part in ("att", "ffn"))]
    both = [(model, False) for model in judged]
    both += [(compiled[j], True) for j in sorted({model.k for model in judged})]
    rows = [
        {
            "group": f"k={model.k}",
            "layer": int(row["layer"]),
            "model": model.name,
            "constructed": constructed,
            "measure": name,
            "value": float(row[column]),
        }
        for model, constructed in both
        for _, row in model.summary.iterrows()
        for column, name in _MEASURES.items()
    ]
    return layer_comparison(
        panels,
        columns,
        pd.DataFrame(rows).sort_values(["group", "layer"], kind="stable"),
        label="linear probe: balanced\naccuracy; R² of counts #",
        across="after sublayer",
        levels={
            _MEASURES["broken"]: _BROKEN,
            _MEASURES["before"]: _BEFORE,
            _MEASURES["after"]: _AFTER,
        },
    )


def _map(title: str, decoded: pd.DataFrame) -> Panel:
    """Return a map of formulas and counts by site, with the median over models."""
    wide = decoded.pivot_table(
        index="formula", columns="site", values="accuracy", aggfunc="median", sort=False
    )
    formulas = sorted(wide.index, key=lambda name: (name[0] == "#", name == "last", name))
    order = list(dict.fromkeys(decoded["site"]))
    return Panel(title, wide.loc[formulas, order].to_numpy(), formulas)


def _models(setting: Setting) -> Iterator[tuple[str, int, Any]]:
    options = setting.options
    if "models" in options:
        for name in options["models"]:
            k, _, model = shipped_predictor(name)
            yield name, k, model
        return
    cells = [(k, seed) for k in options["blocks"] for seed in setting.seeds]
    fits = train_runs(
        setting, [predictor_run(k, k - 2, seed, options) for k, seed in cells], "runs"
    )
    for (k, seed), fit in zip(cells, fits, strict=True):
        yield f"L_{k}, seed {seed}", k, fit.model
