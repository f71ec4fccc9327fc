"""Roles of a user's own module: attention roles as of our own model, and plain refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from interp.errors import ArgumentError, HookError
from interp.models.wrap import WrappedModule, wrap
from interp.proofs.induction import construct_relation
from interp.tasks.relation import TokenRelation
from probes.roles import find_roles

TASK = TokenRelation("previous-token", "copy", symbols=8, length=13)
KINDS = ("attn.hook_pattern", "attn.hook_z", "hook_mlp_out", "hook_resid_mid", "hook_resid_post")


class Plain(nn.Module):
    """A construction whose hooks are hidden inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = construct_relation(TASK, heads=2).model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)


class Shifted(Plain):
    """The same decisions, of logits that all move by far more with each token."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs) + 50 * inputs[..., None]


def wrapped_module(*without: str, plain: type[Plain] = Plain) -> WrappedModule:
    module = plain()
    layers = range(module.inner.cfg.n_layers)
    hooks = {f"blocks.{i}.{kind}" for i in layers for kind in KINDS if kind not in without}
    places = {name: f"inner.{name}" for name in sorted(hooks) if name in module.inner.hook_dict}
    return wrap(module, places, example=TASK.sample(2, seed=0).inputs)


def test_attention_roles_are_those_of_the_model_inside() -> None:
    model, batch = wrapped_module(), TASK.sample(48, seed=5)
    found, expected = find_roles(model, batch), find_roles(model.module.inner, batch)
    assert "previous-token" in set(found.loc[found["status"] == "confirmed", "role"])
    by_weights = expected["role"].isin(["symbol-equality", "copying"])
    columns = ["layer", "head", "role", "status"]
    told = expected.loc[~by_weights & (expected["role"] != "dense"), columns]
    assert found.loc[found["role"] != "dense", columns].to_numpy().tolist() == (
        told.to_numpy().tolist()
    )


def test_what_decides_counts_though_the_output_hardly_changes() -> None:
    model, batch = wrapped_module(plain=Shifted), TASK.sample(48, seed=5)
    batch = replace(batch, targets=batch.targets.argmax(-1))
    right = (model(batch.inputs).argmax(-1) == batch.targets)[batch.mask].double().mean()
    found = find_roles(model, batch)
    (row,) = found[found["role"] == "previous-token"].itertuples()
    clean, heads = find_roles(wrapped_module(), batch), (row.layer, row.head)
    (same,) = clean[clean["role"] == "previous-token"].itertuples()
    assert (same.layer, same.head) == heads
    assert right > 0.9
    assert row.status == same.status == "confirmed"
    falls = "the share of right answers falls by 0"
    assert f"the output changes by 0.00 of its variance, and {falls}" in row.evidence
    assert f"without that attention {falls}" in same.evidence
    assert same.effect > 1 > row.effect > 0.5


def test_patterns_that_no_hook_shows_are_named() -> None:
    text = r"roles need the attention patterns, and WrappedModule has no hook .*attn\.hook_pattern"
    with pytest.raises(HookError, match=text):
        find_roles(wrapped_module("attn.hook_pattern"), TASK.sample(8, seed=5))


def test_a_plain_module_is_to_be_wrapped_first() -> None:
    with pytest.raises(ArgumentError, match=r"must have hooks, got Plain: pl\.load"):
        find_roles(Plain(), TASK.sample(8, seed=5))


def test_roles_that_weights_tell_are_refused() -> None:
    text = "memories and answers must be left out for WrappedModule"
    with pytest.raises(ArgumentError, match=text):
        find_roles(wrapped_module(), TASK.sample(8, seed=5), answers={"source": ()})


def test_dropout_is_off_while_roles_are_decided() -> None:
    class Noisy(Plain):
        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.dropout(self.inner(inputs), 0.5, self.training)

    still = wrapped_module()
    noisy = wrap(Noisy(), still.sites, example=torch.zeros(1, 13, dtype=torch.long), check=False)
    batch = TASK.sample(24, seed=5)
    found = find_roles(noisy.train(), batch)
    assert noisy.training
    assert found["effect"].tolist() == find_roles(still, batch)["effect"].tolist()
