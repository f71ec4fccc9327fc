"""The role table of a model or store, in words and as files (``prooflens heads``).

The table, and what its figures are drawn from (:mod:`prooflens.pages.head_figures`), are sealed
into the store, so that everything can be redrawn without the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import ProoflensError, StoreError
from interp.interventions.components import components
from interp.stats.head_table import head_table
from interp.store import ActivationStore, extract
from interp.store.plan import weights_sha256
from interp.store.rows import has_targets, stored_batch
from interp.tasks.base import Batch, answers_of, memories_of
from interp.tasks.catalogue import known_task
from interp.tasks.counterfactual import sought_of
from probes.activations import Samples, collect
from probes.head_scores import head_scores
from probes.linear import decode, probe_for
from probes.roles import ROLE_COLUMNS, TASK, Profile, candidates, find_roles
from probes.roles.decision import by_status
from probes.roles.examined import Watch
from probes.roles.profile import PROFILES
from prooflens.pages.findings import part_name
from prooflens.pages.head_figures import attention_tables, draw
from prooflens.pages.roles_page import roles_page
from prooflens.pages.rounds import is_nested, rounds_beside_proof

__all__ = [
    "Heads",
    "measure_model",
    "measure_store",
    "model_of",
    "roles_in_words",
    "scores_in_words",
    "task_of",
    "write_files",
]

_LEAST, _LEVEL = 1e-10, 0.01


@dataclass(frozen=True)
class Heads:
    """The roles that were found, and the store into which they are sealed.

    Attributes:
        note: What could not be looked for, because the store's task is not known here; or empty.
        scores: Head scores that installed packages add (a head table); empty without a model.
        rounds: Of nested memories, which layer first holds which round, beside the proof.
    """

    store: ActivationStore
    roles: pd.DataFrame
    note: str = ""
    scores: pd.DataFrame = field(default_factory=lambda: head_table([]))
    rounds: pd.DataFrame = field(default_factory=pd.DataFrame)


def measure_model(
    model: Any,
    task: Any,
    folder: Path,
    *,
    rows: int,
    seed: int,
    about: dict[str, Any],
    profile: Profile = TASK,
    watch: Watch = iter,
) -> Heads:
    """Run a model on rows of a task, decide its roles and seal them with what figures need.

    Args:
        model: A hooked model that takes the task's inputs.
        task: Drawn from the catalogue, or a batch of rows of one's own.
        folder: The folder for the activation store.
        rows: How many rows of the task are drawn; of a batch, all are taken.
        seed: Seed of the rows and of the nulls.
        about: JSON data: what the model and the task are called.
        profile: ``language`` where the task's rows are tokens that repeat.
        watch: Wraps the loop over heads, for a progress bar.
    """
    hooks = [
        f"blocks.{layer}.attn.hook_pattern"
        for layer in sorted({part.layer for part in components(model) if part.kind == "head"})
    ]
    drawn = None if isinstance(task, Batch) else rows
    store = extract(model, task, hooks, folder, rows=drawn, seed=seed, about=about)
    said = {**about, "rows": store.rows, "seed": seed, "profile": profile.name}
    return _measured(store, model, task, seed, said, profile, watch)


def measure_store(
    path: Path,
    model: Any = None,
    *,
    seed: int = 0,
    profile: Profile = TASK,
    watch: Watch = iter,
) -> Heads:
    """Find the roles on a store's rows and seal them into the store.

    Args:
        path: The folder of the store.
        model: The one that it was made of (:func:`model_of`); without, the patterns alone speak,
            and nothing is more than a candidate.
        seed: Seed of the nulls.
        profile: ``language`` where the store's rows are tokens that repeat.
        watch: Wraps the loop over heads, for a progress bar.

    Raises:
        StoreError: for a model with other weights than the store's.
        HookError: without a model, if no patterns are stored.
    """
    store = ActivationStore(path)
    if model is not None:
        record = store.manifest["plan"]
        if weights_sha256(model) != record["model"]["weights_sha256"]:
            raise StoreError(f"{path} was made of other weights than the model's: give that model")
        task, unknown = _recorded(store)
        about = {"source": "rows of this store", "seed": seed, "note": unknown}
        about["profile"] = profile.name
        found = _measured(store, model, task, seed, about, profile, watch)
        return replace(found, note=unknown)
    roles = candidates(store, profile=profile)
    provenance = {"source": "patterns of this store; no model was run", "profile": profile.name}
    _seal_roles(store, roles, provenance)
    return Heads(store, roles)


def task_of(store: ActivationStore) -> Any:
    """The task whose rows a store holds; None for other rows, or a task not known here."""
    return _recorded(store)[0]


def _recorded(store: ActivationStore) -> tuple[Any, str]:
    """The task that the store records, or None with a sentence about what that costs."""
    described = store.manifest["plan"]["source"]
    data = described.get("task") if isinstance(described, dict) else None
    task, unknown = known_task(data if isinstance(data, dict) else None)
    cost = "; roles of memories and answers are not looked for"
    return task, f"{store.path}: {unknown}{cost}" if unknown else ""


def model_of(store: ActivationStore, load: Callable[..., Any]) -> tuple[Any, str]:
    """The model that a store names, in the dtype that it ran in, if it can still be loaded and has
    the same weights; else None and the reason."""
    about = store.manifest.get("about", {})
    name, dtype = about.get("model"), about.get("dtype")
    if not isinstance(name, str):
        return None, "the store names no model"
    try:
        model = load(name, dtype=dtype) if isinstance(dtype, str) else load(name)
    except ProoflensError as error:
        return None, str(error)
    if weights_sha256(model) != store.manifest["plan"]["model"]["weights_sha256"]:
        return None, f"{name} has other weights now"
    return model, ""


def _measured(
    store: ActivationStore,
    model: Any,
    task: Any,
    seed: int,
    provenance: dict[str, Any],
    profile: Profile,
    watch: Watch,
) -> Heads:
    batch = stored_batch(store)
    known: dict[str, Any] = {
        "memories": memories_of(task),
        "answers": answers_of(task),
        "sought": sought_of(task),
    }
    known = known if profile == TASK else {}  # memories and readouts are a task's
    known |= {"targets": has_targets(store), "seed": seed}
    roles = find_roles(model, batch, profile=profile, watch=watch, **known)
    _seal_roles(store, roles, provenance)
    table = _layers(model, batch)
    if len(table):
        _seal(store, "decodability", table, provenance)
    scores = head_scores(model, batch, seed=seed)
    if len(scores):
        _seal(store, "head-scores", scores, provenance)
    if not is_nested(task) or getattr(model, "spec", None) is None:
        return Heads(store, roles, scores=scores)
    rounds = rounds_beside_proof(model, task, seed=seed)
    for name, table in {"rounds": rounds.table, **rounds.drawn_from}.items():
        _seal(store, name, table, provenance)
    return Heads(store, roles, scores=scores, rounds=rounds.table)


def _seal_roles(store: ActivationStore, roles: pd.DataFrame, provenance: dict[str, Any]) -> None:
    _seal(store, "roles", roles, provenance)
    for name, table in attention_tables(store, roles):
        _seal(store, name, table, provenance)


def _seal(
    store: ActivationStore, name: str, table: pd.DataFrame, provenance: dict[str, Any]
) -> None:
    store.write_measurement(name, table.reset_index(drop=True), provenance, overwrite=True)


def _layers(model: Any, batch: Batch) -> pd.DataFrame:
    """How well each scalar latent is decodable along the residual stream."""
    names = [
        name
        for name, value in batch.latents.items()
        if value.ndim == 2 and float(value[batch.mask].double().std()) > 0
    ]
    if not names:
        return pd.DataFrame()
    after = {"head": "mid", "ffn": "post"}
    sites = [f"blocks.{p.layer}.hook_resid_{after[p.kind]}" for p in components(model)]
    sites = list(dict.fromkeys(["blocks.0.hook_resid_pre", *sites]))
    samples = collect(model, batch, sites)
    rows = [
        {"latent": name, "site": hook, "score": _score(samples, hook, name)}
        for hook in sites
        for name in samples.latents
        if name in names
    ]
    return pd.DataFrame(rows)


def _score(samples: Samples, hook: str, name: str) -> float:
    probe = probe_for(samples.kinds[name])
    features, latent = samples.features[hook], samples.latents[name]
    return decode(features, latent, probe=probe, groups=samples.groups).score


def roles_in_words(roles: pd.DataFrame) -> Iterator[str]:
    """A line of text per role, confirmed ones first."""
    order = roles.sort_values(["layer", "head"]).sort_values("status", key=by_status, kind="stable")
    for _, row in order.iterrows():
        target = f" of {row['target']}" if row["target"] else ""
        yield (
            f"{part_name(row):8} {row['role'] + target:32} {row['status']:10} "
            f"strength {row['strength']:5.2f}  q {_tail(row['q'])}  {row['evidence']}"
        )


def scores_in_words(scores: pd.DataFrame) -> Iterator[str]:
    """A line of text per head whose score is beyond fresh weights, the largest first."""
    for name, table in scores.groupby("metric", sort=False):
        beyond = table[table["q"] < _LEVEL].sort_values("score", ascending=False)
        yield f"{name}: {len(beyond)} of {len(table)} heads beyond fresh weights at q < {_LEVEL}"
        for _, row in beyond.iterrows():
            yield (
                f"{part_name(row):8} {name:32} {row['score']:.3g} (fresh {row['null_mean']:.3g} "
                f"± {row['null_std']:.2g})  q {_tail(row['q'])}"
            )


def _tail(q: float) -> str:
    """A q as text; one below 1e-10 lies in a tail that nobody measured."""
    return f"{q:.1e}" if q >= _LEAST else f"< {_LEAST:.0e}"


def write_files(found: Heads, folder: Path) -> list[Path]:
    """``roles.csv``; ``roles.json``, where each row has its tests as well; ``head-scores.csv``
    where installed packages add scores; the figures and ``report.html``, the page of them all."""
    folder.mkdir(parents=True, exist_ok=True)
    table, rows = folder / "roles.csv", folder / "roles.json"
    found.roles.to_csv(table, index=False, columns=list(ROLE_COLUMNS))
    records = json.loads(found.roles.to_json(orient="records", double_precision=15))
    told = [{**record, "tests": json.loads(record["tests"])} for record in records]
    rows.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    added = [folder / "head-scores.csv"] if len(found.scores) else []
    for path in added:
        found.scores.to_csv(path, index=False)
    if len(found.rounds):
        added.append(folder / "rounds.csv")
        found.rounds.to_csv(added[-1], index=False)
    figures = draw(found.store, folder / "figures", this_run=True)
    about = found.store.provenance("roles")
    about = {**found.store.manifest.get("about", {}), **about}
    page = folder / "report.html"
    sealed = {name: found.store.measurement(name) for name in found.store.measurements}
    text = roles_page(sealed, folder / "figures", about, PROFILES[about["profile"]])
    page.write_text(text, encoding="utf-8")
    return [table, rows, *added, *figures, page]
