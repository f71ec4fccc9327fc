"""A user's own module behind TransformerLens' names."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from small_modules import HEADS, Layer, Net, names, net, tokens
from torch import Tensor, nn
from transformer_lens import patching
from transformer_lens.tools.analysis.attribution_patching import cache_activation_and_gradient

from interp.errors import ArgumentError, ConformanceError, HookError
from interp.hooks.hook_sites import HookSite, parse_hook_site
from interp.interventions.components import components
from interp.models.wrap import wrap


def metric(output: Tensor) -> Tensor:
    return output[:, -1, 3].sum()


def test_the_right_mapping_passes_and_leaves_the_module_as_it_was() -> None:
    module = net()
    module.layers[1].eval()
    own = {name: value.clone() for name, value in module.state_dict().items()}
    model = wrap(module, names(), example=tokens())
    assert model.report is not None
    assert not model.report.failures
    assert module.training
    assert [layer.training for layer in module.layers] == [True, False]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    assert all(not hasattr(m, "name") for m in module.modules())
    assert all(torch.equal(own[name], value) for name, value in module.state_dict().items())
    cfg = model.cfg
    assert (cfg.n_layers, cfg.d_model, cfg.n_heads, cfg.d_head, cfg.d_mlp) == (2, 8, 2, 4, 12)
    with pytest.raises(AttributeError, match="normalization_type"):
        _ = cfg.normalization_type


@torch.no_grad()
def test_activations_are_the_modules_own() -> None:
    module = net().eval()
    model = wrap(module, names(), example=tokens())
    output, cache = model.run_with_cache(tokens())
    assert torch.equal(output, module(tokens()))
    x = module.embed(tokens())
    for i, layer in enumerate(module.layers):
        assert torch.equal(cache["resid_pre", i], x)
        qkv = layer.attention.qkv(layer.norm1(x)).chunk(3, dim=-1)
        assert torch.equal(cache["q", i], qkv[0].unflatten(-1, (HEADS, 4)))
        assert torch.equal(cache["v", i], qkv[2].unflatten(-1, (HEADS, 4)))
        out, pattern = layer.attention(layer.norm1(x))
        assert torch.equal(cache["pattern", i], pattern)
        assert torch.equal(cache["resid_mid", i], x + out)
        x = layer(x)
    stack, labels = cache.decompose_resid(return_labels=True)
    assert labels[0] == "embed"
    torch.testing.assert_close(stack.sum(0), x)
    last = model.run_with_cache(tokens(), names_filter="blocks.0.attn.hook_z", pos_slice=-1)[1]
    assert torch.equal(last["z", 0], cache["z", 0][:, -1:])


@torch.no_grad()
def test_what_a_hook_returns_takes_the_tensors_place() -> None:
    """Each intervention against the module computed by hand with the same change."""
    module = net().eval()
    model = wrap(module, names(), example=tokens())
    first, second = module.layers
    x = module.embed(tokens())
    out = first.attention(first.norm1(x))[0]
    expected = {
        "hook_embed": module.out(second(first(2 * x))),
        "blocks.0.hook_resid_post": module.out(second(2 * first(x))),
        "blocks.1.hook_resid_pre": module.out(second(2 * first(x))),
        "blocks.0.hook_attn_out": module.out(
            second(x + 2 * out + first.mlp(first.norm2(x + 2 * out)))
        ),
        "blocks.0.hook_mlp_out": module.out(second(x + out + 2 * first.mlp(first.norm2(x + out)))),
    }
    for name, value in expected.items():

        def double(t: Tensor, hook: object) -> Tensor:
            return 2 * t

        def double_in_place(t: Tensor, hook: object) -> None:
            t.mul_(2)

        for hook in (double, double_in_place):
            torch.testing.assert_close(
                model.run_with_hooks(tokens(), fwd_hooks=[(name, hook)]), value
            )
    torch.testing.assert_close(model(tokens()), module(tokens()))


@torch.no_grad()
def test_one_head_or_part_is_changed_and_the_others_are_not() -> None:
    module = net().eval()
    model = wrap(module, names(), example=tokens())

    def silence(t: Tensor, hook: object) -> Tensor:
        t[:, :, 1] = 0
        return t

    def by_hand(linear: nn.Linear, columns: slice) -> Tensor:
        weight, bias = linear.weight.clone(), linear.bias.clone()
        linear.weight.data[columns], linear.bias.data[columns] = 0, 0
        changed = module(tokens())
        linear.weight.data, linear.bias.data = weight, bias
        return changed

    qkv = module.layers[0].attention.qkv
    found = model.run_with_hooks(tokens(), fwd_hooks=[("blocks.0.attn.hook_v", silence)])
    torch.testing.assert_close(found, by_hand(qkv, slice(20, 24)))
    found = model.run_with_hooks(tokens(), fwd_hooks=[("blocks.0.attn.hook_q", silence)])
    torch.testing.assert_close(found, by_hand(qkv, slice(4, 8)))


@torch.no_grad()
def test_transformer_lens_patches_a_wrapped_module() -> None:
    module = net().eval()
    model = wrap(module, names(), example=tokens()).eval()
    clean, corrupt = tokens(), tokens().flip(0)
    _, cache = model.run_with_cache(clean)
    found = patching.get_act_patch_resid_pre(model, corrupt, cache, metric)
    x, y = module.embed(clean), module.embed(corrupt)
    y[:, 2] = x[:, 2]
    expected = metric(module.out(module.layers[1](module.layers[0](y))))
    torch.testing.assert_close(found[0, 2], expected.float())
    heads = patching.get_act_patch_attn_head_out_all_pos(model, corrupt, cache, metric)
    assert heads.shape == (2, HEADS)


def test_gradients_flow_through_hooks() -> None:
    module = net().eval()
    model = wrap(module, names(), example=tokens())
    wanted = ["hook_embed", "blocks.0.attn.hook_z", "blocks.1.hook_mlp_out"]
    found = cache_activation_and_gradient(model, tokens(), metric, names_filter=wanted)
    step = 1e-6
    for name in wanted:
        direction = torch.randn(found.activations[name].shape, dtype=torch.float64)

        def value(sign: int, name: str = name, direction: Tensor = direction) -> float:
            move = [(name, lambda t, hook: t + sign * step * direction)]
            return float(metric(model.run_with_hooks(tokens(), fwd_hooks=move)).detach())

        slope = (value(1) - value(-1)) / (2 * step)
        gradient = found.gradients[name]
        assert gradient is not None
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-5)
    metric(model(tokens())).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_places_for_reading_refuse_changes() -> None:
    model = wrap(net(), names(), example=tokens())
    name = "blocks.0.hook_resid_mid"
    for change in (lambda t, hook: t + 1, lambda t, hook: t.detach().add_(1)):
        with pytest.raises(HookError, match=r"\(read of layers.0.norm2\) may only be read"):
            model.run_with_hooks(tokens(), fwd_hooks=[(name, change)])
    model.run_with_hooks(tokens(), fwd_hooks=[(name, lambda t, hook: t.clone())])
    with pytest.raises(HookError, match="takes no backward hook"):
        pairs = [(name, lambda t, hook: None)]
        model.run_with_hooks(tokens(), bwd_hooks=pairs, reset_hooks_end=False)


WRONG: dict[str, tuple[dict[str, str | HookSite], str]] = {
    "swapped sublayers": (
        {"blocks.0.hook_attn_out": "layers.0.mlp",
         "blocks.0.hook_mlp_out": "layers.0.attention:out[0]"},
        r"blocks.0: resid_mid = resid_pre \+ attn_out \(off by",
    ),
    "normed stream for the stream": (
        {"blocks.1.hook_resid_pre": "layers.1.norm1"}, "next resid_pre = resid_post",
    ),
    "scores for the pattern": (
        {"blocks.0.attn.hook_pattern": "layers.0.attention.scores"}, "pattern rows sum to 1",
    ),
    "keys for values": (
        {"blocks.0.attn.hook_v": HookSite("layers.0.attention.qkv", heads=HEADS, part=(1, 3))},
        "z = pattern @ v",
    ),
    "four heads for two": (
        {"blocks.0.attn.hook_z": "layers.0.attention.proj:in/4"},
        r"z = pattern @ v: shape \(2, 5, 4, 2\), expected \(2, 5, 2, 4\)",
    ),
    "a pattern nobody reads": (
        {"blocks.0.attn.hook_pattern": "layers.0.attention:out[1]"},
        "z = pattern @ v, when hook_pattern changes",
    ),
    "one of two readers": (
        {"blocks.0.hook_resid_mid": "layers.0.norm2:in"},
        r"resid_post = resid_mid \+ mlp_out, when hook_resid_mid changes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_mappings_are_named(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(ConformanceError, match=message):
        wrap(net(), names() | changes, example=tokens())
    assert wrap(net(), names() | changes, example=tokens(), check=False).report is None


def test_problems_of_names_are_reported_at_once() -> None:
    wrong = {
        "blocks.0.hook_resid_pr": "layers.0:in",
        "blocks.0.hook_attn_out": "layers.0.attn:out[0]",
        "blocks.1.hook_mlp_out": "layers.7.mlp",
        "blocks.0.hook_mlp_out": "layers.0.mlp:sideways",
    }
    with pytest.raises(ArgumentError) as caught:
        wrap(net(), wrong, example=tokens())
    for part in ("hook_resid_pr", "near it: layers.0.attention", "layers.7.mlp", "sideways"):
        assert part in str(caught.value)
    with pytest.raises(ArgumentError, match="at least one hook"):
        wrap(net(), {})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("layers.0.attention", r"is a tuple, not a tensor: name an element, like ':out\[0\]'"),
        ("layers.0.attention:out[2]", "has no element there"),
        ("layers.0:in[mask]", "has no element there"),
        ("layers.0.mlp/3", r"last axis of \(2, 5, 8\) does not split into 1 part\(s\) of 3 head"),
    ],
)
def test_places_without_the_tensor_are_errors(place: str, message: str) -> None:
    with pytest.raises(HookError, match=message):
        wrap(net(), {"hook_embed": place}, example=tokens())


def test_shared_and_repeated_submodules_are_refused_by_name() -> None:
    layer = Layer()
    with pytest.raises(HookError, match=r"\(out of layers.0 = layers.1\) fires more than once"):
        wrap(Net([layer, layer]), {"blocks.0.hook_resid_post": "layers.0"}, example=tokens())

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.step(self.step(x))

    with pytest.raises(HookError, match="called repeatedly"):
        wrap(Twice(), {"steps.hook_out": "step"}, example=torch.ones(1, 2))


def test_silent_hooks_are_errors() -> None:
    module = net()
    module.spare = nn.Linear(1, 1)
    with pytest.raises(HookError, match=r"did not fire: spare.hook_out \(out of spare\)"):
        wrap(module, names() | {"spare.hook_out": "spare"}, example=tokens())
    model = wrap(module, names() | {"spare.hook_out": "spare"})
    model.run_with_cache(tokens(), names_filter="hook_embed")
    with pytest.raises(HookError, match=r"did not fire"):
        model.run_with_hooks(tokens(), fwd_hooks=[("spare.hook_out", lambda t, hook: t)])
    with pytest.raises(HookError, match="has no hook hook_embedding; near it"):
        model.run_with_cache(tokens(), names_filter="hook_embedding")


class Answer(NamedTuple):
    first: Tensor
    second: Tensor


class Odd(nn.Module):
    """Arguments by name, and several things returned."""

    def __init__(self, give: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.give = give

    def forward(self, x: Tensor, *, scale: Tensor) -> object:
        return self.give(x, scale)


@pytest.mark.parametrize("give", [lambda x, s: (x, s), Answer, lambda x, s: [x, s]])
@torch.no_grad()
def test_elements_are_replaced_in_any_container(give: Callable[[Tensor, Tensor], object]) -> None:
    model = wrap(Odd(give), {"a.hook_out": ":out[1]", "a.hook_in": ":in[scale]"})
    x, scale = torch.ones(1, 2), torch.full((1, 2), 3.0)
    add = [("a.hook_in", lambda t, hook: t + 1), ("a.hook_out", lambda t, hook: t * 10)]
    output = model.run_with_hooks(x, scale=scale, fwd_hooks=add)
    assert type(output) is type(give(x, scale))
    assert torch.equal(output[0], x)
    assert torch.equal(output[1], torch.full((1, 2), 40.0))


@torch.no_grad()
def test_one_element_can_be_the_output() -> None:
    both = Odd(lambda x, s: {"logits": x, "loss": s})
    model = wrap(both, {"a.hook_out": ":out[logits]"}, output="logits")
    found = model.run_with_hooks(torch.ones(1), scale=torch.zeros(1),
                                 fwd_hooks=[("a.hook_out", lambda t, hook: 2 * t)])  # fmt: skip
    assert torch.equal(found, 2 * torch.ones(1))


def test_a_hook_must_keep_the_shape() -> None:
    model = wrap(net(), names(), example=tokens())
    with pytest.raises(HookError, match=r"shape it was given, \(2, 5, 8\), got \(2, 1, 8\)"):
        model.run_with_hooks(tokens(), fwd_hooks=[("hook_embed", lambda t, hook: t[:, :1])])


def test_without_an_example_analyses_say_what_is_missing() -> None:
    with pytest.raises(HookError, match=r"give wrap\(\) an example"):
        components(wrap(net(), names()))
    assert components(wrap(net(), names(), example=tokens()))


def test_places_are_read_from_text() -> None:
    assert parse_hook_site("a.0.b") == HookSite("a.0.b")
    assert parse_hook_site("a:in") == HookSite("a", "in")
    assert parse_hook_site("a:out[1]/4") == HookSite("a", "out", 1, 4)
    assert parse_hook_site(":in[mask]") == HookSite("", "in", "mask")
    for text in ("a:out[", "a/0", "a:up", "a/x"):
        with pytest.raises(HookError, match="must be a HookSite or text like"):
            parse_hook_site(text)
    with pytest.raises(ArgumentError, match=r"part must be .* got \(3, 3\)"):
        HookSite("a", part=(3, 3))
