"""Our hook points and hooked modules against TransformerLens' own, called the same way."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint as TheirPoint
from transformer_lens.HookedRootModule import HookedRootModule

from interp.errors import ArgumentError, HookError
from interp.hooks.hooked import HookedModule
from interp.hooks.points import HookPoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


def model_of(root: Any, point: Any) -> Any:
    """Two points in a row, of one library or the other."""

    class Two(root):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Module(), nn.Module()])
            for block in self.blocks:
                block.hook_z = point()
            self.setup()

        def forward(self, x: Tensor, power: int = 2) -> Tensor:
            x = self.blocks[0].hook_z(x**power)
            out: Tensor = self.blocks[1].hook_z(3 * x)
            return out.sum()

    return Two()


MODELS = {
    "ours": (HookedModule, HookPoint),
    "theirs": (HookedRootModule, TheirPoint),
    "their points in ours": (HookedModule, TheirPoint),
}
FIRST, SECOND = "blocks.0.hook_z", "blocks.1.hook_z"


def number(value: Tensor) -> float:
    return float(value.detach())


def everything(name: str) -> list[Any]:
    """What happens when each method is called; equal for models of the same behaviour."""
    model = model_of(*MODELS[name])
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    said: list[Any] = [list(model.hook_dict), [type(p).__name__ for p in model.hook_points()]]

    def note(text: str, times: float | None = None) -> Any:
        def call(value: Tensor, hook: Any) -> Tensor | None:
            said.append((text, hook.name, hook.layer(), value.flatten().tolist()))
            return None if times is None else value * times

        return call

    said.append(
        number(model.run_with_hooks(x, fwd_hooks=[(FIRST, note("a", 2)), (SECOND, note("b"))]))
    )
    said.append(
        number(model.run_with_hooks(x, power=3, fwd_hooks=[(lambda n: "0" in n, note("c"))]))
    )
    model.add_hook(FIRST, note("stays"), is_permanent=True)
    model.add_hook(FIRST, note("second", 5))
    model.add_hook(FIRST, note("before", -1), prepend=True)
    model.add_hook(lambda n: n == SECOND, note("gradient", 10), dir="bwd")
    with model.hooks(fwd_hooks=[(SECOND, note("inside"))], bwd_hooks=[(FIRST, note("slope"))]):
        model(x).backward()
        said.append(("levels", [point.has_hooks(level=1) for point in model.hook_points()]))
    said.append((x.grad.tolist(), [p.has_hooks("bwd") for p in model.hook_points()]))
    said.append({k: len(found) for k, found in model.list_hooks().items()})
    model.reset_hooks()
    said.append((number(model(x)), model.context_level, model.is_caching))
    model.reset_hooks(including_permanent=True)
    output, cache = model.run_with_cache(x, names_filter=[SECOND], incl_bwd=True)
    said.append((number(output), {k: v.tolist() for k, v in cache.items()}, model.is_caching))
    _, cache = model.run_with_cache(x, remove_batch_dim=True, device="cpu")
    said.append({k: list(v.shape) for k, v in cache.items()})
    kept = model.add_caching_hooks(lambda name: name == FIRST)
    model(x)
    said.append({k: v.tolist() for k, v in kept.items()})
    model.hook_dict[FIRST].ctx["held"] = 1
    model.reset_hooks()
    said.append((model.hook_dict[FIRST].ctx, model.list_hooks(), number(model(x))))
    return said


@pytest.mark.parametrize("name", ["ours", "their points in ours"])
def test_every_method_does_what_transformer_lens_does(name: str) -> None:
    found, expected = everything(name), everything("theirs")
    assert len(found) > 20
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs


def test_what_cannot_be_meant_is_refused() -> None:
    model = model_of(HookedModule, HookPoint)
    x = torch.ones(2, 2)
    with pytest.raises(HookError, match=r"has no hook blocks.0.hook_y.*blocks.0.hook_z"):
        model.add_hook("blocks.0.hook_y", print)
    with pytest.raises(ArgumentError, match="reset_hooks_end must be False with bwd_hooks"):
        model.run_with_hooks(x, bwd_hooks=[(FIRST, print)])
    with pytest.raises(ArgumentError, match="remove_batch_dim needs a single row, got 2"):
        model.run_with_cache(x, remove_batch_dim=True)
    assert not model.list_hooks()


def test_a_function_that_fails_leaves_no_hook() -> None:
    model = model_of(HookedModule, HookPoint)

    def fail(value: Tensor, hook: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        model.run_with_hooks(torch.ones(1, 2), fwd_hooks=[(SECOND, fail)])
    assert not model.list_hooks()
    assert model.context_level == 0


def test_the_configuration_has_every_field_of_transformer_lens() -> None:
    spec = TransformerSpec(d_in=7, d_out=5, n_ctx=9, d_model=6, n_layers=2, n_heads=2, d_head=3)
    ours = vars(SequenceTransformer(spec).cfg)
    sizes = {name: ours[name] for name in ("d_model", "d_head", "n_layers", "n_ctx", "n_heads")}
    theirs = TransformerLensConfig(**sizes, attn_only=True, default_prepend_bos=False, d_mlp=0)
    missing = set(vars(theirs)) - set(ours)
    assert not missing
    switches = ("use_attn_result", "use_split_qkv_input", "n_key_value_heads", "gated_mlp")
    assert {n: ours[n] for n in switches} == {n: getattr(theirs, n) for n in switches}


def test_a_model_runs_without_transformer_lens() -> None:
    code = (
        "import sys, torch, prooflens as pl\n"
        "model = pl.load('induction-attention')\n"
        "batch = model.card.task.sample(4, seed=0)\n"
        "read = [('hook_embed', lambda value, hook: None)]\n"
        "model.run_with_hooks(batch.inputs, fwd_hooks=read)\n"
        "pl.ablate(model, batch, ['L0H0'])\n"
        "print([name for name in ('transformer_lens', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
