"""``prooflens demo``: a trained and a constructed model of one task, measured and compared.

task → hooked models → each inspected → compared with the proof → report.html
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pandas as pd

from interp.figures.style import save
from interp.models.card import ModelCard
from interp.models.transformer import SequenceTransformer
from interp.output import output_folder
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory
from interp.threads import one_thread
from probes.kernels import layer_kernels
from probes.locate import holders, locate
from probes.nesting import nested_rounds
from probes.roles import ROLE_COLUMNS
from prooflens.demo.memory import Comparison, Subject, doubts, findings, lead_picture, sections
from prooflens.inspection import inspect
from prooflens.pages.page import Page, Picture, Section, Table, render
from prooflens.pages.rounds import ROUNDS_CAPTION, rounds_again, rounds_side_by_side
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


NESTED = "nested-memory-2"
_ROWS, _PAIRS = 96, 64


def nested_section(folder: Path, *, seed: int = 0) -> Section:
    """Which layer holds which round, and which head holds which latent by exchange.

    Args:
        folder: The report's; a figure and two tables are written to it.
        seed: Seed of the rows.
    """
    shipped: Any = zoo.load(NESTED)
    task = shipped.task
    found = nested_rounds(shipped.model, task, rows=_ROWS, seed=seed)
    table = found["rounds"]
    figure = rounds_again(found["rounds-readable"], found["rounds-kernels"])
    fetched = [f"token[t-t_{i}]" for i in range(1, task.rounds)] + [f"x[t-t_{task.rounds}]"]
    wanted = [name for i, what in enumerate(fetched, start=1) for name in (f"t_{i}", what)]
    held = holders(locate(shipped.model, task, rows=_PAIRS, latents=wanted, seed=seed))
    table.to_csv(folder / "rounds.csv", index=False)
    held.to_csv(folder / "held.csv", index=False)
    (png,) = save(figure, folder / "figures" / "rounds", formats=("png",))
    return Section(
        "A location that a token names, round after round",
        (
            f"{NESTED} was trained on {task.rounds} rounds of adaptive memory over the lags "
            f"{', '.join(map(str, task.locations))}. Exchanged between rows, {_told(held)}.",
        ),
        (Picture(png, _caption(table)),),
        (
            Table(rounds_side_by_side(table), ROUNDS_CAPTION),
            Table(held, "Which component holds which latent when it alone is exchanged."),
        ),
        folded=True,
    )


def _told(held: pd.DataFrame) -> str:
    rows: list[Any] = list(held.itertuples())
    said = [
        f"{row.latent} is held by {row.where} (share {row.best:.2f})"
        if row.where
        else f"{row.latent} is held by no component (best {row.best:.2f})"
        for row in rows
    ]
    return "; ".join(said)


def _caption(table: pd.DataFrame) -> str:
    contents = table[table["latent"].str.startswith("x[")]
    said: dict[str, list[str]] = {}
    rows: list[Any] = list(contents.itertuples())
    for row in rows:
        place = f"in layer {row.layer}" if row.layer >= 0 else "nowhere"
        said.setdefault(row.model, []).append(f"{row.latent} {place}")
    told = "; ".join(f"{name}: {', '.join(places)}" for name, places in said.items())
    return f"First decodable (above) and lags looked at (below). {told}."
