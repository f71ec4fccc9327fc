import pytest
import torch

from interp.errors import ArgumentError, ConformanceError
from interp.heads.ablate import ablated, every_component
from interp.heads.effects import Component, components, mean_outputs, run_without
from interp.heads.replay import Trace
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=3, n_heads=(2, 1, 3), d_head=4,
    ffn=((5,), (), (5, 4)), norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
GEN = torch.Generator().manual_seed(0)


def model_of(**changes: object) -> SequenceTransformer:
    from dataclasses import replace

    model = SequenceTransformer(replace(SPEC, **changes), seed=3)
    if model.spec.identity_ov:
        for block in model.blocks:
            block.attn.b.data += 0.7
    return model


def tokens(rows: int = 5) -> torch.Tensor:
    return torch.randint(6, (rows, 7), generator=GEN)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> object:
    from transformers import GPT2Config, GPT2LMHeadModel

    from interp.lens import TransformerBridge

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=6, n_positions=8, n_embd=12, n_layer=2, n_head=3)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()


@pytest.mark.parametrize(
    "changes",
    [{}, {"identity_ov": True}, {"residual": False, "ffn": (5,)}, {"ffn": ()}],
    ids=["norm", "identity", "no residual", "attention only"],
)
def test_mean_ablation_equals_one_run_for_each_component(changes: dict[str, object]) -> None:
    model, rows = model_of(**changes), tokens()
    parts = components(model)
    means = mean_outputs(model, rows, parts)
    found = dict(ablated(model, rows, parts, tokens=80))
    assert list(found) == list(parts)
    for part, output in found.items():
        torch.testing.assert_close(output, run_without(model, rows, [part], means)[0])


def hooked(model: object, rows: torch.Tensor, edits: dict[str, object]) -> torch.Tensor:
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
        found = dict(ablated(model, rows, every_component(model, 7), how=how, seed=4))
        head = found[Component("head", 2, 1)]
        order = torch.randperm(5, generator=torch.Generator().manual_seed(4))
        others = order.roll(1)[order.argsort()]
        assert (others != torch.arange(5)).all()

        def other(name: str, how: str = how, others: torch.Tensor = others) -> torch.Tensor:
            return torch.zeros_like(cache[name]) if how == "zero" else cache[name][others]

        z, ffn, pre = "blocks.2.attn.hook_z", "blocks.0.hook_mlp_out", "blocks.1.hook_resid_pre"
        at_head, everything, at_position = (..., 1, slice(None)), ..., (slice(None), 3)
        expected = hooked(model, rows, {z: put(other(z), at_head)})
        torch.testing.assert_close(head, expected)
        expected = hooked(model, rows, {ffn: put(other(ffn), everything)})
        torch.testing.assert_close(found[Component("ffn", 0)], expected)
        expected = hooked(model, rows, {pre: put(other(pre), at_position)})
        torch.testing.assert_close(found[Component("position", 1, position=3)], expected)
        z = "blocks.0.attn.hook_z"
        edits = {z: put(other(z), everything), ffn: put(other(ffn), everything)}
        torch.testing.assert_close(found[Component("layer", 0)], hooked(model, rows, edits))


def test_swap_takes_the_paired_row() -> None:
    model, clean, corrupt = model_of(), tokens(), tokens()
    _, other = model.run_with_cache(corrupt)
    name = "blocks.0.hook_mlp_out"
    ((_, output),) = ablated(model, clean, [Component("ffn", 0)], how="swap", reference=corrupt)
    torch.testing.assert_close(output, hooked(model, clean, {name: lambda _: other[name]}))


def test_a_bridge_gives_what_its_hooks_give(bridge: object) -> None:
    rows = tokens(3)
    _, cache = bridge.run_with_cache(rows)
    found = dict(ablated(bridge, rows, tokens=50))
    assert len(found) == 2 * (3 + 1 + 1)
    for layer in range(2):
        z = f"blocks.{layer}.attn.hook_z"

        def edit(value: torch.Tensor, name: str = z) -> torch.Tensor:
            value = value.clone()
            value[:, :, 1] = cache[name].mean(0)[:, 1]
            return value

        expected = hooked(bridge, rows, {z: edit})
        torch.testing.assert_close(found[Component("head", layer, 1)], expected)
        ffn = f"blocks.{layer}.hook_mlp_out"
        expected = hooked(bridge, rows, {ffn: lambda v, n=ffn: cache[n].mean(0).expand_as(v)})
        torch.testing.assert_close(found[Component("ffn", layer)], expected)


def test_copies_of_one_row_keep_their_masks(bridge: object) -> None:
    one = tokens(1)
    three = dict(ablated(bridge, one.expand(3, -1), how="zero"))
    for part, output in ablated(bridge, one, how="zero", tokens=7):
        torch.testing.assert_close(output, three[part][:1])


def test_refusals() -> None:
    model = model_of()
    with pytest.raises(ArgumentError, match=r"how must be one of .*, got 'kill'"):
        list(ablated(model, tokens(), how="kill"))
    with pytest.raises(ArgumentError, match="must have two rows to resample, got 1"):
        list(ablated(model, tokens(1), how="resample"))
    with pytest.raises(ArgumentError, match="must be the 5 paired rows to swap in, got None"):
        list(ablated(model, tokens(), how="swap"))
    with pytest.raises(ArgumentError, match=r"rows of shape \(7,\), got \(6,\)"):
        list(ablated(model, tokens(), reference=tokens()[:, :6]))


def test_a_model_whose_ffn_reads_elsewhere_is_refused() -> None:
    model = model_of()
    block = model.blocks[2]
    block.mlp.forward = lambda x, f=block.mlp.forward: f(x) + torch.rand(())
    with pytest.raises(ConformanceError, match="cannot be replayed: its layer 2 gave other values"):
        Trace.of(model, tokens())
