"""What a detector is given: evidence, effects of changes, a reader of latents; what it gives."""

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
    """A model, or stores of its activations, as detectors see it.

    Attributes:
        evidence: What heads do, on the rows of each kind.
        effects: What is lost without a component; None without a model.
        reader: What probes read; None without a model or latents.
        memories: The contents that the task says are fetched.
        answers: Latent → what the task says that it is computed from.
        sought: Latents by whose exchange the role of a head is decided.
        watch: Wraps the loop over heads, for a progress bar.
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
    """What was found of a head.

    Args:
        place: The head.
        role: The role that it may play.
        tests: The tests of its behaviour.
        cause: The tests of its cause; None where nothing could be run.
        strength: The number by which the role is measured; the first test's score by default.
        more: Other fields of :class:`~probes.roles.decision.Found`.
    """
    layer, head = place
    number = tests[0].score if strength is None else strength
    return Found("head", layer, role, number, tests, cause, head=head, **more)
