"""Which task a piece of JSON or TOML names: ``kind`` chooses the class, the rest its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from interp.errors import ArgumentError, Problems
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
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.relation import TokenRelation
from interp.tasks.template import TemplateTask
from interp.tasks.walks import SuccessorWalk

__all__ = ["KINDS", "task_from_dict"]

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
    "pod_coupling": PodCoupling,
    "linear_kernel": LinearKernel,
    "nearest_point": NearestPoint,
    "segment_centres": SegmentCentres,
    "indexed_average": IndexedAverage,
    "permuted_patches": PermutedPatches,
    "permuted_translation": PermutedTranslation,
}


def task_from_dict(data: Mapping[str, Any]) -> Task:
    """The task of :meth:`Task.to_dict`, or of a recipe's ``[task]`` table.

    Raises:
        ArgumentError: for an unknown kind, unknown or missing keys, or arguments a task refuses.
    """
    problems = Problems("task")
    kind = data.get("kind")
    problems.need(kind in KINDS, "kind", f"must be one of {', '.join(KINDS)}", kind, "name one")
    problems.raise_if_any()
    cls = KINDS[str(kind)]
    known = {f.name: f for f in fields(cls)}
    required = {
        n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING
    }
    arguments = {key: value for key, value in data.items() if key != "kind"}
    for key in sorted(set(arguments) - set(known)):
        problems.need(False, key, f"must be an argument of {kind}", arguments[key], "remove it")
    for key in sorted(required - set(arguments)):
        problems.need(False, key, f"must be given for {kind}", None, "add it")
    problems.raise_if_any()
    given = {key: _as_tuples(value) for key, value in arguments.items()}
    try:
        task: Task = cls(**given)
    except TypeError as error:
        text = f"task {kind}: an argument is of the wrong type ({error}): got {given}"
        raise ArgumentError(text) from error
    return task


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(v) for v in value) if isinstance(value, list) else value
