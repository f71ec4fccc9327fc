"""Heads whose attention a rule selects, in small models as a compiler of RASP makes them, wrapped.

One-hot tokens and positions, one token that begins every row, exact selectors at a large inverse
temperature, attention both ways; idle heads that only fill a layer up attend evenly and write
nothing.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from interp.models.wrap import wrap
from interp.proofs.induction import construct_relation
from interp.tasks.base import Batch
from interp.tasks.relation import TokenRelation
from probes.roles import find_roles
from probes.roles.selecting import formula

pytestmark = pytest.mark.usefixtures("few_fresh_models")

SYMBOLS, LENGTH = 8, 16

Select = Callable[[Tensor, Tensor], Tensor]


class Compiled(nn.Module):
    """One layer: a head that attends where a selector of query and key holds, and idle ones."""

    def __init__(self, by: str, select: Select, *, first: float, causal: bool = False) -> None:
        super().__init__()
        self.causal, heads = causal, 2
        self.tokens, self.heads = SYMBOLS + 1, heads  # token 0 begins a row
        size = self.tokens if by == "tokens" else LENGTH + 1
        place = torch.arange(size)
        table = select(place[:, None], place).float()
        table[0] = table[:, 0] = 0
        table[:, 0] = first
        width = self.tokens + LENGTH + 1
        start = 0 if by == "tokens" else self.tokens
        scores = torch.zeros(heads, width, width)
        scores[0, start : start + size, start : start + size] = 100 * table
        values = torch.zeros(heads, width, self.tokens)
        values[0, 1 : self.tokens, 1:] = torch.eye(SYMBOLS)
        self.scores, self.values = nn.Parameter(scores), nn.Parameter(values)
        self.pattern, self.layer = nn.Identity(), nn.Identity()
        self.out = nn.Linear(heads * self.tokens, self.tokens, bias=False)
        self.out.weight.data = torch.eye(self.tokens).repeat(1, heads)

    def forward(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1])
        x = torch.cat(
            [
                nn.functional.one_hot(tokens, self.tokens),
                nn.functional.one_hot(place, LENGTH + 1).expand(len(tokens), -1, -1),
            ],
            dim=-1,
        ).float()
        x = self.layer(x)
        scores = torch.einsum("bqd,hde,bke->bhqk", x, self.scores, x)
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        pattern = self.pattern(scores.softmax(-1))
        z = torch.einsum("bhqk,bkd,hdo->bqho", pattern, x, self.values)
        return self.out(z.flatten(2))


def rows(symbols: int = SYMBOLS, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(1, symbols + 1, (96, length), generator=generator)
    return torch.cat([torch.zeros(96, 1, dtype=torch.long), drawn], dim=1)


def roles_of(module: Compiled, inputs: Tensor):  # type: ignore[no-untyped-def]
    names = {
        "blocks.0.hook_resid_pre": "layer",
        "blocks.0.attn.hook_pattern": "pattern",
        "blocks.0.attn.hook_z": f"out:in/{module.heads}",
    }
    model = wrap(module.eval(), names, example=inputs[:2])
    scored = torch.ones(inputs.shape, dtype=torch.bool)
    scored[:, 0] = False
    batch = Batch(inputs, torch.zeros(*inputs.shape, SYMBOLS + 1), scored)
    return find_roles(model, batch, targets=False)


@pytest.mark.parametrize(
    ("by", "select", "first", "role", "target"),
    [
        ("positions", lambda q, k: k == LENGTH + 1 - q, 0.5, "fixed-position", "17 − i"),
        ("positions", lambda q, k: k == (q + 1) // 2, 0.5, "fixed-position", ""),
        ("tokens", lambda q, k: k == q, 1.0, "token-comparison", "equal, and the first position"),
        ("tokens", lambda q, k: k == q, 0.5, "token-comparison", "equal"),
        ("tokens", lambda q, k: k < q, 0.5, "token-comparison", "smaller"),
        ("tokens", lambda q, k: k >= q, 0.5, "token-comparison", "greater or equal"),
        (
            "positions",
            lambda q, k: (q - k) % 3 == 0,
            0.5,
            "positional-periodic",
            "every third position from its own",
        ),
        ("tokens", lambda q, k: q + k > 0, 0.0, "uniform", ""),
    ],
)
def test_a_compiled_selector_has_its_name(
    by: str, select: Select, first: float, role: str, target: str
) -> None:
    found = roles_of(Compiled(by, select, first=first), rows())
    mine = found[found["head"] == 0]
    assert mine[["role", "status"]].to_numpy().tolist() == [[role, "confirmed"]]
    assert not target or mine["target"].tolist() == [target]
    idle = found[found["head"] == 1]
    assert idle[["role", "status"]].to_numpy().tolist() == [["uniform", "rejected"]]
    assert "below the floor" in idle["evidence"].iloc[0]


def test_a_head_that_writes_the_same_on_every_row_is_tried_by_its_mean_over_positions() -> None:
    """Even attention to a mark at the first position: its share tells how many came before."""
    module = Compiled("tokens", lambda q, k: q + k < 0, first=0.0, causal=True)
    module.values.data[0] = 0
    module.values.data[0, 0, 0] = 1
    found = roles_of(module, rows())
    told = found[["head", "role", "status"]].to_numpy().tolist()
    assert told == [[0, "uniform", "candidate"], [1, "uniform", "rejected"]]
    first, idle = found.itertuples()
    assert "with the mean over positions of what it writes on every row" in first.evidence
    assert first.effect > 0.5
    assert "is the same on every row" in first.missing
    assert idle.effect == 0


def test_a_table_of_tokens_without_a_relation_is_none() -> None:
    generator = torch.Generator().manual_seed(1)
    table = torch.rand(SYMBOLS + 1, SYMBOLS + 1, generator=generator) < 0.5
    found = roles_of(Compiled("tokens", lambda q, k: table[q, k], first=0.5), rows())
    assert "token-comparison" not in set(found["role"])


def test_a_test_that_cannot_be_put_is_named() -> None:
    select: Select = lambda q, k: k < q  # noqa: E731
    found = roles_of(Compiled("tokens", select, first=0.5), rows(symbols=3))
    (row,) = found[found["head"] == 0].itertuples()
    assert row.role == "dense"
    assert "token-comparison (in whose place this may stand): 3 tokens are in use" in row.missing
    found = roles_of(Compiled("tokens", select, first=0.5), rows(length=6))
    (row,) = found[found["head"] == 0].itertuples()
    assert "rows have 7 positions, and 8 are needed" in row.missing


def test_position_and_token_that_always_go_together_are_not_told_apart() -> None:
    """Rows of one fixed order, too few tokens of which to make others that repeat."""
    inputs = rows(symbols=3)
    inputs[:, 1:] = torch.arange(LENGTH) % 3 + 1
    flipped = torch.arange(96) % 2 == 0
    inputs[flipped, 12:] = inputs[flipped, 12:].roll(1, 1)
    select: Select = lambda q, k: k == LENGTH + 1 - q  # noqa: E731
    found = roles_of(Compiled("positions", select, first=0.5), inputs)
    (row,) = found[found["role"] == "fixed-position"].itertuples()
    assert row.status == "candidate"
    assert "the token there is the same in every row" in row.missing


def test_a_head_of_content_is_no_map_of_positions_where_rows_have_one_period() -> None:
    """Every row of the task repeats with one period: what followed stands at one position."""
    built = construct_relation(TokenRelation("induction", "classes", symbols=11, length=15))
    found = find_roles(built.model, built.task.sample(64, seed=2), targets=False)
    told = found[found["status"] == "confirmed"]
    assert "induction" in set(told["role"])
    assert "fixed-position" not in set(found["role"])


@pytest.mark.parametrize(
    ("keys", "queries", "words"),
    [
        ([3, 3, 3], [5, 6, 7], "position 3"),
        ([3, 4, 5], [5, 6, 7], "i − 2"),
        ([7, 6, 5], [5, 6, 7], "12 − i"),
        ([2, 3, 3], [5, 6, 7], "i // 2"),
        ([1, 5, 2], [5, 6, 7], "positions 1 5 2"),
    ],
)
def test_maps_of_positions_are_told_by_formulas(
    keys: list[int], queries: list[int], words: str
) -> None:
    assert formula(torch.tensor(keys), torch.tensor(queries)) == words
