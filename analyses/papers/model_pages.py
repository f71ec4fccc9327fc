"""What the report says of a model: roles, where its heads look, what is readable where, and which
statements of the proof hold for it.

    OUT/NAME/model.json       what it is, in words, and what it was made from
    OUT/NAME/roles.csv        the role table
    OUT/NAME/probes.csv       latent × hook, with controls
    OUT/NAME/statements.csv   theory (statements of the proof), constructed, trained
    OUT/NAME/attention.png    mean attention of every head
    OUT/NAME/latents.png      latent × layer

A shipped model and the construction of its task, where there is one, are measured with the same
seed on as many rows: the same ones, unless the construction reads other values (±1 for Gaussian
ones), which its page says. A folder that was made from the same weights is kept as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.papers.ledger import PAPERS
from analyses.papers.models import MODEL
from prooflens.architectures import SequenceTransformer
from prooflens.errors import ArgumentError, ProoflensError
from prooflens.files import output_folder, read_json
from prooflens.pages import latent_maps
from prooflens.plot import attention_in_words, attention_maps, save
from prooflens.probes import Readable, agreement, answered_share, probe_source, roles_and_layers
from prooflens.proofs import Construction, construct, has_proof
from prooflens.roles import no_roles
from prooflens.store import read_batches
from prooflens.tasks import Batch, Task
from prooflens.trained import zoo

__all__ = ["measure_models"]

ROWS, SEED = 256, 10_009
_FORMAT = 4
_DPI = 100  # a page a model: all of them go into one file of bounded size


@dataclass(frozen=True)
class _Measured:
    """What was measured of one model.

    Attributes:
        roles, probes: Its role table and its probe table.
        patterns: Name of a head → its mean attention pattern ``[query, key]``.
        layers: Where each of the proof's formulas can first be read.
        answered: The share of the targets' variance that the output explains.
    """

    roles: pd.DataFrame
    probes: pd.DataFrame
    patterns: dict[str, np.ndarray]
    layers: dict[str, Readable]
    answered: float


def measure_models(
    out: Path,
    *,
    names: Iterable[str] | None = None,
    watch: Callable[[list[str]], Iterable[str]] = iter,
) -> None:
    """Measure shipped models and their tasks' constructions into folders of ``out``.

    Args:
        out: The folder of folders.
        names: The names of shipped models; all by default.
        watch: Wraps the iteration over models, for a progress bar.
    """
    proofs: dict[str, _Measured] = {}
    for name in watch(zoo.names() if names is None else list(names)):
        shipped = zoo.load(name)
        if isinstance(shipped.model, SequenceTransformer):  # a baseline has no heads
            _measure_one(shipped, out, proofs)


def _measure_one(shipped: zoo.Shipped, out: Path, proofs: dict[str, _Measured]) -> None:
    """Write a model's folder, and that of its task's construction unless another model of the task
    has done so."""
    key = _key(shipped.model)
    if _is_there(out / shipped.name, key):
        return
    about: dict[str, Any] = {
        "format": _FORMAT,
        "key": key,
        "paper": _paper(shipped),
        "words": _words(shipped),
    }
    proof = None
    try:
        if has_proof(shipped.task):
            proof = construct(shipped.task, rank=shipped.model.spec.d_head)
    except ArgumentError as error:
        about["words"] += [f"No construction beside it: {error}."]
    formulas = [p.target for p in proof.mechanism.parts if p.role == "formula"] if proof else []
    found = _measure(shipped.model, shipped.task, formulas)
    if proof is None:
        _write(out / shipped.name, found, {**about, "proof": ""})
        return
    worst, proof_key = _largest_error(proof), _key(proof.model)
    if proof_key not in proofs:
        proofs[proof_key] = _measure(proof.model, proof.task, formulas)
        of_proof = {"key": proof_key, "words": _proof_words(proof, worst), "proof": ""}
        _write(out / proof.name, proofs[proof_key], {**about, **of_proof})
    table = _statements(proof, worst, proofs[proof_key], found, shipped.metrics)
    _write(out / shipped.name, found, {**about, "proof": proof.name}, table)


def _measure(model: SequenceTransformer, task: Task, formulas: Sequence[str]) -> _Measured:
    batch = _measured_task(task).sample(ROWS, seed=SEED)
    names = [name for name in formulas if name in batch.latents]
    roles, layers = no_roles(), dict[str, Readable]()
    if any(model.spec.heads):
        roles, layers = roles_and_layers(model, batch, task, names, seed=SEED)
    probes = probe_source(model, batch, seed=SEED).table
    return _Measured(roles, probes, _patterns(model, batch), layers, answered_share(model, batch))


def _patterns(model: SequenceTransformer, batch: Batch) -> dict[str, np.ndarray]:
    heads = {layer: count for layer, count in enumerate(model.spec.heads) if count}
    hooks = {layer: f"blocks.{layer}.attn.hook_pattern" for layer in heads}
    sums: dict[str, np.ndarray] = {}
    if not heads:
        return sums
    for rows in read_batches(model, batch, list(hooks.values())):
        for layer, count in heads.items():
            total = rows.activations[hooks[layer]].double().sum(0).numpy()
            for head in range(count):
                name = f"L{layer}H{head}"
                sums[name] = sums.get(name, 0.0) + total[head]
    return {name: total / len(batch.inputs) for name, total in sums.items()}


def _statements(
    proof: Construction,
    worst: float,
    built: _Measured,
    found: _Measured,
    metrics: Any,
) -> pd.DataFrame:
    """The statements of the proof, and whether they hold in both models."""
    measured = ", ".join(f"{key} {metrics[key]:.3g}" for key in ("accuracy", "error"))
    rows = [
        {
            "theory": f"the answer is off by at most {proof.certificate.error:.1e}",
            "constructed": f"off by {worst:.1e}" if worst else "exact",
            "trained": measured,
        }
    ]
    tables = [
        agreement(proof.mechanism, m.roles, layers=m.layers, answered=m.answered)
        for m in (built, found)
    ]
    for of_proof, of_model in zip(*(t.itertuples() for t in tables), strict=True):
        rows.append(
            {
                "theory": of_proof.statement,
                "constructed": _holds(of_proof),
                "trained": _holds(of_model),
            }
        )
    return pd.DataFrame(rows)


def _holds(row: Any) -> str:
    if not row.holds:
        return "not confirmed"
    return f"yes: {row.by}" if row.by else "yes"


def _largest_error(proof: Construction) -> float:
    batch = proof.task.sample(ROWS, seed=SEED)
    with torch.no_grad():
        output = proof.model(batch.inputs)
    mask = batch.mask
    if batch.targets.is_floating_point():
        return float((output[mask] - batch.targets[mask].to(output)).abs().max())
    return float((output[mask].argmax(-1) != batch.targets[mask]).double().max())


def _measured_task(task: Task) -> Task:
    """Return the task with rows of one length, so that probes see all positions."""
    one_length = getattr(task, "of_one_length", None)
    return task if one_length is None else one_length()


def _words(shipped: zoo.Shipped) -> list[str]:
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in shipped.metrics.items())
    where = "" if shipped.test is None else f" of another task ({shipped.test.name})"
    return [
        f"Trained: {shipped.about}. {_size(shipped.model)}; task {shipped.task.name}.",
        f"Metrics on fresh rows{where}: {metrics}.",
    ]


def _proof_words(proof: Construction, worst: float) -> list[str]:
    bound = proof.certificate
    return [
        f"Constructed: {proof.name}. {_size(proof.model)}; task {proof.task.name}.",
        f"Its certificate: off by at most {bound.error:.1e} for {bound.domain}. Measured on {ROWS} "
        f"fresh rows: {worst:.1e}.",
    ]


def _size(model: SequenceTransformer) -> str:
    spec = model.spec
    return f"{spec.n_layers} layer{'s' * (spec.n_layers != 1)}, width {spec.d_model}"


def _paper(shipped: zoo.Shipped) -> str:
    """Return the paper of the claim that a model serves, or that of its task; empty if the task is
    from no paper."""
    candidates = (shipped.claim.split("-")[0], type(shipped.task).__module__.split(".")[2])
    return next((name for name in candidates if name in PAPERS), "")


def _key(model: SequenceTransformer) -> str:
    """A hash of the model's weights and of everything that its measurement depends on."""
    digest = hashlib.sha256(f"{version('prooflens')} {_FORMAT} {ROWS} {SEED}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _is_there(folder: Path, key: str) -> bool:
    try:
        return bool(read_json(folder / MODEL)["key"] == key)
    except (ProoflensError, KeyError, TypeError):
        return False


def _write(
    folder: Path, found: _Measured, about: dict[str, Any], statements: pd.DataFrame | None = None
) -> None:
    with output_folder(folder, overwrite=True, marker=MODEL) as draft:
        found.roles.to_csv(draft / "roles.csv", index=False)
        found.probes.to_csv(draft / "probes.csv", index=False)
        if statements is not None:
            statements.to_csv(draft / "statements.csv", index=False)
        told = {"latents": _read_in_words(found.probes)}
        if found.patterns:
            save(attention_maps(found.patterns), draft / "attention", formats=("png",), dpi=_DPI)
            told["attention"] = f"Most: {attention_in_words(found.patterns)}."
        save(latent_maps(found.probes), draft / "latents", formats=("png",), dpi=_DPI)
        (draft / MODEL).write_text(json.dumps({**about, "told": told}, indent=1) + "\n")


def _read_in_words(probes: pd.DataFrame) -> str:
    """Say where each latent can be read best, with the score."""
    best = probes.loc[probes.groupby("latent", sort=False)["score"].idxmax()]
    told = (f"{row.latent} {row.score:.2f} at {row.hook}" for row in best.itertuples())
    return f"Best: {', '.join(told)}."
