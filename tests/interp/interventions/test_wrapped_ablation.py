"""A wrapped module is ablated at its hooks; what needs weights by name says so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from path_outputs import path_patched
from torch import Tensor, nn

from interp.attribution.direct_logit_attribution import direct_logit_attribution
from interp.errors import HookError
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component, components, every_component
from interp.interventions.patching import Receiver
from interp.interventions.replacement import ablation_outputs
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.models.wrap import WrappedModule, wrap
from interp.run.gate import next_tokens

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(5,),
    norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
GEN = torch.Generator().manual_seed(0)
KINDS = ("hook_resid_pre", "attn.hook_pattern", "attn.hook_z", "hook_mlp_out", "hook_resid_post")


def tokens(rows: int = 6) -> Tensor:
    return torch.randint(6, (rows, 7), generator=GEN)


class Plain(nn.Module):
    """One of our models, its hooks hidden inside; its submodules are the places."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)


def wrapped_model(model: SequenceTransformer, kinds: tuple[str, ...] = KINDS) -> WrappedModule:
    places = {f"blocks.{i}.{kind}": f"inner.blocks.{i}.{kind}" for i in range(2) for kind in kinds}
    return wrap(Plain(model), places, example=tokens(2))


@pytest.mark.parametrize("how", ["mean", "resample", "swap"])
def test_every_ablation_of_a_wrapped_module_is_that_of_the_model(how: str) -> None:
    ours = SequenceTransformer(SPEC, seed=3)
    rows, other = tokens(), tokens()
    parts = every_component(ours, 7)
    options: dict[str, Any] = {"how": how, "reference": other, "seed": 2}
    expected = dict(ablation_outputs(ours, rows, parts, **options))
    found = dict(ablation_outputs(wrapped_model(ours), rows, parts, **options))
    assert set(found) == set(expected)
    for part, output in found.items():
        torch.testing.assert_close(output, expected[part], msg=part.name)


def test_dropout_is_off_while_a_module_is_ablated() -> None:
    class Noisy(Plain):
        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.dropout(self.inner(inputs), 0.5, self.training)

    places = {f"blocks.{i}.{k}": f"inner.blocks.{i}.{k}" for i in range(2) for k in KINDS}
    ours, rows = SequenceTransformer(SPEC, seed=3), next_tokens(tokens(9))
    noisy = wrap(Noisy(ours), places, example=tokens(2), check=False).train()
    part = [Component("head", 1, 0)]
    expected = ablate(ours, rows, part)["score"].item()
    assert ablate(noisy, rows, part)["score"].item() == pytest.approx(expected, abs=1e-9)
    assert noisy.training


def lacking(kind: str) -> WrappedModule:
    return wrapped_model(SequenceTransformer(SPEC), tuple(k for k in KINDS if k != kind))


@pytest.mark.parametrize(
    ("model", "use", "text"),
    [
        (lacking("hook_mlp_out"), lambda m: list(ablation_outputs(m, tokens())),
         r"has no hook blocks\.0\.hook_mlp_out"),
        (lacking("attn.hook_z"),
         lambda m: list(ablation_outputs(m, tokens(), [Component("head", 1, 0)])),
         r"has no hook blocks\.1\.attn\.hook_z"),
        (wrapped_model(SequenceTransformer(SPEC), KINDS[3:]), components,
         "how many heads it has: wrap"),
        (lacking(""), lambda m: list(path_patched(m, tokens(), Receiver("ffn", 1))),
         r"has no hook blocks\.0\.hook_attn_out"),
        (lacking(""), lambda m: direct_logit_attribution(m, tokens()),
         "has no blocks, W_U, ln_final: what a head writes is told by W_O"),
    ],
    ids=["ffn", "head", "nothing", "paths", "contributions"],
)  # fmt: skip
def test_what_is_missing_is_named(
    model: WrappedModule, use: Callable[[WrappedModule], object], text: str
) -> None:
    with pytest.raises(HookError, match=text):
        use(model)


def test_a_component_with_its_hook_is_ablated_though_others_lack_theirs() -> None:
    ((part, _),) = ablation_outputs(lacking("hook_mlp_out"), tokens(), [Component("head", 0, 1)])
    assert part.name == "L0H1"
