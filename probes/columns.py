"""The columns of every table that a measurement seals: names, types and meaning, in one place.

A table's row is a TypedDict: its docstring says what a row is, and each column has a sentence with
its unit. Tables with one column for each key, latent or offset say so in :class:`TableColumns`. A
number that may be unknown (NaN in a table, null in JSON) is ``float | None``.

The JSON schemas of the documentation are written from these, and tests hold them against the tables
of real runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated, Literal, NotRequired, TypedDict

Component = Annotated[str, "head, ffn, layer, position or group."]
Layer = Annotated[int, "Number of the layer, from 0; −1 where none applies."]
Head = Annotated[int, "Number of the head in its layer, from 0; −1 where none applies."]
Trial = Annotated[str, "Which rows: text, repeated, given …"]
Group = Annotated[int, "Number of the kind of rows, in the order in which they are shown."]
Kind = Annotated[str, "Kind of rows: text, repeated, given, prompt …"]
Chance = Annotated[float | None, "Probability of so large a score under the null."]
Adjusted = Annotated[float | None, "p with false discovery controlled over its family."]
Low = Annotated[float | None, "Lower end of the 95 % interval; unknown where none was taken."]
High = Annotated[float | None, "Upper end of that interval."]
RoundModel = Annotated[
    str, "this model; or constructed, with its values and lags if they are not the task's."
]


class RoleRow(TypedDict):
    """One component and a role that it may play, with the evidence."""

    component: Component
    layer: Layer
    head: Head
    group: Annotated[str, "The components that act together; empty for one alone."]
    role: Annotated[str, "Name of the role, such as induction."]
    target: Annotated[str, "For what: a latent, another head; empty where the role has none."]
    status: Annotated[str, "confirmed, candidate, rejected …: a key of prooflens.roles.MEANINGS."]
    outcome: Annotated[
        str,
        "Of a head: primary (missed alone), secondary (missed only with its group), correlate (not "
        "missed), interferer (the model does better without it), null (none is shown).",
    ]
    strength: Annotated[float, "The number by which the role is measured, in the role's own unit."]
    p: Annotated[float, "The largest p of the tests that decide."]
    q: Annotated[float, "The largest q of these tests."]
    effect: Annotated[float | None, "Lost without it: nats or share of variance."]
    effect_of_group: Annotated[
        float | None, "Lost without its whole group; unknown for what is in no such group."
    ]
    stability: Annotated[
        float | None, "Share of resamples of the rows on which all scores reach their floors."
    ]
    halves: Annotated[
        float | None, "Share of splits of the rows on whose two halves the scores say the same."
    ]
    percentile: Annotated[
        float | None, "Of a group: share of random sets without which less is lost."
    ]
    same_answer: Annotated[
        float | None,
        "Of what is lost with its write on a row with another answer, the share that its write "
        "on a row with the same answer by another route keeps; unknown where not asked.",
    ]
    evidence: Annotated[str, "All tests in words."]
    missing: Annotated[str, "Which tests could not be made, and why."]
    tests: Annotated[list[TestRow], "The tests; in a store and in CSV files as JSON text."]
    by_position: NotRequired[Annotated[str, "How the strength changes along a row, in words."]]
    revision: NotRequired[Annotated[str, "With --revisions: the checkpoint that was inspected."]]
    text_attention: NotRequired[
        Annotated[float | None, "Share of its attention on the text given that is the role's."]
    ]
    text_loss: NotRequired[
        Annotated[float | None, "Share of what is lost there without it that the role's keys keep."]
    ]
    text_first: NotRequired[
        Annotated[float | None, "Share of its attention there on the first token."]
    ]


class TestRow(TypedDict):
    """One test of a role: a score with its floor."""

    name: Annotated[str, "What is measured, in words."]
    kind: Annotated[
        Literal["behaviour", "cause", "specificity", "transfer", "sufficiency"],
        "Which question it answers.",
    ]
    score: Annotated[float | None, "The measured score, in the unit that the name says."]
    floor: Annotated[float | None, "The least score that passes."]
    p: Chance
    q: Adjusted
    low: Low
    high: High


class HeadRow(TypedDict):
    """A score of a head or FFN, compared with its null (a head table)."""

    component: Component
    layer: Layer
    head: Head
    group: Annotated[str, "The heads that act together; empty for one alone."]
    circuit: Annotated[str, "Circuit of the weights: QK or OV, with +aI or +bI; empty for none."]
    metric: Annotated[str, "What is measured, such as attention_mass or loss_increase."]
    target: Annotated[str, "Of what: a class of keys, a latent, a lag, another head."]
    site: Annotated[str, "The hook that it is read at; empty for none."]
    method: Annotated[str, "How the model was changed: mean, zero, resample …; empty for not."]
    null: Annotated[str, "What the score is compared with: positions, tokens, signs …"]
    trial: Trial
    score: Annotated[float | None, "The score, in the metric's unit."]
    null_mean: Annotated[float | None, "The score's mean under the null."]
    null_std: Annotated[float | None, "The score's standard deviation under the null."]
    p: Chance
    q: Adjusted
    effect: Annotated[float | None, "score − null_mean."]
    low: Annotated[float | None, "Lower end of the 95 % interval of the effect; unknown for none."]
    high: High
    draws: Annotated[int, "Draws of the null; 0 where its moments are exact."]


class RevisionRow(HeadRow):
    """A score of a head or FFN at one checkpoint of the model's training."""

    revision: Annotated[str, "Name of the checkpoint."]


