"""Order, mixing and memory without decay: what is hard for recurrent networks, what for attention?

    order          the input's ends exchanged, or the input convolved with a random filter
    random_kernel  a kernel without decay, read as it is

The target is a linear kernel; what the models read is the sequence itself or a change of it (see
:class:`~interp.tasks.coupling.LinearKernel`). Every cell is trained afresh. LSTM, tanh RNN and
convolution are ours; the paper has the linear RNN and the transformer, and its numbers are printed
beside ours.

With learned positions that look both ways an exchange is a symmetry of the transformer: it can only
lose what one training loses against another, so what it keeps is asked as a share of the variance.
Of a recurrent network an exchange takes what it has not read yet, which no training gives back.
Errors of a network that could be exact measure how long it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.models import order_specs, target_variance
from analyses.papers.experiment import Experiment, by_seed, decide, medians, status_of
from prooflens.errors import Problems
from prooflens.plot import AMOUNT, style
from prooflens.tasks import LinearKernel

__all__ = ["check", "order", "paper_value", "random_kernel", "settings", "statements"]

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
_COMPARED = ("linear RNN", "transformer")
_MUCH, _BETTER, _COSTS = 100.0, 10.0, 5.0
_KEPT, _NOTHING = 0.02, 1e-3
_KERNEL = "random, as it is"


def check(setting: Setting) -> None:
    """Refuse models that are unknown, or without the two that are compared.

    Raises:
        ArgumentError: for such ``models``.
    """
    problems, models = Problems("claims run"), setting.options["models"]
    known = list(order_specs(LinearKernel("random"), 1, 2))
    good = set(_COMPARED) <= set(models) <= set(known)
    rule = f"must be of {', '.join(known)}, with {' and '.join(_COMPARED)}"
    problems.need(good, "--option models", rule, models, "name them so")
    problems.raise_if_any()


def settings() -> dict[str, LinearKernel]:
    """Return the five settings of the paper's table: name → task."""
    return {
        "exponential, as it is": LinearKernel("exponential"),
        "exponential, exchanged": LinearKernel("exponential", "exchange"),
        "exponential, mixed": LinearKernel("exponential", "mixing"),
        "random, as it is": LinearKernel("random"),
        "random, exchanged": LinearKernel("random", "exchange"),
    }


def paper_value(model: str, setting: str) -> float:
    """Return the mean square error that the paper reports; NaN if it reports none."""
    return _PAPER.get((model, setting), float("nan"))


def order(setting: Setting) -> Verdict:
    """Run the ordering experiments (ledger: ``coupling-order``)."""
    names = [name for name in settings() if name != _KERNEL]
    table = _trained_errors(setting, names)
    variances = {name: target_variance(settings()[name]) for name in names}
    judged = statements(table, variances)
    needed = ("exchange hurts the RNN", "the transformer is left as it is")
    failed = [name for name, found in judged.items() if not found["holds"]]
    hurt, costs = (
        judged[n]["value"] for n in ("exchange hurts the RNN", "mixing costs the transformer")
    )
    left = judged["the transformer is left as it is"]["value"]
    words = (
        f"{len(judged) - len(failed)} of {len(judged)} statements hold"
        + (f"; not: {'; '.join(failed)}." if failed else ".")
        + f" Exchanging the ends multiplies the linear RNN's error by {hurt:.2g} and leaves the "
        f"transformer at {left:.2g} of the variance; the filter multiplies the transformer's error "
        f"by {costs:.2g}."
    )
    key = (
        f"exchange: RNN ×{hurt:.2g}, transformer at {left:.2g} of the variance; filter ×{costs:.2g}"
    )
    numbers = {
        "statements": judged,
        "errors": by_seed(table, ["model", "setting"]),
        "target_variance": variances,
    }
    seen = "Errors of each model in each setting, the paper's beside them, coloured by magnitude."
    return Verdict(
        status_of({name: bool(found["holds"]) for name, found in judged.items()}, needed=needed),
        words,
        key,
        numbers,
        {"errors": table},
        {"order": Drawing(error_table(table), seen)},
    )


