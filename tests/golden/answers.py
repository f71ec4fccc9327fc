"""How the product is asked: through ``import prooflens`` and the command line, and nothing else.

What comes back is JSON data: tables by the words of their rows, numbers as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

import prooflens as pl

Answer = dict[str, Any]

_ROLE = ("component", "layer", "head", "group", "role", "target")
_TEST = ("kind", "score", "floor", "p", "q", "low", "high")
_HEAD = ("component", "layer", "head", "group", "circuit", "metric", "target", "site", "method",
         "null", "trial")  # fmt: skip
_TRIAL = ("trial", "loss", "control", "accuracy", "p")
_SEED = 1


def command(*words: object) -> Answer:
    """Run a command of ``prooflens`` and give back its JSON object."""
    from prooflens.cli.main import app

    done = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    if done.exit_code:
        raise RuntimeError(f"prooflens {' '.join(map(str, words))}: {done.output}")
    return dict(json.loads(done.stdout))


def roles(name: str, rows: int) -> Answer:
    """The role table of a shipped model on rows of its own task."""
    model = pl.load(name)
    task = model.card.task
    found = pl.find_roles(
        model,
        task.sample(rows, seed=_SEED),
        profile="task",
        memories=pl.tasks.memories_of(task),
        answers=pl.tasks.answers_of(task),
        sought=[one for one in getattr(task, "variables", tuple)() if one.role],
    )
    return {"roles": _role_table(found), "lacks": sorted(found.attrs["lacks"])}


def inspection(model: str | Path, rows: int, data: Path | None = None, text: str = "") -> Answer:
    """The tables of ``prooflens inspect``: roles, and how well the model does on each trial.

    Args:
        model: The name of a shipped model, or a folder.
        rows: Rows of every trial.
        data: A file of worded rows; of those that ask which tokens may follow, whose labels are
            not for ``inspect``, the tokens alone are given.
        text: A text, where the model has a tokenizer.
    """
    with tempfile.TemporaryDirectory() as folder:
        given: list[object] = ["--text", text] if text else []
        if data is not None:
            given = ["--data", _readable(data, Path(folder) / "rows.jsonl")]
        out = Path(folder) / "out"
        command("inspect", model, "--rows", rows, "--out", out, *given)
        trials = _read(out / "trials.csv")
        heads = _read(out / "heads.csv")
        return {
            "roles": _role_table(_read(out / "roles.csv")),
            "trials": by_words(trials[list(_TRIAL)], ["trial"]),
            "heads": by_words(heads[heads["circuit"] == ""], _HEAD),
        }


def weights(model: str | Path, metrics: Sequence[str], every: int = 1) -> Answer:
    """The weight table of a model, whole or every so many rows, and what its columns sum to."""
    return _thin_table(pl.weight_table(str(model), list(metrics)), every)


def compositions(model: str | Path, every: int = 1) -> Answer:
    """The composition table of a model, whole or every so many rows, and its columns' sums."""
    return _thin_table(pl.weights.composition_table(str(model)), every)


def shipped_folder(name: str) -> Path:
    """The folder of a shipped model, as the functions that read weights alone take it."""
    return Path(str(pl.trained.folder(name)))


def program(model: str | Path, rows: Path | None = None) -> Answer:
    """The program that a model is decompiled into, and how often both decide alike.

    Args:
        model: The name of a shipped model, or a folder.
        rows: A file of worded rows; those of the model's own task by default.
    """
    built = pl.load(model)
    given = None if rows is None else pl.read_rows(rows, built.card)
    found = pl.decompile(built, given)
    record = found.record()
    record.pop("seconds")
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
    return {
        "answer": record["answer"],
        "program": pl.rasp.program_text(found.best.program).splitlines(),
        "kept": record["kept"],
        **numbers,
    }


def constructions() -> Answer:
    """Certificate and mechanism of every construction of the catalogue."""
    return {case.name: _construction(case.construct()) for case in pl.proofs.cases()}


def construction(task: Any, **options: Any) -> Answer:
    """Certificate and mechanism of the construction of a task."""
    return _construction(pl.construct(task, **options))


def theorem(name: str, strategies: Sequence[str], length: int | None = None) -> Answer:
    """What is proved of a shipped model by each strategy."""
    model = pl.load(name)
    found = pl.certify(model, strategies=list(strategies), length=length)
    result = found.result()
    return {
        "kind": result["kind"],
        "measured": result["measured"],
        "measured on": result["measured_on"],
        "skipped": sorted(result["skipped"]),
        "strategies": {
            one["strategy"]: {
                "bound": one["bound"],
                "cells": one["cells"],
                "multiplications": one["multiplications"],
                "arithmetic": one["arithmetic"],
                "vacuous": bool(one["vacuous"]),
                "parts": one["parts"],
            }
            for one in result["strategies"]
        },
    }


