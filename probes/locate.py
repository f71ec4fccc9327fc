"""Which component computes which latent? Every component is exchanged between rows, for every
latent.

A task is a causal model of its answer (:mod:`interp.tasks.counterfactual`): it says what the answer
to a *base* row would be if one latent had the value of a *source* row. A component of a model holds
that latent if the model gives this answer when the component alone is exchanged between the rows
(interchange intervention): its activation at position t of the base row is replaced by that at t of
the source row.

    share = 1 − Σ‖output − expected‖² / Σ‖clean output − expected‖²      real answers
    share = (right after − right before) / (1 − right before)            token answers

over pairs of rows whose answer the latent changes. Rows are paired at random, so that everything
else about them differs too: a component that carries more than the latent moves the output
elsewhere. A head is exchanged in two ways: its *attention* (which carries a location) and its
*output* (which carries a content).

    holds      share ≥ .9, and ≤ .1 of the change on pairs whose answer must stay
    leaves     the output moves by ≤ .1 of what the latent would move it
    part       share from .1 to .9: less than the latent, more than the latent, or several
    otherwise  the output moves, but not towards what the task says

The method uses no roles, floors or attention to named positions: it is the standard by which
detectors of roles are judged. It finds only latents that the task names, in whole components: a
latent that is spread over heads is found only in their group, and a latent in a subspace of a
component that carries others as well is not found (:mod:`probes.interchange` exchanges directions).
If two latents always move the answer alike (the answer itself and its only argument), both are held
wherever one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems, refuse_unless
from interp.interventions.components import Component
from interp.stats.bootstrap import row_interval
from interp.stats.head_table import adjust
from interp.stats.p_values import from_draws
from interp.tasks.base import Batch, Task
from interp.tasks.counterfactual import Variable, variables_of
from probes.exchange import Exchanged, Pairs, draw_pairs, exchangeable, outputs_of
from probes.interchange import distance

LOCATE_COLUMNS = (
    "latent",
    "component",
    "circuit",
    "layer",
    "heads",
    "pairs",
    "share",
    "low",
    "high",
    "null",
    "changed",
    "leak",
    "p",
    "q",
    "verdict",
)
HOLDS, LEAVES = 0.9, 0.1
LEAST_PAIRS = 16
_DRAWS = 200


def locate(
    model: Any,
    task: Task,
    *,
    rows: int = 256,
    groups: Sequence[Sequence[Component]] = (),
    latents: Sequence[str] = (),
    seed: int = 0,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> pd.DataFrame:
    """Exchange every component between rows, for every latent of a task.

    Args:
        model: A hooked model in evaluation mode, with attention heads.
        task: A task that names its variables (:func:`interp.tasks.counterfactual.variables_of`).
        rows: The number of base rows that are drawn; as many pairs are exchanged, and as many again
            whose answer must stay.
        groups: Heads of one layer that are exchanged together, besides all heads of a layer.
        latents: The latents to test; all that the task names by default.
        seed: Seed of the rows, the pairs and the null.
        watch: A wrapper around the loop over latents, for a progress bar.

    Returns:
        One row for each latent and each of :func:`probes.exchange.exchangeable`'s parts, with the
        columns :data:`LOCATE_COLUMNS`. ``share`` has its 95 % interval over pairs in ``low`` and
        ``high``; ``null`` is the share towards the expected answers of *other* pairs (the same
        change of a real answer, the same token); ``changed`` is how far the output moves at all,
        divided by how far it should; ``leak`` is the same for pairs whose answer must stay (NaN if
        there are fewer than 16); ``p`` is of the share against the null, ``q`` over the whole
        table; then ``verdict``. With fewer than 16 pairs the numbers are NaN and the verdict is
        empty.

    Raises:
        ArgumentError: for a task that names no variables or lacks the requested ones, for groups
            that span layers, or too few rows.
        HookError: for a model without attention heads.
    """
    parts = exchangeable(model, groups)
    variables = _variables(task, latents, rows)
    batch = task.sample(rows, seed=seed)
    found = [
        row
        for variable in watch(variables)
        for row in _of_variable(model, batch, variable, parts, seed)
    ]
    table = pd.DataFrame(found, columns=[c for c in LOCATE_COLUMNS if c not in ("q", "verdict")])
    table["q"] = adjust(table["p"].to_numpy(dtype=float))
    table["verdict"] = [_verdict(row) for row in table.itertuples()]
    return table[list(LOCATE_COLUMNS)]


def holders(table: pd.DataFrame) -> pd.DataFrame:
    """Return the components that hold each latent, as a table with one row per latent.

    Args:
        table: A table from :func:`locate`.

    Returns:
        Columns ``latent``; ``where`` (the components that hold it, in the model's order, each with
        ``: attention`` if that is what was exchanged); ``best`` (the largest share of any
        component); ``others`` (components that move the answer and are no part of one that holds a
        latent: what the task does not explain).
    """
    claims = pd.Series([_claimed_parts(row) for row in table.itertuples()], index=table.index)
    holding = list(claims[table["verdict"] == "holds"])
    rows = []
    for latent, some in table.groupby("latent", sort=False):
        circuit = np.where(some["circuit"] == "output", "", ": " + some["circuit"])
        names, held = some["component"] + circuit, some["verdict"] == "holds"
        free = np.array(
            [not any(claim & other for other in holding) for claim in claims[some.index]]
        )
        others = names[some["verdict"].isin(("part", "otherwise")) & free]
        rows.append((latent, ", ".join(names[held]), some["share"].max(), ", ".join(others)))
    return pd.DataFrame(rows, columns=["latent", "where", "best", "others"])


def _claimed_parts(row: Any) -> frozenset[tuple[int, str]]:
    """Return the heads, and the FFN, that an exchanged component consists of."""
    heads = [head for head in row.heads.split("+") if head]
    whole = row.component == f"L{row.layer}"
    ffn = ["FFN"] * (whole or not heads)
    return frozenset((row.layer, part) for part in (*heads, *ffn))


def _variables(task: Task, latents: Sequence[str], rows: int) -> list[Variable]:
    refuse_unless(isinstance(task, Task), "task", "must be a task", task, "see pl.tasks")
    variables, problems = variables_of(task), Problems("locate")
    names = [variable.name for variable in variables]
    rule, advice = "must name its variables", "write task.variables(): see Variable"
    problems.need(bool(names), "task", rule, task.name, advice)
    unknown_ones = sorted(set(latents) - set(names)) if names else []
    rule = f"must be among {', '.join(names)}"
    problems.need(not unknown_ones, "latents", rule, unknown_ones, "take some of them")
    rule = f"must be at least {LEAST_PAIRS}"
    problems.need(rows >= LEAST_PAIRS, "rows", rule, rows, "256 are enough")
    problems.raise_if_any()
    return [variable for variable in variables if not latents or variable.name in latents]


def _of_variable(
    model: Any, batch: Batch, variable: Variable, parts: Sequence[Exchanged], seed: int
) -> Iterator[dict[str, Any]]:
    for part, judged in zip(
        parts, exchange_parts(model, batch, variable, parts, seed=seed), strict=True
    ):
        yield {
            "latent": variable.name,
            "component": part.name,
            "circuit": part.circuit,
            "layer": part.layer,
            "heads": "+".join(map(str, part.heads)),
        } | judged


def exchange_parts(
    model: Any, batch: Batch, variable: Variable, parts: Sequence[Exchanged], *, seed: int = 0
) -> list[dict[str, Any]]:
    """Measure what exchanging each part between rows does to the output, for one latent.

    Args:
        model: A hooked model in evaluation mode.
        batch: Rows of the latent's task.
        variable: The latent.
        parts: The parts, exchanged one at a time.
        seed: Seed of the pairs and the null.

    Returns:
        For each part ``pairs``, ``share``, ``low``, ``high``, ``null``, ``changed``, ``leak`` and
        ``p``, as in :func:`locate`. Only ``pairs`` if these are fewer than 16, or if the clean
        outputs equal the expected answers.
    """
    pairs = draw_pairs(batch, variable, seed)
    moving = int(pairs.moving.sum())
    if moving < LEAST_PAIRS:
        return [{"pairs": moving} for _ in parts]
    clean, *outputs = outputs_of(model, batch.inputs, pairs, parts, variable)
    return [{"pairs": moving} | _summary(clean, output, pairs, seed) for output in outputs]


def _summary(clean: Tensor, output: Tensor, pairs: Pairs, seed: int) -> dict[str, float]:
    moving, expected = pairs.moving, pairs.expected
    left = distance(output[moving], expected[moving]).numpy()
    size = distance(clean[moving], expected[moving]).numpy()
    scale = float(size.mean())
    if scale == 0:
        return {}
    before = clean if expected.is_floating_point() else clean.argmax(-1)
    moved = distance(output, before).numpy()
    share = float((size - left).mean()) / scale
    draws = _shuffle_null(clean[moving], output[moving], expected[moving], seed) / scale
    null = from_draws(share, draws)
    apart = (size - left - share * size) / scale  # a ratio of sums, to first order
    low, high = row_interval(apart, seed=seed)
    stay = (~moving).numpy()
    return {
        "share": share,
        "low": share + low,
        "high": share + high,
        "null": null.mean,
        "changed": float(moved[~stay].mean()) / scale,
        "leak": float(moved[stay].mean()) / scale if stay.sum() >= LEAST_PAIRS else float("nan"),
        "p": null.p,
    }


def _shuffle_null(
    clean: Tensor, output: Tensor, expected: Tensor, seed: int
) -> Float[np.ndarray, " draw"]:
    """Return how much nearer the output comes to what is expected of other pairs, for random
    pairings: the same change of a real answer, the same token."""
    orders = torch.rand((_DRAWS, len(clean)), generator=torch.Generator().manual_seed(seed))
    orders = orders.argsort(1)
    real = expected.is_floating_point()
    other = clean + (expected - clean)[orders] if real else expected[orders]
    nearer = distance(clean, other) - distance(output, other)
    found: Float[np.ndarray, " draw"] = nearer.mean(-1).numpy()
    return found


def _verdict(row: Any) -> str:
    if not np.isfinite(row.share):
        return ""
    if row.share >= HOLDS and not row.leak > LEAVES:
        return "holds"
    if row.changed <= LEAVES:
        return "leaves"
    return "part" if row.share > LEAVES else "otherwise"
