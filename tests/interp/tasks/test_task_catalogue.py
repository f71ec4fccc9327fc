"""What the catalogue says of a task's arguments, and tasks of one's own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch

from interp.errors import ArgumentError, Problems
from interp.schema import check_values
from interp.tasks import catalogue
from interp.tasks.base import Batch, Task
from interp.tasks.catalogue import KINDS, arguments_of, known_task, register_task, task_from_dict
from interp.tasks.coupling import LinearKernel, PodCoupling
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.induction import InContextTemplate, RepeatedTokens
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.relation import TokenRelation
from interp.tasks.template import TemplateTask
from interp.tasks.walks import SuccessorWalk


@dataclass(frozen=True)
class Own:
    """The first token, everywhere.

    Attributes:
        tokens: How many there are.
    """

    tokens: int
    length: int = 4

    @property
    def name(self) -> str:
        return "own"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        ids = torch.randint(self.tokens, (n, self.length), generator=torch.manual_seed(seed))
        return Batch(ids, ids[:, :1].expand_as(ids), torch.ones_like(ids).bool()).to(device)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "own_first", "tokens": self.tokens, "length": self.length}


TASKS: list[Task] = [
    AdaptiveMemory((1, 2, 4), rounds=2, concurrent=1, bits=3, readout="mean", table_seed=7),
    FixedMemory((1, 3, 4), "table", length=12, table_seed=3),
    RealMemory((2, 5), "waves", "signs", length=12, frequency=0.3),
    KernelMemory(("2 bump(4, 1.5)", "heavy(2)"), "mean", length=10, burn_in=4),
    LinearKernel("random", "mixing", filter_seed=4),
    PodCoupling("infinite", mask_self=True),
    PodCoupling(2, sigmas=(3.0, 0.5), left="legendre", right="cosine", length=4),
    Maximum(5, 40),
    PrefixPrediction("L_5"),
    Membership("dyck-1", ((2, 8), (9, 30)), "bits"),
    RepeatedTokens(20, 17, (3, 6), bos=7),
    InContextTemplate("aba", 60, examples=6, bos=3, shuffled=True),
    SuccessorWalk(vocabulary=20, length=30, symbols=6, jump=0.3, bos=4),
    TokenRelation("previous-token", "copy", symbols=6, length=9),
    TemplateTask(("αxβα", "xαββ"), ("β", "x"), train=(3, 10), test=(12, 20), split="test"),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_tasks_survive_json_and_rows_depend_on_the_seed_alone(task: Task) -> None:
    again = task_from_dict(json.loads(json.dumps(task.to_dict())))
    assert again == task
    first, second = task.sample(20, seed=1), again.sample(20, seed=1)
    for one, two in ((first.inputs, second.inputs), (first.targets, second.targets)):
        assert torch.equal(one, two)
    assert not torch.equal(task.sample(20, seed=2).inputs, first.inputs)


def test_every_kind_is_among_the_tasks() -> None:
    assert {task.to_dict()["kind"] for task in TASKS} == set(KINDS)


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(catalogue, "KINDS", dict(KINDS))


def test_own_tasks_are_known_after_they_are_registered() -> None:
    data = Own(3).to_dict()
    assert known_task(None) == (None, "")
    task, why = known_task(data)
    assert task is None
    assert "kind 'own_first', which is not known here" in why
    assert "install the package that adds it (docs/howto-extend.md), or call" in why
    with pytest.raises(ArgumentError, match=r"kind must be one of .*or register_task your own"):
        task_from_dict(data)
    with pytest.raises(ArgumentError, match="lags must be given"):
        task_from_dict({"kind": "fixed_memory"})
    register_task("own_first", Own)
    assert task_from_dict(data) == Own(3)
    assert known_task(data) == (Own(3), "")
    assert "tokens must be of type integer, got 'x'" in known_task(data | {"tokens": "x"})[1]
    assert "own_first" not in KINDS, "only this process's catalogue of the test"


def test_what_is_no_task_is_not_registered() -> None:
    with pytest.raises(ArgumentError, match="kind must not be taken by another class"):
        register_task("fixed_memory", Own)
    with pytest.raises(ArgumentError, match=r"kind must be small letters.*got 'own first'"):
        register_task("own first", Own)
    with pytest.raises(ArgumentError, match=r"frozen dataclass.*add \['name', 'sample', 'to_dict"):
        register_task("own", int)
    register_task("fixed_memory", FixedMemory)
    register_task("own_first", Own)
    again = type("Own", (Own,), {"__module__": Own.__module__, "__qualname__": Own.__qualname__})
    register_task("own_first", dataclass(frozen=True)(again))
    with pytest.raises(ArgumentError, match="taken by another class"):
        register_task("own_first", FixedMemory)


def test_a_task_that_writes_another_kind_is_refused() -> None:
    register_task("another", Own)
    with pytest.raises(ArgumentError, match="kind must be 'another' in to_dict too, got 'own_fir"):
        task_from_dict({"kind": "another", "tokens": 3})


def test_arguments_in_words() -> None:
    words = {
        name: (a.type, a.needed) for cls in (FixedMemory, TemplateTask, PodCoupling)
        for name, a in arguments_of(cls).items()
    }  # fmt: skip
    assert words["lags"] == ("list of integers", True)
    assert words["readout"] == ("one of parity, majority, multiplexer, table", False)
    assert words["labels"] == ("list of numbers or list of text", True)
    assert words["train"] == ("[integer, integer]", False)
    assert words["rank"] == ("integer or text", False)
    assert words["mask_self"] == ("true or false", False)
    found = arguments_of(FixedMemory)
    assert found["length"].default == 32
    assert found["length"].meaning.startswith("Positions of a row; targets count from position")
    assert "of two memories, −1 the second), or ``table``" in found["readout"].meaning
    assert arguments_of(Own)["length"].meaning == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_of_every_kind_has_a_meaning_and_a_default_that_fits(kind: str) -> None:
    found = arguments_of(KINDS[kind])
    assert list(found) == [field.name for field in fields(KINDS[kind])]
    for argument in found.values():
        assert argument.meaning, argument
    problems = Problems(kind)
    values = {name: argument.default for name, argument in found.items() if not argument.needed}
    assert check_values(KINDS[kind], values, problems), problems.found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lags": 9}, r"lags must be of type list of integers, got 9: write \[9\]"),
        ({"lags": [1.5]}, r"lags must be of type list of integers, got \[1\.5\]"),
        ({"lags": [True]}, "lags must be of type list of integers"),
        ({"length": "8"}, "length must be of type integer, got '8'"),
        (
            {"copy": 1, "readout": 3},
            "copy must be an argument of fixed_memory, got 1: it takes lags, readout, length, "
            "table_seed; readout must be one of parity",
        ),
    ],
)
def test_wrong_arguments_are_named_with_those_that_are_right(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        task_from_dict({"kind": "fixed_memory", "lags": [1]} | changes)


@pytest.mark.parametrize(
    ("kind", "name", "value", "good"),
    [
        (TemplateTask, "labels", (1, 2.5), True),
        (TemplateTask, "labels", ("a", "b"), True),
        (TemplateTask, "labels", (1, "b"), False),
        (TemplateTask, "train", (0, 64, 128), False),
        (PodCoupling, "mask_self", 1, False),
    ],
)
def test_whole_numbers_and_lists_of_either_kind_fit(
    kind: type[Any], name: str, value: Any, good: bool
) -> None:
    assert check_values(kind, {name: value}, Problems("task")) == good


def test_a_relation_of_an_older_file_is_todays() -> None:
    data = TokenRelation("uniform").to_dict()
    assert task_from_dict(data | {"relation": "counter"}) == TokenRelation("uniform")
