"""Claim: abstract rules are followed in three steps, by three kinds of heads (arXiv 2502.20332).

Its abstract says: in early layers heads turn tokens into abstract variables by the relations
between them, in intermediate layers heads do induction over these variables, in later layers heads
retrieve the token that the predicted variable stands for. *Our reading*, on random tokens:

    row          S lines  x, y, x  or all  x, y, y , then  a, b,  and the answer, a or b
    abstraction  z at the third tokens of the examples, from a row of the other rule whose third
                 tokens are the same (x y x ↔ y x x): what the token is stays, its variable does not
    induction    z at the last position, from a row of the other rule with other tokens throughout:
                 the predicted variable changes, no token of this row is told
    retrieval    z at the last position, from a row of the same rule and examples that asks b a

Each head's z is put in from the other row. Measured is by how much the logit of the other answer
rises over the mean of all logits, as a share of the gap between the two rows of *abstraction*. A
head that hands on a token cannot do it under *induction*, since that row has other tokens. One that
attends by position could pass for abstraction: S examples of three tokens are at the same places in
all rows. That a head changes the answer says that it carries the variable, not that it makes it.

The first order is partly forced by the measure. What is put in at the examples reaches the answer
only through a head of a later layer, so that this order fails where no head carries the variable at
the last position, and hardly otherwise. The second order is not forced in this way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.stats import binomtest, ttest_1samp
from torch import Tensor

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from prooflens.architectures import Pretrained, load_pretrained
from prooflens.errors import ArgumentError, CheckpointError, MissingDependencyError, need
from prooflens.interventions import components
from prooflens.plot import PALETTE, size, style
from prooflens.run import Array, LogitDifference, Run, Site, Swap
from prooflens.stats import adjust
from prooflens.tasks import Batch
from prooflens.trained import folder_of

__all__ = ["RulePair", "kinds_of", "mean_layers", "right_rows", "rule_rows", "run"]

_KINDS = ("abstraction", "induction", "retrieval")
_ABLE, _P = 0.75, 0.01
"""When a model can do the task: least share of rows on which it prefers the right one of the two
answers, and largest p of guessing as well."""

_Q, _SHARE = 0.05, 0.05
"""When a head is of a kind: largest q, and least share of the gap between the two answers."""

_RESAMPLES = 2000
_WORD = re.compile(r" [A-Za-z]{3,}")


@dataclass(frozen=True)
class RulePair:
    """Rows of the task, and the rows that each kind takes its values from.

    Attributes:
        batch: The rows; the target is the *other* answer, at the last position.
        right: The answers, ``[row]``.
        thirds: The positions of the examples' third tokens.
        others: Kind → inputs of the same shape.
    """

    batch: Batch
    right: Tensor
    thirds: tuple[int, ...]
    others: dict[str, Tensor]


def rule_rows(
    ids: Tensor, *, rows: int, examples: int, bos: int, comma: int, line: int, seed: int
) -> RulePair:
    """Draw rows, half of each rule.

    Args:
        ids: Token ids to draw from; the next three are not among them.
        rows: How many rows.
        examples: S, the examples of a row.
        bos: The token that a row begins with; −1 for none.
        comma: The token after the first and the second of an example, and of the query.
        line: The token after an example.
        seed: Seed of the draws.

    Raises:
        ArgumentError: for too few ids.
    """
    draw, needed = torch.Generator().manual_seed(seed), 4 * examples + 4
    rule = f"must be at least {needed}, for rows without a common one"
    need("rule_rows", len(ids) >= needed, "ids", rule, len(ids), "give more tokens")
    picked = [torch.randperm(len(ids), generator=draw)[:needed] for _ in range(rows)]
    # [row, example or query, 2]: the pairs of a row, and those of a row that shares no token
    pairs, strange = ids[torch.stack(picked)].reshape(rows, 2, examples + 1, 2).unbind(1)

    def row(pairs: Tensor, second: Tensor) -> Tensor:
        """Rows whose third tokens repeat the second of the two where ``second`` holds."""
        third = torch.where(second[:, None], pairs[:, :-1, 1], pairs[:, :-1, 0])
        commas, lines = torch.full_like(third, comma), torch.full_like(third, line)
        one, two = pairs[:, :-1].unbind(-1)
        shown = torch.stack((one, commas, two, commas, third, lines), -1).flatten(1)
        asked = torch.stack((pairs[:, -1], commas[:, :2]), -1).flatten(1)
        return torch.cat((torch.full((rows, int(bos >= 0)), bos), shown, asked), 1)

    second = torch.arange(rows) % 2 == 1
    turned, asked = pairs.clone(), pairs.clone()
    turned[:, :-1] = pairs[:, :-1].flip(-1)
    asked[:, -1] = pairs[:, -1].flip(-1)
    inputs, query = row(pairs, second), pairs[:, -1]
    right = torch.where(second, query[:, 1], query[:, 0])
    wrong = torch.where(second, query[:, 0], query[:, 1])
    targets, mask = torch.zeros_like(inputs), torch.zeros(inputs.shape, dtype=torch.bool)
    targets[:, -1], mask[:, -1] = wrong, True
    first = int(bos >= 0) + 4
    thirds = tuple(range(first, first + 6 * examples, 6))
    others = {
        "abstraction": row(turned, ~second),
        "induction": row(strange, ~second),
        "retrieval": row(asked, second),
    }
    return RulePair(Batch(inputs, targets, mask), right, thirds, others)


def _over_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the target's logit minus the mean of all logits, ``[place]``."""
    return outputs.gather(-1, targets[:, None])[:, 0] - outputs.mean(-1)


