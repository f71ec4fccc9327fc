"""A model does some rows if it does better than always the same answer; a coin does not."""

from typing import Any

import torch
from torch import Tensor, nn

from interp.run import Run
from interp.tasks.base import Batch
from probes.roles.ability import cannot_do, does_better

ROWS, POS, NAMES = 24, 16, 12


class Told(Run):
    """Stands for a run whose outputs are given, ``[row, pos, token]``."""

    def __init__(self, batch: Batch, outputs: Tensor) -> None:
        self.batch, self._outputs = batch, outputs

    def value(self, metric: Any = None, rows: Any = None) -> Tensor:
        flat, targets = self._outputs.flatten(0, 1), self.batch.targets.flatten()
        found = metric(flat, targets) if metric else nn.functional.cross_entropy(
            flat, targets, reduction="none"
        )  # fmt: skip
        return found.reshape(ROWS, POS).double() * self.batch.mask

    def by_row(self, values: Tensor, rows: Any = None) -> Tensor:
        return values.sum(1) / self.batch.mask.sum(1)


def labelled_rows(generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Rows with one of two labels of their own at each position, and those labels."""
    pair = torch.rand(ROWS, NAMES, generator=generator).argsort(1)[:, :2]
    which = torch.rand(ROWS, POS, generator=generator).argsort(1) % 2
    targets = pair.gather(1, which)
    mask = torch.ones(ROWS, POS, dtype=torch.bool)
    return Batch(targets, targets, mask), pair


def test_one_of_two_labels_by_a_coin_is_no_better_and_the_right_one_is() -> None:
    generator = torch.Generator().manual_seed(0)
    batch, pair = labelled_rows(generator)
    coin = pair.gather(1, torch.randint(2, (ROWS, POS), generator=generator))
    sure = 9.0 * nn.functional.one_hot(coin, NAMES)
    assert not does_better(Told(batch, sure.float()))
    assert cannot_do(Told(batch, sure.float()), 0.05)
    known = 9.0 * nn.functional.one_hot(batch.targets, NAMES)
    assert does_better(Told(batch, known.float()))
    assert not cannot_do(Told(batch, known.float()), 0.05)
    never_right = torch.zeros(ROWS, POS, NAMES)
    assert not does_better(Told(batch, never_right))


def test_what_is_right_by_chance_alone_may_still_lose_less() -> None:
    """Both labels likely, the right one a little more so: the loss is below that of a coin."""
    batch, pair = labelled_rows(torch.Generator().manual_seed(1))
    both = torch.full((ROWS, POS, NAMES), -20.0)
    both.scatter_(2, pair[:, None].expand(-1, POS, -1), 0.0)
    assert not does_better(Told(batch, both))
    both.scatter_(2, batch.targets[..., None], 0.5)
    assert does_better(Told(batch, both))


def test_rows_with_one_answer_each_are_compared_with_the_answer_of_all() -> None:
    generator = torch.Generator().manual_seed(2)
    batch, _ = labelled_rows(generator)
    mask = torch.zeros(ROWS, POS, dtype=torch.bool)
    mask[:, 5] = True
    alone = Batch(batch.inputs, batch.targets, mask)
    known = 9.0 * nn.functional.one_hot(batch.targets, NAMES)
    assert does_better(Told(alone, known.float()))
    wrong = 9.0 * nn.functional.one_hot((batch.targets + 1) % NAMES, NAMES)
    assert not does_better(Told(alone, wrong.float()))


def test_rows_of_one_answer_each_are_done_by_a_model_that_knows_which() -> None:
    targets = (torch.arange(ROWS) % 6)[:, None].expand(-1, POS)
    batch = Batch(targets, targets, torch.ones(ROWS, POS, dtype=torch.bool))
    assert does_better(Told(batch, 9.0 * nn.functional.one_hot(targets, NAMES)))
    assert not does_better(Told(batch, 9.0 * nn.functional.one_hot(targets * 0, NAMES)))


def test_of_many_answers_a_loss_above_that_of_an_even_guess_is_none() -> None:
    """Targets are eight of twelve tokens: to give these a little less is worse than to know
    nothing, by more than the floor or not."""
    generator = torch.Generator().manual_seed(3)
    targets = torch.rand(ROWS, 8, generator=generator).argsort(1).repeat(1, 2)
    batch = Batch(targets, targets, torch.ones(ROWS, POS, dtype=torch.bool))
    outputs = torch.zeros(ROWS, POS, NAMES)
    assert not does_better(Told(batch, outputs))
    assert not cannot_do(Told(batch, outputs), 0.05)
    outputs[..., :8] = 0.3
    assert not does_better(Told(batch, outputs))
    assert not cannot_do(Told(batch, outputs), 0.05)
    assert cannot_do(Told(batch, -outputs), 0.05)
    assert not cannot_do(Told(batch, -outputs / 3), 0.05)
