"""Small hooked models and tasks for the store's tests; importable from their subprocesses."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from interp.hooks.transformer_lens_adapter import HookedRootModule
from interp.tasks.base import Batch

N_HEADS, D_HEAD, D_MODEL = 2, 4, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.out = nn.Linear(D_MODEL, D_MODEL)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, N_HEADS, D_HEAD).unbind(2)
        q, k, v = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / D_HEAD**0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = self.hook_attn_scores(scores.masked_fill(future, -torch.inf))
        pattern = self.hook_pattern(scores.softmax(-1))
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        return self.out(z.reshape(rows, length, D_MODEL))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()
        self.mlp = nn.Linear(D_MODEL, D_MODEL)
        self.hook_resid_pre, self.hook_resid_mid = HookPoint(), HookPoint()
        self.hook_resid_post = HookPoint()
        self.hook_attn_out, self.hook_mlp_out = HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        x = self.hook_resid_pre(x)
        x = self.hook_resid_mid(x + self.hook_attn_out(self.attn(x)))
        return self.hook_resid_post(x + self.hook_mlp_out(self.mlp(x).relu()))


class TinyTransformer(HookedRootModule):
    """Two blocks, TransformerLens' names; ``hook_unused`` never fires."""

    def __init__(self, seed: int = 0, d_in: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Linear(d_in, D_MODEL)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.unembed = nn.Linear(D_MODEL, 2)
        self.hook_embed, self.hook_unused = HookPoint(), HookPoint()
        self.hook_unembed = HookPoint()
        self.unembedded = 0
        self.cfg = TransformerLensConfig(
            d_model=D_MODEL, d_head=D_HEAD, n_layers=2, n_ctx=64, n_heads=N_HEADS
        )
        self.setup()

    def forward(self, x: Tensor) -> Tensor:
        x = self.hook_embed(self.embed(x))
        for block in self.blocks:
            x = block(x)
        self.unembedded += len(x)
        return self.hook_unembed(self.unembed(x))


@dataclass(frozen=True)
class Echo:
    """Gaussian inputs; the target is the input ``lag`` steps back."""

    lag: int = 1
    length: int = 6

    @property
    def name(self) -> str:
        return "echo"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(n, self.length, 3, generator=generator)
        targets = inputs.roll(self.lag, dims=1)[..., :2]
        mask = (torch.arange(self.length) >= self.lag).expand(n, -1)
        lag = torch.full((n, self.length), self.lag)
        return Batch(inputs, targets, mask, {"lag": lag, "content": targets})

    def to_dict(self) -> dict[str, int | str]:
        return {"kind": "echo", "lag": self.lag, "length": self.length}


class DiesOnce(TinyTransformer):
    """Kills the first other process in which it runs; ``marker`` says that it did."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker, self.home = marker, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
