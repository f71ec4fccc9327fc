"""Constructed adaptive memories: certificates, directions, refusals, hiding."""

from dataclasses import replace

import pytest
import torch

from interp.errors import ArgumentError
from interp.proofs.mechanism import Construction
from interp.proofs.memory import construct_adaptive_memory
from interp.proofs.random_basis import random_basis
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory

ONE = AdaptiveMemory((1, 2), rounds=1, length=12)
NESTED = AdaptiveMemory((1, 2, 4), rounds=2, readout="parity", length=16, table_seed=1)
TOGETHER = AdaptiveMemory((1, 3), rounds=0, concurrent=2, readout="multiplexer", length=16)
MIXED = AdaptiveMemory((1, 2, 3), rounds=1, concurrent=2, readout="mean", length=16)
DEEP = AdaptiveMemory((1, 2), rounds=4, readout="table", length=12, bits=3)
TASKS = (ONE, NESTED, TOGETHER, MIXED, DEEP)
NAMES = [task.name for task in TASKS]


def held(construction: Construction, batch: Batch, latent: str) -> float:
    """How far the direction of a latent (or of an address's bit) is from it, at most."""
    mechanism = construction.mechanism
    hook = mechanism.written[latent]
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(batch.inputs, names_filter=hook)
    name, _, bit = latent.partition(" bit ")
    truth = batch.latents[name][..., int(bit)] if bit else batch.latents[name]
    read = cache[hook] @ mechanism.directions[latent].to(cache[hook].dtype)
    return float((read - truth)[batch.mask].abs().max())


@torch.no_grad()
def output_error(construction: Construction, batch: Batch) -> float:
    wrong = construction.model(batch.inputs).double() - batch.targets
    return float(wrong[batch.mask].abs().max())


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_rounds_follow_one_another_and_the_answer_is_exact(task: AdaptiveMemory) -> None:
    construction = construct_adaptive_memory(task)
    batch = task.sample(64, seed=1)
    assert construction.model.spec.n_layers == task.sequential_rounds + 1
    assert output_error(construction, batch) <= construction.certificate.error < 1e-12
    for latent in construction.mechanism.directions:
        slot = construction.certificate.parts.get(f"slot of x{latent.split(' bit ')[0][1:]}", 1e-12)
        assert held(construction, batch, latent) <= slot, latent


@pytest.mark.parametrize("task", [ONE, NESTED, MIXED], ids=lambda task: task.name)
def test_the_worst_input_comes_close_to_the_slot_certificate(task: AdaptiveMemory) -> None:
    """Values whose signs are those of the kernel's error at every lag but the wanted one."""
    construction = construct_adaptive_memory(task)
    batch = task.sample(64, seed=2)
    parts, last = construction.mechanism.parts, batch.inputs.shape[1] - 1
    heads = [p.head for p in parts if p.component == "head" and p.target == "x[t-t_1]"]
    layer = next(p.layer for p in parts if p.component == "head" and p.target == "x[t-t_1]")
    attn = construction.model.blocks[layer].attn
    hook = f"blocks.{layer}.attn.hook_pattern"
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(batch.inputs, names_filter=hook)
    slot = construction.mechanism.directions["x[t-t_1]"]
    weights = attn.W_O[heads, 0] @ slot
    kernel = torch.einsum("bhk,h->bk", cache[hook][:, heads, last], weights)
    source = last - batch.latents["t_1"][:, last].long()
    kernel[torch.arange(len(batch)), source] -= 1
    worst = batch.inputs.clone()
    worst[..., 0] = torch.where(kernel >= 0, 1.0, -1.0)
    hook = construction.mechanism.written["x[t-t_1]"]
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(worst, names_filter=hook)
    wanted = worst[torch.arange(len(batch)), source, 0]
    found = float((cache[hook][:, last] @ slot - wanted).abs().max())
    certified = construction.certificate.parts["slot of x[t-t_1]"]
    assert found <= certified <= 10 * found


@torch.no_grad()
def test_without_snapping_locations_are_useless_to_the_next_round() -> None:
    """The clipped ramps keep rounds apart: blur one location and the next is lost."""
    construction = construct_adaptive_memory(NESTED)
    batch = NESTED.sample(16, seed=3)
    slot = construction.mechanism.directions["t_2"]

    def blur(resid: torch.Tensor, hook: object) -> torch.Tensor:
        return resid + 1e-3 * slot

    hook = construction.mechanism.written["t_2"]
    output = construction.model.run_with_hooks(batch.inputs, fwd_hooks=[(hook, blur)])
    assert float((output - batch.targets)[batch.mask].abs().max()) > 1


@pytest.mark.parametrize("task", [NESTED, TOGETHER], ids=lambda task: task.name)
def test_the_dot_product_does_the_same(task: AdaptiveMemory) -> None:
    construction = construct_adaptive_memory(task, gate="dot")
    assert construction.model.spec.score == "dot"
    assert output_error(construction, task.sample(64, seed=4)) <= construction.certificate.error


@pytest.mark.parametrize("gate", ["scalar", "dot"])
def test_hidden_nests_stay_exact_and_their_roles_follow(gate: str) -> None:
    plain = construct_adaptive_memory(NESTED, gate=gate)  # type: ignore[arg-type]
    hidden, batch = random_basis(plain, seed=7), NESTED.sample(64, seed=5)
    assert output_error(hidden, batch) <= hidden.certificate.error < 1e-11
    for latent in hidden.mechanism.directions:
        assert held(hidden, batch, latent) < 0.25, latent
    with torch.no_grad():
        _, before = plain.model.run_with_cache(batch.inputs)
        _, after = hidden.model.run_with_cache(batch.inputs)
    for old, new in zip(plain.mechanism.parts, hidden.mechanism.parts, strict=True):
        assert (old.round, old.target, old.role) == (new.round, new.target, new.role)
        if old.head is not None:
            hook = f"blocks.{old.layer}.attn.hook_pattern"
            torch.testing.assert_close(after[hook][:, new.head], before[hook][:, old.head])


def test_float32_reaches_near_locations_and_refuses_farther_ones() -> None:
    near = construct_adaptive_memory(replace(ONE, bits=2), dtype="float32")
    assert output_error(near, ONE.sample(64, seed=6)) <= near.certificate.error < 1e-4
    with pytest.raises(ArgumentError, match=r"told apart in float32 .* \(a slot is off by .*f "):
        construct_adaptive_memory(NESTED, dtype="float32")


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"told apart in float64 with errors that sum"):
        construct_adaptive_memory(AdaptiveMemory((1, 9), rounds=2, readout="mean"))
    gaussian = replace(MIXED, inputs="gaussian")
    with pytest.raises(ArgumentError, match=r"inputs must be signs: ramps read ±1, got 'gaussian'"):
        construct_adaptive_memory(gaussian)
