"""Every shipped memory proof: measured ≤ certificate ≤ 10 × the worst found < range / 4.

Worst inputs are searched where the proof can fail: a slot is linear in the values once addresses
are given, so autograd gives the kernel it holds, and the signs of its error are the worst input.
What the ramps remove leaves rounding only: certificates below 1e-12 need not be tight.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from interp.errors import ArgumentError
from interp.proofs.catalogue import FAMILIES, cases, constructions
from interp.proofs.mechanism import Case, Construction
from interp.proofs.memory import construct_adaptive_memory, construct_fixed_memory
from interp.proofs.random_basis import random_basis
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.memory.kernels import MemoryKernel

ROUNDING = 1e-12
SNAPPED = list(cases("fixed", "adaptive", "nested"))
SMOOTH = list(cases("real", "sparse"))
ONE = AdaptiveMemory((1, 2), rounds=1, length=12)
NESTED = AdaptiveMemory((1, 2, 4), rounds=2, readout="parity", length=16, table_seed=1)


def memories(construction: Construction) -> tuple[str, ...]:
    task = construction.task
    return task.arguments if isinstance(task, KernelMemory) else task.arguments[1:]


def wanted_kernel(construction: Construction, latent: str, batch: Batch) -> Tensor:
    """[batch, pos]: how the latent at the last position depends on each value."""
    task, last = construction.task, batch.inputs.shape[1] - 1
    kernel = torch.zeros(len(batch), last + 1, dtype=torch.float64)
    if isinstance(task, KernelMemory):
        s = torch.arange(last, -1, -1, dtype=torch.float64).numpy()
        text = task.kernels[task.arguments.index(latent)]
        return kernel + torch.from_numpy(MemoryKernel.parse(text).values(s))
    if isinstance(task, FixedMemory | RealMemory):
        kernel[:, last - task.lags[task.arguments.index(latent) - 1]] = 1
        return kernel
    source = last - batch.latents[latent[4:-1]][:, last].long()
    kernel[torch.arange(len(batch)), source] = 1
    return kernel


def held_value(construction: Construction, inputs: Tensor, latent: str) -> Tensor:
    """[batch]: what the latent's direction holds at the last position."""
    hook, kept = construction.mechanism.written[latent], []
    construction.model.run_with_hooks(
        inputs, fwd_hooks=[(hook, lambda resid, hook: kept.append(resid[:, -1]))]
    )
    read: Tensor = kept[0] @ construction.mechanism.directions[latent]
    return read


@torch.no_grad()
def output_error(construction: Construction, batch: Batch) -> float:
    wrong = construction.model(batch.inputs).double() - batch.targets
    return float(wrong[batch.mask].abs().max())


@torch.no_grad()
def direction_errors(construction: Construction, batch: Batch) -> dict[str, float]:
    """How far the direction of each latent, or of a bit of an address, is from it, at most."""
    mechanism, found = construction.mechanism, {}
    _, cache = construction.model.run_with_cache(batch.inputs)
    for latent, direction in mechanism.directions.items():
        name, _, bit = latent.partition(" bit ")
        truth = batch.latents[name][..., int(bit)] if bit else batch.latents[name]
        read = cache[mechanism.written[latent]] @ direction.double()
        found[latent] = float((read - truth)[batch.mask].abs().max())
    return found


def kernel_error(construction: Construction, latent: str, batch: Batch) -> Tensor:
    """[batch, pos]: held kernel minus the wanted one, at the last position."""
    inputs = batch.inputs.double().requires_grad_()
    (slope,) = torch.autograd.grad(held_value(construction, inputs, latent).sum(), inputs)
    return slope[..., 0] - wanted_kernel(construction, latent, batch)


def test_each_family_ships_at_least_five() -> None:
    assert all(len(cases(family)) >= 5 for family in FAMILIES)
    assert len(cases()) == sum(len(cases(family)) for family in FAMILIES)
    assert next(iter(constructions("fixed"))).task == cases("fixed")[0].construct().task
    with pytest.raises(ArgumentError, match=r"families must be among fixed, .*got 'dense'"):
        cases("dense")


@pytest.mark.parametrize("case", SNAPPED, ids=lambda case: case.name)
def test_slots_and_answer_of_snapped_proofs(case: Case) -> None:
    construction = case.construct()
    batch, certificate = construction.task.sample(24, seed=11), construction.certificate
    for latent in memories(construction):
        signs = torch.where(kernel_error(construction, latent, batch) >= 0, 1.0, -1.0)
        worst = batch.inputs.clone()
        worst[..., 0] = signs
        truth = (wanted_kernel(construction, latent, batch) * signs).sum(1)
        with torch.no_grad():
            found = float((held_value(construction, worst, latent) - truth).abs().max())
        lag = latent[4:-1] if isinstance(construction.task, FixedMemory) else ""
        certified = certificate.parts[f"slot of lag {lag}" if lag else f"slot of {latent}"]
        assert found <= certified <= 10 * found
    for latent, off in direction_errors(construction, batch).items():
        named = latent.split(" bit ")[0][1:]
        slots = (f"slot of x{named}", f"slot of lag {latent[4:-1]}")
        assert off <= max([ROUNDING, *(certificate.parts.get(slot, 0) for slot in slots)]), latent
    if isinstance(construction.task, AdaptiveMemory):
        assert construction.model.spec.n_layers == construction.task.sequential_rounds + 1
    found = output_error(construction, batch)
    spread = float(batch.targets[batch.mask].max() - batch.targets[batch.mask].min())
    assert found <= certificate.error <= max(10 * found, ROUNDING)
    assert certificate.error < 0.25 * spread
    sums = [value for name, value in certificate.parts.items() if name.startswith("summed")]
    assert all(value < certificate.parts["margin"] for value in sums)