def kinds_of(model: Any, pair: RulePair, *, tokens: int = 2048) -> pd.DataFrame:
    """Measure how far each head moves a model to the other answer when its z is taken from another
    row.

    Returns:
        One row per head and kind: ``layer``, ``head``, ``kind``, ``shift`` (a share of the gap
            between
        the answers, mean over rows), ``q``, ``is_one`` (whether the head is of this kind), and
        ``by_row``, the shares of the rows.

    Raises:
        ArgumentError: for a model whose answer does not follow the rule on average.
    """
    run = Run(model, pair.batch, tokens=tokens)
    heads = [part for part in components(model) if part.kind == "head"]
    flipped = Batch(pair.others["abstraction"], pair.batch.targets, pair.batch.mask)
    there = Run(model, flipped, tokens=tokens)
    values = [one.by_row(one.value(_over_mean)) for one in (there, run)]
    gap = float((values[0] - values[1]).mean())
    rule = "must give another answer where the rule is another"
    need("kinds_of", gap > 0, "model", rule, f"a gap of {gap:.2g}", "see right_rows")
    last, found = pair.batch.inputs.shape[1] - 1, []
    for kind in _KINDS:
        inputs = Array(pair.others[kind], f"rows of {kind}")
        places = pair.thirds if kind == "abstraction" else (last,)
        edits = [
            tuple(Swap(Site(h.layer, "z", h.head), inputs=inputs, at=place) for place in places)
            for h in heads
        ]
        for part, rise in zip(heads, run.rises(edits, _over_mean), strict=True):
            by_row = (run.by_row(rise) / gap).numpy()
            p = ttest_1samp(by_row, 0, alternative="greater").pvalue if by_row.std() > 0 else 1.0
            found.append((part.layer, part.head, kind, by_row.mean(), float(p), by_row))
    table = pd.DataFrame(found, columns=["layer", "head", "kind", "shift", "p", "by_row"])
    table["q"] = adjust(table.pop("p").to_numpy())
    table["is_one"] = (table["q"] <= _Q) & (table["shift"] >= _SHARE)
    return table


def right_rows(model: Any, pair: RulePair) -> np.ndarray:
    """Return on which rows the right answer has a larger logit than the other one, ``[row]``."""
    against = torch.zeros_like(pair.batch.inputs)
    against[:, -1] = pair.right
    run = Run(model, pair.batch)
    return (run.by_row(run.value(LogitDifference(against))) < 0).numpy()


def mean_layers(table: pd.DataFrame, *, seed: int) -> dict[str, tuple[float, float, float]]:
    """Return by how many layers each kind's heads come after those of the kind before.

    This is the difference of mean layers, weighted by the heads' shifts. Its 95 % interval is over
    rows for these heads; that other rows might have chosen other heads is not part of it.

    Returns:
        ``induction − abstraction`` and ``retrieval − induction``, where both kinds have heads.
    """
    rng = np.random.default_rng(seed)
    rows = len(table["by_row"].iloc[0])
    drawn = np.vstack([np.arange(rows)[None], rng.integers(rows, size=(_RESAMPLES, rows))])
    means = {}
    for kind, part in table[table["is_one"]].groupby("kind"):
        shifts = np.stack(part["by_row"].tolist())[:, drawn].mean(-1).clip(min=1e-9)
        means[kind] = (shifts * part["layer"].to_numpy()[:, None]).sum(0) / shifts.sum(0)
    found = {}
    for before, kind in pairwise(_KINDS):
        if before in means and kind in means:
            apart = means[kind] - means[before]
            low, high = np.quantile(apart[1:], (0.025, 0.975))
            found[f"{kind} − {before}"] = (float(apart[0]), float(low), float(high))
    return found


def run(setting: Setting) -> Verdict:
    """Find the kinds and their order in the models that are there (ledger:
    ``template-symbolic-heads``).

    Options: ``models``; ``examples`` of a row, ``rows``. The environment's ``PROOFLENS_MODEL``
    names one model in place of these.
    """
    o, tables = setting.options, list[tuple[pd.DataFrame, pd.DataFrame]]()
    named, missing = os.environ.get("PROOFLENS_MODEL"), list[str]()
    for name in [named] if named else o["models"]:
        try:
            opened = load_pretrained(folder_of(name), device=setting.device)
            pairs = {s: _rows_for(opened, o["rows"], o["examples"], s) for s in setting.seeds}
        except (ArgumentError, CheckpointError, MissingDependencyError) as error:
            missing.append(f"{name}: {error}")
            continue
        orders, heads = _orders(opened.model, pairs)
        tables.append((orders.assign(model=name), heads.assign(model=name)))
    if not tables:
        return Verdict("not run", f"Needs a pretrained model. {'; '.join(missing)}.")
    orders, heads = (pd.concat(some, ignore_index=True) for some in zip(*tables, strict=True))
    return _verdict(orders, heads, missing)


