"""A module of the user's own: wrong rows are refused in a line, and its own repeats are used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prooflens as pl
from interp.errors import ArgumentError
from interp.tasks.base import Batch
from probes.roles.trials import repeats_given
from prooflens.run import LogitDifference

VOCABULARY, LONGEST, CLASSES = 12, 16, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.ln1(x)
        masked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.attn(normed, normed, normed, attn_mask=masked, need_weights=False)[0]
        return x + self.ff(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, 16), nn.Embedding(LONGEST, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, outputs)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ids(rows: int = 8, length: int = 10) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


def wrapped_decoder(outputs: int = VOCABULARY) -> Any:
    torch.manual_seed(0)
    return pl.wrap(Decoder(outputs).eval(), example=ids(2))


def full_mask(length: int = 10) -> torch.Tensor:
    return torch.ones(8, length, dtype=torch.bool)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "ids beyond the table": (
        lambda: pl.inspect(wrapped_decoder(), ids() + 30),
        "has in its tables",
    ),
    "ids beyond the table, ablated": (
        lambda: pl.ablate(wrapped_decoder(), ids() + 30),
        "in its tables",
    ),
    "negative ids": (lambda: pl.inspect(wrapped_decoder(), ids() - 5), "must be ids from 0 on"),
    "rows too long": (lambda: pl.inspect(wrapped_decoder(), ids(length=20)), "has in its tables"),
    "a mask of another shape": (
        lambda: pl.inspect(wrapped_decoder(), Batch(ids(), ids(), full_mask(3))),
        "mask must begin with",
    ),
    "a mask of numbers": (
        lambda: pl.inspect(wrapped_decoder(), Batch(ids(), ids(), full_mask().float())),
        "must be boolean",
    ),
    "labels beyond the classes": (
        lambda: pl.inspect(wrapped_decoder(CLASSES), Batch(ids(), ids() % 2 + 7, full_mask())),
        "targets must be from 0 to 1",
    ),
    "a token beyond the outputs": (
        lambda: pl.ablate(wrapped_decoder(), ids(), metric=LogitDifference(50)),
        "must be from 0 to 11",
    ),
    "a metric of one argument": (
        lambda: pl.ablate(wrapped_decoder(), ids(), metric=lambda output: output),
        "must be a function of",
    ),
    "a metric that is no number": (
        lambda: pl.ablate(wrapped_decoder(), ids(), metric=lambda o, t: o[:, 0] / 0 * 0),
        "mend the metric",
    ),
    "a metric without places": (
        lambda: pl.ablate(wrapped_decoder(), ids(), metric=lambda o, t: o.sum()),
        "a number for each of",
    ),
    "an example that is too long": (
        lambda: pl.wrap(Decoder(2), example=ids(length=30)),
        "example must be inputs that",
    ),
    "an example of real values": (
        lambda: pl.wrap(Decoder(2), example=torch.rand(2, 5)),
        "example must be inputs that",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_in_a_line(name: str) -> None:
    act, told = WRONG[name]
    with pytest.raises(ArgumentError, match=told) as caught:
        act()
    assert "\n" not in str(caught.value)


def test_rows_that_repeat_themselves_are_known_with_a_control_that_does_not() -> None:
    first = torch.stack([torch.randperm(30, generator=torch.Generator().manual_seed(i))[:8]
                         for i in range(6)])  # fmt: skip
    rows = pl.next_tokens(first.repeat(1, 2))
    found = repeats_given(rows)
    assert found is not None
    assert found.batch.mask.nonzero()[:, 1].unique().tolist() == list(range(8, 15))
    control = found.control
    assert control is not None
    assert torch.equal(control.inputs.sort(1).values, rows.inputs.sort(1).values)
    assert not torch.equal(control.inputs, rows.inputs)
    assert torch.equal(control.targets[:, :-1], control.inputs[:, 1:])
    free = torch.randint(6, (6, 16), generator=torch.Generator().manual_seed(0))
    assert repeats_given(pl.next_tokens(free)) is None, "tokens come again, and what follows varies"
    turns = torch.tensor([[0, 1] * 8, [1, 0] * 8])
    assert repeats_given(pl.next_tokens(turns)) is None, "of few tokens anything repeats"


def test_rows_given_are_not_cut_where_random_rows_would_be() -> None:
    torch.manual_seed(0)
    rows = torch.randint(VOCABULARY, (8, 8)).repeat(1, 2)
    found = pl.inspect(wrapped_decoder(), rows)
    trials = found.measured["trials"].set_index("trial")
    run = pl.run.Run(wrapped_decoder(), pl.next_tokens(rows))
    assert trials.loc["rows", "loss"] == pytest.approx(float(run.by_row(run.value()).mean()))
