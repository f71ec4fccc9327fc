"""Schemas of users' data: annotations, checked strictly by pydantic when data are read.

    class Part(FileTable):
        part: Whole
        file: str

    faults(Part, entry, "line 3")    # [] or sentences, each with its place and what was given
    check_fields(spec, problems)     # every field of a dataclass against its annotation

A :class:`FileTable` is a table of a file: keys that it does not name are allowed, because a newer
minor version may add some. The data are never converted: an integer is accepted for a float, and
nothing else for another type. That data fit a schema says nothing about whether the numbers are
true: that is what checksums are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from interp.errors import Problems

Thing = TypeVar("Thing")
LARGEST = 2**63 - 1
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
"""A whole number ≥ 0 that fits into 64 bits."""
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
"""A whole number ≥ 1 that fits into 64 bits."""
Text = Annotated[str, Field(max_length=1 << 20)]
"""Text of at most 2^20 characters."""
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)
_LONGEST = 80
"""Number of characters of a wrong value that an error message repeats."""


class FileTable(BaseModel):
    """The schema of a table (a set of keys and values) in a file.

    A subclass's fields are its required and optional keys and the types of their values.
    """

    model_config = _STRICT


def fits(pattern: str, rule: str, most: int = 1 << 20) -> AfterValidator:
    """Return an annotation that requires a text to match a regular expression as a whole.

    Args:
        pattern: The regular expression.
        rule: What such a text is called, such as ``a SHA-256 in hexadecimal``.
        most: The most characters that it may have.
    """
    fitting = re.compile(pattern, re.DOTALL).fullmatch

    def check(text: str) -> str:
        if len(text) > most or not fitting(text):
            raise rule_error(f"must be {rule}")
        return text

    return AfterValidator(check)


def rule_error(rule: str) -> PydanticCustomError:
    """Return the error that a table's own check raises, such as ``must be two row ids``."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def faults(kind: Any, value: Any, place: str) -> list[str]:
    """Return a sentence for each reason why a value is not of a kind; empty if it is.

    Args:
        kind: A :class:`FileTable`, or any annotation such as ``list[str]``.
        value: Parsed JSON or TOML.
        place: The place of the value, with which each sentence begins.
    """
    found = []
    for error in _errors(kind, value):
        if error["type"] == "missing":
            *before, key = error["loc"]
            found.append(f"{place}{_path(before)} has no {key!r}")
        else:
            given = error["input"]
            said = "a table" if isinstance(given, dict) else repr(given)
            at = f"{place}{_path(error['loc'])}"
            found.append(f"{at} {_rule_and_advice(error)[0]}, got {said[:_LONGEST]}")
    return found


def check_shape(kind: type[FileTable], table: Any, problems: Problems, place: str = "") -> None:
    """Record each reason why a table that a user wrote is not of a kind.

    Args:
        kind: The kind of table.
        table: Parsed JSON or TOML.
        problems: The collection that problems are added to.
        place: What precedes a key in messages, such as the name of the table.
    """
    for error in _errors(kind, table):
        at = f"{place}{_path(error['loc'])}".lstrip(".")
        rule, advice = _rule_and_advice(error)
        given = None if error["type"] == "missing" else error["input"]
        if isinstance(given, dict):
            given = f"a table of {', '.join(map(str, given))}"
        problems.need(False, at or "it", rule, given, advice)


def _errors(kind: Any, value: Any) -> list[ErrorDetails]:
    try:
        _adapter(kind).validate_python(value)
    except ValidationError as refused:
        return refused.errors(include_url=False)
    return []


def _path(loc: Iterable[int | str]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)


def check_fields(thing: Any, problems: Problems) -> bool:
    """Record each field of a dataclass whose value does not fit its annotation.

    Annotations of other types than numbers, text, Booleans and tuples of them are not checked.

    Returns:
        Whether rules between fields can be checked: all fields have the right type, and none is too
        large.
    """
    values = {one.name: getattr(thing, one.name) for one in fields(thing) if one.init}
    return check_values(type(thing), values, problems)


