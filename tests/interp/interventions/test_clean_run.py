"""A run with changes from the middle on is the run with the same hooks from the start."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp.errors import ArgumentError, HookError
from interp.interventions.clean_run import CleanRun, component_means
from interp.interventions.components import Component, components, replaced
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.models.wrap import wrap

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=3, n_heads=(2, 1, 3), d_head=4,
    ffn=((5,), (), (5, 4)), norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
KINDS = ("hook_resid_pre", "attn.hook_z", "hook_mlp_out", "hook_resid_post")
ROWS = torch.randint(6, (5, 7), generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """A model whose hooks are hidden inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)


@pytest.fixture(scope="module", params=["ours", "bridge", "wrapped"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "ours":
        return SequenceTransformer(SPEC, seed=3)
    if request.param == "wrapped":
        kinds = [f"blocks.{i}.{kind}" for i in range(3) for kind in KINDS]
        names = [name for name in kinds if name != "blocks.1.hook_mlp_out"]
        places = {name: f"inner.{name}" for name in names}
        return wrap(Plain(SequenceTransformer(SPEC, seed=3)), places, example=ROWS[:2], check=False)
    from transformers import GPT2Config, GPT2LMHeadModel

    from interp.hooks.transformer_lens_adapter import TransformerBridge

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=6, n_positions=8, n_embd=12, n_layer=3, n_head=3)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()


def direct(model: Any, parts: list[Component], means: dict[str, Tensor], keep: str) -> Any:
    """One whole run with hooks."""
    found: dict[str, Tensor] = {}

    def see(value: Tensor, hook: Any) -> None:
        found[keep] = value.clone()

    kinds = {"ffn": "hook_mlp_out", "position": "hook_resid_pre", "head": "attn.hook_z"}
    if hasattr(model, "spec"):
        kinds["head"] = "attn.hook_result"
    names = [f"blocks.{part.layer}.{kinds[part.kind]}" for part in parts]
    edits = [
        (name, partial(replaced, part=part, instead=means[name]))
        for name, part in zip(names, parts, strict=True)
    ]
    with torch.no_grad():
        return model.run_with_hooks(ROWS, fwd_hooks=[*edits, (keep, see)]), found[keep]


@pytest.mark.parametrize(
    "parts",
    [
        [Component("head", 2, 1)],
        [Component("head", 1, 0), Component("ffn", 2), Component("head", 2, 0)],
        [Component("ffn", 0)],
        [Component("position", 1, position=3), Component("head", 0, 1)],
    ],
)
def test_components_are_replaced_together_wherever_the_run_starts(
    model: Any, parts: list[Component]
) -> None:
    clean = CleanRun.of(model, ROWS)
    means = component_means(model, ROWS, parts, tokens=14)
    for site in ("blocks.0.hook_resid_post", "blocks.2.hook_resid_post"):
        output, kept = clean.without(parts, means, keep=[site])
        expected, stream = direct(model, parts, means, site)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(kept[site], stream)


def test_means_are_over_rows_a_few_at_a_time(model: Any) -> None:
    parts = [part for part in components(model) if part.kind == "head"] if model.cfg else []
    means = component_means(model, ROWS, parts, tokens=7)
    _, cache = model.run_with_cache(ROWS, names_filter=list(means))
    for name, mean in means.items():
        torch.testing.assert_close(mean, cache[name].mean(0, keepdim=True))


def test_the_output_is_the_models_and_nothing_changed_gives_it_again(model: Any) -> None:
    clean = CleanRun.of(model, ROWS)
    with torch.no_grad():
        torch.testing.assert_close(clean.output, model(ROWS))
    torch.testing.assert_close(clean.edited([])[0], clean.output)


def test_only_layers_from_the_first_change_on_run_again() -> None:
    model = SequenceTransformer(SPEC, seed=3)
    clean = CleanRun.of(model, ROWS)
    ran: list[int] = []
    handles = [
        block.register_forward_pre_hook(lambda *_, layer=layer: ran.append(layer))
        for layer, block in enumerate(model.blocks)
    ]
    clean.edited([("blocks.2.attn.hook_pattern", lambda value, hook: value)])
    assert ran == [2]
    ran.clear()
    clean.edited([("blocks.2.attn.hook_pattern", lambda value, hook: value)], ["hook_embed"])
    assert ran == [0, 1, 2]
    for handle in handles:
        handle.remove()


def test_hooks_that_are_not_there_or_stay_silent_are_named() -> None:
    model = SequenceTransformer(SPEC, seed=3)
    clean = CleanRun.of(model, ROWS)
    with pytest.raises(HookError, match=r"blocks\.9\.hook_resid_pre"):
        clean.edited([("blocks.9.hook_resid_pre", lambda value, hook: value)])
    with pytest.raises(HookError, match="did not fire"):
        clean.edited([("blocks.2.attn.hook_q_input", lambda value, hook: value)])
    with pytest.raises(ArgumentError, match=r"L1 FFN \(layer 1 has no FFN\)"):
        clean.without([Component("ffn", 1)], {})


def test_outputs_that_are_not_finite_are_named_where_they_begin() -> None:
    model = SequenceTransformer(SPEC, seed=3)
    with torch.no_grad():
        model.blocks[1].attn.W_V[0, 0, 0] = torch.nan
    for replay in (True, False):
        with pytest.raises(ArgumentError, match=r"not a number, first at blocks\.1\.attn\.hook_v"):
            CleanRun.of(model, ROWS, replay=replay)
