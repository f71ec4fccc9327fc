"""The construction for a given task, and a list of memory constructions: families × sizes × seeds.

`fixed` and `real` are Task I (Boolean and Lipschitz readouts), `adaptive` is Task II in one round,
`nested` in several, `sparse` is Task III. The model of every case meets its certificate, and the
certificate is tight (``tests/interp/proofs/test_certificates.py``). The list is a sample for trying
a tool on many models; what can be built is wider, and each construction says what it refuses.

A task without a construction here may well have a proof. This module knows those constructions
whose model takes inputs of the task's own kind, so that a trained model can be measured in the same
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from interp.errors import Problems
from interp.proofs.mechanism import Case, Construction
from interp.proofs.memory.adaptive import construct_adaptive_memory
from interp.proofs.memory.fixed import construct_fixed_memory
from interp.proofs.memory.kernels import construct_kernel_memory
from interp.tasks.base import Task
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory


def construct(task: Task, *, rank: int = 4, **options: Any) -> Construction:
    """Build the proof of the task as a model, with its mechanism and certificate.

    The construction's ``task`` may differ from the given one in how answers are encoded (bits, for
    programs), or in the values of an adaptive memory, which ramps read only as ±1.

    Args:
        task: A memory, a template, an in-context relation, a prefix question about a language, or a
            coupling (:func:`has_proof`).
        rank: Rank of the scores, if the proof truncates them (for a coupling).
        options: Options of the task's own construction, such as ``heads`` and ``positions`` for
            kernel memories; see ``interp.proofs``.

    Raises:
        ArgumentError: if there is no construction for such a task, or the task's parameters do not
            allow one: lags too long, programs with guards ….
    """
    problems, known = Problems("construct"), _builders(rank)
    names = ", ".join(sorted(kind.__name__ for kind in known))
    rule, advice = f"must be one of {names}", "its proof is not among those here"
    problems.need(type(task) in known, "task", rule, type(task).__name__, advice)
    problems.raise_if_any()
    return known[type(task)](task, **options)


def has_proof(task: Task) -> bool:
    """Return whether :func:`construct` has a construction for tasks of this kind."""
    return type(task) in _builders(1)


def _builders(rank: int) -> dict[type, Callable[..., Construction]]:
    from interp.proofs.coupling import construct_pod
    from interp.proofs.induction import construct_relation
    from interp.proofs.template import construct_template
    from interp.tasks.coupling import PodCoupling
    from interp.tasks.depth import PrefixPrediction
    from interp.tasks.relation import TokenRelation
    from interp.tasks.template import TemplateTask

    return {
        FixedMemory: construct_fixed_memory,
        AdaptiveMemory: _of_signs,
        KernelMemory: construct_kernel_memory,
        RealMemory: construct_kernel_memory,
        TokenRelation: construct_relation,
        TemplateTask: construct_template,
        PrefixPrediction: _compile_task,
        PodCoupling: partial(construct_pod, m_h=rank),
    }


def _of_signs(task: Any, **options: Any) -> Construction:
    """Build the construction for the task with values of ±1 and the same locations, rounds and
    readout."""
    return construct_adaptive_memory(replace(task, inputs="signs"), **options)


def _compile_task(task: Any, **options: Any) -> Construction:
    """Compile the task's own program to a transformer, which answers in bits."""
    from interp.proofs.depth.compiler import compile_program

    built = compile_program(task.program, longest=task.longest, **options)
    name = f"compiled-{task.name}-{task.longest}"
    return replace(built, name=name, task=replace(task, targets="bits"))


_Build = partial[Construction]
"""A function without arguments left to give, which builds the construction for a task with its
options."""

FAMILIES = ("fixed", "real", "adaptive", "nested", "sparse")


def cases(*families: str) -> tuple[Case, ...]:
    """Return the cases of the named families; of all families by default.

    Raises:
        ArgumentError: if a family is unknown.
    """
    problems = Problems("cases")
    rule = f"must be among {', '.join(FAMILIES)}"
    for family in families:
        problems.need(family in FAMILIES, "families", rule, family, "name one of them")
    problems.raise_if_any()
    wanted = families or FAMILIES
    return tuple(case for case in _ALL if case.family in wanted)


