"""The output of each command with ``--json``: the keys of its object, their types and meaning.

Commands build these objects and pass them to :func:`~prooflens.cli.usage.facts`; the JSON schemas
of the documentation are generated from them. Every object has one more key, ``lines``: the lines
that would have been printed. Tables are lists of rows (:mod:`probes.columns`), and numbers that are
not finite are null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from probes.columns import FirstRow, HeadRow, RevisionRow, RoleRow, RoundRow

Text = Annotated[str, "A path."]
Findings = Annotated[list[str], "What was found, in sentences."]
Notes = Annotated[list[str], "What was left out, and what a reader should know."]
Report = Annotated[str, "Path of the page."]


class NoOutput(TypedDict):
    """The output of a run without results, such as a dry run: it has no key but ``lines``."""


class CertifyOutput(TypedDict):
    """A proved bound on a model's error or accuracy."""

    kind: Annotated[Literal["error", "accuracy"], "What is bounded."]
    statement: Annotated[str, "The theorem in words."]
    measured: Annotated[float | None, "What was seen on rows."]
    bound: Annotated[float | None, "The best bound: on an error from above, else from below."]
    strategy: Annotated[str, "The strategy that gives it."]
    skipped: Annotated[dict[str, str], "Strategy → why it was not tried."]
    proofs: Annotated[list[StrategyOutput], "Every strategy that was tried."]


class StrategyOutput(TypedDict):
    """The result of one strategy of proof."""

    strategy: Annotated[str, "Its name."]
    bound: Annotated[float | None, "Its bound."]
    multiplications: Annotated[float, "What checking it costs."]
    seconds: Annotated[float, "How long it took."]
    vacuous: Annotated[str | None, "Why it says nothing; null if it says something."]


class ProgramOutput(TypedDict):
    """The properties of a C-RASP program."""

    depth: Annotated[int, "How deep its counts nest."]
    past_only: Annotated[bool, "Whether it counts the past alone."]
    alphabet: Annotated[list[str], "The tokens that it names."]
    names: Annotated[dict[str, int], "Each name → its depth."]
    warnings: Annotated[list[str], "What looks like a slip."]


class AcceptedOutput(TypedDict):
    """Which inputs a C-RASP program accepts."""

    accepted: Annotated[list[bool], "Whether it accepts each input."]


class DifferenceOutput(TypedDict):
    """Whether two programs accept the same strings, of every length."""

    same: Annotated[bool, "Whether they do."]
    difference: Annotated[list[str] | None, "The shortest string on which they part."]


class SmallestOutput(TypedDict):
    """The smallest program found that accepts the same strings."""

    program: Annotated[str, "Its text."]
    nodes: Annotated[int, "Expressions in it."]
    before: Annotated[int, "Expressions in the program that was given."]


class CompileOutput(TypedDict):
    """The transformer that computes a C-RASP program."""

    checkpoint: Annotated[str, "Folder of the checkpoint."]
    layers: Annotated[int, "Its layers."]
    width: Annotated[int, "Its d_model."]
    error: Annotated[float | None, "The certificate's bound on the error."]


class DecompileOutput(TypedDict):
    """The program that a model was decompiled into."""

    answer: Annotated[str, "Whether a program was found."]
    attention_needed: Annotated[bool, "False where a table on the current token decides alike."]
    program: Annotated[str, "Its text."]
    report: Report


class ApplyOutput(TypedDict):
    """How many decisions a program makes on rows, and how many are right."""

    decisions: Annotated[int, "How many decisions it takes."]
    right: Annotated[float | None, "Share that is as the labels say; null without labels."]


class ReadBackOutput(TypedDict):
    """The program that was read off the weights of a compiled model."""

    program: Annotated[str, "Its text."]
    agreement: Annotated[float, "Share of decisions on fresh strings that are the model's."]
    decisions: Annotated[int, "How many those are."]


class DemoOutput(TypedDict):
    """The findings of the demo."""

    findings: Findings
    report: Report


class ExtractOutput(TypedDict):
    """The store that was written."""

    store: Annotated[str, "Path of the store."]
    rows: Annotated[int, "Sealed rows."]
    hooks: Annotated[list[str], "The stored hooks."]
    conformance: Annotated[list[str], "Hooks that do not hold what their names say, in words."]
    overflows: Annotated[dict[str, int], "Hook → finite values that became infinite."]


class InspectOutput(TypedDict):
    """The roles of every head, FFN and layer of a model."""

    findings: Findings
    notes: Notes
    roles: Annotated[list[RoleRow], "The role table."]
    report: Report
    rounds: NotRequired[Annotated[list[RoundRow], "Rounds of a nested memory."]]


