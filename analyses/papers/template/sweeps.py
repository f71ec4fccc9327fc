"""Does the effect of a survive other sizes, other training, other architectures?

    hyperparameters  heads, width, FFN, learning rate, batch, all weights or the readout alone
    norms            with and without residual connections and LayerNorm
    depth            1 to 16 layers

Each variation changes one thing. The effect is the mean gain in accuracy on unseen symbols that the
scalar brings at the same n, among runs that fit their training strings. Where plain models already
succeed there is no room for a gain, and where no run of a kind fits there is nothing to compare:
such variations are named and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, decide, verdict
from analyses.papers.template.models import NAMES, fitted, on_unseen, spec_of, task_sizes, unfitted
from interp.figures.sweeps import strips
from interp.tasks.template.named import same_different

__all__ = ["depth", "hyperparameters", "norms"]

_GAIN, _ROOM = 0.05, 0.9
_READOUT = ("unembed.*", "blocks.*.mlp.W_out", "blocks.*.mlp.b_out")

Variation = tuple[Mapping[str, Any], Mapping[str, Any]]


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
        "readout alone": ({}, {"parameters": (*_READOUT, "blocks.*.attn.terms.identity.a")}),
    }
    return _swept(setting, variations)


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
    return _swept(setting, variations)


def depth(setting: Setting) -> Verdict:
    """Test the effect of a in models of 1 to 16 layers (ledger: ``template-depth``)."""
    variations: dict[str, Variation] = {
        f"{n} layer{'s' * (n > 1)}": ({"n_layers": n, "norm": "layernorm"}, {})
        for n in setting.options["depths"]
    }
    return _swept(setting, variations)


def _swept(setting: Setting, variations: Mapping[str, Variation]) -> Verdict:
    options = setting.options
    task = same_different(**task_sizes(options))
    experiment = on_unseen(setting, rows=options["rows"])
    for name, (sizes, training) in variations.items():
        for scalars in ("", "a"):
            trained = dict(training)
            if not scalars and "parameters" in trained:
                trained["parameters"] = _READOUT
            spec = spec_of(task, options, scalars, **sizes)
            labels = {"variation": name, "model": NAMES[scalars]}
            experiment.add(labels, task, spec, **trained)
    table, _ = experiment.run()
    means = fitted(table).groupby(["variation", "model"])["accuracy"].mean().unstack()
    means = means.reindex(index=list(variations), columns=[NAMES[""], NAMES["a"]])
    difference = (means["+ aI"] - means["plain"]).dropna()
    gains = {str(name): float(gain) for name, gain in difference.items()}
    room = [name for name in gains if means["plain"][name] < _ROOM]
    kept = [name for name in room if gains[name] >= _GAIN]
    share = len(kept) / len(room) if room else 0.0
    left = {
        " Not with": [name for name in room if name not in kept],
        " No room": [name for name in gains if name not in room],
        " No runs that fit to compare": [name for name in variations if name not in gains],
    }
    words = (
        f"The scalar gains at least {_GAIN} in {len(kept)} of {len(room)} variations in which "
        f"plain models leave room (below {_ROOM})."
        + "".join(f"{told}: {', '.join(names)}." for told, names in left.items() if names)
    )
    lost = {str(v): unfitted(rows) for v, rows in table.groupby("variation", sort=False)}
    numbers = {
        "gains": gains,
        "accuracy": by_seed(table, ["variation", "model"], "accuracy"),
        "not_fitted": {v: counts for v, counts in lost.items() if counts},
    }
    told = [gains[name] for name in room] or [0.0]
    figure = strips(table, group="variation", chance=0.5)
    return verdict(
        decide(share == 1, share >= 0.5) if room else "not run",
        words,
        f"gain {min(told):+.2f} to {max(told):+.2f} in accuracy over {len(room)} variations",
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy on unseen symbols with and without aI."),
    )
