"""A model's or a store's role table, its figures and its files (``prooflens heads``, ``plot``).

Everything a figure is drawn from is sealed into the store as tables, so that each can be redrawn
without the model:

    roles               the role table
    attention-SITE      mean attention of one head, query × key       (one a role)
    decodability        latent × site, where the task's latents are scalar
    probes              what ``prooflens probe`` found, if it was run on the store
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from analyses.inspection.probing import latent_maps
from interp.errors import ProoflensError, StoreError
from interp.figures.attention import attention_map
from interp.figures.maps import Panel, share_maps
from interp.figures.style import save
from interp.heads.effects import Component, components
from interp.heads.reading import scored_mask
from interp.store import ActivationStore, extract
from interp.store.plan import weights_sha256
from interp.tasks.base import Batch
from interp.tasks.catalogue import known_task
from probes.activations import collect
from probes.linear import decode
from probes.roles import ROLE_COLUMNS, answers_of, candidates, find_roles, memories_of

__all__ = [
    "Heads",
    "draw",
    "measure_model",
    "measure_store",
    "model_of",
    "roles_in_words",
    "task_of",
    "write_files",
]

_ATTENTION = ("previous-token", "duplicate-token", "induction", "sink", "counter", "local",
              "dense", "memory-location", "symbol-equality", "copying")  # fmt: skip
_PREFIX = "attention-"
_LEAST = 1e-10


@dataclass(frozen=True)
class Heads:
    """What was found, and the store that it is sealed into.

    Attributes:
        note: What could not be looked for, because the store's task is not known here; or empty.
    """

    store: ActivationStore
    roles: pd.DataFrame
    note: str = ""


def measure_model(
    model: Any, task: Any, folder: Path, *, rows: int, seed: int, about: dict[str, Any]
) -> Heads:
    """Run a model on rows of a task, decide its roles and seal them with what figures need.

    Args:
        model: A hooked model that takes the task's inputs.
        task: Drawn from the catalogue.
        folder: Of the store that is made.
        rows: How many.
        seed: Of the rows and of the nulls.
        about: JSON data: what the model and the task are called.
    """
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in sorted({
        part.layer for part in components(model) if part.kind == "head"})]  # fmt: skip
    store = extract(model, task, hooks, folder, rows=rows, seed=seed, about=about)
    return _measured(store, model, task, seed, {**about, "rows": rows, "seed": seed})


def measure_store(path: Path, model: Any = None, *, seed: int = 0) -> Heads:
    """The roles on a store's rows, sealed into it.

    Args:
        path: The store.
        model: The one that it was made of (:func:`model_of`); without, the patterns alone speak,
            and nothing is more than a candidate.
        seed: Of the nulls.

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
        return replace(_measured(store, model, task, seed, about), note=unknown)
    roles = candidates(store)
    provenance = {"source": "patterns of this store; no model was run"}
    _seal_roles(store, roles, provenance)
    return Heads(store, roles)


def task_of(store: ActivationStore) -> Any:
    """The task whose rows a store holds; None for other rows, or a task not known here."""
    return _recorded(store)[0]


def _recorded(store: ActivationStore) -> tuple[Any, str]:
    """The task, or None and what that costs."""
    described = store.manifest["plan"]["source"]
    data = described.get("task") if isinstance(described, dict) else None
    task, unknown = known_task(data if isinstance(data, dict) else None)
    cost = "; roles of memories and answers are not looked for"
    return task, f"{store.path}: {unknown}{cost}" if unknown else ""


def model_of(store: ActivationStore, load: Callable[[str], Any]) -> tuple[Any, str]:
    """The model that a store names, if it can still be loaded and has the same weights; else None
    and the reason."""
    name = store.manifest.get("about", {}).get("model")
    if not isinstance(name, str):
        return None, "the store names no model"
    try:
        model = load(name)
    except ProoflensError as error:
        return None, str(error)
    if weights_sha256(model) != store.manifest["plan"]["model"]["weights_sha256"]:
        return None, f"{name} has other weights now"
    return model, ""


def _measured(
    store: ActivationStore, model: Any, task: Any, seed: int, provenance: dict[str, Any]
) -> Heads:
    batch = rows_of(store)
    known: dict[str, Any] = {"memories": memories_of(task), "answers": answers_of(task)}
    roles = find_roles(model, batch, **known, targets=has_targets(store), seed=seed)
    _seal_roles(store, roles, provenance)
    table = _layers(model, batch)
    if len(table):
        _seal(store, "decodability", table, provenance)
    return Heads(store, roles)


def _seal_roles(store: ActivationStore, roles: pd.DataFrame, provenance: dict[str, Any]) -> None:
    _seal(store, "roles", roles, provenance)
    for name, table in _maps(store, roles):
        _seal(store, name, table, provenance)


def _seal(
    store: ActivationStore, name: str, table: pd.DataFrame, provenance: dict[str, Any]
) -> None:
    store.write_measurement(name, table.reset_index(drop=True), provenance, overwrite=True)


def has_targets(store: ActivationStore) -> bool:
    """Whether the source of a store's rows gave targets."""
    return all("targets" in part.shapes for part in store.parts)


def rows_of(store: ActivationStore) -> Batch:
    """The rows that a store holds; zeros for targets that it has not, scored everywhere if it has
    no mask."""
    inputs = torch.from_numpy(store.inputs())
    known = has_targets(store)
    return Batch(
        inputs=inputs,
        targets=torch.from_numpy(store.targets()) if known else torch.zeros_like(inputs),
        mask=torch.from_numpy(scored_mask(store)),
        latents={name: torch.from_numpy(value) for name, value in store.latents().items()},
    )