class TrialRow(TypedDict):
    """How well the model does on one kind of rows."""

    trial: Trial
    loss: Annotated[float | None, "Mean loss: nats a token, or share of the target's variance."]
    control: Annotated[float | None, "The same on control rows; unknown without any."]
    accuracy: Annotated[float | None, "Share of scored positions with the right token or sign."]
    p: Annotated[float | None, "Probability of a loss so far below the control's by chance."]
    chance: Annotated[float | None, "Loss of the best answer that is always the same."]
    guess: Annotated[float | None, "Accuracy of that answer."]
    worst: Annotated[float | None, "Largest absolute error of real values; unknown for tokens."]
    able: Annotated[bool, "Whether the model does better than always the same answer."]


class ExplainedRow(TypedDict):
    """How much of a head's attention and effect on one kind of rows its confirmed roles explain."""

    layer: Layer
    head: Head
    roles: Annotated[str, "The roles that say where it looks, with commas."]
    trial: Trial
    attention: Annotated[float | None, "Share of its attention on the keys of these roles."]
    loss: Annotated[float | None, "Share of what is lost without it that these keys make up."]
    rest: Annotated[str, "The tokens that get most of the other attention, with shares."]


class LackRow(TypedDict):
    """A role that could not be tested for."""

    role: Annotated[str, "Name of the role."]
    reason: Annotated[str, "Why."]


class DecodabilityRow(TypedDict):
    """How well a linear probe decodes a latent at one hook."""

    latent: Annotated[str, "Name of the latent."]
    site: Annotated[str, "The hook that is read."]
    score: Annotated[float | None, "Held-out r²; of classes balanced accuracy."]


class AttentionRow(TypedDict):
    """Mean attention of one query of a head with a role, over all keys."""

    head: Annotated[str, "The head, its targets, and its status unless it is confirmed."]
    query: Annotated[int, "Position of the query, in tokens from 0."]


class RoundRow(TypedDict):
    """Where a latent of a nested memory is first decodable, in this model or the construction."""

    model: RoundModel
    latent: Annotated[str, "Name of the latent."]
    layer: Annotated[int, "Where it first is decodable; −1 for nowhere."]
    after: Annotated[str, "embedding, attention, FFN or nowhere."]
    r2: Annotated[float | None, "Held-out r² there."]
    without: Annotated[str, "The earlier part without which most of it is lost."]
    lost: Annotated[float | None, "The r² that is lost without that part."]
    before: Annotated[float | None, "The r² lost without the round before; unknown for the first."]


class RoundReadableRow(TypedDict):
    """Which latents of a nested memory are decodable at one place: one column for each latent."""

    place: Annotated[str, "Where it is read."]
    model: RoundModel


class RoundKernelRow(TypedDict):
    """The summed kernel of a layer's heads around the location of a memory.

    Beside these columns the table has one for each offset from that location (such as ``+1``), with
    the heads' signed weight at this offset as a share of their absolute weight over all keys.
    """

    layer: Annotated[str, "The layer, in words."]
    memory: Annotated[str, "Name of the latent."]
    model: RoundModel


