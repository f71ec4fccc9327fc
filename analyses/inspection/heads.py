"""A pretrained model looked at from both sides: what its heads do, and what their weights say.

    trials → activation stores → behaviour, loss without each part → with the weights → roles

Everything lands in one folder: the stores (with every table sealed into them), ``roles.csv``,
``heads.csv`` (every score with its null), ``trials.csv``, the same as JSON, figures and
``report.html``. An inspection that was interrupted goes on with ``resume``: finished parts of the
stores and sealed tables are read, not made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.inspection.behaviour import (
    Performance,
    attention_tables,
    loss_table,
    performance,
    stored_rows,
)
from analyses.inspection.roles import Levels, role_table
from analyses.inspection.trials import LENGTH, ROWS, Trial, text_trial, token_trials
from interp.errors import OutputError
from interp.heads.composition import COMPOSITIONS
from interp.heads.table import adjusted
from interp.heads.weights import weight_table
from interp.models.factors import Factors
from interp.models.pretrained import Pretrained
from interp.output import check_output, output_file
from interp.store import ActivationStore

__all__ = ["MARKER", "Inspected", "inspect_heads", "open_folder", "write_tables"]

MARKER = ".prooflens-inspect"
_WEIGHTS = ("trace_share", "diag_ratio", "identity_energy", "identity_coefficient",
            "effective_rank", "copying_score", *COMPOSITIONS)  # fmt: skip


@dataclass(frozen=True)
class Inspected:
    """What was found.

    Attributes:
        model: Which.
        factors: Its heads' weights.
        trials: What it was tried on.
        performances: How it did.
        behaviour: Attention, copying and position of every head (a head table).
        losses: The rise of the loss without every head and FFN (a head table).
        weights: Metrics of the weights and compositions (a head table).
        roles: Who plays which part.
        notes: What was left out, and what to know.
        settings: Rows, length and seed.
    """

    model: Pretrained
    factors: Factors
    trials: tuple[Trial, ...]
    performances: tuple[Performance, ...]
    behaviour: pd.DataFrame
    losses: pd.DataFrame
    weights: pd.DataFrame
    roles: pd.DataFrame
    notes: tuple[str, ...]
    settings: dict[str, Any]


def open_folder(out: Path, *, resume: bool, overwrite: bool) -> Path:
    """The folder of an inspection: a new one, or the one to go on with.

    Raises:
        OutputError: if it exists and is neither to be resumed nor replaced, or is no inspection's.
    """
    if resume and out.exists() and not (out / MARKER).exists():
        raise OutputError(f"{out} holds no inspection to resume: leave --resume out")
    if not resume:
        check_output(out, overwrite=overwrite, marker=MARKER)
        if out.exists():
            shutil.rmtree(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).touch()
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
    return out


def inspect_heads(
    model: Pretrained,
    factors: Factors,
    out: Path,
    *,
    text: str | None = None,
    rows: int = ROWS,
    length: int = LENGTH,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    levels: Levels | None = None,
    step: Callable[[str], None] = lambda words: None,
) -> Inspected:
    """Try the model on every kind of rows and decide its heads' roles.

    Args:
        model: From :func:`interp.models.pretrained.load_pretrained`.
        factors: The same model's, from :func:`interp.models.factors.open_factors`.
        out: Folder of everything; see :func:`open_folder`.
        text: Pieces of it are another trial, where the model has a tokenizer.
        rows, length: Of every trial; the model's context bounds the length.
        seed: Of rows and nulls.
        resume: Read what an interrupted inspection left in ``out``.
        overwrite: Replace an inspection that is there.
        levels: Level and floors of the roles.
        step: Told what is being done.

    Raises:
        ArgumentError: for arguments that do not fit, before anything is written.
        OutputError: if ``out`` is there and is neither to be resumed nor replaced.
        StoreError: if ``out`` was made otherwise.
    """
    trials, notes = _trials(model, text, rows, length, seed)
    out = open_folder(out, resume=resume, overwrite=overwrite)
    stores: dict[str, ActivationStore] = {}
    for trial in trials:
        if trial.name in ("repeated", "text"):
            step(f"running {trial.name}")
            stores |= stored_rows(model.model, trial, out / "stores", resume=resume)
    step("attention, copying, position")
    behaviour = adjusted([attention_tables(model.model, s, name) for name, s in stores.items()])
    losses = []
    for trial in trials:
        step(f"{trial.name} without each head and FFN")
        losses.append(loss_table(model.model, trial, stores["repeated"], seed))
    step("weights")
    weights = weight_table(factors, list(_WEIGHTS), seed=seed)
    performances = tuple(performance(model.model, trial) for trial in trials)
    lost = adjusted(losses)
    roles = role_table(behaviour, lost, weights, levels)
    stores["repeated"].write_measurement(
        "roles", roles, {"levels": asdict(levels or Levels())}, overwrite=True
    )
    settings = {"rows": rows, "length": min(length, model.n_ctx), "seed": seed}
    return Inspected(
        model, factors, tuple(trials), performances, behaviour, lost, weights, roles,
        (*model.notes, *notes), settings,
    )  # fmt: skip


def _trials(
    model: Pretrained, text: str | None, rows: int, length: int, seed: int
) -> tuple[list[Trial], list[str]]:
    """What it is tried on, and what to know of that."""
    trials, notes = token_trials(model, rows=rows, length=length, seed=seed)
    if text is not None:
        found = text_trial(model, text, rows=rows, length=length)
        trials += [found] if found is not None else []
        notes += [] if found is not None else ["text was given and not used: no tokenizer"]
    if length > model.n_ctx:
        notes += [f"rows have {model.n_ctx} tokens, the model's context, and not {length}"]
    return trials, notes


def write_tables(found: Inspected, out: Path, said: Iterable[str]) -> None:
    """``roles.csv``, ``heads.csv``, ``trials.csv``, ``inspection.json`` and ``findings.txt``."""
    scores = pd.concat([found.behaviour, found.losses, found.weights], ignore_index=True)
    scores["draws"] = scores["draws"].astype("Int64")  # told of the nulls of weights alone
    trials = pd.DataFrame([vars(p) for p in found.performances])
    tables = {"roles": found.roles, "heads": scores, "trials": trials}
    for name, table in tables.items():
        with output_file(out / f"{name}.csv", overwrite=True) as draft:
            table.to_csv(draft, index=False)
    singles = scores[~scores["metric"].isin(COMPOSITIONS)]
    records: dict[str, Any] = {
        "model": found.model.name,
        "family": found.model.family,
        "settings": found.settings,
        "notes": list(found.notes),
        "findings": list(said),
        **{
            name: json.loads(table.to_json(orient="records", double_precision=12))
            for name, table in (("roles", found.roles), ("trials", trials), ("heads", singles))
        },
    }
    with output_file(out / "inspection.json", overwrite=True) as draft:
        draft.write_text(json.dumps(records, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    with output_file(out / "findings.txt", overwrite=True) as draft:
        draft.write_text("\n".join(records["findings"]) + "\n", encoding="utf-8")
