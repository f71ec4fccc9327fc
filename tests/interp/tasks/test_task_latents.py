"""What tasks say of themselves: contents that are fetched, latents that are computed."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from interp.tasks.base import Memory, answers_of, memories_of
from interp.tasks.catalogue import KINDS, task_from_dict
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.template import TemplateTask

MEMORIES = [
    FixedMemory((1, 3), "multiplexer", length=9),
    RealMemory((2, 5), "mean", length=9),
    KernelMemory(("exponential(0.5)", "bump(3, 1)"), "maximum", length=9),
    AdaptiveMemory((1, 2, 3), 2, 2, readout="mean", length=9),
]


@pytest.mark.parametrize("task", MEMORIES, ids=lambda task: type(task).__name__)
def test_a_memory_is_where_the_task_says(task: FixedMemory | AdaptiveMemory) -> None:
    """Fetched by hand from the inputs, every content is the latent of its name."""
    batch = task.sample(4, seed=1)
    x, latents = batch.inputs[..., 0].double(), batch.latents
    for memory in memories_of(task):
        found = torch.zeros_like(x)
        for row in range(len(x)):
            for t in range(x.shape[1]):
                where = memory.location
                if isinstance(where, str):
                    where = int(latents[where][row, t]) or t + 1  # 0: read before the start
                for s in range(t + 1):
                    weight = where[s] if isinstance(where, np.ndarray) else s == where
                    found[row, t] += float(weight) * x[row, t - s]
        assert torch.allclose(found, latents[memory.name].double(), atol=1e-5)


@pytest.mark.parametrize("task", MEMORIES, ids=lambda task: type(task).__name__)
def test_answers_are_latents_of_latents(task: FixedMemory | AdaptiveMemory) -> None:
    latents = task.sample(2, seed=0).latents
    told = answers_of(task)
    assert told["f"] == task.arguments
    assert {name for names in told.values() for name in names} | set(told) <= set(latents)


def test_rounds_count_from_one_and_the_last_are_fetched_together() -> None:
    task = AdaptiveMemory((1, 2, 3), 2, 2, readout="mean")
    assert [m.round for m in task.memories()] == [1, 2, 3, 3]
    assert set(answers_of(task)) == {"f", "t_1", "t_2", "t_3", "t_4"}
    assert task.memories()[0] == Memory("x[t-t_1]", "t_1", 1)


def test_templates_answer_and_fetch_nothing() -> None:
    assert answers_of(TemplateTask(("αα", "αβ"), (1.0, -1.0))) == {"label": ()}
    copying = TemplateTask(("αβα", "βαα"), ("β", "α"))
    assert answers_of(copying) == {"source": ()}
    assert memories_of(copying) == ()


def test_a_task_that_says_nothing_has_neither() -> None:
    @dataclass(frozen=True)
    class Silent:
        length: int = 3

    for task in (Silent(), None, PrefixPrediction("L_3"), Membership("L_3")):
        assert memories_of(task) == ()
        assert answers_of(task) == {}


@pytest.mark.parametrize("kind", ["prefix_prediction", "membership"])
def test_the_form_of_targets_by_its_earlier_name(kind: str) -> None:
    """Checkpoints and stores written before say ``answers``."""
    now = task_from_dict({"kind": kind, "language": "L_3", "targets": "bits"})
    earlier = task_from_dict({"kind": kind, "language": "L_3", "answers": "bits"})
    assert now == earlier == KINDS[kind]("L_3", targets="bits")


def test_strings_of_one_length() -> None:
    task = PrefixPrediction("L_3", ((4, 6), (7, 9)))
    assert task.of_one_length().bins == ((9, 9),)
    assert task.of_one_length().sample(3, seed=0).mask[:, 1:].all()
