"""What a role is: its sentence, what is asked of a component for it, and its detectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from interp.tasks.base import Batch
from probes.roles.decision import Found, Lacking
from probes.roles.examined import Examined
from probes.roles.surrogates import Surrogate

Detector = Callable[[Examined], Iterable[Found | Lacking]]
"""What it finds of every component, and what it could not look for; it changes nothing that it is
given."""

CONTROLS = {
    "events": "the loss rises (the output changes) where its event happens, and not as much at "
    "other positions",
    "keys": "it does so without that attention, and not as much without the head's other attention",
    "straight": "it does so without the head, and not as much when later layers alone lose what it "
    "writes; and of what is lost without what it adds to the logits half is due to the tokens it "
    "attends to (of a map, to their images)",
    "pattern": "it does so without the head, and not as much when its attention is the mean over "
    "rows",
}
"""Which controls there are (:mod:`probes.roles.specificity`) → what they ask, in words."""


@dataclass(frozen=True)
class RoleCase:
    """A model in which it is known what plays a role, for judging the role's detector.

    Attributes:
        name: What the model is called in the benchmark.
        model: A hooked model.
        rows: The rows to look for the role on.
        plays: The component, layer and head of each that plays it, head −1 for what is no head;
            empty for a decoy, in which nothing plays it.
    """

    name: str
    model: Any
    rows: Batch
    plays: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Role:
    """A role: what a component does, and what is tested for it.

    Attributes:
        name: The name in the column ``role``.
        sentence: What a component of this role does, in a sentence.
        behaviours: What must be observed of the component.
        causes: What must be lost without it.
        floors: Names of the :class:`~probes.roles.profile.Floors` that its tests are compared with.
        strength: What the column ``strength`` holds; ``effect`` holds the last cause.
        source: The publication that describes the role.
        profiles: The profiles in which the role is looked for.
        detectors: The detectors that give its tests; each is asked once for all roles that name it.
        keys: The class of keys that the role is about, if it says where a head looks.
        control: What a cause must be specific against, one of :data:`CONTROLS`; empty if it has
            none.
        uncontrolled: Why it has none, or none in the profile ``task``.
        cases: Models of known truth that a package's role is judged on
            (``python -m analyses benchmark plugin_roles``); shipped roles have their own
            benchmark.
        surrogate: What runs in the component's place (:mod:`probes.roles.explanation`); None where
            the role does not say.
    """

    name: str
    sentence: str
    behaviours: tuple[str, ...]
    causes: tuple[str, ...]
    floors: tuple[str, ...]
    strength: str
    source: str
    detectors: tuple[Detector, ...]
    profiles: tuple[str, ...] = ("task",)
    keys: str = ""
    control: str = ""
    uncontrolled: str = ""
    cases: Callable[[], Iterable[RoleCase]] | None = None
    surrogate: Surrogate | None = None
