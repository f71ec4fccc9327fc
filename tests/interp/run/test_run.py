"""Runs of our own models against hooks set by hand, one forward pass an edit."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from losses import position_losses
from torch import Tensor, nn
from torch.nn import functional

from interp.errors import HookError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.models.wrap import wrap
from interp.run import (
    Add,
    Array,
    Change,
    DropKeys,
    Edit,
    KeepKeys,
    LogitDifference,
    Loss,
    Mean,
    Replace,
    Resample,
    Run,
    Site,
    Swap,
    Through,
    Zero,
    ffn_sites,
    head_sites,
)  # fmt: skip
from interp.run import run as deep
from interp.run.metrics import LossOfOthers
from interp.tasks.base import Batch

SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=3, n_heads=(2, 1, 3), d_head=4,
    ffn=((5,), (), (5, 4)), norm="layernorm", positions="learned", dtype="float64",
)  # fmt: skip
VARIANTS = {
    "norm": {},
    "identity": {"identity_ov": True},
    "no residual": {"residual": False, "ffn": (5,)},
    "attention only": {"ffn": ()},
}
TOKENS = torch.randint(6, (5, 7), generator=torch.Generator().manual_seed(1))
PREVIOUS = torch.ones(7, 7, dtype=torch.bool).tril(-1) & ~torch.ones(7, 7, dtype=torch.bool).tril(
    -2
)


def model_of(name: str = "norm", times: float = 2, **changes: Any) -> SequenceTransformer:
    model = SequenceTransformer(replace(SPEC, **VARIANTS[name], **changes), seed=3)
    for parameter in model.parameters():  # larger than at first, so that effects are
        parameter.data *= times
    if model.spec.identity_ov:
        for block in model.blocks:
            block.attn.b.data += 0.7
    return model


def losses(logits: Tensor) -> Tensor:
    """Nats of the next token, ``[row, pos]``, 0 at the last position."""
    return functional.pad(position_losses(logits[:, :-1], TOKENS[:, 1:]), (0, 1))


def by_hand(model: Any, *hooks: tuple[str, Callable[[Tensor], Tensor]]) -> Tensor:
    """The rise of the loss when hooks replace values."""
    with torch.no_grad():
        clean = losses(model(TOKENS))
        hooked = [(name, lambda value, hook, f=f: f(value)) for name, f in hooks]
        return losses(model.run_with_hooks(TOKENS, fwd_hooks=hooked)) - clean


def head_replaced(head: int, new: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def replace_head(value: Tensor) -> Tensor:
        value = value.clone()
        value[:, :, head] = new(value[:, :, head])
        return value

    return replace_head


@pytest.mark.parametrize("variant", VARIANTS)
def test_means_and_zeros_are_what_hooks_by_hand_give(variant: str) -> None:
    model = model_of(variant)
    run = Run(model, TOKENS)
    sites = (*head_sites(model), *ffn_sites(model))
    found = dict(zip(sites, run.rises([Mean(site) for site in sites]), strict=True))
    for site in sites:

        def mean(value: Tensor) -> Tensor:
            return value.mean(0, keepdim=True).expand_as(value)

        act = mean if site.head is None else head_replaced(site.head, mean)
        torch.testing.assert_close(found[site], by_hand(model, (site.name, act)))
        nothing: Any = torch.zeros_like
        act = nothing if site.head is None else head_replaced(site.head, nothing)
        torch.testing.assert_close(run.rise(Zero(site)), by_hand(model, (site.name, act)))
    assert sum(bool(rise.abs().max() > 1e-3) for rise in found.values()) > len(sites) // 2


def test_edits_made_together_are_made_together() -> None:
    model = model_of()
    run = Run(model, TOKENS)
    pair = Mean(Site(0, "z", 1)), Zero(Site(2, "mlp_out")), Mean(Site(0, "z", 0))
    expected = by_hand(
        model,
        ("blocks.0.attn.hook_z", lambda value: value.mean(0, keepdim=True).expand_as(value)),
        ("blocks.2.hook_mlp_out", torch.zeros_like),
    )
    torch.testing.assert_close(run.rise(pair), expected)
    torch.testing.assert_close(run.with_(*pair).value() - run.value(), expected)
    rest = run.with_(pair[0]).rise(pair[1:])
    torch.testing.assert_close(rest + run.rise(pair[0]), expected)


def test_attention_is_taken_from_keys() -> None:
    model, keys = model_of(times=1), Array(PREVIOUS[None], "the previous token")

    def without(pattern: Tensor) -> Tensor:
        pattern = pattern.clone()
        left = pattern[:, 2].masked_fill(PREVIOUS, 0.0)
        pattern[:, 2] = left / left.sum(-1, keepdim=True)
        return pattern

    def alone(pattern: Tensor) -> Tensor:
        pattern = pattern.clone()
        pattern[:, 2, 1:] = PREVIOUS[1:].to(pattern)
        return pattern

    run, site = Run(model, TOKENS), Site(2, "pattern", 2)
    for edit, act in ((DropKeys(site, keys), without), (KeepKeys(site, keys), alone)):
        expected = by_hand(model, ("blocks.2.attn.hook_pattern", act))
        torch.testing.assert_close(run.rise(edit), expected)
        assert expected.abs().max() > 1e-4


def test_other_rows_stand_in() -> None:
    model = model_of()
    run, site = Run(model, TOKENS), Site(1, "z", 0)
    expected = by_hand(model, ("blocks.1.attn.hook_z", head_replaced(0, lambda z: z.roll(1, 0))))
    torch.testing.assert_close(run.rise(Swap(site, (4, 0, 1, 2, 3))), expected)
    # The same from other inputs, in which these rows stand in another order.
    others = Array(TOKENS.roll(1, 0), "corrupted rows")
    torch.testing.assert_close(run.rise(Swap(site, inputs=others)), expected)
    # Resampled rows: none keeps its own, and each is someone's.
    values = run.at([site])[site]
    got = run.with_(Resample(site, 5)).at([site])[site]
    pairs = [(i, j) for i in range(5) for j in range(5) if torch.allclose(got[i], values[j])]
    assert sorted(i for i, _ in pairs) == sorted(j for _, j in pairs) == [*range(5)]
    assert all(i != j for i, j in pairs)


def test_one_position_is_changed_and_no_other() -> None:
    model, at = model_of(), (1, 2, 3, 4, 5)

    def move_stream(stream: Tensor) -> Tensor:
        changed = stream.clone()
        for row, position in enumerate(at):
            changed[row, position] = stream[(row + 1) % 5, position]
        return changed

    def pattern_moved(pattern: Tensor) -> Tensor:
        changed = pattern.clone()
        changed[:, 1] = move_stream(pattern[:, 1])
        return changed

    run, order = Run(model, TOKENS), (1, 2, 3, 4, 0)
    expected = by_hand(model, ("blocks.1.hook_resid_pre", move_stream))
    torch.testing.assert_close(run.rise(Swap(Site(1, "resid_pre"), order, at=at)), expected)
    expected = by_hand(model, ("blocks.2.attn.hook_pattern", pattern_moved))
    torch.testing.assert_close(run.rise(Swap(Site(2, "pattern", 1), order, at=at)), expected)


@pytest.mark.parametrize(("layer", "shape"), [(1, (1, 1, 8)), (2, (5, 7, 8))])
def test_what_is_added_after_a_layer_does_not_run_it(layer: int, shape: tuple[int, ...]) -> None:
    model, by = model_of(), torch.randn(shape, dtype=torch.float64)
    run, site = Run(model, TOKENS), Site(layer, "resid_post")
    run.value()
    before = run.passes
    found = run.rise(Add(site, Array(by, "a direction"), 0.3))
    assert run.passes - before == pytest.approx((2 - layer) * 5 / 3)
    torch.testing.assert_close(found, by_hand(model, (site.name, lambda v: v + 0.3 * by)))


def test_values_are_given() -> None:
    run, site = Run(model_of(), TOKENS), Site(2, "pattern", 1)
    mean = Replace(site, Array(run.at([site])[site].mean(0, keepdim=True), "its mean attention"))
    torch.testing.assert_close(run.rise(mean), run.rise(Mean(site)))


@pytest.mark.parametrize("receiver", ["q_input", "k_input", "v_input", "mlp_in", "resid_post"])
def test_a_path_is_seen_by_its_receiver_alone(receiver: str) -> None:
    model = model_of()
    sender, head = Mean(Site(0, "z", 1)), 2 if receiver.endswith("_input") else None
    with torch.no_grad():
        _, cache = model.run_with_cache(TOKENS)
        z = cache["blocks.0.attn.hook_z"][:, :, 1]
        change = (z.mean(0, keepdim=True) - z) @ model.blocks[0].attn.W_O[1]
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)

    def add_change(value: Tensor) -> Tensor:
        value = value.clone()
        part = value if head is None else value[:, :, head]
        part += change
        return value

    where = Site(2, receiver, head)
    expected = by_hand(model, (where.name, add_change))
    model.set_use_split_qkv_input(False)
    model.set_use_hook_mlp_in(False)
    torch.testing.assert_close(Run(model, TOKENS).rise(Through(where, sender)), expected)
    assert expected.abs().max() > 1e-6
    assert not model.cfg.use_split_qkv_input


@pytest.mark.parametrize("inside", ["mlp_in", "pre", "post"])
def test_a_path_from_inside_an_ffn_is_that_of_what_the_ffn_writes(inside: str) -> None:
    model = model_of()
    model.set_use_hook_mlp_in(True)
    out, at = "blocks.0.hook_mlp_out", Site(0, inside).name
    with torch.no_grad():
        _, own = model.run_with_cache(TOKENS)
        with model.hooks(fwd_hooks=[(at, lambda value, hook: torch.zeros_like(value))]):
            _, changed = model.run_with_cache(TOKENS)
    change = changed[out] - own[out]
    expected = by_hand(model, ("blocks.2.hook_mlp_in", lambda value: value + change))
    model.set_use_hook_mlp_in(False)
    path = Through(Site(2, "mlp_in"), Zero(Site(0, inside)))
    torch.testing.assert_close(Run(model, TOKENS).rise(path), expected)
    assert expected.abs().max() > 1e-6


def test_a_path_from_the_stream_between_heads_and_ffn_is_its_change() -> None:
    model, where = model_of(), Site(2, "resid_mid")
    stream = Run(model, TOKENS).at(where)[where]
    path = Through(Site(2, "mlp_in"), Zero(where))
    model.set_use_hook_mlp_in(True)
    expected = by_hand(model, ("blocks.2.hook_mlp_in", lambda value: value - stream))
    model.set_use_hook_mlp_in(False)
    torch.testing.assert_close(Run(model, TOKENS).rise(path), expected)
    assert expected.abs().max() > 1e-6


def test_all_receivers_of_a_change_see_what_the_run_sees() -> None:
    model = model_of("attention only", n_layers=2, n_heads=2)
    run, sender = Run(model, TOKENS), Mean(Site(0, "z", 1))
    inputs = [Site(1, f"{kind}_input", head) for kind in "qkv" for head in range(2)]
    every = tuple(Through(site, sender) for site in (*inputs, Site(1, "resid_post")))
    torch.testing.assert_close(run.rise(every), run.rise(sender))


NOTHING: list[Edit | tuple[Edit, ...]] = [
    Swap(Site(1, "z", 0), (0, 1, 2, 3, 4)),
    Swap(Site(1, "resid_pre"), inputs=Array(TOKENS)),
    KeepKeys(Site(2, "pattern", 1), Array(torch.ones(1, 7, 7, dtype=torch.bool))),
    DropKeys(Site(2, "pattern", 1), Array(torch.zeros(1, 7, 7, dtype=torch.bool))),
    Add(Site(0, "mlp_out"), Array(torch.zeros(1, 1, 8))),
    (),
]


@pytest.mark.parametrize("edits", NOTHING, ids=str)
def test_what_changes_nothing_changes_nothing(edits: Any) -> None:
    assert Run(model_of(), TOKENS).rise(edits).abs().max() < 1e-12


@pytest.mark.parametrize("variant", ["norm", "identity"])
def test_rows_and_copies_do_not_depend_on_how_many_run_at_once(variant: str) -> None:
    model, others = model_of(variant), Array(TOKENS.flip(0), "corrupted rows")
    edits: list[Any] = [Mean(site) for site in (*head_sites(model), *ffn_sites(model))]
    edits += [Mean(Site(1, "resid_pre"), inputs=others, at=6), Swap(edits[0].site, inputs=others)]
    edits += [Resample(site, 2, inputs=others) for site in ffn_sites(model)]
    sender, seen = edits[1], (Site(2, "q_input", 1), Site(1, "mlp_in"), Site(2, "resid_post"))
    edits += [Through(site, sender) for site in seen]
    edits += [DropKeys(Site(2, "pattern", h), Array(PREVIOUS[None])) for h in range(3)]
    whole = torch.stack([*Run(model, TOKENS).rises(edits)])
    for tokens, room in ((1, 1), (7, 2**26), (14, 1), (50, 2**26)):
        pieces = torch.stack([*Run(model, TOKENS, tokens=tokens, room=room).rises(edits)])
        torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-11)


def test_of_deep_models_every_second_stream_is_enough(monkeypatch) -> None:
    model = model_of()
    edits = [Mean(site) for site in (*head_sites(model), *ffn_sites(model))]
    edits += [Mean(Site(1, "resid_post")), Mean(Site(model.cfg.n_layers - 1, "resid_post"))]
    whole = Run(model, TOKENS)
    expected, slopes = torch.stack([*whole.rises(edits)]), whole.slopes(edits)
    monkeypatch.setattr(deep, "_DEEP", 1)
    run = Run(model, TOKENS)
    torch.testing.assert_close(torch.stack([*run.rises(edits)]), expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(run.slopes(edits), slopes, rtol=1e-9, atol=1e-11)
    kept = [len(streams) for streams in run._streams.values()]
    assert set(kept) == {-(-(model.cfg.n_layers + 1) // 2)}
    site = Site(1, "resid_post")
    torch.testing.assert_close(run.at(site)[site], whole.at(site)[site])


def test_some_rows_are_measured_and_nothing_twice() -> None:
    model = model_of()
    run, edits = Run(model, TOKENS), [Mean(site) for site in head_sites(model)]
    whole = torch.stack([*Run(model, TOKENS).rises(edits)])
    first = torch.stack([*run.rises(edits, rows=[3, 1])])
    torch.testing.assert_close(first, whole[:, [3, 1]])
    spent = run.passes
    list(run.rises(edits, rows=[1, 3]))
    assert run.passes == spent
    torch.testing.assert_close(torch.stack([*run.rises(edits)]), whole)
    again = run.passes
    list(run.rises(edits))
    assert run.passes == again


def test_activations_are_those_of_the_changed_model() -> None:
    model = model_of()
    run, names = Run(model, TOKENS), ["blocks.1.hook_resid_pre", "blocks.2.attn.hook_pattern"]
    with torch.no_grad():
        _, cache = model.run_with_cache(TOKENS)
        for name, value in run.at(names).items():
            torch.testing.assert_close(value, cache[name.name])
        hook = ("blocks.0.hook_mlp_out", lambda value, hook: torch.zeros_like(value))
        with model.hooks(fwd_hooks=[hook]):
            _, cache = model.run_with_cache(TOKENS)
    changed = run.with_(Zero(Site(0, "mlp_out")))
    for name, value in changed.at([*names, "L0 FFN"], rows=[4, 0]).items():
        torch.testing.assert_close(value, cache[name.name][[4, 0]])
    assert changed.with_(only=True).edits == ()
    embed = run.at([Site(-1, "embed")])[Site(-1, "embed")]
    torch.testing.assert_close(embed, model.W_E[TOKENS].detach())


def test_metrics() -> None:
    model, edit = model_of(), Mean(Site(0, "z", 1))
    run = Run(model, TOKENS)
    with torch.no_grad():
        clean = model(TOKENS)
        z = run.at([Site(0, "z")])[Site(0, "z")]
        act = head_replaced(1, lambda _: z[:, :, 1].mean(0, keepdim=True))
        changed = model.run_with_hooks(
            TOKENS, fwd_hooks=[("blocks.0.attn.hook_z", lambda value, hook: act(value))]
        )
    scored = run.batch.mask

    def difference(logits: Tensor) -> Tensor:
        right = logits[:, :-1].gather(-1, TOKENS[:, 1:, None])[..., 0]
        return functional.pad(right - logits[:, :-1, 3], (0, 1))

    torch.testing.assert_close(
        run.rise(edit, LogitDifference(3)), difference(changed) - difference(clean)
    )
    each = Array(torch.full((5, 7), 3))
    assert torch.equal(run.rise(edit, LogitDifference(each)), run.rise(edit, LogitDifference(3)))
    moved = (changed - clean).square().sum(-1) * scored
    torch.testing.assert_close(run.rise(edit, Change()), moved)

    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.amax(-1)

    own = (changed.amax(-1) - clean.amax(-1)) * scored
    torch.testing.assert_close(run.rise(edit, largest), own)
    others = run.rise(edit, LossOfOthers(Array(run.batch.targets)))
    torch.testing.assert_close(others.diagonal(dim1=0, dim2=2).T, run.rise(edit))
    assert others.shape == (5, 7, 5)
    by_row = run.by_row(run.value())
    torch.testing.assert_close(by_row, losses(clean)[:, :-1].mean(1))


def test_outputs_at_scored_places() -> None:
    run = Run(model_of(), TOKENS)
    with torch.no_grad():
        expected = model_of()(TOKENS)
    for places, output in run.outputs():
        torch.testing.assert_close(output, expected[places.rows, places.positions])


def test_slopes_are_the_derivative_of_the_rise() -> None:
    model = model_of()
    run, edits = Run(model, TOKENS), list[Any]()
    _, cache = model.run_with_cache(TOKENS)
    for site in (Site(0, "z", 1), Site(2, "mlp_out"), Site(2, "pattern", 0), Site(1, "resid_pre")):
        value = site.take(cache[site.name]).detach()
        little = Array(1e-5 * torch.randn_like(value))
        edits.append(Replace(site, Array(value + little.tensor)))
    directions = [Array(1e-5 * torch.randn(1, 1, 8)) for _ in range(2)]
    together = (Add(Site(0, "mlp_out"), directions[0]), Add(Site(2, "attn_out"), directions[1]))
    edits.append(together)
    slopes = run.slopes(edits)
    rises = torch.stack([run.by_row(rise) for rise in run.rises(edits)])
    torch.testing.assert_close(slopes, rises, rtol=2e-3, atol=2e-9)
    keys = DropKeys(Site(2, "pattern", 1), Array(PREVIOUS[None]))
    one = run.gradient([Site(2, "pattern", 1)])[Site(2, "pattern", 1)]
    own = run.at([Site(2, "pattern", 1)])[Site(2, "pattern", 1)]
    change = keys.instead(own, (PREVIOUS[None], True)) - own
    torch.testing.assert_close(run.slopes([keys])[0], (one * change).sum((1, 2)))
    pieces = Run(model, TOKENS, tokens=1, room=1).slopes([*edits, keys])
    torch.testing.assert_close(pieces, torch.cat((slopes, run.slopes([keys]))))


def test_a_gradient_can_be_taken_where_something_is_changed() -> None:
    model = model_of()
    changed = Run(model, TOKENS).with_(Zero(Site(0, "z", 0)))
    site, step = Site(2, "z", 1), 1e-5
    gradient = changed.gradient([site])[site]
    own = changed.at([site])[site]
    towards = torch.randn_like(own)
    ahead = changed.by_row(changed.rise(Replace(site, Array(own + step * towards))))
    torch.testing.assert_close((gradient * towards).sum((1, 2)), ahead / step, rtol=1e-3, atol=1e-6)


def test_real_targets() -> None:
    model = model_of(input="real", d_in=3, d_out=2, positions="none")
    inputs, targets = torch.randn(4, 6, 3).double(), torch.randn(4, 6, 2).double()
    mask = torch.rand(4, 6) < 0.6
    mask[:, 2] = True
    run = Run(model, Batch(inputs, targets, mask))
    with torch.no_grad():
        z = run.at([Site(1, "z")])[Site(1, "z")].mean(0, keepdim=True)
        hooks = [("blocks.1.attn.hook_z", lambda value, hook: z.expand_as(value))]
        after = (model.run_with_hooks(inputs, fwd_hooks=hooks) - targets).square().mean(-1)
        before = (model(inputs) - targets).square().mean(-1)
    torch.testing.assert_close(run.rise(Mean(Site(1, "z", 0)), Loss()), (after - before) * mask)


class Small(nn.Module):
    """A module with one attention head that nothing of ours has made."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(6, 8), nn.Linear(8, 8)
        self.first, self.read = nn.Identity(), nn.Linear(8, 6)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.embed(tokens)
        past = stream.cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.read(self.first(stream + self.mix(past)).tanh())


