import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from by_hooks import mean_outputs, run_without

from interp.errors import ArgumentError
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component, components, every_component
from interp.interventions.replacement import ablation_outputs
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run.gate import next_tokens

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=3, n_heads=(2, 1, 3), d_head=4,
    ffn=((5,), (), (5, 4)), norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
HOOKS = ("attn.hook_result", "hook_mlp_out")
GEN = torch.Generator().manual_seed(0)


def model_of(**changes: object) -> SequenceTransformer:
    model = SequenceTransformer(replace(SPEC, **changes), seed=3)
    if model.spec.identity_ov:
        for block in model.blocks:
            block.attn.b.data += 0.7
    return model


def tokens(rows: int = 5) -> torch.Tensor:
    return torch.randint(6, (rows, 7), generator=GEN)


class Parallel(SequenceTransformer):
    """Blocks whose FFN reads what enters the block, and which have no stream in between."""

    def __init__(self) -> None:
        super().__init__(SPEC, seed=3)
        for block in self.blocks:
            block.forward = partial(self._parallel, block)
            del block.hook_resid_mid
        self.setup()

    @staticmethod
    def _parallel(block: Any, resid: torch.Tensor) -> torch.Tensor:
        resid = block.hook_resid_pre(resid)
        out = resid + block.hook_attn_out(block.attn(resid, block.ln1))
        if block.mlp is not None:
            out = out + block.hook_mlp_out(block.mlp(block.ln2(resid)))
        return block.hook_resid_post(out)


MODELS = {
    "norm": model_of,
    "identity": partial(model_of, identity_ov=True),
    "parallel": Parallel,
}


@pytest.mark.parametrize("name", MODELS)
def test_mean_ablation_equals_one_run_for_each_component(name: str) -> None:
    model, rows = MODELS[name](), tokens()
    parts = components(model)
    named = [part.name for part in parts]
    assert named == ["L0H0", "L0H1", "L0 FFN", "L1H0", "L2H0", "L2H1", "L2H2", "L2 FFN"]
    means = mean_outputs(model, rows, parts)
    found = dict(ablation_outputs(model, rows, parts, tokens=80))
    assert list(found) == list(parts)
    for part, output in found.items():
        torch.testing.assert_close(output, run_without(model, rows, [part], means))


def edited_output(model: object, rows: torch.Tensor, edits: dict[str, object]) -> torch.Tensor:
    """The output of a run in which hooks' tensors are replaced by functions of them."""
    hooks = [(name, lambda value, hook, f=f: f(value)) for name, f in edits.items()]
    with torch.no_grad():
        return model.run_with_hooks(rows, fwd_hooks=hooks)


def test_zero_and_resample_of_every_kind_equal_hooks() -> None:
    model, rows = model_of(), tokens()
    _, cache = model.run_with_cache(rows)

    def put(row: torch.Tensor, at: object) -> object:
        def edit(value: torch.Tensor) -> torch.Tensor:
            value = value.clone()
            value[at] = row[at]
            return value

        return edit

    for how in ("zero", "resample"):
        found = dict(ablation_outputs(model, rows, every_component(model, 7), how=how, seed=4))
        head = found[Component("head", 2, 1)]
        order = torch.randperm(5, generator=torch.Generator().manual_seed(4))
        others = order.roll(1)[order.argsort()]
        assert (others != torch.arange(5)).all()

        def other(name: str, how: str = how, others: torch.Tensor = others) -> torch.Tensor:
            return torch.zeros_like(cache[name]) if how == "zero" else cache[name][others]

        z, ffn, pre = "blocks.2.attn.hook_z", "blocks.0.hook_mlp_out", "blocks.1.hook_resid_pre"
        at_head, everything, at_position = (..., 1, slice(None)), ..., (slice(None), 3)
        expected = edited_output(model, rows, {z: put(other(z), at_head)})
        torch.testing.assert_close(head, expected)
        expected = edited_output(model, rows, {ffn: put(other(ffn), everything)})
        torch.testing.assert_close(found[Component("ffn", 0)], expected)
        expected = edited_output(model, rows, {pre: put(other(pre), at_position)})
        torch.testing.assert_close(found[Component("position", 1, position=3)], expected)
        z = "blocks.0.attn.hook_z"
        edits = {z: put(other(z), everything), ffn: put(other(ffn), everything)}
        torch.testing.assert_close(found[Component("layer", 0)], edited_output(model, rows, edits))


