"""Which task a piece of JSON or TOML names: ``kind`` chooses the class, the rest its arguments.

A class of one's own joins by :func:`register_task`, for as long as the program runs. Nothing is
executed on load: a recipe, checkpoint or store tells the kind alone, and where no class is
registered for it the task is unknown, and everything else can still be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from interp.errors import ArgumentError, Problems
from interp.tasks.arguments import Argument, arguments_of
from interp.tasks.base import Task
from interp.tasks.coupling import (
    IndexedAverage,
    LinearKernel,
    NearestPoint,
    PermutedPatches,
    PermutedTranslation,
    PodCoupling,
    SegmentCentres,
)
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.induction import InContextTemplate, RepeatedTokens
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.relation import TokenRelation
from interp.tasks.template import TemplateTask
from interp.tasks.walks import SuccessorWalk

__all__ = ["KINDS", "known_task", "register_task", "task_from_dict"]

KINDS: dict[str, type[Any]] = {
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
    "nearest_point": NearestPoint,
    "segment_centres": SegmentCentres,
    "indexed_average": IndexedAverage,
    "permuted_patches": PermutedPatches,
    "permuted_translation": PermutedTranslation,
}


_SHIPPED = frozenset(KINDS)
_RENAMED = {"answers": "targets"}
"""Arguments that files written earlier give by another name."""
_VALUES = {("relation", "counter"): "uniform"}
"""Argument and value of files written earlier → the value that means it today."""


def register_task(kind: str, task: type[Any]) -> None:
    """Let recipes, checkpoints and stores of this program name a task class of one's own.

    Args:
        kind: What ``task.to_dict()["kind"]`` says: small letters, digits and underscores.
        task: A frozen dataclass with ``name``, ``sample`` and ``to_dict`` (:class:`Task`); its
            fields are the arguments, of types that JSON has, lists as tuples.

    Raises:
        ArgumentError: for a kind that is no such name or one of another class, or a class that is
            no task.
    """
    problems, known = Problems("register_task"), KINDS.get(kind)
    plain = isinstance(kind, str) and re.fullmatch("[a-z][a-z0-9_]*", kind) is not None
    rule = "must be small letters, digits and underscores"
    problems.need(plain, "kind", rule, kind, "e.g. first_copy")
    again = known is not None and kind not in _SHIPPED and _place(known) == _place(task)
    free = known is None or known is task or again
    problems.need(free, "kind", "must not be taken by another class", kind, "choose another")
    frozen = is_dataclass(task) and getattr(task, "__dataclass_params__").frozen  # noqa: B009
    good, rule = isinstance(task, type) and frozen, "must be a frozen dataclass"
    problems.need(good, "task", rule, task, "write @dataclass(frozen=True) above the class")
    missing = [name for name in ("name", "sample", "to_dict") if not hasattr(task, name)]
    problems.need(not missing, "task", "must have name, sample, to_dict", task, f"add {missing}")
    problems.raise_if_any()
    KINDS[kind] = task


def _place(task: Any) -> tuple[str, str]:
    """Where a class was written: a cell that is run again writes the same one anew."""
    return getattr(task, "__module__", ""), getattr(task, "__qualname__", "")


def known_task(data: Mapping[str, Any] | None) -> tuple[Task | None, str]:
    """The task that a checkpoint or store records, or None and, if it records one, why not."""
    if data is None:
        return None, ""
    try:
        return task_from_dict(data), ""
    except ArgumentError as error:
        if data.get("kind") in KINDS:
            return None, f"its task is left out: {error}"
        return None, (
            f"its task is of kind {data.get('kind')!r}, which is not known here: without "
            "register_task it is left out"
        )


def task_from_dict(data: Mapping[str, Any]) -> Task:
    """The task of :meth:`Task.to_dict`, or of a recipe's ``[task]`` table.

    Raises:
        ArgumentError: for an unknown kind, unknown or missing keys, values of another type, or
            arguments a task refuses.
    """
    problems = Problems("task")
    kind = data.get("kind")
    rule, advice = f"must be one of {', '.join(KINDS)}", "name one, or register_task your own"
    problems.need(kind in KINDS, "kind", rule, kind, advice)
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
    for key, value in given.items():
        if key in known and not known[key].fits(value):
            rule, advice = f"must be of type {known[key].type}", _advice(known[key], value)
            problems.need(False, key, rule, data[key], advice)
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


def _advice(argument: Argument, value: Any) -> str:
    return f"write [{value!r}]" if argument.fits((value,)) else "mend it"


def _today(key: str, value: Any) -> Any:
    """A value as arguments hold it: lists as tuples, names of older files as today's."""
    return _VALUES.get((key, str(value)), _as_tuples(value))


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(v) for v in value) if isinstance(value, list) else value
