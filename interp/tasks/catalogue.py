"""Make a task from JSON or TOML: ``kind`` names its class, the other keys are its arguments.

A class of your own is added by :func:`register_task` for as long as the program runs, or by an
installed package's entry point ``prooflens.tasks`` (:mod:`interp.plugins`). Loading a file never
executes code from it: a recipe, checkpoint or store holds only the kind's name, and if no class is
registered under it, the task stays unknown while everything else can still be read.

The arguments of a task are the fields of its class; their types are checked. Values come from JSON
or TOML, so an integer is accepted for a float, and a list for a tuple. Fields with other
annotations are not checked here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_type_hints

from interp.errors import ArgumentError, Problems
from interp.plugins import Registry
from interp.schema import as_tuples, check_values, in_words
from interp.tasks.base import Task
from interp.tasks.coupling import LinearKernel, PodCoupling
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.induction import InContextTemplate, RepeatedTokens
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.relation import TokenRelation
from interp.tasks.template import TemplateTask
from interp.tasks.walks import SuccessorWalk

_ENTRY = re.compile(r"^    (\w+(?:, \w+)*):\s(.*(?:\n {8,}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Argument:
    """One argument of a task.

    Attributes:
        name: The argument's name, as in the class.
        annotation: The argument's type, as the class annotates it.
        default: The value it has if none is given; ``dataclasses.MISSING`` if one must be given.
        meaning: The argument's description in the docstring of the class; empty without one.
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
        """The argument's type in words, such as ``list of integers``."""
        return in_words(self.annotation)


def arguments_of(kind: type[Any]) -> dict[str, Argument]:
    """Return the arguments of a task's class (a dataclass), by name and in the order of its
    fields."""
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


_TASKS: dict[str, type[Any]] = {
    "fixed_memory": FixedMemory,
    "real_memory": RealMemory,
    "adaptive_memory": AdaptiveMemory,
    "kernel_memory": KernelMemory,
    "token_relation": TokenRelation,
    "template": TemplateTask,
    "membership": Membership,
    "prefix_prediction": PrefixPrediction,
    "repeated_tokens": RepeatedTokens,
    "in_context_template": InContextTemplate,
    "successor_walk": SuccessorWalk,
    "maximum": Maximum,
    "pod_coupling": PodCoupling,
    "linear_kernel": LinearKernel,
}


def _problem(kind: str, task: Any) -> str:
    """Return why a class cannot be registered under a name, or ``""``."""
    problems = Problems("register_task")
    plain = isinstance(kind, str) and re.fullmatch("[a-z][a-z0-9_]*", kind) is not None
    rule = "must be small letters, digits and underscores"
    problems.need(plain, "kind", rule, kind, "e.g. first_copy")
    frozen = is_dataclass(task) and getattr(task, "__dataclass_params__").frozen  # noqa: B009
    good, rule = isinstance(task, type) and frozen, "must be a frozen dataclass"
    problems.need(good, "task", rule, task, "write @dataclass(frozen=True) above the class")
    missing = [name for name in ("name", "sample", "to_dict") if not hasattr(task, name)]
    problems.need(not missing, "task", "must have name, sample, to_dict", task, f"add {missing}")
    return "; ".join(problems.found)


KINDS: Registry[type[Any]] = Registry(_TASKS, "prooflens.tasks", _problem)
"""Kind of task, as it stands in files → its class: the shipped ones, those of installed packages,
and those added by ``register_task``."""

_SHIPPED = frozenset(_TASKS)
_MOST, _MOST_SEED = 10**6, 2**63 - 1
_RENAMED = {"answers": "targets"}
"""Name of an argument in older files → its present name."""
_VALUES = {("relation", "counter"): "uniform"}
"""(Argument, its value in older files) → the present value."""


