"""Calls with arguments of another type, as a user makes them: without the checks of the tests.

python wrong_calls.py    prints what came of each, as JSON
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import prooflens as pl

IDS = torch.randint(1, 30, (8, 20), generator=torch.Generator().manual_seed(0))
FRAME = pd.DataFrame({"a": [1, 2]})
HOOK = "blocks.0.hook_resid_post"
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no model": (lambda m: pl.load(None), "model must be a name or a path, got None"),
    "a module for a name": (lambda m: pl.load(m), "got SequenceTransformer: give text or a Path"),
    "float ids": (
        lambda m: pl.ablate(m, IDS.float()),
        "got Tensor of shape (8, 20) of torch.float",
    ),
    "inspect: float ids": (
        lambda m: pl.inspect(m, IDS.float()),
        "of torch.float32: ids are integers",
    ),
    "one row": (lambda m: pl.next_tokens(IDS[0]), "rows must be a Batch, or token ids [row, pos]"),
    "a text for rows": (lambda m: pl.ablate(m, "def f"), "a tokenizer gives those of a text"),
    "texts for rows": (lambda m: pl.ablate(m, ["def f", "def g"]), "got ['def f', 'def g']: ids"),
    "a frame for rows": (lambda m: pl.ablate(m, FRAME), "got DataFrame of shape (2, 1): ids are"),
    "no rows": (lambda m: pl.find_roles(m, None), "rows must be a Batch, token ids [row, pos]"),
    "ids that are not known": (lambda m: pl.ablate(m, IDS + 99), "must be ids from 0 to 31"),
    "a name for a model": (
        lambda m: pl.ablate("code-lm", IDS),
        "model must have hooks, got 'code-lm'",
    ),
    "a plain module": (
        lambda m: pl.inspect(torch.nn.Linear(2, 2), IDS),
        "got Linear: pl.load(name)",
    ),
    "a class": (
        lambda m: pl.wrap(torch.nn.Linear, example=IDS),
        "module must be a torch.nn.Module",
    ),
    "a layer too far": (lambda m: pl.ablate(m, IDS, ["L9H0"]), "L9H0 (layers are 0 to 1)"),
    "a pair for a head": (
        lambda m: pl.ablate(m, IDS, [(1, 0)]),
        "names such as L2H0, L2 FFN or L2",
    ),
    "a name for a site": (lambda m: pl.run.Mean("L1H0"), "such as Site(1, 'z', head=0)"),
    "another metric": (lambda m: pl.ablate(m, IDS, metric="loss"), "such as pl.run.Loss()"),
    "a metric of a number": (
        lambda m: pl.ablate(m, IDS, metric=lambda o, y: 3),
        "got int of metric: reduce",
    ),
    "tokens of another shape": (
        lambda m: pl.ablate(m, IDS, metric=pl.run.LogitDifference(IDS[:2])),
        "against must be a token a place [row, pos] of the batch",
    ),
    "a text for inputs": (
        lambda m: pl.patch(m, IDS, "x"),
        "corrupted must be inputs like the batch",
    ),
    "shorter inputs": (lambda m: pl.patch(m, IDS, IDS[:, :5]), "corrupted must be shaped (8, 20)"),
    "a component for a receiver": (
        lambda m: pl.patch_paths(m, IDS, pl.interventions.Component("head", 1, 0)),
        "receiver must be a Receiver, got Component: such as Receiver('k', layer=1, head=0)",
    ),
    "no place for a store": (lambda m: pl.extract(m, IDS, [HOOK], None), "out must be a name or a"),
    "texts for a store": (
        lambda m: pl.extract(m, ["def f"], [HOOK], "s"),
        "source must hold numbers",
    ),
    "no store": (lambda m: pl.open_store(None), "store must be a name or a path, got None"),
    "a folder that is none": (lambda m: pl.open_store(Path("nowhere")), "it has no manifest.json"),
    "a mistyped hook": (
        lambda m: pl.probe_table(m, m.card.task.sample(40, seed=0), [HOOK + "s"]),
        "matches none of the model's",
    ),
    "a dictionary for a file": (
        lambda m: pl.read_rows({"rows": []}),
        "rows must be a name or a path",
    ),
    "ids for rows of words": (
        lambda m: pl.decompile(m, IDS),
        "rows must be rows as read_rows gives",
    ),
    "a model for a proof": (lambda m: pl.agree(m, m), "construction must be a Construction"),
    "a text for lags": (
        lambda m: pl.tasks.FixedMemory("1,3"),
        "lags must be whole numbers, got '1,3'",
    ),
    "a number for lags": (
        lambda m: pl.attention.lag_table(m, IDS, lags=3),
        "range(3) for the first",
    ),
    "a text for a count": (lambda m: pl.inspect(m, IDS, count="8"), "count must be a whole number"),
    "a name for a task": (
        lambda m: pl.inspect(m, task="induction"),
        "task must be a task, got 'ind",
    ),
    "a text for a file": (lambda m: pl.inspect(m, "def f\n"), "a text is given as text="),
    "a spec of a dictionary": (
        lambda m: pl.SequenceTransformer({}),
        "spec must be a TransformerSpec",
    ),
    "no recipe": (lambda m: pl.train([3]), "runs must be recipes, or files of recipes, got 3"),
    "no runs": (lambda m: pl.train(None), "runs must be recipes, or files of recipes, got None"),
    "a text for a number of rows": (
        lambda m: m.card.task.sample("3", seed=0),
        "sample: n must be a number of rows, got '3'",
    ),
    "fewer rows than none": (
        lambda m: m.card.task.sample(-1, seed=0),
        "n must be a number of rows, got -1",
    ),
    "a text for a seed": (
        lambda m: m.card.task.sample(3, seed="a"),
        "seed must be at least 0, got 'a'",
    ),
    "a device that there is not": (
        lambda m: m.card.task.sample(3, seed=0, device="gpu"),
        "device must be a device of this machine, got 'gpu'",
    ),
    "a text for repeated rows": (
        lambda m: pl.repeated_tokens("4", 20, 30),
        "repeated_tokens: rows must be a whole number, got '4'",
    ),
    "a first token beyond the vocabulary": (
        lambda m: pl.repeated_tokens(4, 20, 30, bos=30),
        "bos must be below 30, got 30",
    ),
    "nothing to check hooks on": (
        lambda m: pl.architectures.conformance(m, None),
        "inputs must be a tensor, as the model takes it, got None",
    ),
    "no model to check": (
        lambda m: pl.architectures.conformance(None, IDS),
        "model must have hooks, got None",
    ),
    "no model for a store": (
        lambda m: pl.extract(None, IDS, [HOOK], "s"),
        "model must have hooks, got None",
    ),
    "no model to probe": (
        lambda m: pl.probe_table(None, m.card.task.sample(40, seed=0), HOOK),
        "model must have hooks, got None",
    ),
    "no task to locate": (lambda m: pl.locate(m, None), "task must be a task, got None"),
    "a number for rows": (lambda m: pl.inspect(m, 3), "rows must be a file, a Batch, token ids"),
    "a number for parts": (lambda m: pl.ablate(m, IDS, 3), "names such as L2H0, L2 FFN or L2"),
    "a number for a profile": (
        lambda m: pl.find_roles(m, IDS, profile=3),
        "profile must be a Profile, or its name, got 3",
    ),
    "nothing to draw": (lambda m: pl.plot.attention(m, None), "the token ids of one row, got None"),
}


def refusal(call: Callable[[Any], Any], model: Any) -> str:
    """What a call is refused with; the class of the error where that is not ours."""
    try:
        call(model)
    except pl.errors.ProoflensError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}\n{error}"
    return "nothing"


if __name__ == "__main__":
    loaded = pl.load("induction-mlp")
    told = {name: refusal(call, loaded) for name, (call, _) in CALLS.items()}
    sys.stdout.write(json.dumps(told))
