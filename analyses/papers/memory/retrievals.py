"""Claim: with too few heads parameters must grow without bound (arXiv 2510.06662).

Its abstract says: on a task that retrieves several things, a transformer with enough heads needs
few parameters, and one with too few needs at least ε^{−cT} of them for an error ε on T positions.
*Our reading*, the simplest task of this kind:

    x(t) in [0, 1]^D, uniform;   y_i = max_{t ≤ T} x_i(t),  i = 1 … D,  asked for at position T

A head whose scores rise with x_i attends to where x_i is largest and hands on its value. D heads of
fixed size come as near to it as is asked at every T, with scores that are steeper for a larger T,
and the FFN has nothing to do. A single head averages all D numbers with the same weights: an FFN
has to guess the rest from these averages and from x(T).

One layer, softmax and dot products, no positions; all heads together have one width, so that models
of equal FFN have about the same parameters. Training shows what it reached, not what exists: the
exponent is not tested, and that few heads fail may be for want of training.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, by_seed, medians, spread, status_of, verdict
from analyses.papers.memory.models import spec_of
from prooflens.errors import Problems
from prooflens.tasks import Batch

__all__ = ["Maxima", "few_heads"]


@dataclass(frozen=True)
class Maxima:
    """The largest value of each coordinate of a row, asked for at the last position.

    Attributes:
        coordinates: D, how many numbers there are at a position.
        length: T, how many positions a row has.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    coordinates: int
    length: int

    def __post_init__(self) -> None:
        problems = Problems("Maxima")
        for name in ("coordinates", "length"):
            value = getattr(self, name)
            problems.need(value >= 1, name, "must be at least 1", value, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports."""
        return f"maxima-{self.coordinates}-of-{self.length}"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos, coordinate]``; the mask has the last
        position alone."""
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.rand(n, self.length, self.coordinates, generator=generator)
        mask = torch.zeros(n, self.length, dtype=torch.bool)
        mask[:, -1] = True
        return Batch(inputs, inputs.cummax(dim=1).values, mask, {}).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "maxima", **asdict(self)}


def few_heads(setting: Setting) -> Verdict:
    """Test that heads, and not parameters, are what several retrievals need (ledger:
    ``memory-few-heads``)."""
    o = setting.options
    experiment = Experiment(setting, warmup=o["warmup"])
    retrieved, widths, lengths = o["coordinates"], o["widths"], o["lengths"]
    for length in lengths:
        task = Maxima(retrieved, length)
        for heads, tried in ((1, widths), (retrieved, widths[:1])):  # what the rule asks of
            for width in tried:
                spec = spec_of(
                    task,
                    o,
                    n_heads=heads,
                    d_head=o["d_model"] // heads,
                    ffn=(width,),
                    score="dot",
                    lag_bias="none",
                )
                labels = {"heads": heads, "neurons": width, "length": length}
                experiment.add(labels, task, spec)
    table, _ = experiment.run()
    middle = medians(table, ["heads", "neurons", "length"])
    enough = max(middle[retrieved, widths[0], length] for length in lengths)
    few = {length: min(middle[1, width, length] for width in widths) for length in lengths}
    statements = {
        f"{retrieved} heads, {widths[0]} neurons: at most {o['level']:g} at every T": enough
        <= o["level"],
        f"one head: more than {o['level']:g} at T = {lengths[-1]} with any FFN": few[lengths[-1]]
        > o["level"],
        "one head: its best error grows with T": all(
            few[long] > few[short] for short, long in pairwise(lengths)
        ),
    }
    largest = int(table["parameters"].max())
    words = (
        f"With {retrieved} heads and {widths[0]} neurons the median error is at most {enough:.3f} "
        f"at T = {', '.join(map(str, lengths))}; with one head the best of {len(widths)} FFNs, up "
        f"to {largest} parameters, has {', '.join(f'{few[t]:.3f}' for t in lengths)}."
    )
    drawn = table.assign(
        model=[
            f"{h} head{'s' * (h > 1)}, {n} neurons"
            for h, n in zip(table["heads"], table["neurons"], strict=True)
        ]
    )
    shown = drawn[drawn["length"] == lengths[-1]]
    key = "; ".join(
        f"{model}: {spread(list(rows['error']))}"
        for model, rows in shown.groupby("model", sort=False)
    )
    figure = sweep(
        drawn,
        x="length",
        across="positions T",
        by="model",
        label="error (share of the target's variance)",
        levels={"asked for": o["level"]},
    )
    numbers = {"statements": statements, "error": by_seed(table, ["heads", "neurons", "length"])}
    return verdict(
        status_of(statements),
        words,
        f"T = {lengths[-1]}: {key}",
        numbers,
        name="error",
        table=table,
        drawing=Drawing(figure, f"Error against T, a dot a seed. {words}"),
    )
