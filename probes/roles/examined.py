"""What detectors of roles are given (evidence, effects of edits, a reader of latents), and the
finding that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interp.tasks.base import Memory
from interp.tasks.counterfactual import Variable
from probes.roles.decision import Found, Test
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place
from probes.roles.reader import Reader

Watch = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Examined:
    """A model, or stores of its activations, as detectors of roles are given it.

    Attributes:
        evidence: The model and its rows, with the attention of its heads.
        effects: The effects of ablations and other edits; None without a model.
        reader: Linear probes for latents; None without a model or without latents to look for.
        memories: The contents that the task says are fetched.
        answers: Latent → the names of the latents that the task says it is computed from.
        sought: Latents whose exchange between rows decides the role of a head.
        watch: A wrapper around the loop over heads, for a progress bar.
    """

    evidence: Evidence
    effects: Effects | None = None
    reader: Reader | None = None
    memories: Sequence[Memory] = ()
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sought: Sequence[Variable] = ()
    watch: Watch = iter


def of_head(
    place: Place,
    role: str,
    tests: Sequence[Test],
    cause: Sequence[Test] | None,
    strength: float | None = None,
    **more: Any,
) -> Found:
    """Make the finding that a head may play a role.

    Args:
        place: Layer and number of the head.
        role: The name of the role.
        tests: The tests of the behaviour.
        cause: The tests of the cause; None where no model could be run.
        strength: The number by which the role is measured; the first test's score by default.
        more: Other fields of :class:`~probes.roles.decision.Found`.
    """
    layer, head = place
    number = tests[0].score if strength is None else strength
    return Found("head", layer, role, number, tests, cause, head=head, **more)