def random_kernel(setting: Setting) -> Verdict:
    """Train on a kernel without decay (ledger: ``coupling-random-kernel``)."""
    table = _trained_errors(setting, [_KERNEL])
    variance = target_variance(settings()[_KERNEL])
    found = medians(table, ["model"])
    rnn, transformer = found["linear RNN"], found["transformer"]
    words = (
        f"On a random kernel the linear RNN has an error of {rnn:.2g} and the transformer one of "
        f"{transformer:.2g}, where the target's variance is {variance:.2g}: the transformer is "
        f"{rnn / transformer:.2g} times better. A linear state of as many numbers as there are "
        f"lags, fewer than this RNN has, holds any such kernel exactly."
    )
    return Verdict(
        decide(rnn / transformer >= _BETTER),
        words,
        f"linear RNN {rnn:.2g}, transformer {transformer:.2g} (variance {variance:.2g})",
        {"errors": by_seed(table, ["model", "setting"]), "target_variance": variance},
        {"errors": table},
        {"order": Drawing(error_table(table), "Errors of each model, the paper's beside them.")},
    )


def _trained_errors(setting: Setting, names: Sequence[str]) -> pd.DataFrame:
    """Train the profile's models in some settings and return their mean square errors, for every
    seed."""
    experiment, options = Experiment(setting), setting.options
    for name in names:
        task = settings()[name]
        specs = order_specs(task, options["width"], options["hidden"])
        for model in options["models"]:
            own = options["transformer"] if model == "transformer" else {}
            experiment.add({"model": model, "setting": name}, task, specs[model], **own)
    table = experiment.run()[0][["model", "setting", "seed", "loss"]]
    table = table.rename(columns={"loss": "error"})
    paper = [paper_value(m, s) for m, s in zip(table["model"], table["setting"], strict=True)]
    return table.assign(paper=paper)


def statements(table: pd.DataFrame, variances: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Check the statements of the rule on median errors.

    Args:
        table: Columns ``model``, ``setting``, ``error``.
        variances: Setting → the target's variance.

    Returns:
        Statement → its value, its bound, and whether it holds.
    """
    e = medians(table, ["model", "setting"])
    rnn, tf = "linear RNN", "transformer"
    plain, exchanged, mixed = (f"exponential, {c}" for c in ("as it is", "exchanged", "mixed"))
    random = "random, exchanged"
    left = max(e[tf, name] / variances[name] for name in (plain, exchanged))
    found = {
        "exchange hurts the RNN": (e[rnn, exchanged] / e[rnn, plain], _MUCH, True),
        "the transformer is left as it is": (left, _KEPT, False),
        "transformer better after it": (e[rnn, exchanged] / e[tf, exchanged], _BETTER, True),
        "RNN better before it": (e[tf, plain] / e[rnn, plain], 1.0, True),
        "the same on the random kernel": (e[rnn, random] / e[tf, random], _BETTER, True),
        "mixing costs the RNN nothing": (e[rnn, mixed] / variances[mixed], _NOTHING, False),
        "mixing costs the transformer": (e[tf, mixed] / e[tf, plain], _COSTS, True),
    }
    return {
        name: {
            "value": float(value),
            "bound": bound,
            "holds": bool(value >= bound if least else value <= bound),
        }
        for name, (value, bound, least) in found.items()
    }


def error_table(table: pd.DataFrame) -> Figure:
    """Draw a table of median errors with their range over seeds, coloured by order of magnitude.

    Args:
        table: Columns ``model``, ``setting``, ``seed``, ``error`` and ``paper``: the number that
            the paper prints for the cell (NaN if there is none).
    """
    models = list(dict.fromkeys(table["model"]))
    settings = list(dict.fromkeys(table["setting"]))
    cells = table.groupby(["model", "setting"])
    middle = cells["error"].median().unstack().reindex(models)[settings].to_numpy(float)
    with style():
        figure = Figure(figsize=(1.55 * len(settings) + 2.4, 0.62 * len(models) + 1.3))
        axes = figure.subplots()
        shown = np.log10(middle)
        image = axes.imshow(shown, cmap=AMOUNT, aspect="auto")
        for (row, column), value in np.ndenumerate(shown):
            if np.isfinite(value):
                group = cells.get_group((models[row], settings[column]))
                light = value > np.nanmin(shown) + 0.6 * np.ptp(shown[np.isfinite(shown)])
                axes.text(
                    column,
                    row,
                    _cell(group),
                    ha="center",
                    va="center",
                    size=7,
                    color="black" if light else "white",
                )
        axes.set_xticks(range(len(settings)), [s.replace(", ", "\n") for s in settings])
        axes.set_yticks(range(len(models)), models)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="log₁₀ of the mean square error", pad=0.02)
    return figure


def _cell(group: pd.DataFrame) -> str:
    error, paper = group["error"], group["paper"].iloc[0]
    lines = [f"{error.median():.1e}"]
    if len(error) > 1:
        lines.append(f"{error.min():.0e} … {error.max():.0e}")
    if np.isfinite(paper):
        lines.append(f"paper {paper:.1e}")
    return "\n".join(lines)
