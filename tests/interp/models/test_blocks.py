"""Blocks written around nn.MultiheadAttention are wrapped without a name, and their sums add up."""

from functools import partial

import pytest
import torch
from torch import nn

import prooflens as pl
from interp.errors import ArgumentError, ConformanceError


class Block(nn.Module):
    """Pre-norm, in the ways in which people write it."""

    def __init__(self, style: str, batch_first: bool = True) -> None:
        super().__init__()
        self.style = style
        self.norm1, self.attention = (
            nn.LayerNorm(16),
            nn.MultiheadAttention(16, 2, batch_first=batch_first, dropout=0.1),
        )
        self.drop, self.norm2 = nn.Dropout(0.1), nn.LayerNorm(16)
        if style == "layers":
            self.fc1, self.act, self.fc2 = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
        else:
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        inner = x if self.style == "post" else self.norm1(x)
        out, _ = self.attention(inner, inner, inner, attn_mask=mask, need_weights=False)
        x = x + self.drop(out)
        if self.style == "post":
            x = self.norm1(x)
            return self.norm2(x + self.mlp(x))
        inner = self.norm2(x)
        if self.style == "layers":
            return x + self.fc2(self.act(self.fc1(inner)))
        return x + self.mlp(inner)


class Inner(nn.Module):
    """Attention in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return self.heads(x, x, x, attn_mask=mask)[0]


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(16), Inner()
        self.ln_2, self.ffn = nn.RMSNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


def model(*blocks: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 16), *blocks, nn.LayerNorm(16), nn.Linear(16, 11)).eval()


TOKENS = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [lambda: Block("mlp"), lambda: Block("layers"), Nested])
def test_no_name_is_needed_and_the_sums_add_up(make) -> None:
    module = model(make(), make())
    wrapped = pl.wrap(module, example=TOKENS)
    torch.testing.assert_close(wrapped(TOKENS), module(TOKENS))
    for relation in ("resid_mid = resid_pre + attn_out", "resid_post = resid_mid + mlp_out"):
        passed = [
            c.where for c in wrapped.report.checks if (c.relation, c.status) == (relation, "pass")
        ]
        assert passed == ["blocks.0", "blocks.1"]
    _, cache = wrapped.run_with_cache(TOKENS)
    pre, mid = (cache[f"blocks.1.hook_resid_{name}"] for name in ("pre", "mid"))
    torch.testing.assert_close(mid, pre + cache["blocks.1.hook_attn_out"])
    pattern = cache["blocks.1.attn.hook_pattern"]
    assert pattern.shape == (3, 2, 7, 7)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(3, 2, 7))


def encoder(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: Block("mlp"), "attention"), (encoder, "self_attn")]
)
def test_a_head_is_ablated_where_it_is(make, name: str) -> None:
    """Against the block computed by hand with that head's columns of W_O at zero."""
    module = model(make())
    wrapped = pl.wrap(module, example=TOKENS)

    def cut(z: torch.Tensor, hook: object) -> torch.Tensor:
        z[:, :, 1] = 0
        return z

    changed = wrapped.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.attn.hook_z", cut)])
    with torch.no_grad():
        module[1].get_submodule(name).out_proj.weight[:, 8:] = 0
    torch.testing.assert_close(changed, module(TOKENS))


def test_a_norm_after_the_sum_is_refused_by_the_check() -> None:
    with pytest.raises(ConformanceError, match="not what their names say"):
        pl.wrap(model(Block("post")), example=TOKENS)


@pytest.mark.parametrize("make", [partial(Block, "mlp"), encoder])
def test_the_batch_must_come_first(make) -> None:
    with pytest.raises(ArgumentError, match="must have batch_first=True"):
        pl.wrap(model(make(batch_first=False)), example=TOKENS)
