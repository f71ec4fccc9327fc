"""What arguments a task takes: the fields of its class, their types in words, and type checks.

Values come from JSON or TOML, so a whole number is accepted where a number is asked for, and a list
where the class has a tuple. A field whose annotation is no such type is not checked here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["Argument", "arguments_of"]

_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "nothing"}
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*):\s(.*(?:\n {8,}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Argument:
    """One argument of a task.

    Attributes:
        name: The argument's name, as in the class.
        annotation: Its type, as the class annotates it.
        default: The value it has if none is given; ``dataclasses.MISSING`` if one must be given.
        meaning: Its description in the docstring of the class; empty if there is none.
    """

    name: str
    annotation: Any
    default: Any
    meaning: str

    @property
    def needed(self) -> bool:
        """Whether the argument must be given, because it has no default."""
        return self.default is MISSING

    @property
    def type(self) -> str:
        """Its type in words, such as ``list of integers``."""
        return _in_words(self.annotation)

    def fits(self, value: Any) -> bool:
        """Whether a value has the argument's type; further rules are checked by the class
        itself."""
        return _fits(self.annotation, value)


def arguments_of(kind: type[Any]) -> dict[str, Argument]:
    """The arguments of a task's class (a dataclass), by name and in the order of its fields."""
    hints, said = get_type_hints(kind), dict(_meanings(kind))
    found = {}
    for field in fields(kind):
        made = field.default_factory
        default = field.default if made is MISSING else made()
        name = field.name
        found[name] = Argument(name, hints[name], default, said.get(name, ""))
    return found


def _meanings(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield each field's name and its description in the docstring's section ``Attributes``."""
    _, _, rest = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    section = re.split(r"\n\n|^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    for names, text in _ENTRY.findall(section):
        for name in names.split(", "):
            yield name, " ".join(text.split())


def _in_words(annotation: Any) -> str:
    of, within = get_origin(annotation), get_args(annotation)
    if of is Literal:
        return f"one of {', '.join(map(str, within))}"
    if of in (Union, UnionType):
        return " or ".join(map(_in_words, within))
    if of is tuple and within[1:] == (...,):
        return f"list of {_several(within[0])}"
    if of is tuple:
        return f"[{', '.join(map(_in_words, within))}]"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _several(annotation: Any) -> str:
    words = _in_words(annotation)
    return words + "s" if annotation in (int, float) else words


def _fits(annotation: Any, value: Any) -> bool:
    of, within = get_origin(annotation), get_args(annotation)
    if of is Literal:
        return isinstance(value, tuple({type(known) for known in within}))
    if of in (Union, UnionType):
        return any(_fits(part, value) for part in within)
    if of is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = within[:1] * len(value) if within[1:] == (...,) else within
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if annotation in (int, float):
        numbers = (int,) if annotation is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, annotation) if annotation in _WORDS else True
