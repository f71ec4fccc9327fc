"""What the answer would be if one latent were another row's: against direct loops."""

import numpy as np
import pytest
import torch

from interp.program.evaluation import evaluate
from interp.tasks.base import Batch, Task
from interp.tasks.counterfactual import UNKNOWN, Variable, unknown, variables_of
from interp.tasks.coupling import PodCoupling
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.depth.strings import name_counted_formulas
from interp.tasks.induction import RepeatedTokens
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.template.task import copying, majority, same_different
from interp.tasks.walks import SuccessorWalk

NESTED = AdaptiveMemory((1, 2, 4), rounds=2, readout="mean", inputs="gaussian", length=9)
TASKS: list[Task] = [
    NESTED,
    AdaptiveMemory((1, 3), rounds=1, concurrent=2, readout="network", inputs="gaussian", length=8),
    FixedMemory((1, 3), "multiplexer", length=8),
    RealMemory((1, 4), "maximum", length=8),
    KernelMemory(("light(2, 1.3)", "heavy(2)"), "waves", length=8),
    same_different(),
    majority(),
    copying(),
    PodCoupling(rank=2, length=6),
    PrefixPrediction("L_5", ((5, 11),)),
    SuccessorWalk(20, 20, symbols=5),
    RepeatedTokens(30, 20, (3, 6)),
]


def variable(task: Task, name: str) -> Variable:
    return next(each for each in variables_of(task) if each.name == name)


def pair(task: Task, rows: int = 24) -> tuple[Batch, Batch]:
    return task.sample(rows, seed=1), task.sample(rows, seed=2)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_latent_of_the_row_itself_changes_no_answer(task: Task) -> None:
    batch = task.sample(24, seed=0)
    for each in variables_of(task):
        answer = each.answer(batch, batch)
        assert answer.shape == batch.targets.shape
        assert answer.dtype == batch.targets.dtype
        known = batch.mask & ~unknown(answer)
        assert known.any()
        torch.testing.assert_close(answer[known], batch.targets[known])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_some_latent_of_another_row_changes_the_answer(task: Task) -> None:
    base, source = pair(task)
    for each in variables_of(task):
        answer = each.answer(base, source)
        known = base.mask & source.mask & ~unknown(answer)
        assert (answer[known] != base.targets[known]).any(), each.name


def test_a_task_without_variables_names_none() -> None:
    assert variables_of(Membership("L_3", ((3, 9),))) == ()


def test_nested_locations_and_tokens_equal_a_direct_loop() -> None:
    """Everything after the latent is followed by hand, everything before it is the base's."""
    base, source = pair(NESTED)
    second = NESTED.location_tables()[1]
    names = ["t_1", "x[t-t_1]", "a[t-t_1]", "token[t-t_1]", "t_2", "x[t-t_2]", "window", "f"]
    found = {name: variable(NESTED, name).answer(base, source) for name in names}
    for row, t in np.argwhere(base.mask.numpy()):
        ours, theirs = ({n: v[row, t] for n, v in b.latents.items()} for b in (base, source))

        def token(batch: Batch, lag: float, row: int = row, t: int = t) -> tuple[float, int]:
            x, *bits = batch.inputs[row, t - int(lag)].tolist()
            return x, sum(2**k for k, bit in enumerate(reversed(bits)) if bit > 0)

        def answer(x1: float, x2: float, x0: float = float(ours["x[t]"])) -> float:
            return (x0 + x1 + x2) / 3

        x1, code = token(base, theirs["t_1"])
        expected = {"t_1": answer(x1, token(base, second[code])[0])}
        x1, code = float(ours["x[t-t_1]"]), token(source, theirs["t_1"])[1]
        moved = token(base, second[code])[0]
        expected["x[t-t_1]"] = answer(float(theirs["x[t-t_1]"]), float(ours["x[t-t_2]"]))
        expected["a[t-t_1]"] = answer(x1, moved)
        expected["token[t-t_1]"] = answer(float(theirs["x[t-t_1]"]), moved)
        expected["t_2"] = answer(x1, token(base, theirs["t_2"])[0])
        expected["x[t-t_2]"] = answer(x1, float(theirs["x[t-t_2]"]))
        x1, code = token(source, ours["t_1"])
        expected["window"] = answer(x1, token(source, second[code])[0])
        expected["f"] = float(theirs["f"])
        for name, value in expected.items():
            assert float(found[name][row, t, 0]) == pytest.approx(value, abs=1e-5), name


