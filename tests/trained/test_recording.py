"""A recording against the computation itself, on numbers that it has not seen."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import tiny
from torch import Tensor
from torch.func import functional_call, vmap

from interp.models.baselines import LSTMSpec, MLPSpec, RNNSpec
from interp.models.kinds import Spec, build
from interp.models.spec import TransformerSpec
from trained.ensemble import Ensemble
from trained.recording import Recording, Repeated
from trained.stack_runner import load_state, save_state

REAL = {"input": "real", "d_in": 3, "d_out": 2, "n_ctx": 6}
SHAPE = {**REAL, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_head": 4}
SPECS: dict[str, Spec] = {
    "rotary, norms": TransformerSpec(
        **SHAPE, score="dot", positions="rope", norm="layernorm", ffn=(5,)
    ),
    "learned, rms": TransformerSpec(**SHAPE, score="dot", positions="learned", norm="rmsnorm"),
    "a bias a lag": TransformerSpec(**SHAPE, score="none", lag_bias="table", ffn=(5,)),
    "slopes": TransformerSpec(**SHAPE, score="dot", lag_bias="log"),
    "relative keys": TransformerSpec(
        **SHAPE, score="none", lag_bias="relative_keys", input_ffn=(5, 8)
    ),
    "identities": TransformerSpec(**SHAPE, score="dot", identity_qk=True, identity_ov=True),
    "RNN": RNNSpec(**REAL, d_hidden=5),
    "LSTM": LSTMSpec(**REAL, d_hidden=5),
    "MLP": MLPSpec(**REAL, hidden=(7,)),
}


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_losses_and_gradients_have_the_same_bits(name: str, members: int) -> None:
    model = build(SPECS[name], seed=1).train()
    named = dict(model.named_parameters())
    weights = [torch.randn(members, *p.shape).requires_grad_(True) for p in named.values()]
    rows = torch.randn(members, 4, 6, 3)

    def compute() -> list[Tensor]:
        parts = dict(zip(named, weights, strict=True))
        call = vmap(lambda parts, rows: functional_call(model, parts, (rows,)).square().mean())
        losses = call(parts, rows)
        found = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
        return [losses, *(one for one in found if one is not None)]

    _check(compute, [*weights, rows])


def _check(compute: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
    """The recording gives what the computation gives, on the first numbers and on others."""
    wanted = [one.detach().clone() for one in compute()]
    found, recording = Recording.of(compute, inputs)
    assert recording is not None
    _same(found, wanted)
    for seed in (3, 4):
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            for one in inputs:
                one.copy_(torch.randn(one.shape, generator=generator))
        wanted = [one.detach().clone() for one in compute()]
        for _ in range(2):
            _same(recording(), wanted)


def _same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


LSTM = torch.nn.LSTM(4, 5)
STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "transposed": lambda a, b: a.T,
    "turned": lambda a, b: a.reshape(-1).reshape(4, 4),
    "columns": lambda a, b: torch.cat((a[:, 2:], b[:, :2]), dim=1),
    "product": lambda a, b: a @ b,
    "softmax": lambda a, b: a.softmax(-1) + b,
    "sorted": lambda a, b: a.sort(dim=1).values * b,
    "written": lambda a, b: a.clone().index_fill_(0, torch.tensor([1]), 2.0) - b,
    "added": lambda a, b: a.clone().add_(b),
    "zeros": lambda a, b: torch.zeros(4, 4).fill_diagonal_(1.0) + a,
    "mask": lambda a, b: a.masked_fill(torch.ones(4, 4).tril() == 0, 0.5),
    "rows": lambda a, b: a[torch.tensor([3, 1, 0, 1])],
    "split": lambda a, b: torch.stack(list(a.unbind(0))[::-1]),
    "largest": lambda a, b: a.max(dim=1, keepdim=True).values.expand(4, 4) * 1.0,
}


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)),
             min_size=1, max_size=12),
    st.booleans(),
)  # fmt: skip
def test_programs_of_any_steps(program: list[tuple[str, int, int]], gradient: bool) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    x.requires_grad_(gradient)

    def compute() -> list[Tensor]:
        values = [x, y]
        for name, a, b in program:
            values.append(STEPS[name](values[a % len(values)], values[b % len(values)]))
        out = values[-1] * 1.0
        if not (gradient and out.requires_grad):
            return [out]
        return [out, *torch.autograd.grad(out.sum(), [x])]

    _check(compute, [x, y])


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x if bool(x.any()) else -x,
        lambda x: torch.masked_select(x, x > 0),
    ],
)
def test_what_depends_on_numbers_is_not_recorded(compute: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(-3.0, 4.0)
    (found,), recording = Recording.of(lambda: [compute(x)], [x])
    assert recording is None
    assert torch.equal(found, compute(x))


def test_lists_that_are_changed_in_place() -> None:
    x = torch.randn(6, 3)

    def compute() -> list[Tensor]:
        first, second = x.clone(), x * 2
        torch._foreach_add_([first, second], 1.0)
        return [first * second, *torch._foreach_mul([x], 2.0)]

    _check(compute, [x])


def test_what_draws_or_changes_or_is_no_plain_memory_is_not_recorded() -> None:
    x = torch.randn(4, 4)
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def add_to_constant() -> list[Tensor]:
        own = torch.tensor([1.0, 2.0, 3.0, 4.0])
        own += x[0]
        return [own * 1]

    for compute in (
        add_to_constant,
        lambda: [table.add_(x[0]) * 1],
        lambda: [x + torch.randn(4, 4)],
        lambda: [x[torch.randperm(4)]],
        lambda: [torch.nn.functional.dropout(x, 0.5)],
        lambda: [(x * 2).t_() * 1],
        lambda: [copy.deepcopy(x) * 2],
        lambda: [torch._efficientzerotensor((4, 4)) + x],
        lambda: [(x.to(torch.complex64) * 1j).conj().imag],
        lambda: [x.to_sparse() @ x],
        lambda: [torch._neg_view(x) * 1.0],
    ):
        assert Recording.of(compute, [x])[1] is None, compute


@pytest.mark.parametrize(
    ("compute", "same"),
    [
        (lambda x: x * x.tolist()[0][0], False),
        (lambda x: x * float(x.numpy().sum()), False),
        (lambda x: LSTM(x)[0], False),  # its kernel wants to be called as in training
        (lambda x: x * x.numel(), True),
    ],
)
def test_a_recording_agrees_on_other_numbers_or_not(
    compute: Callable[[Tensor], Tensor], same: bool
) -> None:
    x = torch.randn(4, 4)
    _, recording = Recording.of(lambda: [compute(x)], [x])
    assert recording is not None
    x.copy_(torch.randn(4, 4))
    assert recording.gives([compute(x).detach()]) == same


def test_large_computations_are_not_recorded() -> None:
    x = torch.zeros(1 << 20)
    _, recording = Recording.of(lambda: [sum((x * k for k in range(80)), x)], [x])
    assert recording is None


def test_long_trainings_are_recorded_and_short_ones_give_the_same_bits(tmp_path) -> None:
    run = tiny(steps=240)
    whole, cut = Ensemble([run]), Ensemble([run])
    for _ in whole.run():
        pass
    for _ in cut.run(until=100):
        pass
    save_state(cut, tmp_path / "state.safetensors")
    rest = Ensemble([run])
    load_state(rest, tmp_path / "state.safetensors")  # too few steps are left for a recording
    for _ in rest.run():
        pass
    assert torch.equal(whole.state.weights, rest.state.weights)
    assert torch.equal(torch.stack(whole.state.losses), torch.stack(rest.state.losses))


def test_a_recording_that_does_not_agree_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wrong = Ensemble([tiny(steps=240)]), Ensemble([tiny(steps=240)])
    for _ in plain.run(until=20):
        pass
    again = Recording.__call__
    monkeypatch.setattr(Recording, "__call__", lambda self: [one + 1e-6 for one in again(self)])
    for _ in wrong.run(until=20):
        pass
    assert torch.equal(plain.state.weights, wrong.state.weights)


def test_a_computation_is_run_twice_and_its_recording_from_then_on() -> None:
    x, calls = torch.randn(4, 4), []

    def compute() -> list[Tensor]:
        calls.append(1)
        return [x @ x]

    repeated = Repeated(compute, [x])
    for seed in range(5):
        x.copy_(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)))
        assert torch.equal(repeated()[0], x @ x)
    assert len(calls) == 2
