"""Is a changed order of the inputs hard for recurrent networks and easy for a transformer?

The target is a linear kernel; what the models read is the sequence itself, with its ends exchanged,
or convolved with a random filter (see :class:`~interp.tasks.coupling.LinearKernel`). Every cell is
trained afresh. LSTM, tanh RNN and convolution are ours; the paper has the linear RNN and the
transformer, and its numbers are printed beside ours.

Training is tuned a model (option ``transformer``): it needs a larger rate and more steps than the
others. The statement is about orders of magnitude: errors of a network that could be exact measure
how long it was trained, so cells of one model compare better than cells of one setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pandas as pd

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.models import order_specs, target_variance
from analyses.papers.experiment import Experiment, by_seed, status_of
from interp.figures.comparison import error_table
from interp.tasks.coupling import LinearKernel

__all__ = ["order", "paper_value", "settings"]

_PAPER = {
    ("linear RNN", "exponential, as it is"): 1.02e-7,
    ("linear RNN", "exponential, exchanged"): 3.57e-2,
    ("linear RNN", "exponential, mixed"): 1.58e-7,
    ("linear RNN", "random, as it is"): 5.58,
    ("linear RNN", "random, exchanged"): 5.24,
    ("transformer", "exponential, as it is"): 2.18e-5,
    ("transformer", "exponential, exchanged"): 2.51e-5,
    ("transformer", "exponential, mixed"): 2.39e-4,
    ("transformer", "random, as it is"): 5.43e-4,
    ("transformer", "random, exchanged"): 5.36e-4,
}
_MUCH, _LITTLE, _BETTER, _FILTERED = 100.0, 3.0, 10.0, 20.0


def settings() -> dict[str, LinearKernel]:
    """The five settings of the paper's table: name → task."""
    return {
        "exponential, as it is": LinearKernel("exponential"),
        "exponential, exchanged": LinearKernel("exponential", "exchange"),
        "exponential, mixed": LinearKernel("exponential", "mixing"),
        "random, as it is": LinearKernel("random"),
        "random, exchanged": LinearKernel("random", "exchange"),
    }


def paper_value(model: str, setting: str) -> float:
    """The mean square error that the paper reports; NaN where it reports none."""
    return _PAPER.get((model, setting), float("nan"))


def order(setting: Setting) -> Verdict:
    """Run the ordering experiments (ledger: ``coupling-order``)."""
    experiment = Experiment(setting)
    for name, task in settings().items():
        specs = order_specs(task, setting.options["width"], setting.options["hidden"])
        for model, spec in specs.items():
            own = setting.options["transformer"] if model == "transformer" else {}
            experiment.add({"model": model, "setting": name}, task, spec, **own)
    table = experiment.run()[0][["model", "setting", "seed", "loss"]]
    table = table.rename(columns={"loss": "error"})
    table["paper"] = [
        paper_value(m, s) for m, s in zip(table["model"], table["setting"], strict=True)
    ]
    judged = statements(table)
    needed = ("exchange hurts the RNN", "exchange is free")
    failed = [name for name, found in judged.items() if not found["holds"]]
    words = (
        f"{len(judged) - len(failed)} of {len(judged)} statements hold"
        + (f"; not: {'; '.join(failed)}." if failed else ".")
        + f" Exchanging the ends multiplies the linear RNN's error by "
        f"{judged['exchange hurts the RNN']['ratio']:.2g} and the transformer's by "
        f"{judged['exchange is free']['ratio']:.2g}."
    )
    key = (
        f"exchange: RNN ×{judged['exchange hurts the RNN']['ratio']:.2g}, transformer "
        f"×{judged['exchange is free']['ratio']:.2g}"
    )
    errors = by_seed(table, ["model", "setting"])
    variances = {name: target_variance(task) for name, task in settings().items()}
    numbers = {"statements": judged, "errors": errors, "target_variance": variances}
    seen = "Errors of five models in five settings, the paper's beside them, coloured by magnitude."
    return Verdict(
        status_of({name: bool(found["holds"]) for name, found in judged.items()}, needed=needed),
        words,
        key,
        numbers,
        {"errors": table},
        {"order": Drawing(error_table(table), seen)},
    )


def statements(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rule's statements: ratios of median errors and whether each is on the right side."""
    medians = table.groupby(["model", "setting"])["error"].median()
    e = cast("Mapping[tuple[str, str], float]", medians)
    rnn, tf = "linear RNN", "transformer"
    plain, exchanged, mixed = (f"exponential, {c}" for c in ("as it is", "exchanged", "mixed"))
    found = {
        "exchange hurts the RNN": (e[rnn, exchanged] / e[rnn, plain], _MUCH, True),
        "exchange is free": (e[tf, exchanged] / e[tf, plain], _LITTLE, False),
        "transformer better after it": (e[rnn, exchanged] / e[tf, exchanged], _BETTER, True),
        "RNN better before it": (e[tf, plain] / e[rnn, plain], 1.0, True),
        "mixing costs the RNN little": (e[rnn, mixed] / e[rnn, plain], _FILTERED, False),
        "mixing costs the transformer little": (e[tf, mixed] / e[tf, plain], _FILTERED, False),
    }
    for change in ("as it is", "exchanged"):
        kernel = f"random, {change}"
        name = f"transformer better on the random kernel, {change}"
        found[name] = (e[rnn, kernel] / e[tf, kernel], _BETTER, True)
    return {
        name: {
            "ratio": float(ratio),
            "bound": bound,
            "holds": bool(ratio >= bound if least else ratio <= bound),
        }
        for name, (ratio, bound, least) in found.items()
    }
