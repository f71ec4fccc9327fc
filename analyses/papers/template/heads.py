"""What training makes of the heads: learned scalars, diagonals during training, specialisation.

The claim is that training makes some heads match symbols (W_K W_Qᵀ + aI with a clear diagonal on
the symbols) rather than all alike. Diagonals are measured on the *effective* circuit through the
embedding, on symbols of both alphabets, against random heads seen through the same embedding.
Unseen symbols' embeddings are random there: a diagonal on them cannot have been learned by heart.

A diagonal is a property of weights. Whether the head is used is asked by the roles' detectors.
"""

from __future__ import annotations

from typing import Any, cast

import pandas as pd

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from analyses.papers.template.circuits import circuit_drawing, scalar_drawing
from analyses.papers.template.models import NAMES, on_unseen, spec_of, task_sizes
from interp.figures.sweeps import accuracy_sweep
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.template.named import same_different
from interp.weights.diagonals import diagonal_table

__all__ = ["specialisation"]

_CLEAR = 0.2
_SYMBOLS = 64


def specialisation(setting: Setting) -> Verdict:
    """Test that heads specialise (ledger: ``template-head-specialisation``)."""
    options = setting.options
    task = same_different(**task_sizes(options))
    experiment = on_unseen(setting, rows=options["rows"], snapshots=options["steps"] // 8)
    for kind in ("", "a"):
        experiment.add({"model": NAMES[kind]}, task, spec_of(task, options, kind))
    table, fits = experiment.run()
    unseen = slice(task.test[0], min(task.test[1], task.test[0] + _SYMBOLS))
    final, along = [], []
    for (labels, run), fit in zip(experiment.planned, fits, strict=True):
        final.append(_shares(fit.model, unseen).assign(**labels))
        for step, weights in {0: None, **fit.snapshots}.items():
            spec = cast("TransformerSpec", run.spec)
            model = SequenceTransformer(spec, seed=run.training.seed)
            if weights is not None:
                model.load_state_dict(weights)
            strongest = _shares(model, unseen)["score"].abs().max()
            along.append({**labels, "step": step, "share": float(strongest)})
    shares = pd.concat(final, ignore_index=True)
    shares["clear"] = (shares["q"] < 0.01) & (shares["score"].abs() >= _CLEAR)
    counts = shares.groupby(["model", "seed"], sort=False)["clear"].sum()
    clear = cast("dict[tuple[str, int], int]", counts.to_dict())
    some = {str(m): float(c.gt(0).mean()) for m, c in counts.groupby(level=0, sort=False)}
    uneven = {
        str(m): float(r.groupby("seed")["score"].std().mean())
        for m, r in shares.groupby("model", sort=False)
    }
    mixed = float((counts.loc["+ aI"].between(1, options["heads"] - 1)).mean())
    words = (
        f"With aI {some['+ aI']:.0%} of seeds have a head with a clear diagonal on unseen symbols "
        f"(plain {some['plain']:.0%}); in {mixed:.0%} some heads have it and others do not."
    )
    numbers = {
        "clear_heads": {f"{m} seed {s}": int(c) for (m, s), c in clear.items()},
        "spread_over_heads": uneven,
        "accuracy": table["accuracy"].tolist(),
        "trace_share": {
            f"{m} seed {s}": r["score"].round(4).tolist()
            for (m, s), r in shares.groupby(["model", "seed"], sort=False)
        },
    }
    label = "largest |trace share| on symbols"
    trace = accuracy_sweep(
        pd.DataFrame(along),
        x="step",
        across="optimiser step",
        y="share",
        label=label,
        log_x=False,
    )
    return Verdict(
        decide(mixed > 0.5, some["+ aI"] > 0.5),
        words,
        f"{counts.loc['+ aI'].mean():.1f} of {options['heads']} heads clear with aI, "
        f"{counts.loc['plain'].mean():.1f} without",
        numbers,
        {"accuracy": table, "diagonals": shares, "along": pd.DataFrame(along)},
        {
            "circuits": circuit_drawing(experiment.planned, fits, "QK", task.train[0]),
            "along": Drawing(trace, "The strongest head's diagonal along training."),
            "scalars": scalar_drawing(experiment.planned, fits, "a"),
        },
    )


def _shares(model: Any, symbols: slice) -> pd.DataFrame:
    """The trace share of every head's effective QK circuit on the given symbols."""
    found = diagonal_table(model, symbols=symbols)
    kind = "QK+aI" if model.spec.identity_qk else "QK"
    chosen = (found["circuit"] == kind) & (found["metric"] == "trace_share")
    return found[chosen & (found["target"] == "symbols")]