def constructions(*families: str) -> Iterator[Construction]:
    """Build the constructions of the named families one by one; of all families by default.

    Raises:
        ArgumentError: if a family is unknown.
    """
    return (case.construct() for case in cases(*families))


def _name(build: _Build) -> str:
    """Return a case's name: the task, the seed of its table or readout, and the construction's
    options."""
    task = build.args[0]
    seed = getattr(task, "table_seed", None) or getattr(task, "readout_seed", 0)
    return "-".join([task.name, str(seed), *map(str, build.keywords.values())])


def _fixed_builds() -> Iterator[_Build]:
    tasks = [
        FixedMemory((1, 3), "multiplexer"),
        FixedMemory((2, 4), "majority"),
        FixedMemory((1, 2, 4), "parity"),
        FixedMemory((5,), "parity"),
    ]
    tasks += [FixedMemory((1, 2), "table", table_seed=seed) for seed in range(3)]
    tasks += [FixedMemory((1, 3, 4), "table", table_seed=seed) for seed in range(2)]
    return (partial(construct_fixed_memory, task) for task in tasks)


def _real() -> Iterator[_Build]:
    tasks = [
        RealMemory((3,)),
        RealMemory((1, 4), "mean"),
        RealMemory((1, 2), "maximum"),
        RealMemory((2,), "waves", inputs="signs"),
    ]
    tasks += [RealMemory((1, 3), "network", readout_seed=seed) for seed in range(2)]
    return (partial(construct_kernel_memory, task) for task in tasks)


def _adaptive() -> Iterator[_Build]:
    pair = AdaptiveMemory((1, 2), rounds=1, length=16)
    spread = AdaptiveMemory((1, 2, 4), rounds=1, readout="parity", length=24)
    together = AdaptiveMemory((1, 3), rounds=0, concurrent=2, readout="multiplexer", length=24)
    for seed in range(2):
        yield partial(construct_adaptive_memory, replace(pair, table_seed=seed))
        yield partial(construct_adaptive_memory, replace(spread, table_seed=seed))
    yield partial(construct_adaptive_memory, together)
    yield partial(construct_adaptive_memory, replace(spread, bits=3), gate="dot")


def _nested_builds() -> Iterator[_Build]:
    two = AdaptiveMemory((1, 2, 4), rounds=2, readout="parity", length=24)
    mixed = AdaptiveMemory((1, 2, 3), rounds=2, concurrent=2, readout="majority", length=24)
    four = AdaptiveMemory((1, 2), rounds=4, readout="table", bits=3, length=16)
    for seed in range(2):
        yield partial(construct_adaptive_memory, replace(two, table_seed=seed))
        yield partial(construct_adaptive_memory, replace(mixed, table_seed=seed))
    yield partial(construct_adaptive_memory, replace(two, rounds=3), gate="dot")
    yield partial(construct_adaptive_memory, four)


def _sparse() -> Iterator[_Build]:
    light = KernelMemory(("light(6, 1.3)",), length=48)
    heavy = KernelMemory(("heavy(2)",), length=48)
    three = KernelMemory(("light(6, 1.3)", "bump(2, 2)", "0.5 exponential(0.3)"), "maximum")
    network = KernelMemory(("light(4, 1.5)", "bump(3, 2)"), "network", length=48)
    yield partial(construct_kernel_memory, light, heads=4)
    yield partial(construct_kernel_memory, heavy, heads=2, positions="log")
    yield partial(construct_kernel_memory, replace(light, burn_in=24), normalizer="softmax")
    yield partial(construct_kernel_memory, three)
    yield partial(construct_kernel_memory, replace(network, readout="waves", inputs="signs"))
    for seed in range(2):
        yield partial(construct_kernel_memory, replace(network, readout_seed=seed))


_ALL = tuple(
    Case(_name(build), build, family)
    for family, make in zip(
        FAMILIES, (_fixed_builds, _real, _adaptive, _nested_builds, _sparse), strict=True
    )
    for build in make()
)
