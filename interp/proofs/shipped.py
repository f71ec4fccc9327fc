"""Build the construction that solves a task: which construction belongs to which task.

A task without one here may well have a proof: this knows those whose model takes inputs of the
task's own kind, so that both can be measured alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from interp.errors import Problems
from interp.proofs.mechanism import Construction
from interp.tasks.base import Task

__all__ = ["construct", "has_proof"]


def construct(task: Task, *, rank: int = 4, **options: Any) -> Construction:
    """Build the proof of the task as a model, with its mechanism and certificate.

    The construction's ``task`` may differ from the one asked for: in how answers are written (bits,
    for programs), or in the values of an adaptive memory, which ramps read only as ±1.

    Args:
        task: A memory, a template, an in-context relation, a prefix question about a language, or a
            coupling (:func:`has_proof`).
        rank: Rank of the scores, where the proof truncates them (for a coupling).
        options: Options of the task's own construction, such as ``heads`` and ``positions`` for
            kernel memories; see ``interp.proofs``.

    Raises:
        ArgumentError: if no proof here is of such a task, or the task's numbers do not allow it:
            lags too long, programs with guards ….
    """
    problems, known = Problems("construct"), _builders(rank)
    names = ", ".join(sorted(kind.__name__ for kind in known))
    rule, advice = f"must be one of {names}", "its proof is not among those here"
    problems.need(type(task) in known, "task", rule, type(task).__name__, advice)
    problems.raise_if_any()
    return known[type(task)](task, **options)


def has_proof(task: Task) -> bool:
    """Whether :func:`construct` has a construction for tasks of this kind."""
    return type(task) in _builders(1)


def _builders(rank: int) -> dict[type, Callable[..., Construction]]:
    from interp.proofs.coupling import construct_pod
    from interp.proofs.induction import construct_relation
    from interp.proofs.memory import (
        construct_fixed_memory,
        construct_kernel_memory,
    )
    from interp.proofs.template import construct_template
    from interp.tasks.coupling import PodCoupling
    from interp.tasks.depth import PrefixPrediction
    from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
    from interp.tasks.relation import TokenRelation
    from interp.tasks.template import TemplateTask

    return {
        FixedMemory: construct_fixed_memory,
        AdaptiveMemory: _of_signs,
        KernelMemory: construct_kernel_memory,
        RealMemory: construct_kernel_memory,
        TokenRelation: construct_relation,
        TemplateTask: construct_template,
        PrefixPrediction: _compiled,
        PodCoupling: partial(construct_pod, m_h=rank),
    }


def _of_signs(task: Any, **options: Any) -> Construction:
    """The construction for the task with values of ±1 and the same locations, rounds and
    readout."""
    from interp.proofs.memory import construct_adaptive_memory

    return construct_adaptive_memory(replace(task, inputs="signs"), **options)


def _compiled(task: Any, **options: Any) -> Construction:
    """The task's own program compiled to a transformer, which answers in bits."""
    from interp.proofs.depth.compiler import compile_program

    built = compile_program(task.program, longest=task.longest, **options)
    name = f"compiled-{task.name}-{task.longest}"
    return replace(built, name=name, task=replace(task, targets="bits"))
