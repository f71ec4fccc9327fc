"""``prooflens demo``: a trained and a constructed model of one task, measured and compared.

task → hooked models → each inspected → compared with the proof → report.html

The page has only what a comparison shows; each model has its own page beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.figures.lines import kernels_by_lag
from interp.figures.maps import Panel, share_maps
from interp.figures.style import save
from interp.interventions.components import components
from interp.models.card import ModelCard
from interp.models.transformer import SequenceTransformer
from interp.output import json_data, output_folder
from interp.proofs.mechanism import Certificate, Construction
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory
from interp.threads import one_thread
from probes.agreement import agreement
from probes.kernels import LayerKernels, layer_kernels
from prooflens.inspection import Inspected, inspect
from prooflens.pages.findings import status_counts
from prooflens.pages.page import Page, PageTable, Picture, Section, render
from trained import zoo


@dataclass(frozen=True)
class ComparedModel:
    """One of the models that are compared.

    Attributes:
        name: The name of the model, in words.
        model: The model.
        task: The task on which it was measured.
        inspected: The results of its inspection.
        kernels: What its heads attend to and write, by lag.
    """

    name: str
    model: SequenceTransformer
    task: FixedMemory
    inspected: Inspected
    kernels: LayerKernels

    @property
    def roles(self) -> pd.DataFrame:
        """The role table of the model."""
        return self.inspected.roles

    @property
    def memories(self) -> Mapping[str, int]:
        """The latent of each memory → the lag from which it is fetched."""
        return dict(zip(self.task.arguments[1:], self.task.lags, strict=True))

    @property
    def performance(self) -> Mapping[str, Any]:
        """How well it solves its task: ``accuracy`` (share of positions with the right sign),
        ``loss`` (squared error over the target's variance) and ``worst`` (absolute error)."""
        return dict(self.inspected.measured["trials"].iloc[0])


def roles_in_words(one: ComparedModel) -> str:
    """Return a sentence that names, for each memory, the heads confirmed to extract it, and the FFN
    confirmed to compute the Boolean function; or says that none is confirmed."""
    return f"In the {one.name} model " + "; ".join(_role_sentences(one)) + "."


def proof_in_words(built: ComparedModel, held: pd.DataFrame, certificate: Certificate) -> str:
    """Say which roles are confirmed in the construction, how exact it is, and how many of its
    statements hold for each model.

    Args:
        built: The construction.
        held: Model → whether each statement holds for it.
        certificate: The certificate of the construction.
    """
    heads = _memory_heads(built)
    sizes = heads["target"].value_counts(sort=False)
    groups = ", ".join(f"{count} for {memory}" for memory, count in sizes.items())
    direct = _looking_at_their_lag(built)
    worst, bound = built.performance["worst"], certificate.error
    exact = "within" if worst <= bound else "ABOVE"
    counts = {name: int(holds.sum()) for name, holds in held.items()}
    held_by = ", ".join(f"{count} hold for the {name} model" for name, count in counts.items())
    found = f"with {len(heads)} confirmed memory heads ({groups})" if len(heads) else "unconfirmed"
    return (
        f"The constructed proof, {found}, of which {direct} attend most to the lag they serve, has "
        f"a worst error of {worst:.1e}, {exact} its certificate of {bound:.1e}. Of its {len(held)} "
        f"statements about which component does what, {held_by}."
    )


def solving(one: ComparedModel) -> str:
    """Return a sentence about how well the model solves its task."""
    found = one.performance
    return (
        f"On fresh rows the {one.name} model is right at {found['accuracy']:.2%} of positions "
        f"(error {found['loss']:.1e} of the target's variance)."
    )


def looking(one: ComparedModel) -> str:
    """Return sentences about how many confirmed memory heads attend most to the lag of their
    memory, and which share of the kernel summed over heads is at each memory's lag."""
    heads = _memory_heads(one)
    direct = _looking_at_their_lag(one)
    sums = ", ".join(
        f"{one.kernels.concentration(memory, lag):.1%} for {memory} at lag {lag}"
        for memory, lag in one.memories.items()
    )
    served = (
        f"{direct} of {len(heads)} confirmed memory heads attend most to the lag they serve"
        if len(heads)
        else "no memory head is confirmed"
    )
    kernel = f"Share of the heads' summed kernel at the memory's lag: {sums}."
    return f"In the {one.name} model {served}. {kernel}"


def margins(certificate: Certificate) -> str:
    """Return a sentence about the terms of the certificate."""
    parts = ", ".join(f"{name} {value:.2g}" for name, value in certificate.parts.items())
    return (
        f"The construction's certificate of {certificate.error:.1e} is for "
        f"{certificate.domain}. It is made of: {parts}; the slots' errors must sum to less than "
        "the margin, which the readout then removes."
    )


def _memory_heads(one: ComparedModel) -> pd.DataFrame:
    roles = one.roles
    return roles[(roles["role"] == "memory-location") & (roles["status"] == "confirmed")]


def _looking_at_their_lag(one: ComparedModel) -> int:
    """Return how many confirmed memory heads attend most to the lag of the memory they serve."""
    columns = _memory_heads(one)[["head", "target"]]
    return sum(
        int(one.kernels.mass[head].argmax()) == one.memories[memory]
        for head, memory in columns.itertuples(index=False, name=None)
    )


def _role_sentences(one: ComparedModel) -> Iterator[str]:
    sure = _memory_heads(one)
    for memory, lag in one.memories.items():
        mine = sure[sure["target"] == memory]
        candidates = int((one.roles["target"] == memory).sum())
        if len(mine):
            heads = " and ".join(f"L{row.layer}H{row.head}" for row in mine.itertuples())
            verb = "extract" if len(mine) > 1 else "extracts"
            strength = mine["strength"].max()
            yield f"head {heads} {verb} {memory} (lag {lag}; r² lost without it {strength:.2f})"
        else:
            rest = f" ({candidates} seem to)" if candidates else ""
            yield f"no head is confirmed to extract {memory}{rest}"
    readout = one.roles[(one.roles["role"] == "readout")]
    readout = readout[readout["status"] == "confirmed"]
    if len(readout):
        row = readout.iloc[0]
        yield (
            f"the FFN of layer {row['layer']} computes the Boolean function (r² lost without it "
            f"{row['strength']:.2f}, the output changes by {row['effect']:.0%} of its variance)"
        )
    else:
        yield "no FFN is confirmed to compute the Boolean function"


@dataclass(frozen=True)
class ComparedModels:
    """The models of one task, and the proof behind the constructed one.

    Attributes:
        trained: The shipped model.
        constructed: The constructed model.
        controls: Models for which not everything should hold: trained to the same accuracy in
            another way, and untrained.
        construction: The construction itself.
    """

    trained: ComparedModel
    constructed: ComparedModel
    controls: tuple[ComparedModel, ...]
    construction: Construction

    @property
    def subjects(self) -> tuple[ComparedModel, ...]:
        """All compared models: the trained one, the constructed one, then the controls."""
        return self.trained, self.constructed, *self.controls

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """The proof's statements checked on every model, in long form with a column ``model``."""
        mechanism = self.construction.mechanism
        tables = [agreement(mechanism, s.roles).assign(model=s.name) for s in self.subjects]
        return pd.concat(tables, ignore_index=True)

    @property
    def statements_by_model(self) -> pd.DataFrame:
        """Whether each of the proof's statements holds for each model: a table with a row per
        statement and a column per model."""
        wide = self.agreement.pivot(index="statement", columns="model", values="holds")
        statements = self.agreement["statement"].drop_duplicates()
        return wide.loc[statements, [one.name for one in self.subjects]]


def findings(comparison: ComparedModels) -> list[str]:
    """Return two sentences: one on the trained model's roles, and one on the proof's."""
    held = comparison.statements_by_model.drop(columns=comparison.constructed.name)
    certificate = comparison.construction.certificate
    return [
        roles_in_words(comparison.trained),
        proof_in_words(comparison.constructed, held, certificate),
    ]


def doubts(comparison: ComparedModels) -> list[str]:
    """Return sentences with the caveats of the comparison: one seed, different mechanisms, the
    controls' results, and roles that are not confirmed."""
    trained, held = comparison.trained, comparison.statements_by_model
    said = [
        "One model of each kind, of one seed: what other seeds do is said in their recipes.",
        "The trained model and the proof need not fill a role by the same means. "
        + " ".join(looking(one) for one in (trained, comparison.constructed)),
    ]
    controls = [(c.name, int(held[c.name].sum())) for c in comparison.controls]
    passed = ", ".join(
        f"{count} of {len(held)} hold for the {name} model" for name, count in controls
    )
    if controls:
        said.append(f"Statements must be able to fail: {passed}.")
    if (trained.roles["status"] != "confirmed").any():
        told = status_counts(trained.roles)
        said.append(f"Of the trained model's roles only the confirmed ones count: {told}.")
    return said


def lead_picture(comparison: ComparedModels, folder: Path) -> Picture:
    """Return the figure that shows the main result: where the heads of the models attend."""
    shown = _lags_shown(comparison)
    panels = [
        Panel(s.name, s.kernels.mass[:, :shown], _head_names(s)) for s in _subjects(comparison)
    ]
    lags, across = [str(lag) for lag in range(shown)], "lag (positions back)"
    wide, narrow = (
        share_maps(panels, lags, label="share of attention", across=across, narrow=narrow)
        for narrow in (False, True)
    )
    words = "Share of each head's attention at each lag, mean over scored positions"
    told = f"{words}. The largest: {_largest(panels, [f'lag {lag}' for lag in lags])}."
    picture = _picture(wide, folder, "attention-by-lag", told)
    return replace(picture, narrow=_picture(narrow, folder, "attention-by-lag-narrow", told).path)


def sections(comparison: ComparedModels, folder: Path) -> list[Section]:
    """Return the evidence, then, folded, everything else; figures are written to ``folder``."""
    return [
        Section(
            "Which models do what the proof does?",
            (
                "The proof and a trained model may fill the same roles by different mechanisms: "
                "one by cancellation, one by selection. Controls show that statements can fail.",
            ),
            tables=(
                PageTable(
                    comparison.statements_by_model.reset_index(),
                    "Statements of the proof, checked on all models.",
                ),
                PageTable(
                    _by_whom(comparison.agreement),
                    "Who fills them; strength is the r² lost "
                    "without the strongest confirmed component or group.",
                ),
            ),
        ),
        Section(
            "Where each head looks",
            tuple(looking(one) for one in _subjects(comparison)),
            [_kernel_picture(comparison, folder)],
        ),
        _models(comparison),
    ]


def _models(comparison: ComparedModels) -> Section:
    """Return the section on the models and how well each solves its task."""
    task = comparison.trained.task
    arguments = ", ".join(task.arguments)
    return Section(
        "The task and the models",
        (
            f"y[t] = f({arguments}) with f = {task.readout} on inputs of ±1. A transformer of "
            "one layer was trained on it; a second model is the constructive proof that one "
            "layer can do it, written down as weights.",
            *[_describe(one) for one in comparison.subjects],
            margins(comparison.construction.certificate),
            solving(comparison.trained),
        ),
        tables=(PageTable(_performance(comparison), "All models on the same fresh rows."),),
        folded=True,
    )


def _by_whom(agreement: pd.DataFrame) -> pd.DataFrame:
    found = agreement[agreement["holds"]]
    return found[["model", "statement", "strength", "by"]]


def _describe(one: ComparedModel) -> str:
    spec = one.model.spec
    score = {"table": "a learned bias per lag", "lin": "a bias −p·lag a head"}[spec.lag_bias]
    normalizer = "a softmax" if spec.normalizer == "softmax" else "no normaliser"
    return (
        f"The {one.name} model: {sum(spec.heads)} heads with {score} and {normalizer}, an FFN of "
        f"{sum(map(sum, spec.ffn_widths))} neurons, {spec.dtype}."
    )


def _performance(comparison: ComparedModels) -> pd.DataFrame:
    bounds = {comparison.constructed.name: comparison.construction.certificate.error}
    rows = []
    for one in comparison.subjects:
        weights = sum(p.count_nonzero().item() for p in one.model.parameters())
        rows.append(
            {
                "model": one.name,
                "heads": sum(one.model.spec.heads),
                "non-zero weights": weights,
                "accuracy": one.performance["accuracy"],
                "error (of the target's variance)": one.performance["loss"],
                "largest error": one.performance["worst"],
                "certificate": bounds.get(one.name, float("nan")),
            }
        )
    return pd.DataFrame(rows)


def _lags_shown(comparison: ComparedModels) -> int:
    return max(comparison.trained.memories.values()) + 3


def _kernel_picture(comparison: ComparedModels, folder: Path) -> Picture:
    kernels = {
        one.name: {m: one.kernels.kernels[m].sum(0) for m in one.memories}
        for one in _subjects(comparison)
    }
    memories, shown = comparison.trained.memories, _lags_shown(comparison)
    figure = kernels_by_lag(kernels, memories, longest=shown - 1)
    told = "; ".join(
        f"{one.name}: "
        + ", ".join(f"{m} {one.kernels.concentration(m, lag):.2f}" for m, lag in memories.items())
        for one in _subjects(comparison)
    )
    words = (
        "What the heads of the layer put into the direction that holds each memory: their summed "
        "signed kernel, as a share of its absolute weight over all lags. At the memory's own lag, "
        f"{told}."
    )
    return _picture(figure, folder, "kernels-by-lag", words)


def _largest(panels: Sequence[Panel], columns: Sequence[str]) -> str:
    """Return the largest number of every row of every panel, and its column."""
    said = []
    for panel in panels:
        tops = [
            f"{row} {columns[int(np.nanargmax(values))]} {np.nanmax(values):.2f}"
            for row, values in zip(panel.rows, panel.values, strict=True)
            if np.isfinite(values).any()
        ]
        said.append(f"{panel.title}: {', '.join(tops) or 'nothing measured'}")
    return "; ".join(said)


def _subjects(comparison: ComparedModels) -> tuple[ComparedModel, ...]:
    return comparison.trained, comparison.controls[0], comparison.constructed


def _head_names(one: ComparedModel) -> list[str]:
    return [part.name for part in components(one.model) if part.kind == "head"]


def _picture(figure: Figure, folder: Path, name: str, caption: str) -> Picture:
    (png,) = save(figure, folder / "figures" / name, formats=("png",))
    return Picture(png, caption)


MODEL, CONTROL = "fixed-memory-multiplexer", "fixed-memory-multiplexer-mixed"
SEED, ROWS = 10_007, 256


def run_demo(out: Path, *, overwrite: bool, step: Callable[[str], None]) -> list[str]:
    """Run the demo and write its folder.

    Args:
        out: The folder for ``report.html``, the figures, the numbers and the stores.
        overwrite: Whether to replace an existing folder.
        step: A function that is called with a sentence saying what is being done.

    Returns:
        The two main findings, in words.

    Raises:
        OutputError: if ``out`` may not be replaced or written.
        CheckpointError: if the shipped model is damaged.
    """
    with output_folder(out, overwrite=overwrite, marker=".prooflens-demo") as folder:
        step("loading the trained model, building the proof")
        shipped = zoo.load(MODEL)
        task = cast("FixedMemory", shipped.task)
        construction = construct_fixed_memory(task)
        models = {
            "trained": shipped.model,
            "constructed": construction.model,
            "mixed": zoo.load(CONTROL).model,
            "untrained": SequenceTransformer(shipped.model.spec, seed=SEED),
        }
        subjects = []
        for name, model in models.items():
            step(f"inspecting the {name} model")
            subjects.append(inspect_model(name, model, task, folder / "models" / name))
        trained, built, *controls = subjects
        comparison = ComparedModels(trained, built, tuple(controls), construction)
        said, parts = findings(comparison), sections(comparison, folder)
        step("writing the report")
        _write_numbers(comparison, said, folder)
        (folder / "report.html").write_text(
            render(_page(comparison, said, parts, folder)), encoding="utf-8"
        )
    return said


@one_thread()
def inspect_model(
    name: str, model: SequenceTransformer, task: FixedMemory, out: Path
) -> ComparedModel:
    """Inspect one of the models, and measure its heads' kernels.

    Args:
        name: The name of the model in the report.
        model: A causal model of one layer: in a deeper one a head's lag is not the memory's.
        task: A fixed-memory task.
        out: The folder for its own page, tables and store.
    """
    card: Any = ModelCard(name, task=task, n_ctx=model.spec.n_ctx)
    model.card = card
    found = inspect(model, task=task, count=ROWS, seed=SEED, out=out)
    lags = dict(zip(task.arguments[1:], task.lags, strict=True))
    return ComparedModel(
        name, model, task, found, layer_kernels(model, task.sample(ROWS, seed=SEED), 0, lags)
    )


def _page(comparison: ComparedModels, said: list[str], parts: list[Section], folder: Path) -> Page:
    return Page(
        title="What a transformer does, against a proof of what it can do",
        findings=said,
        sections=parts,
        facts=(
            f"Task {comparison.trained.task.name}, {ROWS} rows of "
            f"{comparison.trained.task.length} positions drawn with seed {SEED}, which no training "
            f"uses. Trained: the shipped {MODEL}; mixed: {CONTROL}, trained without weight decay; "
            "one seed each, what other seeds do is said in their recipes.",
            "All numbers of this page: agreement.csv and numbers.json beside it. Each model has a "
            "page of its own, models/NAME/report.html, beside its tables (heads.csv, roles.csv …), "
            "which are sealed into a store, too.",
        ),
        picture=lead_picture(comparison, folder),
        doubts=doubts(comparison),
    )


def _write_numbers(comparison: ComparedModels, said: list[str], folder: Path) -> None:
    table = comparison.agreement
    numbers: dict[str, Any] = {
        "findings": said,
        "task": comparison.trained.task.to_dict(),
        "certificate": {
            "error": comparison.construction.certificate.error,
            "parts": dict(comparison.construction.certificate.parts),
            "domain": comparison.construction.certificate.domain,
        },
        "models": {one.name: _numbers(one) for one in comparison.subjects},
        "agreement": json_data(table),
    }
    table.to_csv(folder / "agreement.csv", index=False)
    (folder / "numbers.json").write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")


def _numbers(one: ComparedModel) -> dict[str, float]:
    found = one.performance
    return {"accuracy": found["accuracy"], "error": found["loss"], "worst": found["worst"]}