@pytest.mark.parametrize("few", [7, 1024])
def test_nothing_is_left_of_a_part_that_wrote_all_there_is(few: int) -> None:
    """Norms would make much of what rounding left."""
    changes = {"residual": False, "ffn": (5,), "n_heads": 1, "dtype": "float32"}
    model, rows = model_of(**changes), tokens(9)
    zeros = {f"blocks.{i}.{h}": torch.zeros(()) for i in range(3) for h in HOOKS}
    for part, output in ablation_outputs(model, rows, components(model), how="zero", tokens=few):
        torch.testing.assert_close(output, run_without(model, rows, [part], zeros))


def test_no_pass_is_longer_than_the_tokens_allowed_and_few_layers_are_held() -> None:
    """What memory is made of: tokens of a pass; streams kept; layers' values alive at once."""
    model, rows = model_of(), tokens(8)
    seen: list[int] = []
    watch = [("blocks.0.hook_resid_pre", lambda value, hook: seen.append(value.shape[0]))]
    with model.hooks(fwd_hooks=watch):
        for how in ("mean", "resample", "swap", "zero"):
            list(ablation_outputs(model, rows, how=how, reference=rows.roll(1, 0), tokens=21))
        ablate(model, next_tokens(rows), tokens=21)
    assert 0 < max(seen) <= 3
    made: list[weakref.ref[torch.Tensor]] = []
    watch = [
        (f"blocks.{layer}.attn.hook_z", lambda value, hook: made.append(weakref.ref(value)))
        for layer in range(3)
    ]
    with model.hooks(fwd_hooks=watch):
        for _ in ablation_outputs(model, rows, how="resample", tokens=21):
            alive = sum(ref() is not None for ref in made)
            assert alive <= 2 * 3, "one layer, of the rows and of those that stand in, each chunk"
    assert len(made) > 50


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (5, {"how": "kill"}, r"how must be one of .*, got 'kill'"),
        (1, {"how": "resample"}, "must have two rows to resample, got 1"),
        (1, {}, "must have two rows to average: one row is its own mean, got 1"),
        (0, {}, r"inputs must be \[row, pos\(, channel\)\] with a row at least, got \(0, 7\)"),
        (5, {"how": "swap"}, "must be the 5 paired rows to swap in, got None"),
        (5, {"reference": tokens()[:, :6]}, r"rows of shape \(7,\), got \(6,\)"),
        (5, {"reference": tokens(0)}, "reference must have rows, got 0"),
        (5, {"tokens": 0}, "tokens must be at least 1, got 0"),
    ],
)
def test_refusals(rows: int, options: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        ablation_outputs(model_of(), tokens(rows), **options)


def test_one_row_has_means_of_a_reference() -> None:
    model, row, other = model_of(), tokens(1), tokens(1)
    part = Component("ffn", 0)
    ((_, mean),) = ablation_outputs(model, row, [part], reference=other)
    ((_, swap),) = ablation_outputs(model, row, [part], how="swap", reference=other)
    torch.testing.assert_close(mean, swap)


WRONG = [
    (Component("head", 9, 0), r"L9H0 \(layers are 0 to 2\)"),
    (Component("mlp", 0), r"L0 mlp \(kinds are head, ffn, layer, position\)"),
    (Component("head", 0), r"L0H-1 \(heads of layer 0 are 0 to 1\)"),
    (Component("head", 0, 7), r"L0H7 \(heads of layer 0 are 0 to 1\)"),
    (Component("head", 1, 1), r"L1H1 \(heads of layer 1 are 0 alone\)"),
    (Component("ffn", 1), r"L1 FFN \(layer 1 has no FFN\)"),
    (Component("position", 0, position=999), r"L0 position 999 \(positions are 0 to 6\)"),
    (Component("position", 0), r"L0 position -1 \(positions are 0 to 6\)"),
    (Component("ffn", 0, 1), r"L0 FFN \(head=1 does not go with its kind\)"),
]


def test_every_component_that_is_not_there_is_named_at_once() -> None:
    model, rows, there = model_of(), next_tokens(tokens()), [Component("head", 0, 0)]
    every = "; ".join(text for _, text in WRONG)
    with pytest.raises(ArgumentError, match=f"parts must be in the model, got .{every}"):
        ablate(model, rows, [*there, *(part for part, _ in WRONG)])
