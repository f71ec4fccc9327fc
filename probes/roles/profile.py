"""A profile says on which rows roles are tested, in which unit an effect is measured, and how large
a score must be.

    TASK       rows of a task. An effect is a change of the output, as a share of its variance;
               an induction head's attention must lower the loss as well, if targets are known
    LANGUAGE   random tokens that repeat and the same tokens in random order, in-context templates,
               text. An effect is a rise of the loss, in nats per token

The rules are the same in both: a role is one entry of :mod:`probes.roles.registry`. A floor of 0
demands nothing. The floors were chosen on other models than those that the benchmark of role
detection uses. The level bounds the false-discovery rate of every test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from interp.tasks.base import Batch


@dataclass(frozen=True)
class Floors:
    """The least scores that pass, for all roles; the defaults are those of :data:`TASK`.

    Attributes:
        share: Least share of a head's attention that goes to the role's keys.
        excess: Least excess of that share over its null.
        even: Least closeness to even attention, 1 − total variation.
        local: Least share of attention within the window.
        elsewhere: Least share of attention that is not on the query's own position, for roles that
            attend elsewhere.
        selected: Least closeness to even attention over the keys that a rule selects, or to the
            head's mean attention.
        window: How many positions count as local, the query's own included.
        writer: Least share of attention to the previous token for an earlier head to count as one
            whose output later heads may read.
        fall: Least fall of the attention share when the earlier heads that the head reads from are
            ablated.
        identity: Least share of a token circuit's energy that c·I explains, relative to what the
            circuit's rank allows.
        leading: Least share of tokens whose own entry of the circuit is the largest of its row.
        positive: Least positive share of the circuit's eigenvalues, Σ Re λ / Σ |λ| along the
            diagonal's sign.
        copying: Least rise of the attended tokens' logits above those of other rows' tokens.
        mapped: Least share of tokens that a map must send to the same image on other rows, and to
            another token than themselves; also the least share of images that belong to one token
            only.
        gated: Least AUC with which attention on the first position predicts an event, and least
            share of queries that give nearly all of their attention to it, or nearly none.
        positional: Least cosine of a head's attention on different rows, above permuted attention.
        concentration: Least concentration of a layer's summed kernel at a memory (or cosine with
            the task's kernel).
        kernel_share: Least share of a head in the kernels' absolute weight.
        kernel_part: Least part of a head's own kernel at the memory, relative to the sum there.
        mixed: Least share of a head in the kernel of a second memory that it serves, in what
            copying heads write together, or in what the heads of an average do to the output; of
            what an FFN writes that depends on a source; and of queries in the rarer state of a
            gated head.
        carried: Least part of the heads' effect on the output that remains when what they write is
            replaced by its linear fit on an average, or their attention is moved to a memory's
            location alone.
        alone: Least part of an FFN's effect on the output that remains when what it writes is
            replaced by its linear fit on a latent.
        tabled: Least part of an FFN's effect on the output that remains when what it writes is
            replaced by a table over a few numbers; or of a head's, with its mean attention.
        passed: Least share of the output change that removing a source from the FFN's input alone
            causes which also appears when the source is removed from the whole stream.
        mixture: Least r², before an FFN that unmixes them, of a memory and of another content.
        kernel_beside: Least kernel weight of a head, relative to that for the memory it serves
            most.
        decodable: Least r² that counts as decodable.
        determined: Least r² with which a network predicts the counted quantity from a head's
            output.
        exchange: Least share of the way to the expected answers that an interchange intervention
            must move them.
        absent: Largest r² before a layer at which a latent counts as absent there; it is not 0
            because nested locations can coincide.
        drop: Least fall of r² that counts as lost.
        stops: Least fall of r² after which a round is no longer decodable.
        readout_gain: Least rise of r² at a readout, or of an average, as a share of what was
            missing.
        readout_drop: Least fall of r² without a readout, as a share of that rise.
        written: Least share of what an FFN writes that its answer explains.
        kept: Largest fall of an argument's r² at which the argument counts as kept.
        change: Least change of the output without a component, as a share of its variance.
        memory_change: Least change of the output, for the roles of memories and readouts.
        decisions: Least share of answers that are no longer right, where answers are tokens and the
            output changes by less than ``change``.
        loss: Least rise of the loss, in nats, or as a share of a real target's variance.
        specific: Least share of the loss through a role that is not lost in its controls as well.
        joint: Least part of a group's joint effect that a head must restore.
    """

    share: float = 0.6
    excess: float = 0.3
    even: float = 0.9
    local: float = 0.9
    elsewhere: float = 0.8
    selected: float = 0.8
    window: int = 5
    writer: float = 0.2
    fall: float = 0.3
    identity: float = 0.3
    leading: float = 0.25
    positive: float = 0.5
    copying: float = 0.2
    mapped: float = 0.9
    gated: float = 0.9
    positional: float = 0.3
    concentration: float = 0.8
    kernel_share: float = 0.01
    kernel_part: float = 0.001
    mixed: float = 0.1
    carried: float = 0.98
    alone: float = 0.5
    tabled: float = 0.9
    passed: float = 0.5
    mixture: float = 0.05
    kernel_beside: float = 0.01
    decodable: float = 0.9
    determined: float = 0.8
    exchange: float = 0.9
    absent: float = 0.5
    drop: float = 0.2
    stops: float = 0.4
    readout_gain: float = 0.5
    readout_drop: float = 0.5
    written: float = 0.05
    kept: float = 0.1
    change: float = 0.1
    memory_change: float = 0.05
    decisions: float = 0.1
    loss: float = 0.05
    specific: float = 0.5
    joint: float = 0.05


@dataclass(frozen=True)
class Profile:
    """The rows on which roles are tested, the unit of an effect, and the floors.

    Attributes:
        name: ``task`` or ``language``.
        unit: The unit of effects: ``variance`` (a change of the output, as a share of its variance)
            or ``nats`` (a rise of the loss).
        rows: Key set → the kind of rows on which attention to it is read
            (:mod:`probes.roles.evidence` has the names of the key sets).
        floors: The least scores that pass.
        level: The false-discovery rate that every q must stay below.
    """

    name: str
    unit: Literal["variance", "nats"]
    rows: Mapping[str, str]
    floors: Floors = field(default_factory=Floors)
    level: float = 0.01


TASK = Profile(
    "task",
    "variance",
    {
        "own": "given",
        "previous": "given",
        "first": "given",
        "local": "given",
        "uniform": "given",
        "fixed": "given",
        "related": "given",
        "periodic": "given",
        "same": "repeated",
        "after_same": "repeated",
    },
)
"""Which rows and floors are used for models of a task: rows of the task itself, effects as a share
of the output's variance."""

