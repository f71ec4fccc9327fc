"""The proof that a task can be solved, built as a model: which construction belongs to which task.

A task without one here may well have a proof: this knows those whose model takes the task's own
inputs, so that both can be measured on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from interp.errors import ArgumentError
from interp.proofs.mechanism import Construction
from interp.tasks.base import Task

__all__ = ["construction_of"]


def construction_of(task: Task, *, rank: int = 4) -> Construction | None:
    """The task's proof as a model, or None where there is none or its numbers do not allow it.

    Args:
        task: Any.
        rank: Of the scores, where the proof truncates at one (a coupling's).
    """
    build = _builders(rank).get(type(task))
    if build is None:
        return None
    try:
        return build(task)
    except ArgumentError:
        return None  # the proof is for other sizes: lags too long, programs with guards …


def _builders(rank: int) -> dict[type, Callable[[Any], Construction]]:
    from interp.proofs.coupling import construct_pod
    from interp.proofs.induction import construct_relation
    from interp.proofs.memory import (
        construct_adaptive_memory,
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
        AdaptiveMemory: construct_adaptive_memory,
        KernelMemory: construct_kernel_memory,
        RealMemory: construct_kernel_memory,
        TokenRelation: construct_relation,
        TemplateTask: construct_template,
        PrefixPrediction: _compiled,
        PodCoupling: partial(construct_pod, m_h=rank),
    }


def _compiled(task: Any) -> Construction:
    """The task's own program as a transformer; it answers in bits."""
    from interp.proofs.depth.compiler import compile_program

    built = compile_program(task.program, longest=task.longest)
    name = f"compiled-{task.name}-{task.longest}"
    return replace(built, name=name, task=replace(task, answers="bits"))
