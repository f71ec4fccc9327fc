"""Does the effect of a survive other sizes, other training, other architectures?

    hyperparameters  heads, width, FFN, learning rate, batch, all weights or the readout alone
    norms            with and without residual connections and LayerNorm
    depth            1 to 16 layers
    authors_setting  the authors' own: two layers with pre-LayerNorm, Gaussian embeddings, a token
                     for the read-out after every string and no causal mask

Each variation changes one thing. The effect is the gain in accuracy on unseen symbols that the
scalar brings at the same n, seed by seed, among runs that fit their training strings. Where plain
models already succeed there is no room for a gain, and where no seed fits with both there is
nothing to compare: such variations are named and decide nothing.

With the readout alone a is not trained either: ridge regression on the neurons of the initial
model, in closed form, with a as it starts (0) and set to ``fixed_a``. As many neurons as strings
are needed to fit them, so this variation has a wider FFN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, decide, interval, verdict
from analyses.papers.template.models import (
    NAMES,
    count_unfitted,
    fitted_runs,
    on_unseen,
    spec_of,
    task_sizes,
)
from analyses.papers.template.nngp import feature_kernel, kernel_predict
from prooflens.architectures import SequenceTransformer
from prooflens.tasks import TemplateTask, aba_abb, same_different

__all__ = ["authors_setting", "depth", "hyperparameters", "norms", "verdict_of", "with_readout"]

_GAIN, _ROOM = 0.05, 0.9
_TESTS = 1024

Variation = tuple[Mapping[str, Any], Mapping[str, Any]]
Kept = Callable[[np.ndarray], bool]

_BY_MEAN: tuple[str, Kept] = (f"mean gain at least {_GAIN}", lambda gains: gains.mean() >= _GAIN)


def hyperparameters(setting: Setting) -> Verdict:
    """Test that the effect of a survives other sizes and training
    (``template-hyperparameters``)."""
    o = setting.options
    base_rate = o["learning_rate"]
    variations: dict[str, Variation] = {
        "as it is": ({}, {}),
        "heads × 2": ({"n_heads": 2 * o["heads"]}, {}),
        "one head": ({"n_heads": 1}, {}),
        "width × 2": ({"d_model": 2 * o["d_model"]}, {}),
        "width ÷ 2": ({"d_model": o["d_model"] // 2}, {}),
        "FFN × 4": ({"ffn": (4 * o["ffn"],)}, {}),
        "two layers": ({"n_layers": 2}, {}),
        "learning rate × 3": ({}, {"learning_rate": 3 * base_rate}),
        "learning rate ÷ 3": ({}, {"learning_rate": base_rate / 3}),
        "batch × 4": ({}, {"batch": 4 * o["batch"]}),
        "batch ÷ 4": ({}, {"batch": o["batch"] // 4}),
    }
    table = pd.concat((_run_variations(setting, variations), _readouts(setting)), ignore_index=True)
    told = "95 % interval of the gain above 0"
    return verdict_of(table, told, lambda g: interval(g)[0] > 0, least=2)


def norms(setting: Setting) -> Verdict:
    """Test the effect of a with and without residual and LayerNorm (ledger: ``template-norms``)."""
    variations: dict[str, Variation] = {
        f"{'residual' if residual else 'no residual'}, {norm.replace('none', 'no norm')}": (
            {"residual": residual, "norm": norm},
            {},
        )
        for residual in (True, False)
        for norm in ("none", "layernorm")
    }
    return verdict_of(_run_variations(setting, variations), *_BY_MEAN)


def depth(setting: Setting) -> Verdict:
    """Test the effect of a in models of 1 to 16 layers (ledger: ``template-depth``)."""
    variations: dict[str, Variation] = {
        f"{n} layer{'s' * (n > 1)}": ({"n_layers": n, "norm": "layernorm"}, {})
        for n in setting.options["depths"]
    }
    return verdict_of(_run_variations(setting, variations), *_BY_MEAN)


def _run_variations(setting: Setting, variations: Mapping[str, Variation]) -> pd.DataFrame:
    """Train all variations with and without the scalar, and return their results."""
    options = setting.options
    task = same_different(**task_sizes(options))
    experiment = on_unseen(setting, rows=options["rows"])
    for name, (sizes, training) in variations.items():
        for scalars in ("", "a"):
            spec = spec_of(task, options, scalars, **sizes)
            experiment.add({"variation": name, "model": NAMES[scalars]}, task, spec, **training)
    return experiment.run()[0]


def _readouts(setting: Setting) -> pd.DataFrame:
    """Return the results of ridge regression on the neurons of initial models, with a = 0 and with
    a fixed a."""
    options = setting.options
    task = same_different(**task_sizes(options))
    rows, n = [], options["rows"]
    for seed, scalars in product(setting.seeds, ("", "a")):
        spec = spec_of(task, options, scalars, ffn=(options["neurons"],))
        model = SequenceTransformer(spec, seed=seed)
        if scalars:
            with torch.no_grad():
                model.blocks[0].attn.terms["identity"].a.fill_(
                    options["fixed_a"] / spec.identity_multiplier
                )
        train, test = task.sample(n, seed=seed), task.unseen().sample(_TESTS, seed=seed)
        kernel = feature_kernel(model, torch.cat((train.inputs, test.inputs)))
        labels = torch.cat((train.targets, test.targets))[:, -1, 0].double().numpy()
        found = kernel_predict(kernel[:n, :n], labels[:n], kernel[:, :n], ridge=options["ridge"])
        right = np.sign(found) == labels
        rows.append(
            {
                "variation": "readout alone",
                "model": NAMES[scalars],
                "seed": seed,
                "accuracy": float(right[n:].mean()),
                "train_accuracy": float(right[:n].mean()),
            }
        )
    return pd.DataFrame(rows)


def verdict_of(table: pd.DataFrame, told: str, keeps: Kept, *, least: int = 1) -> Verdict:
    """Decide the claim from the gains of all variations, seed by seed.

    Only variations count in which at least ``least`` seeds fit their training strings both with and
    without the scalar.
    """
    wide = fitted_runs(table).pivot_table(
        index=["variation", "seed"], columns="model", values="accuracy", sort=False
    )
    both = wide.reindex(columns=[NAMES[""], NAMES["a"]]).dropna()
    gains = {
        str(name): (rows["+ aI"] - rows["plain"]).to_numpy()
        for name, rows in both.groupby(level=0, sort=False)
        if len(rows) >= least
    }
    fewer = "No seed that fits" if least == 1 else f"Fewer than {least} seeds that fit"
    plain = both["plain"].groupby(level=0).mean()
    room = [name for name in gains if plain[name] < _ROOM]
    kept = [name for name in room if keeps(gains[name])]
    share = len(kept) / len(room) if room else 0.0
    variations = list(dict.fromkeys(table["variation"]))
    left = {
        " Not with": [name for name in room if name not in kept],
        " No room": [name for name in gains if name not in room],
        f" {fewer} with both": [name for name in variations if name not in gains],
    }
    words = (
        f"The scalar's effect is kept ({told}) in {len(kept)} of {len(room)} variations in which "
        f"plain models leave room (below {_ROOM})."
        + "".join(f"{told}: {', '.join(names)}." for told, names in left.items() if names)
    )
    lost = {str(v): count_unfitted(rows) for v, rows in table.groupby("variation", sort=False)}
    numbers = {
        "gains": {name: float(found.mean()) for name, found in gains.items()},
        "intervals": {name: interval(found) for name, found in gains.items() if len(found) > 1},
        "accuracy": by_seed(table, ["variation", "model"], "accuracy"),
        "not_fitted": {v: counts for v, counts in lost.items() if counts},
    }
    means = [float(gains[name].mean()) for name in room] or [0.0]
    figure = strips(table, group="variation", chance=0.5)
    return verdict(
        decide(share == 1, share >= 0.5) if room else "not run",
        words,
        f"gain {min(means):+.2f} to {max(means):+.2f} in accuracy over {len(room)} variations",
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy on unseen symbols with and without aI."),
    )


_EMBEDDINGS = {"trained": ("*",), "frozen": ("blocks.*", "pos_embed.*", "unembed.*")}


def authors_setting(setting: Setting) -> Verdict:
    """Test the effect of a on two tasks, embeddings trained or frozen (ledger:
    ``template-authors-setting``).

    The read-out token equals no symbol, so in one layer a is of no use there; with two, the first
    layer sees at every symbol which others equal it, and the read-out token fetches what it saw.
    How many strings each model needs is asked by ``template-sample-efficiency``. A gain does not
    say that the models compute the answer in this way.
    """
    options, experiment = setting.options, on_unseen(setting, rows=setting.options["rows"])
    for make in (same_different, aba_abb):
        task = with_readout(make(**task_sizes(options)))
        for embeddings, trained in _EMBEDDINGS.items():
            name = f"{task.title}, {embeddings} embeddings"
            for scalars in ("", "a"):
                spec = spec_of(task, options, scalars, n_layers=2, norm="layernorm", causal=False)
                labels = {"variation": name, "model": NAMES[scalars]}
                experiment.add(labels, task, spec, parameters=trained)
    told = "95 % interval of the gain above 0"
    return verdict_of(experiment.run()[0], told, lambda gains: interval(gains)[0] > 0, least=2)


def with_readout(task: TemplateTask) -> TemplateTask:
    """The task with a regular token ``→`` after every string, where the answer is read."""
    return replace(task, templates=tuple(z + "→" for z in task.templates))