def test_a_wrapped_module_runs_as_a_whole() -> None:
    torch.manual_seed(0)
    module = Small()
    model = wrap(
        module,
        {"blocks.0.hook_attn_out": "mix", "blocks.0.hook_resid_post": "first"},
        example=TOKENS[:2],
        check=False,
    )
    run, site = Run(model, TOKENS), Site(0, "attn_out")
    with torch.no_grad():
        value = module.mix(module.embed(TOKENS).cumsum(1) / torch.arange(1, 8)[:, None])
        stream = module.embed(TOKENS) + value.mean(0, keepdim=True)
        expected = losses(module.read(stream.tanh())) - losses(module(TOKENS))
    torch.testing.assert_close(run.rise(Mean(site)), expected)
    torch.testing.assert_close(run.at([site])[site], value)
    step = Replace(site, Array(value + 1e-6 * torch.randn_like(value)))
    torch.testing.assert_close(
        run.slopes([step])[0], run.by_row(run.rise(step)), rtol=1e-3, atol=1e-10
    )
    with pytest.raises(HookError, match=r"no hook blocks\.0\.attn\.hook_z"):
        run.rise(Mean(Site(0, "z", 0)))


def test_a_hook_that_is_not_there_is_named() -> None:
    run = Run(model_of(), TOKENS)
    with pytest.raises(HookError, match=r"no hook blocks\.7\.attn\.hook_z; near it"):
        run.rise(Zero(Site(7, "z", 0)))
    with pytest.raises(HookError, match=r"blocks\.0\.attn\.hook_z has 3 heads.* no head 9"):
        run.rise(Zero(Site(0, "z", 9)))