LANGUAGE = Profile(
    "language",
    "nats",
    {
        "own": "repeated",
        "previous": "repeated",
        "first": "repeated",
        "same": "shuffled",
        "after_same": "repeated",
        "predicted": "shuffled",
        "moved": "shuffled",
        "matched": "shuffled",
    },
    Floors(share=0.3, elsewhere=0.0, window=4, writer=0.3, fall=0.15),
)
"""Which rows and floors are used for language models: rows of tokens, effects in nats."""

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (TASK, LANGUAGE)}
"""Name of a profile → the profile."""


def outputs_of(model: Any) -> int | None:
    """Return the number of outputs (logits) of a model at each position, ``spec.d_out``.

    None for a model without that, such as a language model, which has an output for each token.
    """
    found: int | None = getattr(getattr(model, "spec", None), "d_out", None)
    return found


def profile_of(batch: Batch, outputs: int | None = None) -> Profile:
    """Return the profile that fits some rows.

    It is ``LANGUAGE`` if each scored target is the next token of its row, so that an effect is a
    rise of the loss in nats. It is ``TASK`` for all other targets, and for rows with token ids that
    the model has no output for, which it cannot copy.

    Args:
        batch: The rows.
        outputs: How many outputs the model has; None if it has one for each token.
    """
    if batch.inputs.ndim != 2 or batch.targets.shape != batch.inputs.shape:
        return TASK
    if outputs is not None and bool((batch.inputs >= outputs).any()):
        return TASK
    scored = batch.mask[:, :-1]
    same = batch.targets[:, :-1] == batch.inputs[:, 1:]
    return LANGUAGE if bool(scored.any()) and bool(same[scored].all()) else TASK
