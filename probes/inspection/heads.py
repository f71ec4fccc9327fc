"""Inspect a pretrained model's heads: what they do, and what their weights say.

    trials → activation stores → behaviour, loss without each part → with the weights → roles

Everything lands in one folder: the stores (with every table sealed into them), ``roles.csv``,
``heads.csv`` (every score with its null), ``trials.csv``, the same as JSON, figures and
``report.html``. An inspection that was interrupted goes on with ``resume``: finished parts of the
stores and sealed tables are read, not made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from interp.environment import ENVIRONMENT, environment_json
from interp.errors import OutputError
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import components
from interp.lock import LOCK, alone
from interp.models.pretrained import Pretrained
from interp.output import check_output, drop, output_file, output_folder
from interp.run import Run
from interp.store import ActivationStore
from interp.weights.composition import COMPOSITIONS, PAIRED_UP_TO
from interp.weights.head_weights import HeadWeights
from interp.weights.weight_table import weight_table
from probes.head_scores import head_scores
from probes.inspection.behaviour import Performance, performance, sealed, stored_rows
from probes.inspection.by_position import with_positions
from probes.inspection.crops import CROPS, crop_table
from probes.inspection.explained import explained
from probes.inspection.inspected_rows import InspectedRows
from probes.inspection.losses import Watch, ablated_parts, check_backend, loss_tables
from probes.roles.evidence import Evidence
from probes.roles.find import decided
from probes.roles.gathering import evidence_of
from probes.roles.profile import LANGUAGE, Profile
from probes.roles.trials import Trial, rows_of

__all__ = ["MARKER", "Inspected", "inspect_heads", "inspection_folder", "write_tables"]

MARKER = ".prooflens-inspect"
_WEIGHTS = (
    "trace_share",
    "diag_ratio",
    "identity_energy",
    "identity_coefficient",
    "effective_rank",
    "copying_score",
    *COMPOSITIONS,
)
_DRAWS, _WIDE, _DRAWS_OF_WIDE = 1000, 128, 200
"""Random circuits whose spectra a head's is compared with; of heads wider than 128, whose spectra
all but coincide and take a hundredth of a second each, fewer."""


@dataclass(frozen=True)
class Inspected:
    """The results of an inspection.

    Attributes:
        model: The model that was run.
        factors: The weights of its heads.
        trials: The kinds of rows that it was run on.
        performances: How well it did on each.
        behaviour: Attention, copying and position of every head (a head table).
        losses: The rise of the loss without every head and FFN (a head table).
        weights: Metrics of the weights and compositions (a head table).
        roles: The role table: which head plays which role.
        explained: What confirmed roles explain of each head on the text or rows given.
        notes: What was left out, and what a reader should know.
        settings: The number of rows, their length (and the length asked for), how many token ids
            they are drawn from, and the seed.
    """

    model: Pretrained
    factors: HeadWeights
    trials: tuple[Trial, ...]
    performances: tuple[Performance, ...]
    behaviour: pd.DataFrame
    losses: pd.DataFrame
    weights: pd.DataFrame
    roles: pd.DataFrame
    explained: pd.DataFrame
    notes: tuple[str, ...]
    settings: dict[str, Any]


@contextmanager
def inspection_folder(out: Path, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """The folder that an inspection works in: ``out``, or a draft that replaces an older one.

    A new inspection works in ``out`` itself, so that it can be resumed; one that replaces another
    begins beside it, and the older one stands until the new one is whole.

    Raises:
        OutputError: if it exists and is neither to be resumed nor replaced, is no inspection's, or
            another process is inspecting into it.
    """
    begun = out.is_dir() and {path.name for path in out.iterdir()} <= {LOCK}  # and then killed
    if resume and out.exists() and not begun and not (out / MARKER).exists():
        raise OutputError(f"{out} holds no inspection to resume: leave --resume out")
    if not resume:
        check_output(out, overwrite=overwrite, marker=MARKER)
    if not resume and out.exists() and any(out.iterdir()):
        with (
            alone(out, "inspecting into this folder", keep=False),
            output_folder(out, overwrite=True, marker=MARKER) as draft,
        ):
            yield draft
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with alone(out, "inspecting into this folder", keep=False):
            (out / MARKER).touch()
            yield out
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
    finally:
        if out.is_dir() and {path.name for path in out.iterdir()} == {MARKER}:
            drop(out)  # nothing came of it


def inspect_heads(
    model: Pretrained,
    factors: HeadWeights,
    rows: InspectedRows,
    out: Path,
    *,
    seed: int = 0,
    effects: bool = False,
    resume: bool = False,
    profile: Profile = LANGUAGE,
    backend: str = "local",
    loader: Callable[[], HookedModel] | None = None,
    step: Callable[[str], None] = lambda words: None,
    watch: Watch = lambda items: items,
) -> Inspected:
    """Run the model on every kind of rows and decide the roles of its heads.

    Args:
        model: The model, from :func:`interp.models.pretrained.load_pretrained`.
        factors: The weights of its heads, from :func:`interp.weights.head_weights.head_weights`.
        rows: What it is run on, from :func:`probes.inspection.inspected_rows.inspected_rows`.
        out: The folder for all results; :func:`inspection_folder` opens one.
        seed: Seed of the nulls.
        effects: Whether the loss without every head and FFN is measured, also of a model of more
            than 64, of which otherwise only heads with a role's behaviour are ablated.
        resume: Reuse what an interrupted inspection left in ``out``.
        profile: The level of significance and the floors of the roles.
        backend: ``local``, or ``ray``: the losses without components are tasks of a Ray cluster.
        loader: For ``ray``: builds the model on a worker, if it cannot be pickled.
        step: Called with a sentence that says what is being done.
        watch: Called with the pieces of the longest part of the work; goes through them.

    Raises:
        ArgumentError: for arguments that do not fit, before anything is written.
        StoreError: if ``out`` holds an inspection with other settings.
    """
    check_backend(backend)
    trials = rows.trials
    stores: dict[str, ActivationStore] = {}
    for trial in trials:
        if trial.name in ("repeated", "text", "rows"):
            step(f"running {trial.name}")
            stores |= stored_rows(model.model, trial, out / "stores", resume=resume)
    step("attention, copying, position, roles")
    with evaluating(model.model):
        evidence = evidence_of(model.model, rows_of(trials), profile, seed=seed)
        behaviour, roles, more, performances = _decided(model, trials, evidence, stores, step)
        roles = with_positions(roles, model.model, rows.whole, profile)
    parts = ablated_parts(model.model, roles, every=effects)
    step(f"{len(parts)} heads and FFNs, each left out")
    seen = stores["repeated"]
    how: dict[str, Any] = {"watch": watch, "backend": backend, "loader": loader}
    lost = loss_tables(evidence, trials, parts, seen, seed=seed, every=effects, **how)
    notes = [*model.notes, *rows.notes, *_not_ablated(model.model, len(parts))]
    step("weights")
    weights = _weights(factors, seed, notes, seen)
    sizes = {"length": rows.positions, "tokens": rows.tokens}
    settings = {"asked": rows.asked, "rows": rows.rows, "seed": seed, **sizes}
    tables = (behaviour, lost, weights, roles, more)
    return Inspected(model, factors, trials, performances, *tables, tuple(notes), settings)


def _not_ablated(model: HookedModel, ablated: int) -> list[str]:
    """A note where some components were not ablated."""
    every = len(components(model))
    told = (
        f"{every - ablated} of {every} heads and FFNs, which show no role's behaviour, were not "
        "ablated: --effects measures the loss without every one"
    )
    return [told] if ablated < every else []


def _weights(
    factors: HeadWeights, seed: int, notes: list[str], store: ActivationStore
) -> pd.DataFrame:
    """What the weights say, sealed into the store; of very many heads without pairs, which a note
    tells."""
    draws = _DRAWS if factors.d_head <= _WIDE else _DRAWS_OF_WIDE
    metrics, heads = list(_WEIGHTS), factors.n_layers * factors.n_heads
    if heads > PAIRED_UP_TO:
        metrics = [name for name in metrics if name not in COMPOSITIONS]
        notes.append(f"compositions of {heads} heads are left out: prooflens weights has them")
    table = weight_table(factors, metrics, draws=draws, seed=seed)
    store.write_measurement("weights", table, {"seed": seed}, overwrite=True)
    for circuit in ("QK", "OV"):
        crops = crop_table(factors, table, circuit)
        if len(crops):
            about = {"circuit": circuit}
            store.write_measurement(f"{CROPS}{circuit}", crops, about, overwrite=True)
    return table


def _decided(
    pretrained: Pretrained,
    trials: Sequence[Trial],
    evidence: Evidence,
    stores: Mapping[str, ActivationStore],
    step: Callable[[str], None],
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, tuple[Performance, ...]]:
    """What heads do on the stores' rows (a head table), the role table, and what confirmed roles
    explain on text. Rows are run again rather than read: their patterns fill half the memory."""
    model, seed = pretrained.model, evidence.seed
    for kind, store in stores.items():
        made = partial(evidence.table, kind)
        evidence.tables[kind] = sealed(store, "attention", {"rows": kind}, made)
    step(_first_words(evidence))
    roles = decided(evidence)
    about = {"profile": evidence.profile.name, "seed": seed}
    stores["repeated"].write_measurement("roles", roles, about, overwrite=True)
    named = [table.assign(trial=kind) for kind, table in evidence.tables.items()]
    added = head_scores(model, evidence.views["repeated"].batch, seed=seed)
    named += [added.assign(trial="repeated")] if len(added) else []
    found = (performance(evidence.run(t.name), t.name, _control(evidence, t)) for t in trials)
    word = str if pretrained.tokenizer is None else partial(_word, pretrained.tokenizer)
    more = explained(evidence, roles, word)
    return pd.concat(named, ignore_index=True), roles, more, tuple(found)


def _first_words(evidence: Evidence) -> str:
    """What is seen before anything is changed: the heads that attend most to two classes of
    keys."""
    words = []
    for keys, about in (
        ("previous", "the token before"),
        ("after_same", "what followed its token"),
    ):
        shares = {place: evidence.share(place, keys) for place in evidence.heads}
        known = {place: share.score for place, share in shares.items() if share is not None}
        if known:
            layer, head = max(known, key=lambda place: known[place])
            words.append(f"L{layer}H{head} attends most to {about} ({known[layer, head]:.2f})")
    return "; ".join([*words, "what is lost without each"])


def _word(tokenizer: Any, token: int) -> str:
    return repr(tokenizer.decode([token]))


def _control(evidence: Evidence, trial: Trial) -> Run | None:
    """The model on a trial's control; its run on the shuffled rows is among the evidence."""
    if trial.control is None:
        return None
    if trial.name == "repeated":
        return evidence.run("shuffled")
    return Run(evidence.model, trial.control)


def write_tables(found: Inspected, out: Path, said: Iterable[str]) -> None:
    """The tables as CSV, ``inspection.json``, ``findings.txt`` and what they were made with."""
    scores = pd.concat([found.behaviour, found.losses, found.weights], ignore_index=True)
    trials = pd.DataFrame([vars(p) for p in found.performances])
    tables = {"roles": found.roles, "heads": scores, "trials": trials}
    tables |= {"explained": found.explained} if len(found.explained) else {}
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
    with output_file(out / ENVIRONMENT, overwrite=True) as draft:
        draft.write_text(environment_json(), encoding="utf-8")
