"""A transformer as a user would write it, without a thought for hooks."""

import torch
from torch import Tensor, nn

from interp.hooks.hook_sites import HookSite

WIDTH, HEADS, VOCABULARY = 8, 2, 11


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.scores = nn.Identity()
        self.dropout = nn.Dropout(0.2)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, n, _ = x.shape
        q, k, v = (
            t.view(batch, n, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        pattern = self.scores(scores.masked_fill(future, -torch.inf)).softmax(-1)
        z = (self.dropout(pattern) @ v).transpose(1, 2).reshape(batch, n, WIDTH)
        return self.proj(z), pattern


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))[0]
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self, layers: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(layers or [Layer(), Layer()])
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def names(layers: int = 2) -> dict[str, str | HookSite]:
    """The right mapping."""
    found: dict[str, str | HookSite] = {"hook_embed": "embed"}
    for i in range(layers):
        block, layer = f"blocks.{i}", f"layers.{i}"
        found |= {
            f"{block}.hook_resid_pre": f"{layer}:in",
            f"{block}.attn.hook_q": HookSite(f"{layer}.attention.qkv", heads=HEADS, part=(0, 3)),
            f"{block}.attn.hook_v": HookSite(f"{layer}.attention.qkv", heads=HEADS, part=(2, 3)),
            f"{block}.attn.hook_attn_scores": f"{layer}.attention.scores",
            f"{block}.attn.hook_pattern": f"{layer}.attention.dropout",
            f"{block}.attn.hook_z": f"{layer}.attention.proj:in/{HEADS}",
            f"{block}.hook_attn_out": f"{layer}.attention:out[0]",
            f"{block}.hook_resid_mid": f"{layer}.norm2:read",
            f"{block}.mlp.hook_post": f"{layer}.mlp.1",
            f"{block}.hook_mlp_out": f"{layer}.mlp",
            f"{block}.hook_resid_post": layer,
        }
    return found


def tokens(batch: int = 2, n: int = 5) -> Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(1))
