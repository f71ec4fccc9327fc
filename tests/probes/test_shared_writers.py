"""A module of one's own whose induction heads read several earlier heads, none of which looks at
the token before with much of its attention: wrapped without names, and found by ids alone."""

import pytest
import torch
from torch import nn

import prooflens as pl

WORDS, LENGTH, WIDTH = 32, 40, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        inner = self.norm1(x)
        x = x + self.attention(inner, inner, inner, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Repeating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.word(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def rows(n: int, generator: torch.Generator) -> torch.Tensor:
    """Blocks of 6 to 18 tokens, over and over."""
    found = []
    for _ in range(n):
        period = int(torch.randint(6, 19, (), generator=generator))
        block = torch.randperm(WORDS, generator=generator)[:period]
        found.append(block.repeat(-(-LENGTH // period))[:LENGTH])
    return torch.stack(found)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    made, generator = Repeating(), torch.Generator().manual_seed(1)
    steps = torch.optim.AdamW(made.parameters(), lr=2e-3)
    for _ in range(600):
        tokens = rows(32, generator)
        logits = made(tokens)[:, 18:-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 19:].flatten())
        steps.zero_grad()
        loss.backward()
        steps.step()
    assert loss.item() < 0.05
    return made.eval()


@pytest.mark.slow
def test_induction_is_found_though_no_head_alone_looks_at_the_token_before(module) -> None:
    tokens = rows(32, torch.Generator().manual_seed(9))
    found = pl.inspect(pl.wrap(module, example=tokens[:2]), tokens)
    heads = found.roles[(found.roles["role"] == "induction") & (found.roles["head"] >= 0)]
    sure = heads[heads["status"] == "confirmed"]
    assert len(sure) >= 3
    assert set(sure["layer"]) == {1}
    assert sure["strength"].min() > 0.8
    table = found.heads[found.heads["trial"] == "repeated"]
    previous = table[(table["target"] == "previous") & (table["layer"] == 0)]
    assert previous["score"].max() < 0.3, "none is a previous-token head by its share"
    assert "do induction" in found.findings[0]
    assert "L0H" in found.findings[1]
