"""``prooflens demo``: a trained and a constructed model of one task, measured and compared.

task → hooked models → each inspected → compared with the proof → report.html
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pandas as pd

from interp.models.card import ModelCard
from interp.models.transformer import SequenceTransformer
from interp.output import output_folder
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory
from interp.threads import one_thread
from probes.kernels import layer_kernels
from probes.roles import ROLE_COLUMNS
from prooflens.demo.memory import Comparison, doubts, findings, lead_picture, sections
from prooflens.demo.nested import nested_section
from prooflens.demo.subject import Subject
from prooflens.inspection import inspect
from prooflens.pages.page import Page, Section, render
from trained import zoo

MODEL, CONTROL = "fixed-memory-multiplexer", "fixed-memory-multiplexer-mixed"
SEED, ROWS = 10_007, 256


def run_demo(out: Path, *, overwrite: bool, step: Callable[[str], None]) -> list[str]:
    """Run the main job and write its folder.

    Args:
        out: Where ``report.html``, the figures, the numbers and the stores go.
        overwrite: Replace an existing folder.
        step: Called with a sentence that says what is being done.

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
            subjects.append(compared(name, model, task, folder / "models" / name))
        trained, built, *controls = subjects
        comparison = Comparison(trained, built, tuple(controls), construction)
        said, parts = findings(comparison), sections(comparison, folder)
        step("measuring nested memories")
        parts = [*parts, nested_section(folder)]
        step("writing the report")
        _write_numbers(comparison, said, folder)
        (folder / "report.html").write_text(
            render(_page(comparison, said, parts, folder)), encoding="utf-8"
        )
    return said


@one_thread()
def compared(name: str, model: SequenceTransformer, task: FixedMemory, out: Path) -> Subject:
    """Inspect one of the models, and measure its heads' kernels.

    Args:
        name: The name that the model gets in the report.
        model: A causal model of one layer: in a deeper one a head's lag is not the memory's.
        task: A fixed-memory task.
        out: The folder for its own page, tables and store.
    """
    model.card = ModelCard(name, task=task, n_ctx=model.spec.n_ctx)
    found = inspect(model, task=task, count=ROWS, seed=SEED, out=out)
    lags = dict(zip(task.arguments[1:], task.lags, strict=True))
    return Subject(
        name, model, task, found, layer_kernels(model, task.sample(ROWS, seed=SEED), 0, lags)
    )


def _page(comparison: Comparison, said: list[str], parts: list[Section], folder: Path) -> Page:
    return Page(
        title="What a transformer does, against a proof of what it can do",
        findings=said,
        sections=parts,
        facts=(
            f"Task {comparison.trained.task.name}, {ROWS} rows of "
            f"{comparison.trained.task.length} positions drawn with seed {SEED}, which no training "
            f"uses. Trained: the shipped {MODEL}; mixed: {CONTROL}, trained without weight decay; "
            "one seed each, what other seeds do is said in their recipes.",
            "All numbers of this page: heads.csv, roles.csv, agreement.csv and numbers.json beside "
            "it. Each model has a page of its own, models/NAME/report.html, with its tables sealed "
            "into a store.",
        ),
        picture=lead_picture(comparison, folder),
        doubts=doubts(comparison),
    )


def _write_numbers(comparison: Comparison, said: list[str], folder: Path) -> None:
    models = comparison.subjects
    tables = {
        "heads": pd.concat(
            [s.inspected.heads.assign(model=s.name) for s in models], ignore_index=True
        ),
        "roles": pd.concat(
            [s.roles[list(ROLE_COLUMNS)].assign(model=s.name) for s in models], ignore_index=True
        ),
        "agreement": comparison.agreement,
    }
    numbers: dict[str, Any] = {
        "findings": said,
        "task": comparison.trained.task.to_dict(),
        "certificate": {
            "error": comparison.construction.certificate.error,
            "parts": dict(comparison.construction.certificate.parts),
            "domain": comparison.construction.certificate.domain,
        },
        "models": {s.name: _numbers(s) for s in models},
    }
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        numbers[name] = json.loads(table.to_json(orient="records", double_precision=15))
    (folder / "numbers.json").write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")


def _numbers(one: Subject) -> dict[str, float]:
    found = one.performance
    return {"accuracy": found["accuracy"], "error": found["loss"], "worst": found["worst"]}