def test_a_run_scored_elsewhere_is_one_of_other_rows() -> None:
    model, edit = model_of(), Mean(Site(1, "z", 0))
    run = Run(model, TOKENS)
    run.rise(edit)
    mask = torch.zeros_like(run.batch.mask)
    mask[:, 2] = True
    other = Run(model, replace(run.batch, mask=mask))
    before = run.passes
    torch.testing.assert_close(run.scoring(mask).rise(edit), other.rise(edit))
    assert run.passes - before < 5 * 2 / 3 + 1e-9, "clean streams are shared"
    assert int((run.rise(edit) != 0).sum()) > 5, "and the run itself scores what it did"


def test_rows_of_several_lengths_may_alternate() -> None:
    model, edit = model_of(), Mean(Site(1, "z", 0))
    runs = [Run(model, TOKENS[:, :length]) for length in (7, 4, 6)]
    first = [run.rise(edit) for run in runs]
    again = [run.rise(Zero(Site(0, "z", 0))) for run in runs]
    for run, found, other in zip(runs, first, again, strict=True):
        fresh = Run(model, run.batch)
        torch.testing.assert_close(fresh.rise(edit), found)
        torch.testing.assert_close(fresh.rise(Zero(Site(0, "z", 0))), other)


def test_models_that_are_no_longer_used_are_let_go() -> None:
    models = [model_of() for _ in range(3)]
    first = weakref.ref(models[0])
    for model in models:
        Run(model, TOKENS)
    del models[0]
    gc.collect()
    assert first() is None