def _orders(model: Any, pairs: Mapping[int, RulePair]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the models of all seeds.

    Returns:
        A table with a row for each seed: how often the model is right, how many heads each kind
            has,
        and how far apart the kinds are. And a table with a row for each seed, head and kind. Heads
        are only counted for a model that follows the rule on the rows of all seeds together.
    """
    right = {seed: right_rows(model, pair) for seed, pair in pairs.items()}
    every = np.concatenate([*right.values()])
    p = binomtest(int(every.sum()), len(every), 0.5, alternative="greater").pvalue
    able = bool(every.mean() >= _ABLE and p < _P)
    orders, heads = [], [pd.DataFrame()]
    for seed, pair in pairs.items():
        order = {"seed": seed, "right": right[seed].mean(), "able": able}
        if able:
            table = kinds_of(model, pair)
            order |= {kind: int(table[table["kind"] == kind]["is_one"].sum()) for kind in _KINDS}
            for words, (apart, low, high) in mean_layers(table, seed=seed).items():
                order |= {words: apart, f"{words} low": low, f"{words} high": high}
            heads.append(table.drop(columns="by_row").assign(seed=seed))
        orders.append(order)
    return pd.DataFrame(orders), pd.concat(heads, ignore_index=True)


def _rows_for(model: Pretrained, rows: int, examples: int, seed: int) -> RulePair:
    """Return rows of words that are single tokens of the tokenizer, each with the space before
    it."""
    tokenizer: Any = model.tokenizer
    rule, advice = "must have a tokenizer", "take another model"
    need("template-symbolic-heads", tokenizer is not None, "model", rule, "none", advice)
    comma, line = (tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in (",", "\n"))
    words = [i for i in range(len(tokenizer)) if _WORD.fullmatch(tokenizer.decode([i]))]
    return rule_rows(
        torch.tensor(words),
        rows=rows,
        examples=examples,
        bos=model.bos,
        comma=comma,
        line=line,
        seed=seed,
    )


def _verdict(orders: pd.DataFrame, heads: pd.DataFrame, missing: Sequence[str]) -> Verdict:
    words = "; ".join(
        f"{name} has the right one of two answers in {rows['right'].mean():.2f}"
        for name, rows in orders.groupby("model", sort=False)
    ) + "".join(f"; {reason}" for reason in missing)
    able = orders[orders["able"]]
    if able.empty:
        return Verdict("not run", f"No model follows the rule: {words}.", tables={"orders": orders})
    steps = [f"{kind} − {before}" for before, kind in pairwise(_KINDS)]
    held = {
        (name, step): f"{step} low" in rows and bool((rows[f"{step} low"] > 0).all())
        for name, rows in able.groupby("model", sort=False)
        for step in steps
    }
    told = "; ".join(
        f"{name}: {', '.join(f'{rows[kind].median():.0f} of {kind}' for kind in _KINDS)}, "
        + ", ".join(
            f"{step} {rows[step].median():+.1f} layers" if step in rows else f"{step}: none"
            for step in steps
        )
        for name, rows in able.groupby("model", sort=False)
    )
    return Verdict(
        decide(all(held.values()), any(held.values())),
        f"{words}. Heads (medians over seeds): {told}.",
        told,
        {"order holds": {f"{name}: {step}": value for (name, step), value in held.items()}},
        {"orders": orders, "heads": heads},
        {"heads": _drawing(heads)},
    )


def _drawing(table: pd.DataFrame) -> Drawing:
    """Draw the shifts of all heads by layer: a panel for each model, a colour for each kind. Heads
    that are of a kind have larger dots."""
    names, rng = list(table["model"].unique()), np.random.default_rng(0)
    colours = dict(zip(_KINDS, ("blue", "orange", "green"), strict=True))
    with style():
        figure = Figure(figsize=size(1.2, 2 * len(names)))
        for i, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), i + 1)
            for at, kind in enumerate(_KINDS):
                part = table[(table["model"] == name) & (table["kind"] == kind)]
                place = part["layer"] + 0.25 * (at - 1) + rng.uniform(-0.08, 0.08, len(part))
                for is_one, rows in part.groupby("is_one"):
                    axes.plot(
                        place[rows.index],
                        rows["shift"],
                        "o",
                        color=PALETTE[colours[kind]],
                        markersize=4 if is_one else 2,
                        alpha=0.9 if is_one else 0.25,
                        label=f"{kind} heads" if is_one else None,
                    )
            axes.axhline(_SHARE, color="0.6", linewidth=0.8, linestyle=":")
            axes.set(title=name, xlabel="layer", ylabel="shift (share of the gap)")
            axes.legend(loc="upper left")
    words = "Each head's shift when its z is another row's, a dot a head and seed."
    return Drawing(figure, f"{words} Those that are one of a kind are large.")