@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_slots_and_answer_of_smooth_proofs(case: Case) -> None:
    construction = case.construct()
    task, certificate = construction.task, construction.certificate
    bound = 6.0 if task.inputs == "gaussian" else 1.0
    batch, names = task.sample(64, seed=12), memories(construction)
    assert float(batch.inputs.abs().max()) <= bound
    assert output_error(construction, batch) <= certificate.error + 1e-6  # float32 targets
    errors = torch.stack([kernel_error(construction, name, batch[:1])[0] for name in names])
    kernels = torch.stack([wanted_kernel(construction, name, batch[:1])[0] for name in names])
    x = _search_inputs(errors, kernels, bound)
    truth = x @ kernels.T
    with torch.no_grad():
        for i, name in enumerate(names):
            found = float((held_value(construction, x[..., None], name) - truth[:, i]).abs().max())
            certified = certificate.parts[f"slot of {name}"]
            assert found <= certified * (1 + 1e-9)
            if not getattr(task, "burn_in", 0):
                assert certified <= 10 * found
        arguments = truth.T if isinstance(task, KernelMemory) else torch.stack([x[:, -1], *truth.T])
        f = task.f([u[None].float() for u in arguments])[0].double()
        output = construction.model(x[..., None])[:, -1, 0]
    found = float((output - f).abs().max())
    assert found <= certificate.error + 1e-5
    assert certificate.error <= 10 * found + 1e-5
    assert certificate.error < 0.25 * float(f.max() - f.min())


def _search_inputs(errors: Tensor, kernels: Tensor, bound: float) -> Tensor:
    """[row, pos]: all at ±bound with the signs of mixed errors or kernels; and the same with
    anything at the lags that matter most, to reach where the readout is steep."""
    ways = torch.tensor(list(product((-1.0, 0.0, 1.0), repeat=len(errors))), dtype=torch.float64)
    generator = torch.Generator().manual_seed(13)
    mixed = torch.randn(512, len(errors), generator=generator, dtype=torch.float64)
    x = bound * torch.cat([ways @ errors, ways @ kernels, mixed @ errors]).sign()
    x[x == 0] = bound
    peaks = (kernels.abs() > 0.5 * kernels.abs().amax(1, keepdim=True)).any(0)
    peaks[-1] = True
    free = bound * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1)
    free = free if bound > 1 else free.sign()
    return torch.cat([x, torch.where(peaks, free, x)])


@torch.no_grad()
def test_every_input_of_a_short_sequence_is_right() -> None:
    task = FixedMemory((1, 3), "parity", length=9)
    construction = construct_fixed_memory(task)
    x = torch.tensor(list(product((-1.0, 1.0), repeat=9)))
    f = x[:, 3:] * x[:, 2:-1] * x[:, :-3]
    error = (construction.model(x[..., None])[:, 3:, 0] - f).abs().max()
    assert float(error) <= construction.certificate.error


@torch.no_grad()
def test_without_snapping_locations_are_useless_to_the_next_round() -> None:
    """The clipped ramps keep rounds apart: blur one location and the next is lost."""
    construction = construct_adaptive_memory(NESTED)
    batch = NESTED.sample(16, seed=3)
    slot = construction.mechanism.directions["t_2"]
    hook = construction.mechanism.written["t_2"]
    blur = [(hook, lambda resid, hook: resid + 1e-3 * slot)]
    output = construction.model.run_with_hooks(batch.inputs, fwd_hooks=blur)
    assert float((output - batch.targets)[batch.mask].abs().max()) > 1


@pytest.mark.parametrize("gate", ["scalar", "dot"])
def test_hidden_nests_stay_exact_and_their_roles_follow(gate: str) -> None:
    plain = construct_adaptive_memory(NESTED, gate=gate)  # type: ignore[arg-type]
    hidden, batch = random_basis(plain, seed=7), NESTED.sample(64, seed=5)
    assert output_error(hidden, batch) <= hidden.certificate.error < 1e-11
    assert max(direction_errors(hidden, batch).values()) < 0.25
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
    with pytest.raises(ArgumentError, match=r"summed error below 0\.5 in float64 \(lag 12: "):
        construct_fixed_memory(FixedMemory((12,), "table", length=32))
    with pytest.raises(ArgumentError, match=r"told apart in float64 with errors that sum"):
        construct_adaptive_memory(AdaptiveMemory((1, 9), rounds=2, readout="mean"))
    with pytest.raises(ArgumentError, match=r"inputs must be signs: ramps read ±1, got 'gaussian'"):
        construct_adaptive_memory(replace(ONE, inputs="gaussian"))
