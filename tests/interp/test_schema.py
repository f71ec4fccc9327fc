"""What fits a field and what does not, in our words, for everybody's classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field, model_validator

from interp.errors import ArgumentError, Problems
from interp.models.baselines import BaselineSpec
from interp.models.spec import TransformerSpec
from interp.schema import FileTable, Whole, check_fields, check_shape, faults, fits, rule_error
from trained.run import Training

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES: dict[str, Any] = {"d_in": 3, "d_out": 3, "n_ctx": 4}


@dataclass(frozen=True)
class Options:
    size: Annotated[int, Field(ge=1, le=9)] = 1
    rate: Annotated[float, Field(gt=0)] = 1.0
    kind: Literal["a", "b"] = "a"
    sure: bool = True
    sizes: int | tuple[int, ...] = 1
    two: tuple[float, float] = (0.0, 1.0)
    other: Any = None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": 0}, "size must be at least 1, got 0: raise it"),
        ({"size": 10}, "size must be at most 9, got 10: lower it"),
        ({"size": True}, "size must be of type integer, got True: give a value of that type"),
        ({"size": 2.0}, "size must be of type integer, got 2.0: give a value of that type"),
        ({"rate": 0}, "rate must be above 0, got 0: raise it"),
        ({"rate": float("nan")}, "rate must be a finite number, got nan: change it"),
        ({"rate": True}, "rate must be of type number, got True: give a value of that type"),
        ({"kind": "c"}, "kind must be one of a, b, got 'c': pick one"),
        ({"sure": 1}, "sure must be true or false, got 1: pick one"),
        ({"sizes": "x"}, "sizes must be of type integer or tuple of integers, got 'x': give a"),
        ({"two": (0.5,)}, "two must be of type (number, number), got (0.5,): give a value of"),
        ({"two": (2.0, "x")}, "two must be of type (number, number), got (2.0, 'x'): give a"),
        ({"size": 0, "kind": "c"}, "size must be at least 1, got 0: raise it; kind must be one"),
    ],
)
def test_what_does_not_fit_is_told_in_words(given: dict[str, Any], said: str) -> None:
    problems = Problems("options")
    check_fields(Options(**given), problems)
    assert "; ".join(problems.found).startswith(said)


@pytest.mark.parametrize(
    "given",
    [
        {"rate": 2},
        {"rate": np.float64(0.5)},
        {"sizes": (1, 2)},
        {"two": (1, 2)},
        {"other": object()},
    ],
)
def test_whole_numbers_are_numbers_and_other_types_are_not_looked_at(given: dict[str, Any]) -> None:
    problems = Problems("options")
    assert check_fields(Options(**given), problems)
    assert problems.found == []


@pytest.mark.parametrize("number", [np.float32(1e-3), np.int64(2), torch.tensor(1e-3)])
def test_numbers_of_other_libraries_are_refused(number: Any) -> None:
    """They would be written to no file."""
    with pytest.raises(ArgumentError, match="learning_rate must be of type number"):
        Training(steps=1, learning_rate=number)


def test_a_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(ArgumentError, match="norm_eps must be of type number"):
        TransformerSpec.from_dict({**SIZES, "d_model": 4, "n_layers": 1, "norm_eps": 10**400})


def test_classes_of_ones_own_may_have_any_annotations() -> None:
    """One that only type checkers can resolve, a private field, one that is not given, a rule."""

    @dataclass(frozen=True)
    class Own(BaselineSpec):
        names: Sequence[str] = ()
        _cache: int = 0
        width: Annotated[int, Field(ge=1)] = 3
        total: int = field(init=False)

        def __post_init__(self) -> None:
            super().__post_init__()
            object.__setattr__(self, "total", 2)

        def _check(self, problems: Problems) -> None:
            problems.need(self.width % 2 == 1, "width", "must be odd", self.width, "add one")

    assert Own(**SIZES).total == 2
    assert Own.from_dict({**SIZES, "names": ["x"], "width": 5}).width == 5
    with pytest.raises(ArgumentError, match=r"width must be odd, got 4: add one"):
        Own(**SIZES, width=4)
    with pytest.raises(ArgumentError, match=r"width must be at least 1, got 0.*width must be odd"):
        Own(**SIZES, width=0)


class Inner(FileTable):
    ids: Annotated[list[Whole], Field(max_length=2)]
    code: Annotated[str, fits("[ab]+", "letters a and b")] = "a"

    @model_validator(mode="after")
    def _rises(self) -> Inner:
        if self.ids != sorted(self.ids):
            raise rule_error("must rise")
        return self


class Outer(FileTable, extra="forbid"):
    inner: Inner
    more: dict[str, float] = Field({})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "it has no 'inner'"),
        (3, "it must be a table, got 3"),
        ({"inner": {"ids": [1, -2]}}, "it.inner.ids[1] must be at least 0, got -2"),
        ({"inner": {"ids": [1, 2, 3]}}, "it.inner.ids must have at most 2 entries, got [1, 2, 3]"),
        ({"inner": {"ids": [2, 1]}}, "it.inner must rise, got a table"),
        ({"inner": {"ids": [], "code": "c"}}, "it.inner.code must be letters a and b, got 'c'"),
        ({"inner": {"ids": [], "x": 1}, "y": 2}, "it.y must be a known key, got 2"),
        ({"inner": {"ids": []}, "more": {"a": "1"}}, "it.more.a must be a finite number, got '1'"),
    ],
)
def test_what_a_file_lacks_is_told_with_its_place(table: Any, said: str) -> None:
    assert faults(Outer, table, "it") == [said]


def test_what_a_user_wrote_is_told_with_what_to_do() -> None:
    problems = Problems("file")
    check_shape(Outer, {"inner": {"code": "b"}, "y": {"a": 1}}, problems, "here")
    assert problems.found == [
        "here.inner.ids must be given, got None: add it",
        "here.y must be a known key, got 'a table of a': remove it",
    ]
