"""What a diagram measures of each trained model: did it solve the task, and does it work as the
proof does?

Columns of the table, a row a model: the options that vary, ``seed``, the metric that says whether
the task is solved, ``solved``, ``found`` (solved, and every step of the proof is done by the heads
of a layer, in order), ``weakest`` (the share of the least held latent), ``done_in`` (the layers
that do the steps), ``statements`` (mean score of the proof's statements by the roles that were
found; NaN where they were not asked for). Of a model that did not solve it the last three say
nothing.

Each row is kept in the claim's folder as soon as it is there: an interrupted diagram goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from analyses.papers.base import Setting
from analyses.papers.experiment import Experiment
from analyses.papers.sequential import in_turn
from analyses.papers.training.models import Sought
from analyses.papers.training.points import parts_of, points_of, rows_at
from prooflens.architectures import SequenceTransformer
from prooflens.files import output_file
from prooflens.probes import locate, overall, statements_of
from prooflens.trained import Fit

__all__ = ["MEASURED", "Builder", "agreements", "models_of"]

Builder = Callable[[Mapping[str, Any], int], Sought]
"""From a profile's options, with a setting's in their place, and a seed to what is sought there."""

MEASURED = ("solved", "found", "weakest", "done_in", "statements")
"""Columns of measurements, beside the metric. No option may have one of these names."""

_FILE = "models.csv"
_TRAINING = (
    "steps",
    "batch",
    "learning_rate",
    "weight_decay",
    "terms_learning_rate",
    "warmup",
    "rows",
)
_UNTRAINED = 2
_SEED = 10**6
"""First seed of the rows on which models are measured. No training uses a seed this large."""


def models_of(
    setting: Setting, build: Builder, needed: Callable[[pd.DataFrame], Sequence[int]]
) -> pd.DataFrame:
    """Train and measure the models of every setting of a diagram, a few seeds at a time.

    Seeds are added until it is settled whether the proof is found by at least as many of them as
    ``needed`` gives for each row of the table of settings (:mod:`analyses.papers.sequential`).
    """
    points, file = points_of(setting.options), setting.folder / _FILE
    rows: list[dict[Any, Any]] = []
    if setting.resume and file.exists():
        rows = pd.read_csv(file).to_dict("records")
    asked = 0

    def train_and_find(cases: list[tuple[int, int]]) -> list[list[bool]]:
        nonlocal asked
        first, models = asked, []
        experiment = Experiment(setting, part=f"models-{first}")
        for number, seed in cases:
            options = {**setting.options, **points[number]}
            training = {name: options[name] for name in _TRAINING if name in options}
            sought = build(options, seed)
            experiment.add(
                points[number], sought.task, sought.spec, seeds=[seed], test=sought.test, **training
            )
            models.append((points[number], seed, sought))
        _, fits = experiment.run()
        for (point, seed, sought), fit in list(zip(models, fits, strict=True))[len(rows) - first :]:
            of_roles = _needs_statements(rows, point, setting.options)
            one = _measure_model(sought, fit, seed, setting, asked=of_roles)
            rows.append({**point, "seed": seed, **one})
            with output_file(file, overwrite=True) as draft:
                pd.DataFrame(rows).to_csv(draft, index=False)
        asked += len(cases)
        return [[bool(row["found"])] for row in rows[first:asked]]

    of = [[count] for count in needed(pd.DataFrame(points))]
    in_turn(setting.seeds, dict(enumerate(of)), train_and_find)
    return pd.DataFrame(rows)


def agreements(setting: Setting, build: Builder, table: pd.DataFrame) -> pd.DataFrame:
    """Compute the agreement with the proof for every cell of the map in which it was measured for
    at least two models.

    The interval is over the models of the cell that solved the task, one per seed. They are
    compared with untrained models of the same shape and with the construction.

    Returns:
        Columns: the map's two options, ``models``, ``agreement``, ``low``, ``high``.
    """
    part, rows = parts_of(setting.options)[0], []
    for down in part.rows:
        scale = None
        for across in part.columns:
            point = {part.down: down, part.across: across}
            found = rows_at(table, point, setting.options)["statements"].dropna()
            if len(found) < 2:
                continue
            scale = scale or _scale(build({**setting.options, **point}, 0), setting)
            one = overall([_frame(score) for score in found], *scale)
            rows.append((*point.values(), len(found), one.score, one.low, one.high))
    return pd.DataFrame(
        rows, columns=[part.down, part.across, "models", "agreement", "low", "high"]
    )


def _scale(sought: Sought, setting: Setting) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Return the two ends of the scale of agreement: the proof's statements for untrained models of
    the same shape, and for the construction."""
    proof, rows = sought.proof(), setting.options["rows_of_roles"]
    batch = sought.task.sample(rows, seed=_SEED)
    fresh = [SequenceTransformer(sought.spec, seed=_SEED + i) for i in range(_UNTRAINED)]
    own = proof.task.sample(rows, seed=_SEED)
    return (
        [statements_of(model, proof.mechanism, sought.task, batch) for model in fresh],
        statements_of(proof.model, proof.mechanism, proof.task, own),
    )


def _frame(score: float) -> pd.DataFrame:
    """Return a table of a model's statements that holds only their mean score."""
    return pd.DataFrame({"score": [score]})


def _needs_statements(
    rows: Sequence[Mapping[Any, Any]], point: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Return whether the next model of a setting is to be measured against the proof's statements.
    In cells of the map this is so until ``seeds_of_roles`` models have solved the task."""
    same = [row for row in rows if all(row[name] == value for name, value in point.items())]
    solved = sum(bool(row["solved"]) for row in same)
    return _on_map(point, options) and solved < options["seeds_of_roles"]


def _on_map(point: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether a setting is a cell of the map."""
    first = parts_of(options)[0]
    return any({**point, **cell} == point for cell in first.points()) and all(
        point[name] == options[name] for name in point if name not in (first.across, first.down)
    )


def _measure_model(
    sought: Sought, fit: Fit, seed: int, setting: Setting, *, asked: bool
) -> dict[str, Any]:
    metric, _ = sought.reached
    solved, least = sought.is_solved(fit.metrics), float("nan")
    layers: tuple[int, ...] = ()
    if solved:  # where the task is not learned nothing is looked for
        rows = setting.options["pairs"]
        layers, least = sought.locate_steps(
            locate(fit.model, sought.task, rows=rows, seed=_SEED + seed)
        )
    statements = float("nan")
    if asked and solved:
        mechanism = sought.proof().mechanism
        batch = sought.task.sample(setting.options["rows_of_roles"], seed=_SEED + seed)
        statements = float(statements_of(fit.model, mechanism, sought.task, batch)["score"].mean())
    return {
        metric: fit.metrics[metric],
        "solved": solved,
        "found": solved and bool(layers),
        "weakest": least,
        "done_in": " ".join(map(str, layers)),
        "statements": statements,
    }