def _maps(store: ActivationStore, roles: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """One head a role: the strongest. Its attention, mean over rows."""
    heads = roles[(roles["component"] == "head") & roles["role"].isin(_ATTENTION)]
    for role, rows in heads.groupby("role", sort=False):
        best = cast("pd.Series[Any]", rows.loc[cast("int", rows["strength"].abs().idxmax())])
        layer, head = int(best["layer"]), int(best["head"])
        if not {f"blocks.{layer}.attn.hook_pattern"} & {*store.hooks, *store.aliases}:
            continue
        pattern = store.activation(f"blocks.{layer}.attn.hook_pattern", heads=[head])
        mean = _shares(pattern.astype(np.float64)).mean(axis=0)[0]
        table = pd.DataFrame(mean, columns=[f"key {key}" for key in range(mean.shape[1])])
        yield f"{_PREFIX}{role}-L{layer}H{head}", table


def _shares(pattern: np.ndarray) -> np.ndarray:
    """Attention as shares, also of heads whose weights do not add up to 1."""
    total = pattern.sum(axis=-1, keepdims=True)
    shares: np.ndarray = np.divide(pattern, total, out=np.zeros_like(pattern), where=total > 0)
    return shares


def _layers(model: Any, batch: Batch) -> pd.DataFrame:
    """Linear decodability of each scalar latent along the residual stream."""
    names = [
        name for name, value in batch.latents.items()
        if value.ndim == 2 and float(value[batch.mask].double().std()) > 0
    ]  # fmt: skip
    if not names:
        return pd.DataFrame()
    after = {"head": "mid", "ffn": "post"}
    sites = [f"blocks.{p.layer}.hook_resid_{after[p.kind]}" for p in components(model)]
    sites = list(dict.fromkeys(["blocks.0.hook_resid_pre", *sites]))
    samples = collect(model, batch, sites)
    rows = [
        {"latent": name, "site": hook, "score": decode(samples.features[hook], latent).score}
        for hook in sites
        for name, latent in samples.latents.items()
        if name in names
    ]
    return pd.DataFrame(rows)


def draw(store: ActivationStore, folder: Path) -> list[Path]:
    """Every figure that a store's tables allow, written to a folder."""
    written: list[Path] = []
    for name, figure in _figures(store):
        written += save(figure, folder / name)
    return written


def _figures(store: ActivationStore) -> Iterator[tuple[str, Figure]]:
    for name in store.measurements:
        if name.startswith(_PREFIX):
            role, _, head = name.removeprefix(_PREFIX).rpartition("-")
            yield name, attention_map(store.measurement(name).to_numpy(), f"{head}: {role}")
    if "roles" in store.measurements:
        roles = store.measurement("roles")
        if len(roles):
            yield "roles", _role_map(roles)
    if "decodability" in store.measurements:
        table = store.measurement("decodability")
        wide = table.pivot(index="site", columns="latent", values="score")
        sites = list(dict.fromkeys(table["site"]))
        latents = list(dict.fromkeys(table["latent"]))
        panel = Panel("residual stream", wide.loc[sites, latents].to_numpy(), sites)
        figure = share_maps([panel], latents, label="held-out r², linear probe", across="latent")
        figure.axes[0].tick_params(axis="x", rotation=45)
        yield "decodability", figure
    if "probes" in store.measurements:
        yield "probes", latent_maps(store.measurement("probes"))


def _role_map(roles: pd.DataFrame) -> Figure:
    """Component × role: the strength of what is confirmed, a half-tone of what is not."""
    names = roles.apply(_name, axis=1)
    confirmed = roles["status"] == "confirmed"
    panels = []
    kinds = list(dict.fromkeys(roles["role"]))
    parts = list(dict.fromkeys(names))
    for title, chosen in (("confirmed", confirmed), ("candidate", ~confirmed)):
        if not chosen.any():
            continue
        values = np.zeros((len(parts), len(kinds)))
        for name, (_, row) in zip(names[chosen], roles[chosen].iterrows(), strict=True):
            place = parts.index(name), kinds.index(row["role"])
            values[place] = max(values[place], abs(row["strength"]))
        panels.append(Panel(title, values, parts))
    return share_maps(panels, [kind.replace("-", "\n") for kind in kinds],
                      label="strength of the role", across="role")  # fmt: skip


def _name(row: Any) -> str:
    if row["component"] == "layer":
        return f"L{row['layer']}"
    return Component(row["component"], int(row["layer"]), int(row["head"])).name


def roles_in_words(roles: pd.DataFrame) -> Iterator[str]:
    """A line a role, confirmed ones first."""
    order = roles.sort_values(["status", "layer", "head"], ascending=[False, True, True])
    for _, row in order.iterrows():
        target = f" of {row['target']}" if row["target"] else ""
        yield (
            f"{_name(row):8} {row['role'] + target:32} {row['status']:10} "
            f"strength {row['strength']:5.2f}  q {_tail(row['q'])}  {row['evidence']}"
        )


def _tail(q: float) -> str:
    """A q to read; one below 1e-10 is a tail that nobody measured."""
    return f"{q:.1e}" if q >= _LEAST else f"< {_LEAST:.0e}"


def write_files(found: Heads, folder: Path) -> list[Path]:
    """``roles.csv``; ``roles.json``, where each row has its tests as well; and the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    table, rows = folder / "roles.csv", folder / "roles.json"
    found.roles.to_csv(table, index=False, columns=list(ROLE_COLUMNS))
    records = json.loads(found.roles.to_json(orient="records", double_precision=15))
    told = [{**record, "tests": json.loads(record["tests"])} for record in records]
    rows.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return [table, rows, *draw(found.store, folder / "figures")]