class ShownTokenRow(TypedDict):
    """One token of a row that the viewer shows."""

    group: Group
    kind: Kind
    row: Annotated[int, "Number of the row."]
    position: Annotated[int, "Position in the row, in tokens from 0."]
    token: Annotated[str, "The token as text."]
    scored: Annotated[bool, "Whether the model is asked there."]


class ShownHeadRow(TypedDict):
    """Numbers of a head on the rows that the viewer shows, in one byte each: low + code · step."""

    group: Group
    kind: Kind
    layer: Layer
    head: Head
    part: Annotated[str, "pattern (share), written (norm) or effect (nats, or share of variance)."]
    low: Annotated[float, "What code 0 stands for."]
    step: Annotated[float, "What lies between two codes."]
    error: Annotated[float, "Largest |number − what its code stands for|."]
    codes: Annotated[str, "The bytes, as base64."]


class ShownScoreRow(TypedDict):
    """A head's score on one row, by which the viewer orders the rows shown for this head."""

    group: Group
    kind: Kind
    layer: Layer
    head: Head
    keys: Annotated[str, "A class of keys; or effect, for the mean rise of the loss."]
    row: Annotated[int, "Number of the row."]
    score: Annotated[float | None, "Share of attention on them; nats, or share of the variance."]


class ShownLagRow(TypedDict):
    """Mean attention of a head to the key a number of tokens back."""

    group: Group
    kind: Kind
    layer: Layer
    head: Head
    lag: Annotated[int, "Tokens back; negative for keys that come later."]
    share: Annotated[float | None, "Share of attention."]


class RaisedRow(TypedDict):
    """A token whose logit a head raises or lowers when it attends to a given token.

    Computed from the weights alone, without running the model.
    """

    layer: Layer
    head: Head
    token: Annotated[str, "The token attended to."]
    way: Annotated[Literal["up", "down"], "Whether it is raised or lowered."]
    rank: Annotated[int, "Place in the order of sizes, from 0."]
    raised: Annotated[str, "The token whose logit changes."]
    logit: Annotated[float | None, "By how much, in logits up to a scale a head."]


class FactRow(TypedDict):
    """One fact about a measurement, such as the model, the rows, the profile or the notes."""

    name: Annotated[str, "Name of the fact."]
    value: Annotated[str, "The fact, as JSON text."]


class FirstRow(TypedDict):
    """The first hook at which a latent is decodable."""

    latent: Annotated[str, "Name of the latent."]
    hook: Annotated[str, "The hook; empty if nowhere."]
    score: Annotated[float | None, "The probe's score there, or the best one anywhere."]


def columns(row: type) -> tuple[str, ...]:
    """Return the names of a row's columns, in order."""
    return tuple(row.__annotations__)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, including those that are named after keys, latents or offsets.

    Attributes:
        row: The TypedDict of a row.
        pattern: A regular expression that the names of further columns match; empty for none.
        further: What the further columns hold, with their unit.
    """

    row: type
    pattern: str = ""
    further: str = ""

    @property
    def about(self) -> str:
        """A sentence that says what a row is."""
        return cleandoc(self.row.__doc__ or "")


TABLES = {
    "roles": TableColumns(RoleRow),
    "heads": TableColumns(HeadRow),
    "loss-TRIAL": TableColumns(HeadRow),
    "trials": TableColumns(TrialRow),
    "explained": TableColumns(ExplainedRow),
    "lacks": TableColumns(LackRow),
    "decodability": TableColumns(DecodabilityRow),
    "attention-ROLE": TableColumns(
        AttentionRow, r"^key \d+$", "Share of attention on this position."
    ),
    "rounds": TableColumns(RoundRow),
    "rounds-readable": TableColumns(
        RoundReadableRow, "^(?!place$|model$)", "Held-out r² of this latent."
    ),
    "rounds-kernels": TableColumns(
        RoundKernelRow,
        r"^[+-]\d+$",
        "Signed weight at this offset, as a share of the absolute weight over all keys.",
    ),
    "shown-rows": TableColumns(ShownTokenRow),
    "shown-heads": TableColumns(ShownHeadRow),
    "shown-scores": TableColumns(ShownScoreRow),
    "shown-lags": TableColumns(ShownLagRow),
    "raised": TableColumns(RaisedRow),
    "facts": TableColumns(FactRow),
}
"""Name of each table that an inspection stores → its columns. In a name, ROLE stands for the name
of a role and TRIAL for a kind of rows."""
