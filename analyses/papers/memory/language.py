"""Language: depth against heads at equal size, and what the dot product is worth.

The corpus is the small generated language of :mod:`analyses.papers.memory.corpus`, or the user's
text file (``--option text=FILE``), character by character, which :func:`check` refuses before any
work where it cannot serve. Models have LayerNorm, slopes falling
with the lag (lin) and, at equal size, as many heads and neurons in all: L layers hold 1/L of them
each. Losses are in nats a token. Of stories they are those of the words that follow from what was
said before, unless ``--option recalled=false`` asks for all words; in those of all words, and of a
text's characters, is what cannot be predicted, so their ratios say little.

Small models, short training, one learning rate: a model that loses here may win when trained
longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, by_seed, decide, medians, spread, verdict
from analyses.papers.memory.corpus import Corpus
from prooflens.architectures import TransformerSpec
from prooflens.errors import Problems

__all__ = ["check", "depth_against_heads", "dot_product"]


def check(setting: Setting) -> None:
    """Refuse a user's text from which nothing can be learned.

    Raises:
        ArgumentError: if it is no text, cannot be read, or is too short.
    """
    problems, text = Problems("claims run"), setting.options.get("text", "")
    rule = "must name a file"
    problems.need(isinstance(text, str), "--option text", rule, text, "write text=FILE")
    recalled = setting.options.get("recalled", False)
    good, rule = isinstance(recalled, bool), "must be true or false"
    problems.need(good, "--option recalled", rule, recalled, "leave it out")
    problems.raise_if_any()
    _corpus(setting)


def depth_against_heads(setting: Setting) -> Verdict:
    """Test that depth beats heads at equal size (ledger: ``memory-depth-language``)."""
    options, experiment = setting.options, Experiment(setting, test=_testing(setting))
    for layers in options["layers"]:
        heads = options["all_heads"] // layers
        name = f"{layers} layer{'s' * (layers > 1)} of {heads} heads"
        labels = {"model": name, "layers": layers}
        _add(experiment, labels, layers)
    table = _losses(experiment)
    middle = medians(table, ["layers"], "loss")
    wide = min(options["layers"])
    best = min(middle, key=lambda layers: middle[layers])
    gain = middle[wide] - min(v for layers, v in middle.items() if layers != wide)
    apart = _apart(table, table["layers"] == best, table["layers"] == wide)
    status = decide(gain >= options["margin"] and apart, gain > 0 and apart)
    sizes = sorted(set(table["parameters"]))
    words = (
        f"On {_name(setting)}, with {sizes[0]}–{sizes[-1]} parameters, the best depth is {best} "
        f"({_words(table[table['layers'] == best])} nats a token); "
        f"{wide} layer with all the heads reaches {_words(table[table['layers'] == wide])}."
    )
    key = f"{gain:+.3f} nats a token gained by depth at equal size"
    return _verdict(status, words, key, table, {"gain": gain, "parameters": sizes})


def dot_product(setting: Setting) -> Verdict:
    """Test that the dot product matters for language (ledger: ``memory-dot-language``)."""
    experiment = Experiment(setting, test=_testing(setting))
    for score, name in (("none", "without dot product"), ("dot", "with dot product")):
        _add(experiment, {"model": name}, setting.options["layers"][-1], score)
    wider = {"model": "without, FFN of the same size"}
    _add(experiment, wider, setting.options["layers"][-1], "none", grown=True)
    table = _losses(experiment)
    middle = medians(table, ["model"], "loss")
    without = min(v for name, v in middle.items() if name != "with dot product")
    gain = without - middle["with dot product"]
    dot = table["model"] == "with dot product"
    apart = _apart(table, dot, ~dot)
    ahead = gain > 0 and apart
    status = decide(ahead and gain >= setting.options["margin"], ahead)
    told = "; ".join(f"{name}: {_words(table[table['model'] == name])}" for name in middle)
    words = f"On {_name(setting)}, loss in nats a token: {told}."
    key = f"{gain:+.3f} nats a token gained by the dot product"
    return _verdict(status, words, key, table, {"gain": gain})


def _testing(setting: Setting) -> Callable[[Corpus], Corpus]:
    """Return a function from a training corpus to the corpus for testing. For stories it scores the
    words that follow from them, if the options ask for it."""
    recalled = setting.options.get("recalled", False) and not setting.options.get("text")
    return partial(Corpus.testing, recalled=recalled)


def _corpus(setting: Setting) -> Corpus:
    return Corpus(setting.options["length"], setting.options.get("text", ""))


def _name(setting: Setting) -> str:
    text = _corpus(setting)
    told = "generated stories" + setting.options.get("recalled", False) * ", words that follow"
    return f"the text {text.name}" if text.text else told


def _add(
    experiment: Experiment,
    labels: dict[str, Any],
    layers: int,
    score: Any = "dot",
    grown: bool = False,
) -> None:
    """Add a run for every seed. ``grown`` gives the FFN as many weights as the missing queries and
    keys had."""
    o, corpus = experiment.setting.options, _corpus(experiment.setting)
    heads, ffn = o["all_heads"] // layers, o["all_neurons"] // layers
    spec = TransformerSpec(
        d_in=corpus.vocabulary,
        d_out=corpus.vocabulary,
        n_ctx=o["length"],
        d_model=o["d_model"],
        n_layers=layers,
        n_heads=heads,
        d_head=o["d_head"],
        ffn=(ffn + grown * heads * o["d_head"],),
        score=score,
        lag_bias="lin",
        norm="layernorm",
    )
    experiment.add(labels, corpus, spec)


def _losses(experiment: Experiment) -> pd.DataFrame:
    return experiment.run()[0].assign(corpus=_name(experiment.setting))


def _words(rows: pd.DataFrame) -> str:
    return spread(rows["loss"].tolist(), ".3f")


def _apart(table: pd.DataFrame, better: pd.Series, worse: pd.Series) -> bool:
    """Return whether every seed of the better side is better than every seed of the worse one."""
    return bool(table[better]["loss"].max() < table[worse]["loss"].min())


def _verdict(
    status: Any, words: str, key: str, table: pd.DataFrame, numbers: dict[str, Any]
) -> Verdict:
    figure = strips(table, group="model", y="loss", by="corpus", label="loss, nats a token")
    seen = "Loss on unseen text of every seed, one row of dots a model."
    numbers = {**numbers, "loss": by_seed(table, ["model"], "loss")}
    drawing = Drawing(figure, seen)
    return verdict(status, words, key, numbers, name="loss", table=table, drawing=drawing)