def write_store(folder: Path, name: str, hooks: Sequence[str], **options: Any) -> None:
    """Extract activations of a shipped model into a store, with a table sealed into it."""
    model = pl.load(name)
    store = pl.extract(model, model.card.task, list(hooks), folder, seed=_SEED, **options)
    table = pd.DataFrame({"head": [0, 1], "mass": [0.25, np.nan], "note": ["ä", ""]})
    store.write_measurement("golden", table, {"analysis": "golden"}, overwrite=True)


def store_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Every array of a store by name."""
    store = pl.open_store(folder)
    found = {hook: store.activation(hook) for hook in store.hooks}
    found |= {f"latents/{name}": value for name, value in store.latents().items()}
    return found | {"inputs": store.inputs(), "targets": store.targets(), "mask": store.mask()}


def store_facts(folder: Path) -> Answer:
    """What a store says of itself: shapes, types, labels, digests of arrays, sealed tables."""
    store = pl.open_store(folder)
    return {
        "complete": store.complete,
        "rows": store.rows,
        "parts": len(store.parts),
        "aliases": store.aliases,
        "labels": {hook: list(store.labels(hook)) for hook in store.hooks},
        "dtypes": {hook: store.dtype(hook) for hook in store.hooks},
        "measurements": {
            name: by_words(store.measurement(name), ["head"]) for name in store.measurements
        },
        "arrays": {
            name: {"dtype": str(a.dtype), "shape": list(a.shape), "sha256": _digest(a)}
            for name, a in store_arrays(folder).items()
        },
    }


def store_digests(folder: Path) -> Answer:
    """The digest of each part of a store, and the release of h5py that wrote it. A sealed table's
    file holds the libraries that were loaded by then, which nothing here decides."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    lines = (folder / "index.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return {
        "h5py": manifest["environment"]["h5py"],
        "files": {one["file"]: one["sha256"] for one in found if one["file"].startswith("part-")},
    }


def store_is_sound(folder: Path) -> bool:
    """Whether ``prooflens store --verify`` finds nothing wrong."""
    command("store", "--verify", folder)
    return True


def folder_named(variable: str) -> Path | None:
    """The folder that a variable of the environment names; None if it names none."""
    folder = os.environ.get(variable)
    return Path(folder) if folder else None


def line_digests(lines: Sequence[str]) -> list[str]:
    """Each line's digest, for texts that may not be kept themselves."""
    return [hashlib.sha256(line.encode()).hexdigest()[:16] for line in lines]


def by_words(table: pd.DataFrame, words: Sequence[str]) -> Answer:
    """A table's rows by what their columns of words say, with numbers that are none as null.

    Rows of the same words are told apart by their order.
    """
    known = [name for name in words if name in table.columns]
    rest = [name for name in table.columns if name not in known]
    found: Answer = {}
    for row in table.to_dict("records"):
        key = " ".join(f"{name}={row[name]}" for name in known if row[name] != "")
        while key in found:
            key += "'"
        found[key] = {name: _plain(row[name]) for name in rest}
    return found


def _read(file: Path) -> pd.DataFrame:
    """A table of the command line; what is empty in a column of words is no number."""
    table = pd.read_csv(file)
    for name in table.columns:
        if name in (*_ROLE, *_HEAD, "tests", "by_position"):
            table[name] = table[name].astype(object).where(table[name].notna(), "")
    return table


def _role_table(table: pd.DataFrame) -> Answer:
    """Status and numbers of every role; sentences are not kept."""
    numbers = ["strength", "p", "q", "effect", "effect_of_group"]
    tests = [
        [[test[name] for name in _TEST] for test in json.loads(text)] for text in table["tests"]
    ]
    return by_words(table[[*_ROLE, "status", *numbers]].assign(tests=tests), _ROLE)


def _thin_table(table: pd.DataFrame, every: int) -> Answer:
    numbers = table.select_dtypes("number").drop(columns=["layer", "head"]).dropna(axis=1)
    kept = by_words(table[[*_HEAD, *numbers]].iloc[::every], _HEAD)
    return {
        "rows": len(table),
        "every": every,
        "columns": list(numbers),
        "sums": [_plain(column.sum()) for _, column in numbers.items()],
        "table": {words: list(row.values()) for words, row in kept.items()},
    }


def _construction(made: Any) -> Answer:
    certificate = made.certificate
    return {
        "error": _plain(certificate.error),
        "parts": {name: _plain(value) for name, value in certificate.parts.items()},
        "error in any basis": _plain(certificate.error_in_any_basis),
        "mechanism": [_part(part) for part in made.mechanism.parts],
    }


def _part(part: Any) -> list[Any]:
    head = -1 if part.head is None else part.head
    return [part.component, part.layer, head, part.role, part.target, part.lag, part.round]


def _readable(worded: Path, file: Path) -> Path:
    """A file of rows that ``inspect`` reads: the one given, or its tokens written to ``file``."""
    found = json.loads(worded.read_text(encoding="utf-8"))
    if found["objective"] == "next token":
        return worded
    rows = found["rows"]
    file.write_text("".join(json.dumps(row["tokens"]) + "\n" for row in rows), encoding="utf-8")
    return file


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON data: NumPy's numbers as Python's, and null for what is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
