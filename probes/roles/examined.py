"""What a detector is given: evidence, effects of changes, and a reader of latents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interp.tasks.base import Memory
from interp.tasks.counterfactual import Variable
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence
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