def register_task(kind: str, task: type[Any]) -> None:
    """Register a task class of your own, so that recipes, checkpoints and stores can name it.

    A class with the same module and name may be registered again; the newer one replaces it.

    Args:
        kind: The class's identifier, equal to ``to_dict()["kind"]`` of its instances: lower-case
            letters, digits and underscores, starting with a letter.
        task: A frozen dataclass with ``name``, ``sample`` and ``to_dict``, as :class:`Task` has
            them. Its fields are the task's arguments, and must have values that JSON can
            represent; use tuples for JSON lists.

    Raises:
        ArgumentError: if ``kind`` is not a valid identifier or is taken by another class, or if
            ``task`` is not a frozen dataclass with these members.
    """
    problem, known = _problem(kind, task), KINDS.get(kind)
    again = known is not None and kind not in _SHIPPED and _place(known) == _place(task)
    if not (known is None or known is task or again):
        taken = f"kind must not be taken by another class, got {kind!r}: choose another"
        problem = f"{taken}; {problem}" if problem else taken
    if problem:
        raise ArgumentError(f"register_task: {problem}")
    KINDS[kind] = task


def _place(task: Any) -> tuple[str, str]:
    """Return the module and name of a class, which stay the same if a notebook cell is run
    again."""
    return getattr(task, "__module__", ""), getattr(task, "__qualname__", "")


def known_task(data: Mapping[str, Any] | None) -> tuple[Task | None, str]:
    """Return the task that a checkpoint or store records, or None with the reason why it cannot be
    made.

    The reason is empty if no task is recorded.
    """
    if data is None:
        return None, ""
    try:
        return task_from_dict(data), ""
    except ArgumentError as error:
        if isinstance(data.get("kind"), str) and data["kind"] in KINDS:
            return None, f"its task is left out: {error}"
        return None, (
            f"its task is of kind {data.get('kind')!r}, which is not known here: it is left "
            "out; install the package that adds it (docs/howto-extend.md), or call "
            "pl.tasks.register_task in Python"
        )


def task_from_dict(data: Mapping[str, Any]) -> Task:
    """Make the task that JSON data describes, from :meth:`Task.to_dict` or a recipe's ``[task]``
    table.

    Raises:
        ArgumentError: if the kind is unknown, keys are unknown or missing, values have the wrong
            type, or the task itself refuses an argument.
    """
    problems = Problems("task")
    kind = data.get("kind")
    near = get_close_matches(str(kind), KINDS, 1)
    other = "name one, install the package that adds it, or register_task your own"
    advice = f"did you mean {near[0]}?" if near else other
    rule = f"must be one of {', '.join(KINDS)}"
    problems.need(isinstance(kind, str) and kind in KINDS, "kind", rule, kind, advice)
    problems.raise_if_any()
    known = arguments_of(KINDS[str(kind)])
    given = {
        key if key in known else _RENAMED.get(key, key): _today(key, value)
        for key, value in data.items()
        if key != "kind"
    }
    for key in sorted(set(given) - set(known)):
        advice = f"it takes {', '.join(known)}"
        problems.need(False, key, f"must be an argument of {kind}", given[key], advice)
    for key in sorted(name for name, a in known.items() if a.needed and name not in given):
        problems.need(False, key, f"must be given for {kind}", None, "add it")
    check_values(KINDS[str(kind)], given, problems, data)
    for key, value in given.items():
        most = _MOST_SEED if "seed" in key else _MOST
        rule = f"must be numbers of at most {most:,}"
        problems.need(_is_bounded(value, most), key, rule, data.get(key), "lower it")
    problems.raise_if_any()
    try:
        task: Task = KINDS[str(kind)](**given)
    except TypeError as error:
        text = f"task {kind}: an argument is of the wrong type ({error}): got {given}"
        raise ArgumentError(text) from error
    written = task.to_dict().get("kind")
    rule, advice = f"must be {kind!r} in to_dict too", "write the kind that is registered"
    problems.need(written == kind, "kind", rule, written, advice)
    problems.raise_if_any()
    return task


def _is_bounded(value: Any, most: int) -> bool:
    if isinstance(value, tuple):
        return all(_is_bounded(item, most) for item in value)
    return not isinstance(value, int | float) or abs(value) <= most


def _today(key: str, value: Any) -> Any:
    """Convert a value to what the class expects: lists become tuples, renamed values get their new
    name."""
    return _VALUES.get((key, str(value)), as_tuples(value))