def from_fields(kind: type[Thing], data: Mapping[str, Any], problems: Problems) -> Thing:
    """Make a dataclass from the data of a file: its fields by name, with lists for tuples.

    Args:
        kind: The dataclass.
        data: Field → value.
        problems: The collection that problems are added to.

    Raises:
        ArgumentError: if fields are unknown or missing, or values do not fit.
    """
    known: dict[str, Any] = {one.name: one for one in fields(kind) if one.init}  # type: ignore[arg-type]
    for key in sorted(set(data) - set(known)):
        problems.need(False, key, "must be a known option", data[key], "remove it")
    for key, field in known.items():
        needed = field.default is MISSING and field.default_factory is MISSING
        problems.need(key in data or not needed, key, "must be given", None, "add it")
    problems.raise_if_any()
    given = {key: as_tuples(value) for key, value in data.items()}
    if not check_values(kind, given, problems, data):
        problems.raise_if_any()
    made = kind(**given)  # what is of the right type may break rules between fields too
    problems.raise_if_any()
    return made


def as_tuples(value: Any) -> Any:
    """Return parsed JSON with a tuple for each list."""
    return tuple(as_tuples(v) for v in value) if isinstance(value, list) else value


def check_values(
    kind: Any, values: Mapping[str, Any], problems: Problems, said: Mapping[str, Any] | None = None
) -> bool:
    """Record each given value that does not fit the annotation of its field.

    Args:
        kind: A dataclass.
        values: Field → value; fields of other names are ignored.
        problems: The collection that problems are added to.
        said: Field → value as the user wrote it, if it was converted.

    Returns:
        Whether all values have the right type, and none is too large.
    """
    model, hints = _fields_of(kind)
    given = {name: values[name] for name in hints if name in values}
    errors: dict[str, list[ErrorDetails]] = {n: [] for n, v in given.items() if not _is_data(v)}
    try:
        model.model_validate({name: v for name, v in given.items() if name not in errors})
    except ValidationError as refused:
        for one in refused.errors(include_url=False):
            errors.setdefault(str(one["loc"][0]), []).append(one)
    typed, many = True, "tuple" if said is None else "list"
    for name, found in errors.items():
        bound = _bound_alone(found, hints[name])
        rule, advice = bound or _type_rule(hints[name], values[name], many)
        problems.need(False, name, rule, (said or values).get(name), advice)
        typed &= bound is not None and not any(one["type"] in _TOO_MUCH for one in found)
    return typed


def _is_data(value: Any) -> bool:
    """Return whether a value could come from a file; numbers of NumPy or PyTorch could not."""
    if isinstance(value, tuple | list):
        return all(map(_is_data, value))
    return value is None or isinstance(value, bool | int | float | str)


def _bound_alone(errors: list[ErrorDetails], annotation: Any) -> tuple[str, str] | None:
    """Return the broken bound of a value that has the right type, or one of several types;
    otherwise None."""
    several = get_origin(annotation) in (Union, UnionType)
    branches: dict[Any, list[tuple[str, str] | None]] = {}
    for error in errors:
        branch = error["loc"][1] if several and len(error["loc"]) > 1 else None
        branches.setdefault(branch, []).append(_bound(error))
    return next((found[0] for found in branches.values() if all(found)), None)


def in_words(annotation: Any, many: str = "list") -> str:
    """Return a type in words, such as ``list of integers``.

    Args:
        annotation: The type.
        many: The word for several values: a list in a file is a tuple in Python.
    """
    of, within = get_origin(annotation), get_args(annotation)
    if of is Annotated:
        return in_words(within[0], many)
    if of is Literal:
        return f"one of {', '.join(map(str, within))}"
    if of in (Union, UnionType):
        return " or ".join(in_words(one, many) for one in within)
    if of is tuple and within[1:] == (...,):
        words = in_words(within[0], many)
        return f"{many} of {words}s" if words in ("integer", "number") else f"{many} of {words}"
    if of is tuple:
        several = ", ".join(in_words(one, many) for one in within)
        return f"[{several}]" if many == "list" else f"({several})"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "nothing"}


