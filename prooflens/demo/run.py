"""``prooflens demo``: a trained and a constructed model of one task, measured and compared.

    task → hooked models → activation stores → scores with nulls → roles → report.html

The report shows diagonal circuits of a language model as well: of GPT-2 where its weights are at
hand, otherwise of the shipped language model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pandas as pd

from interp.errors import CheckpointError
from interp.models.transformer import SequenceTransformer
from interp.output import output_folder
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory
from interp.weights.head_weights import HeadWeights, head_weights
from probes.roles import ROLE_COLUMNS
from probes.study import ROWS, study
from prooflens.demo.gpt2 import diagonals
from prooflens.demo.memory import Comparison, doubts, findings, lead_picture, sections
from prooflens.demo.nested import nested_section
from prooflens.pages.page import Page, Section, render
from trained import zoo

__all__ = ["find_gpt2", "run_demo"]

MODEL, CONTROL = "fixed-memory-multiplexer", "fixed-memory-multiplexer-mixed"
SEED = 10_007
_HUB_NAMES = ("openai-community/gpt2", "gpt2")


def run_demo(
    out: Path, *, gpt2: Path | None, overwrite: bool, step: Callable[[str], None]
) -> list[str]:
    """Run the main job and write its folder.

    Args:
        out: Where ``report.html``, the figures, the numbers and the stores go.
        gpt2: Folder or safetensors file of GPT-2; None looks in the usual places.
        overwrite: Replace an existing folder.
        step: Called with a sentence that says what is being done.

    Returns:
        The three main findings, in words.

    Raises:
        OutputError: if ``out`` may not be replaced or written.
        CheckpointError: if the shipped model or GPT-2 is damaged, or not where it was said to be.
    """
    with output_folder(out, overwrite=overwrite, marker=".prooflens-demo") as folder:
        factors, name = _language_model(gpt2)
        step("loading the trained model, building the proof")
        shipped = zoo.load(MODEL)
        task = cast("FixedMemory", shipped.task)
        construction = construct_fixed_memory(task)
        stores = folder / "stores"
        step("measuring the trained model")
        studied = study("trained", shipped.model, task, stores / "trained", seed=SEED)
        step("measuring the constructed model")
        built = study("constructed", construction.model, task, stores / "constructed", seed=SEED)
        step("measuring the controls")
        controls = tuple(
            study(name, model, task, stores / name, seed=SEED, null=studied.null)
            for name, model in (
                ("mixed", zoo.load(CONTROL).model),
                ("untrained", SequenceTransformer(shipped.model.spec, seed=SEED)),
            )
        )
        comparison = Comparison(studied, built, controls, construction)
        said, parts = findings(comparison), sections(comparison, folder)
        step("measuring nested memories")
        parts = [*parts, nested_section(folder)]
        if factors is not None:
            step(f"reading {name}'s heads from {factors.name}")
            looked = diagonals(factors, folder, name)
            said, parts = [*said[:2], looked.finding], [*parts, looked.section]
            looked.table.to_csv(folder / f"{looked.file}.csv", index=False)
        step("writing the report")
        _write_numbers(comparison, said, folder)
        (folder / "report.html").write_text(
            render(_page(comparison, said, parts, folder)), encoding="utf-8"
        )
    return said


def _language_model(gpt2: Path | None) -> tuple[HeadWeights | None, str]:
    """The heads to read, and whose they are: GPT-2's, or else the shipped language model's."""
    found = find_gpt2(gpt2)
    if found is not None:
        return found, "GPT-2"
    shipped = zoo.stand_in()
    return (None if shipped is None else head_weights(shipped)), zoo.STAND_IN


def find_gpt2(given: Path | None) -> HeadWeights | None:
    """GPT-2's head factors: from ``given``, ``PROOFLENS_GPT2``, or the local hub cache, if there.

    Raises:
        CheckpointError: if a place was named and does not hold them.
    """
    named = given or os.environ.get("PROOFLENS_GPT2")
    if named:
        return head_weights(named, download=False)
    for name in _HUB_NAMES:
        try:
            return head_weights(name, download=False)
        except CheckpointError:
            continue  # not in the cache, which nobody promised
    return None


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
            "All numbers of this page: scores.csv, roles.csv, agreement.csv and numbers.json "
            "beside it; the same tables are sealed into the activation stores under stores/.",
        ),
        picture=lead_picture(comparison, folder),
        doubts=doubts(comparison),
    )


def _write_numbers(comparison: Comparison, said: list[str], folder: Path) -> None:
    models = comparison.studies
    tables = {
        "scores": pd.concat([s.scores.assign(model=s.name) for s in models], ignore_index=True),
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
        "models": {s.name: vars(s.performance) for s in models},
    }
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        numbers[name] = json.loads(table.to_json(orient="records", double_precision=15))
    (folder / "numbers.json").write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")