class ModelOutput(TypedDict):
    """A shipped model, or one that another package brings."""

    name: Annotated[str, "What load and all commands take."]
    kind: Annotated[str, "Its class."]
    weights: Annotated[int | None, "How many weights it has; null where another package has it."]
    task: Annotated[dict[str, Any] | None, "The task that it learned; null of a language model."]
    metrics: Annotated[dict[str, float | None], "Metric → number on fresh rows."]
    claim: Annotated[str, "The claim that it serves; empty for none."]
    about: Annotated[str, "What it is, in a sentence."]
    licence: NotRequired[Annotated[str, "The licence of another package's."]]
    needs: NotRequired[Annotated[str, "The command that installs it; empty where it is."]]


class ModelsOutput(TypedDict):
    """The models that have names."""

    models: Annotated[list[ModelOutput], "By name."]


class ProbeOutput(TypedDict):
    """Which latents can be decoded from activations, and where."""

    findings: Findings
    first: Annotated[list[FirstRow], "Where each latent can first be read."]


class HooksOutput(TypedDict):
    """The hooks that can be probed."""

    hooks: Annotated[list[str], "Each with its shape."]


class StoreOutput(TypedDict):
    """The contents of an activation store."""

    model: Annotated[str | None, "The model that it is of; null if it was not told."]
    weights_sha256: Annotated[str, "Digest of the model's weights."]
    rows: Annotated[int, "Sealed rows."]
    parts: Annotated[int, "Sealed parts."]
    complete: Annotated[bool, "Whether the extraction was finished."]
    lengths: Annotated[dict[str, int], "Tokens of a row → how many rows."]
    hooks: Annotated[list[str], "The stored hooks."]
    measurements: Annotated[list[str], "The names of its tables."]
    overflows: Annotated[dict[str, int], "Hook → finite values that became infinite."]


class FaultOutput(TypedDict):
    """A file or data set of a store that has changed since it was sealed."""

    file: Annotated[str, "Which file; index.jsonl for rows that no part holds."]
    dataset: Annotated[str, "Which data set; empty for the file as a whole."]
    reason: Annotated[str, "What is wrong."]


class VerifyOutput(TypedDict):
    """Whether a store is unchanged since it was sealed."""

    sound: Annotated[bool, "Whether it is."]
    faults: Annotated[list[FaultOutput], "What is not."]


class RepairOutput(TypedDict):
    """The files that were moved out of a store because they are damaged."""

    moved: Annotated[list[str], "Files that are in damaged/ now, or were deleted."]
    faults: Annotated[list[FaultOutput], "What could not be mended."]


class FiguresOutput(TypedDict):
    """The figures of a store."""

    figures: Annotated[list[str], "Names of the files that were drawn."]


class TasksOutput(TypedDict):
    """The kinds of tasks."""

    tasks: Annotated[dict[str, str], "Kind → what it is."]


class TaskOutput(TypedDict):
    """One kind of task, with its arguments."""

    kind: Annotated[str, "Its name."]
    arguments: Annotated[dict[str, ArgumentOutput], "Its arguments by name."]


class ArgumentOutput(TypedDict):
    """An argument of a task."""

    type: Annotated[str, "Its type, in words."]
    needed: Annotated[bool, "Whether it must be given."]
    default: Annotated[Any, "Its default; null if it must be given."]
    meaning: Annotated[str, "What it means; may be empty."]


class TrainedOutput(TypedDict):
    """A model that was trained."""

    name: Annotated[str, "The recipe's name."]
    checkpoint: Annotated[str | None, "Its folder; null if it was not written."]
    metrics: Annotated[dict[str, float | None], "Metric → number."]
    missed: Annotated[list[str], "Expected metrics that it does not reach, in words."]


class TrainOutput(TypedDict):
    """The models that were trained."""

    models: Annotated[list[TrainedOutput], "A model a recipe."]


class WeightsOutput(TypedDict):
    """The scores and findings from the weights of a model's heads."""

    findings: Findings
    notes: Notes
    rows: Annotated[int, "Rows of the table."]
    table: NotRequired[Annotated[list[HeadRow] | list[RevisionRow], "The table, without --out."]]
    report: NotRequired[Report]
    revisions: NotRequired[Annotated[list[str], "The checkpoints, with --revisions."]]
    fetched_bytes: NotRequired[Annotated[int, "What the hub sent, in bytes."]]


OUTPUTS: dict[str, tuple[type, ...]] = {
    "certify": (CertifyOutput, NoOutput),
    "crasp": (
        ProgramOutput,
        AcceptedOutput,
        DifferenceOutput,
        SmallestOutput,
        CompileOutput,
    ),
    "decompile": (DecompileOutput, ApplyOutput, ReadBackOutput),
    "demo": (DemoOutput,),
    "extract": (ExtractOutput, NoOutput),
    "inspect": (InspectOutput,),
    "models": (ModelsOutput,),
    "probe": (ProbeOutput, HooksOutput),
    "store": (StoreOutput, VerifyOutput, RepairOutput, FiguresOutput),
    "tasks": (TasksOutput, TaskOutput),
    "train": (TrainOutput, NoOutput),
    "weights": (WeightsOutput,),
}
"""Name of each command → the classes of the JSON objects that it may print. Its options decide
which one it is."""
