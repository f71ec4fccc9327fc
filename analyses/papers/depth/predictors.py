"""Trained predictors of L_k's last block: their runs, and their accuracy on whole strings.

A string counts as right when the answer is right at every position. Per-position accuracy is near 1
for models that fail nearly every string, and short strings do not tell the depths apart, so strings
are also drawn at lengths beyond those of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor

from prooflens.architectures import TransformerSpec
from prooflens.crasp import block_symbol
from prooflens.tasks import Batch, PrefixPrediction
from prooflens.trained import Training, TrainingRun, zoo

__all__ = [
    "Bin",
    "answers",
    "bin_name",
    "bins_of",
    "exact_match",
    "letter_id",
    "match_of_best",
    "predicted_labels",
    "predictor_run",
    "scores",
    "shipped_predictor",
    "strings_of",
]

Bin = tuple[int, int]
_TEST_SEED = 10**9


def bins_of(options: Mapping[str, Any]) -> list[Bin]:
    """Return the ranges of lengths. Models are trained on the first, the best run is chosen on the
    last but one, and it is judged on the last."""
    return [(int(low), int(high)) for low, high in options["bins"]]


def bin_name(lengths: Bin) -> str:
    """The name of a range of lengths, e.g. ``91–120 symbols``."""
    return f"{lengths[0]}–{lengths[1]} symbols"


def predictor_run(k: int, depth: int, seed: int, options: Mapping[str, Any]) -> TrainingRun:
    """The run of a transformer of this depth on L_k with one head per layer, without positions
    unless the options say otherwise.

    Args:
        k: The number of blocks.
        depth: The number of attention layers.
        seed: Seed of the weights and the strings.
        options: ``bins``, ``width``, ``steps``, ``batch``, ``learning_rate``, ``warmup``,
            ``weight_decay``; ``beyond``, ranges of lengths that are asked for as well;
            ``positions``, options of the spec that bring them in.
    """
    shortest, longest = bins_of(options)[0]
    width = int(options["width"])
    spec = TransformerSpec(
        d_in=4,
        d_out=2,
        n_ctx=max(high for _, high in (*options["bins"], *options.get("beyond", ()))) + 1,
        d_model=width,
        n_layers=depth,
        n_heads=1,
        d_head=width,
        ffn=(2 * width,),
        norm="layernorm",
        activation="gelu",
        **options.get("positions", {}),
    )
    training = Training(
        steps=int(options["steps"]),
        batch=int(options["batch"]),
        learning_rate=float(options["learning_rate"]),
        warmup=int(options["warmup"]),
        weight_decay=float(options["weight_decay"]),
        seed=seed,
    )
    task = PrefixPrediction(f"L_{k}", ((max(shortest, k), longest),))
    return TrainingRun(f"L{k}-depth{depth}-seed{seed}", task, spec, training)


def shipped_predictor(name: str) -> tuple[int, int, Any]:
    """Return the number of blocks k, the number of layers and the model of a shipped predictor."""
    shipped = zoo.load(name)
    blocks = int(shipped.task.to_dict()["language"].removeprefix("L_"))
    return blocks, int(shipped.model.spec.n_layers), shipped.model


def letter_id(block: int) -> int:
    """The token id of a block's letter: 1 for a, 2 for b."""
    return 1 if block_symbol(block) == "a" else 2


def strings_of(k: int, lengths: Bin, rows: int, seed: int = 0) -> Batch:
    """Draw strings of L_k with lengths in a range; no training draws the same ones."""
    task = PrefixPrediction(f"L_{k}", ((max(lengths[0], k), lengths[1]),))
    return task.sample(rows, seed=_TEST_SEED + seed)


def predicted_labels(output: Tensor) -> Tensor:
    """Return a model's answer at every position, ``[batch, pos]``: whether the last block has
    begun."""
    return output.argmax(-1) == 1 if output.shape[-1] == 2 else output[..., 0] > 0.5


@torch.no_grad()
def answers(model: Any, batch: Batch) -> Tensor:
    """Return whether the model's answer at each position is right, ``[batch, pos]``; True at
    positions that are not scored."""
    output: Tensor = model(batch.inputs)
    return (predicted_labels(output) == batch.targets.bool()) | ~batch.mask


def exact_match(model: Any, batch: Batch) -> float:
    """The share of strings whose answers are right at every position."""
    return float(answers(model, batch).all(1).double().mean())


def scores(
    models: Mapping[tuple[int, int, int], Any], bins: Sequence[Bin], rows: int
) -> pd.DataFrame:
    """Evaluate every model on every range of lengths.

    Args:
        models: (k, depth, seed) → model.
        bins: The ranges of lengths.
        rows: Strings of each; the same for all models of one k.

    Returns:
        Columns ``k``, ``depth``, ``seed``, ``bin``, ``exact_match``, ``accuracy`` (positions).
    """
    found: list[dict[str, Any]] = []
    for lengths in bins:
        for k in sorted({k for k, _, _ in models}):
            batch = strings_of(k, lengths, rows)
            for (of, depth, seed), model in models.items():
                if of == k:
                    right = answers(model, batch)
                    accuracy = float(right[batch.mask].double().mean())
                    match = float(right.all(1).double().mean())
                    found.append(
                        {
                            "k": k,
                            "depth": depth,
                            "seed": seed,
                            "bin": bin_name(lengths),
                            "exact_match": match,
                            "accuracy": accuracy,
                        }
                    )
    return pd.DataFrame(found)


def match_of_best(table: pd.DataFrame, chosen: Bin, judged: Bin) -> dict[tuple[int, int], float]:
    """Choose the best run of each k and depth on one range of lengths, and return its exact match
    on another.

    Args:
        table: The table of :func:`scores`.
        chosen: The range on which the best run is chosen; of equally good ones the first is taken.
        judged: The range whose exact match is returned.

    Returns:
        (k, depth) → the exact match.
    """
    on = table.set_index(["k", "depth", "seed"])
    best = on[on["bin"] == bin_name(chosen)].groupby(["k", "depth"])["exact_match"].idxmax()
    far = on[on["bin"] == bin_name(judged)]["exact_match"]
    runs = cast("list[tuple[int, int, int]]", best.tolist())
    return {(int(run[0]), int(run[1])): float(far[run]) for run in runs}