def test_previous_tokens_point_where_they_are_equal_to_the_current_token() -> None:
    task = SuccessorWalk(12, 24, symbols=8, jump=0.3)
    base, source = pair(task, 60)
    found = variable(task, "previous").answer(base, source)
    looked = variable(task, "source").answer(base, source)
    assert (found[base.mask] != UNKNOWN).any()
    for row, t in np.argwhere(base.mask.numpy()):
        before = source.latents["previous"][row, : t + 1]
        for answer, current in ((found, base.inputs[row, t]), (looked, source.inputs[row, t])):
            at = torch.nonzero(before == current).ravel()
            told = len(at) == 1 and (answer is found or bool(source.mask[row, t]))
            assert answer[row, t] == (base.inputs[row, at[0]] if told else UNKNOWN)


def test_a_line_that_is_set_is_counted_over_by_the_lines_after_it() -> None:
    task = PrefixPrediction("L_4", ((4, 9),))
    base, source = pair(task)
    found = variable(task, "E2").answer(base, source)
    counted = variable(task, "E3_counted").answer(base, source)
    for row, t in np.argwhere(base.mask.numpy()):
        ours, theirs = base.inputs[row].tolist(), source.inputs[row].tolist()
        begun = [2 in theirs[1 : j + 1] for j in range(len(theirs))]  # E2 of the source
        inside = int(source.mask[row].sum())
        third = [ours[j] == 1 and begun[j] and j <= inside for j in range(1, t + 1)]
        assert found[row, t] == (ours[t] == 2 and any(third))
        third = [theirs[j] == 1 and begun[j] and j <= inside for j in range(1, t + 1)]
        assert counted[row, t] == (ours[t] == 2 and any(third))


def test_what_is_counted_gets_a_name_and_the_program_says_the_same() -> None:
    task = PrefixPrediction("L_5", ((5, 11),))
    named = name_counted_formulas(task.program)
    counted = [line.name for line in named.lines if line.name.endswith("_counted")]
    assert counted == ["E2_counted", "E3_counted", "E4_counted"]
    plain, same = (evaluate(p, ["abab", "aabbaba", "b"]) for p in (task.program, named))
    for name, values in plain.values.items():
        np.testing.assert_array_equal(values, same.values[name])


def test_the_source_of_a_template_is_read_on_the_base() -> None:
    task = majority()
    base, source = pair(task)
    found = variable(task, "source").answer(base, source)[:, -1]
    at = source.latents["source"][:, -1]
    assert torch.equal(found, base.inputs[torch.arange(len(at)), at])


def test_attention_of_another_row_averages_the_base() -> None:
    task = PodCoupling(rank=2, length=6)
    base, source = pair(task, 4)
    found = variable(task, "attention").answer(base, source)
    weights, x = source.latents["attention"].double(), base.inputs[..., 0].double()
    expected = torch.einsum("bqk,bk->bq", weights, x)
    torch.testing.assert_close(found[..., 0].double(), expected, atol=1e-6, rtol=0)


def test_the_past_of_an_average_keeps_the_present_input() -> None:
    """One kernel of weight 1 now and 1/2 a step ago: x_t of the base, x_{t−1} of the source."""
    task = KernelMemory(("bump(0, 0.849321800288019)",), length=4)  # e^{−s²/2w²} = 2^{−s²}
    base, source = pair(task, 3)
    found = variable(task, "rho_1*x before t").answer(base, source)[..., 0]
    x, past = base.inputs[:, :, 0], source.inputs[:, :, 0]
    for t in range(4):
        expected = x[:, t] + sum(0.5 ** ((t - s) ** 2) * past[:, s] for s in range(t))
        torch.testing.assert_close(found[:, t], expected, atol=1e-5, rtol=0)