_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}", "raise it"),
    "greater_than": ("gt", "must be above {}", "raise it"),
    "less_than_equal": ("le", "must be at most {}", "lower it"),
    "less_than": ("lt", "must be below {}", "lower it"),
    "too_long": ("max_length", "must have at most {} entries", "leave some out"),
    "too_short": ("min_length", "must have at least {} entries", "add some"),
    "string_too_long": ("max_length", "must have at most {} characters", "shorten it"),
}
"""pydantic's kind of error → (the key of the bound in the error's context, the rule in which the
bound is filled in, what the user should do)."""
_TOO_MUCH = ("less_than", "less_than_equal", "too_long")
"""pydantic's kinds of errors about values that are too large. After one of them nothing is computed
with the values."""


def _bound(error: ErrorDetails) -> tuple[str, str] | None:
    """Return the rule of a broken bound, or of a table's own check, with advice; None for other
    errors."""
    if error["type"] == "rule":
        return error["msg"], "mend it"
    if error["type"] == "finite_number":
        return "must be a finite number", "change it"
    key, rule, advice = _BOUNDS.get(error["type"], ("", "", ""))
    if not key:
        return None
    value = error["ctx"][key]
    words = f"{value:g}" if isinstance(value, float) else f"{value:,}"
    return rule.format(words if abs(value) < LARGEST else value), advice


def _type_rule(annotation: Any, value: Any, many: str) -> tuple[str, str]:
    """Return the rule of a field's type, with advice."""
    words = in_words(annotation, many)
    if words.startswith("one of ") or words == _WORDS[bool]:
        return f"must be {words}", "pick one"
    one = get_origin(annotation) is tuple and not _errors(annotation, (value,))
    alone = f"write [{value!r}]" if many == "list" else f"write ({value!r},)"
    return f"must be of type {words}", alone if one else "give a value of that type"


_TYPES = {
    "int_type": "a whole number",
    "float_type": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
"""pydantic's kind of error → what the value must be, in words."""
_KEYS = {
    "missing": ("must be given", "add it"),
    "extra_forbidden": ("must be a known key", "remove it"),
}


def _rule_and_advice(error: ErrorDetails) -> tuple[str, str]:
    """Return the rule that a value of a table breaks, with advice."""
    if found := _KEYS.get(error["type"]) or _bound(error):
        return found
    if error["type"] == "literal_error":
        return f"must be one of {error['ctx']['expected'].replace(chr(39), '')}", "pick one"
    known = _TYPES.get(error["type"])
    rule = f"must be {known}" if known else error["msg"].replace("Input should", "must")
    return rule, "change it"


@cache
def _adapter(kind: Any) -> Any:
    shape = isinstance(kind, type) and issubclass(kind, BaseModel)
    return TypeAdapter(kind) if shape else TypeAdapter(kind, config=_STRICT)


@cache
def _fields_of(kind: Any) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return a model with those fields of a dataclass whose annotations can be checked, and these
    annotations."""
    hints = _hints(kind)
    checked = {field.name: hints[field.name] for field in fields(kind) if field.init}
    checked = {name: hint for name, hint in checked.items() if _is_plain(hint)}
    needed: dict[str, Any] = {
        f"field_{name}": (hint, Field(None, alias=name)) for name, hint in checked.items()
    }
    return create_model(kind.__name__, __config__=_STRICT, **needed), checked


def _hints(kind: Any) -> dict[str, Any]:
    """Return the annotations of a class; Any for those that cannot be resolved, as names that only
    type checkers import."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError, AttributeError):
        found: dict[str, Any] = {}
    for part in reversed(kind.__mro__):
        for name, told in get_annotations(part).items():
            alone = type("", (), {"__annotations__": {name: told}, "__module__": part.__module__})
            try:
                found[name] = get_type_hints(alone, include_extras=True)[name]
            except (NameError, TypeError, AttributeError):
                found[name] = Any
    return found


def _is_plain(annotation: Any) -> bool:
    """Return whether an annotation consists of numbers, text, Booleans, choices and tuples of
    them."""
    of, within = get_origin(annotation), get_args(annotation)
    if of is Annotated:
        return _is_plain(within[0])
    if of in (Union, UnionType, tuple):
        return all(part is ... or _is_plain(part) for part in within)
    return of is Literal or annotation in _WORDS
