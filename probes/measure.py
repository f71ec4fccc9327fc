"""Measure a model, or a store, on rows in every way: named tables, sealed into a store.

    measure(source, rows, profile) → Measurements

The tables are tidy: one line per thing, one column per number of one unit;
:data:`probes.columns.TABLES` describes them all. A page is made from them alone, so whoever has the
store has the page. For a store whose model cannot be run there are attention patterns and candidate
roles: behaviour, and no cause.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from interp.attention.attention_to_keys import attention_table
from interp.environment import environment
from interp.errors import ProoflensError
from interp.hooks.capture import evaluating
from interp.interventions.components import Component, components
from interp.models.pretrained import Pretrained
from interp.run import Run, Site
from interp.run.gate import next_tokens
from interp.store import ActivationStore
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory
from interp.weights.composition import PAIRED_UP_TO
from interp.weights.head_weights import HeadWeights, head_weights
from interp.weights.metric_names import COMPOSITIONS
from interp.weights.weight_table import weight_table
from probes.activations import Samples, collect
from probes.head_scores import head_scores
from probes.inspection.behaviour import performance
from probes.inspection.by_position import with_positions
from probes.inspection.explained import GIVEN_KINDS, explain_heads, with_text
from probes.inspection.inspected_rows import InspectedRows
from probes.inspection.losses import Watch, ablated_parts, loss_tables
from probes.inspection.shown import Shown, effect_lines, raised_tokens, shown_tables
from probes.inspection.texts import token_texts, token_word
from probes.linear import decode, probe_for
from probes.roles.decision import STATUSES, Found, Lacking, by_status
from probes.roles.evidence import Evidence
from probes.roles.find import candidates, examine, role_table
from probes.roles.gathering import evidence_of
from probes.roles.profile import LANGUAGE, Profile
from probes.roles.registry import ROLES
from probes.roles.trials import rows_of
from probes.roles.views import SCORED, WIDE

_WEIGHTS = (
    "trace_share",
    "diag_ratio",
    "identity_coefficient",
    "effective_rank",
    "copying_score",
    *COMPOSITIONS,
)
_DRAWS, _WIDE, _DRAWS_OF_WIDE = 1000, 128, 200
"""Number of random circuits with which a head's spectra are compared: ``_DRAWS`` for heads up to
``_WIDE`` dimensions, ``_DRAWS_OF_WIDE`` for wider ones. Wide random circuits have nearly the same
spectra, and one takes a hundredth of a second."""
_MAPS = 12
"""Largest number of heads of a role whose mean attention pattern is stored. Confirmed heads come
first, then the strongest."""
_SHOWN_BYTES, _FEWEST, _SHOWN_ROWS = 12e6, 4, 24
"""Limits on the rows of a kind that the viewer shows: ``_SHOWN_ROWS`` rows, or fewer if the
attention of all heads would take more than ``_SHOWN_BYTES`` bytes, but at least ``_FEWEST``."""

Place = tuple[int, int]
Step = Callable[[str], None]


@dataclass(frozen=True)
class Measurements:
    """The measurements of a model.

    Attributes:
        tables: Name → table; the names are those of :data:`~probes.columns.TABLES`.
        about: What was measured, as JSON data: the model, its rows, the profile, notes.
    """

    tables: Mapping[str, pd.DataFrame]
    about: Mapping[str, Any]

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return the table of a name; an empty one if there is none."""
        return self.tables.get(name, pd.DataFrame())

    @classmethod
    def from_store(cls, store: ActivationStore) -> Measurements | None:
        """Read the measurements that a store holds.

        Only tables with the same provenance as the table of facts are read.

        Returns:
            The measurements; None if the store has no table of facts.
        """
        if "facts" not in store.measurements:
            return None
        made, facts = store.provenance("facts"), store.measurement("facts")
        tables = {
            name: store.measurement(name)
            for name in store.measurements
            if name != "facts" and store.provenance(name) == made
        }
        about = {n: json.loads(v) for n, v in zip(facts["name"], facts["value"], strict=True)}
        return cls(tables, about)


@dataclass
class _Kept:
    """The tables of a measurement: each is sealed as it is made, and read back when a run is
    resumed.

    Attributes:
        store: The store into which tables are sealed; None to keep them in memory.
        made: The provenance of the tables.
        resume: Whether to read what an interrupted run sealed.
        tables: Name → table.
    """

    store: ActivationStore | None
    made: dict[str, Any]
    resume: bool
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    def is_sealed(self, name: str) -> bool:
        """Return whether an interrupted run of this measurement has stored this table completely.

        Always false unless the run is resumed and has a store. A table with another provenance
        does not count.
        """
        if not self.resume or self.store is None or name not in self.store.measurements:
            return False
        return self.store.provenance(name) == self.made

    def table(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return the sealed table, or make it now; an empty one is not kept."""
        if self.is_sealed(name) and self.store is not None:
            self.tables[name] = self.store.measurement(name)
        elif len(found := make().reset_index(drop=True)) or name == "roles":
            self.put(name, found)
        return self.tables.get(name, pd.DataFrame())

    def put(self, name: str, table: pd.DataFrame) -> None:
        """Keep a table, and seal it."""
        self.tables[name] = table
        if self.store is not None:
            self.store.write_measurement(name, table, self.made, overwrite=True)


def measure(
    source: Pretrained | ActivationStore,
    rows: InspectedRows,
    profile: Profile,
    *,
    store: ActivationStore | None = None,
    factors: HeadWeights | None = None,
    prompts: Sequence[Tensor] = (),
    targets: bool = True,
    seed: int = 0,
    effects: bool = False,
    resume: bool = False,
    backend: str = "local",
    loader: Callable[[], Any] | None = None,
    step: Step = lambda words: None,
    watch: Watch = lambda items: items,
) -> Measurements:
    """Measure a model on rows, and decide the roles of its components.

    Args:
        source: The model; or a store alone, whose attention patterns are then all that is known.
        rows: The rows, from :func:`probes.inspection.inspected_rows.inspected_rows`.
        profile: The profile, with the unit of effects and the floors of roles.
        store: The store into which tables are sealed as soon as they are made; None to keep them in
            memory.
        factors: The weights of the model's heads, if they are not to be read off the model.
        prompts: Token ids ``[1, pos]`` that are shown as well, and not used for decisions.
        targets: Whether the rows' targets are known.
        seed: Seed of the nulls.
        effects: Whether to ablate every head and FFN even in a model with more than 64 of them; by
            default only heads with a role that is not rejected are ablated there.
        resume: Whether to read what an interrupted run sealed into the store.
        backend: ``local``, or ``ray`` to run the ablations as tasks of a Ray cluster.
        loader: For ``ray``: a function that builds the model on a worker, if the model cannot be
            pickled.
        step: A function that is called with a sentence saying what is being done.
        watch: A wrapper around the longest loops, for a progress bar.

    Raises:
        ArgumentError: for rows that do not fit the profile, or a model that is not finite on them.
        HookError: for a model without hooks at its attention patterns.
    """
    name = source.name if isinstance(source, Pretrained) else str(source.path)
    name = name.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8
    made = _provenance(name, rows, profile, seed)
    kept = _Kept(store, made, resume)
    about: dict[str, Any] = {
        **made,
        "unit": profile.unit,
        "level": profile.level,
        "floor": profile.floors.share,
        "asked": [role.name for role in ROLES.values() if profile.name in role.profiles],
        "trials": [{"name": t.name, "title": t.title, "about": t.about} for t in rows.trials],
        "settings": {"rows": rows.rows, "asked": rows.asked, "length": rows.positions,
                     "tokens": rows.tokens},
        "task": None if rows.task is None else rows.task.to_dict(),
        "environment": environment(),
    }  # fmt: skip
    if isinstance(source, ActivationStore):
        about |= _of_store(source, rows, profile, kept)
    else:
        work = _Work(source, rows, profile, kept, seed, step)
        about |= work.run(factors, prompts, targets=targets, effects=effects,
                          how={"watch": watch, "backend": backend, "loader": loader})  # fmt: skip
    facts = [{"name": n, "value": json.dumps(v, ensure_ascii=False)} for n, v in about.items()]
    if store is not None:
        store.write_measurement("facts", pd.DataFrame(facts), made, overwrite=True)
    return Measurements(kept.tables, json.loads(json.dumps(about)))


def _provenance(name: str, rows: InspectedRows, profile: Profile, seed: int) -> dict[str, Any]:
    """Return the provenance of every table, which distinguishes one measurement from another."""
    batches = {trial.name: trial.batch for trial in rows.trials}
    digests = {
        kind: hashlib.sha256(batch.inputs.contiguous().numpy().tobytes()).hexdigest()[:16]
        for kind, batch in batches.items()
    }
    return {"model": name, "profile": profile.name, "seed": seed, "rows_sha256": digests}


class _Work:
    """The measurement of one model on its rows, table by table.

    Args:
        subject: The model and what is known of it.
        rows: The rows that the model is run on.
        profile: The profile, with the unit of effects and the floors.
        kept: The tables that are made.
        seed: Seed of the nulls.
        step: A function that is called with a sentence saying what is being done.
    """

    def __init__(
        self,
        subject: Pretrained,
        rows: InspectedRows,
        profile: Profile,
        kept: _Kept,
        seed: int,
        step: Step,
    ) -> None:
        self.subject, self.model, self.rows, self.profile = subject, subject.model, rows, profile
        self.kept, self.seed, self.step = kept, seed, step
        self.notes = [*subject.notes, *rows.notes]
        if self._language and subject.vocabulary >= WIDE:
            self.notes.append(
                f"losses are measured at {SCORED} positions of each row at most, spread evenly: "
                f"with {subject.vocabulary} tokens one position's outputs cost more than all layers"
            )
        self.main = rows.trials[0]
        self.word = partial(token_word, tokenizer=subject.tokenizer, words=rows.words)

    def run(
        self,
        factors: HeadWeights | None,
        prompts: Sequence[Tensor],
        *,
        targets: bool,
        effects: bool,
        how: dict[str, Any],
    ) -> dict[str, Any]:
        """Make every table, and return the facts about the measurement."""
        kept, model, step = self.kept, self.model, self.step
        step(f"attention of {self.subject.name}")
        with evaluating(model):
            evidence = self._evidence(targets=targets)
            kinds = [kind for kind in _KINDS if kind in evidence.views]
            behaviour = [self._behaviour(evidence, kind) for kind in kinds]
            step(_first_words(evidence) if self._language else "roles")
            told = cache(lambda: examine(evidence, *self.rows.task_variables, watch=how["watch"]))
            roles = kept.table("roles", lambda: self._roles(evidence, told()))
            step("attention of the heads with roles")
            own = evidence.run(self.profile.rows["own"])
            for title, table in _maps(roles, partial(_mean_attention, own)):
                kept.table(title, partial(pd.DataFrame, table))
            if targets:
                kept.table("trials", lambda: self._trials(evidence))
            # Without such rows the table is empty: a resumed run need not examine for it again.
            if self._language and {*GIVEN_KINDS} & {*evidence.views}:
                kept.table("explained", lambda: explain_heads(evidence, roles, told(), self._quote))
            step("what can be read where")
            kept.table("decodability", lambda: self._decodability())
            parts = ablated_parts(model, roles, every=effects) if targets else []
            if len(parts) < len(every := components(model)) and targets:
                self.notes.append(
                    f"{len(every) - len(parts)} of {len(every)} heads and FFNs, which have no role "
                    "or a rejected one, were not ablated: --effects measures the loss without "
                    "every one"
                )
            step(f"the loss without each of {len(parts)} heads and FFNs")
            lost = self._losses(evidence, parts, effects, how)
            factors = self._factors(factors)
            added = head_scores(model, self.main.batch, seed=self.seed)
            behaviour += [added.assign(trial=self.main.name)] if len(added) else []
            step("weights")
            weights = self._weights(factors)
            kept.put("heads", pd.concat([*behaviour, lost, weights], ignore_index=True))
            step("rows to look at")
            heads = [(part.layer, part.head) for part in parts if part.kind == "head"]
            groups = self._viewer_tables(evidence, heads, factors, prompts)
            self._rounds()
            step(f"measured by {evidence.passes:.0f} forward passes over all rows")
        return {"family": self.subject.family, "vocabulary": self.subject.vocabulary,
                "context": self.subject.n_ctx, "ran": True, "notes": self.notes,
                "analysed": self.subject.analysed,
                **groups}  # fmt: skip

    @property
    def _language(self) -> bool:
        return self.profile is LANGUAGE

    def _quote(self, token: int) -> str:
        return repr(self.word(token))

    def _evidence(self, *, targets: bool) -> Evidence:
        known = self.rows.task_variables
        given: Any = rows_of(self.rows.trials) if self._language else self.main.batch
        return evidence_of(
            self.model, given, self.profile, latents=any(map(bool, known)), memories=known[0],
            answers=known[1], targets=targets, seed=self.seed,
        )  # fmt: skip

    def _behaviour(self, evidence: Evidence, kind: str) -> pd.DataFrame:
        """Return the head table of attention on rows of one kind."""
        table = evidence.table(kind)
        return table.assign(trial=kind) if len(table) else table

    def _roles(self, evidence: Evidence, told: Sequence[Found | Lacking]) -> pd.DataFrame:
        table = role_table(told, self.profile)
        lacks = table.attrs.get("lacks", {}).items()
        self.kept.put("lacks", pd.DataFrame(list(lacks), columns=["role", "reason"]))
        if self._language:
            table = with_positions(table, self.model, self.rows.whole, self.profile)
            table = with_text(table, evidence, told)
        return table

    def _trials(self, evidence: Evidence) -> pd.DataFrame:
        """Return how well the model does on each kind of rows."""
        found = []
        for trial in self.rows.trials:
            control = None if trial.control is None else Run(self.model, trial.control)
            if trial.name == "repeated" and control is not None:
                control = evidence.run("shuffled")
            found.append(vars(performance(evidence.run(trial.name), trial.name, control)))
        return pd.DataFrame(found)

    def _decodability(self) -> pd.DataFrame:
        trial = next((t for t in self.rows.trials if t.name in ("given", "rows")), None)
        if trial is None or not trial.batch.latents:
            return pd.DataFrame()
        return decodability_table(self.model, trial.batch)

    def _losses(
        self, evidence: Evidence, parts: list[Component], effects: bool, how: dict[str, Any]
    ) -> pd.DataFrame:
        if not parts:
            return pd.DataFrame()
        return loss_tables(
            evidence, self.rows.trials, parts, self.kept.store, seed=self.seed, every=effects,
            **how,
        )  # fmt: skip

    def _factors(self, factors: HeadWeights | None) -> HeadWeights | None:
        """Return the weights of the heads; None, with a note, for a model that does not name
        them."""
        try:
            return head_weights(self.model) if factors is None else factors
        except ProoflensError as error:
            short = str(error).split(" (known:")[0].split(". Tensors found")[0]
            self.notes.append(f"weights were not read: {short}")
            return None

    def _weights(self, factors: HeadWeights | None) -> pd.DataFrame:
        """Return the table of the weights; with very many heads compositions of pairs are left out,
        with a note."""
        if factors is None:
            return pd.DataFrame()
        draws = _DRAWS if factors.d_head <= _WIDE else _DRAWS_OF_WIDE
        metrics, heads = list(_WEIGHTS), factors.n_layers * factors.n_heads
        if heads > PAIRED_UP_TO:
            metrics = [name for name in metrics if name not in COMPOSITIONS]
            self.notes.append(
                f"compositions of {heads} heads are left out: prooflens weights has them"
            )
        try:
            table = weight_table(factors, metrics, draws=draws, seed=self.seed)
        except ProoflensError as error:
            self.notes.append(f"weights were not read: {error}")
            return pd.DataFrame()
        return table

    def _viewer_tables(
        self,
        evidence: Evidence,
        heads: Sequence[Place],
        factors: HeadWeights | None,
        prompts: Sequence[Tensor],
    ) -> dict[str, Any]:
        """Make the tables of the viewer, with the loss rise at each token without some heads on
        rows that a model can predict.

        Returns:
            The kinds of rows that are shown.
        """
        shown = list(self._rows_to_show(evidence))
        runs = [evidence.run(some.kind) for some in shown]
        for ids in prompts:
            batch = next_tokens(ids)
            shown.append(Shown("prompt", "a prompt", batch, self._texts(batch)))
            runs.append(Run(self.model, batch))
        tables = shown_tables(self.model, shown, self.model)
        groups = []
        for number, (some, run) in enumerate(zip(shown, runs, strict=True)):
            told = None
            if heads and some.kind not in ({"shuffled"} if self._language else {"prompt"}):
                codes, scores = effect_lines(run, some, number, heads)
                for name, more in (("shown-heads", codes), ("shown-scores", scores)):
                    tables[name] = pd.concat([tables[name], more], ignore_index=True)
                unit = "nats" if not run.batch.targets.is_floating_point() else (
                    "share of the target's variance"
                )  # fmt: skip
                told = {"how": "mean" if len(run) > 1 else "zero", "unit": unit}
            groups.append({"kind": some.kind, "about": some.about, "effect": told})
        for name, table in tables.items():
            self.kept.put(name, table)
        if factors is not None:
            try:
                make = partial(raised_tokens, self.model, factors, shown, self.word)
                self.kept.table("raised", make)
            except ProoflensError as error:
                self.notes.append(f"raised tokens were not read: {error}")
        return {"groups": groups, "causal": evidence.causal}

    def _rows_to_show(self, evidence: Evidence) -> Iterator[Shown]:
        abouts = {trial.name: trial.about for trial in self.rows.trials}
        abouts["shuffled"] = "the same tokens in random order"
        kinds = [
            k for k in ("given", "rows", "text", "repeated", "shuffled") if k in evidence.views
        ]
        kinds = [kind for kind in kinds if kind in abouts]
        n = self.main.batch.inputs.shape[1]
        size = len(evidence.heads) * (n * (n + 1) / 2 + 2 * n) * len(kinds)
        most = int(min(_SHOWN_ROWS, max(_FEWEST, _SHOWN_BYTES // size)))
        for kind in kinds:
            batch = evidence.batch(kind)[:most]
            yield Shown(kind, abouts[kind], batch, self._texts(batch))

    def _texts(self, batch: Batch) -> tuple[tuple[str, ...], ...]:
        return token_texts(batch.inputs, self.subject.tokenizer, self.rows.words)

    def _rounds(self) -> None:
        """Measure which layer first holds each round of a nested memory, in the model and in the
        proof's construction."""
        task = self.rows.task
        nested = isinstance(task, AdaptiveMemory) and task.rounds >= 2
        if nested and getattr(self.model, "spec", None) is not None:
            from probes.nesting import nested_rounds  # and with it the proofs

            self.step("rounds, beside the proof")
            found = nested_rounds(self.model, task, seed=self.seed)
            for name, table in found.items():
                self.kept.put(name, table)


_KINDS = ("given", "repeated", "shuffled", "text", "rows")
"""Kinds of rows on which the attention of every head is measured, where they exist."""


def _of_store(
    store: ActivationStore, rows: InspectedRows, profile: Profile, kept: _Kept
) -> dict[str, Any]:
    """Make the tables of a store without a model: candidate roles and attention patterns; return
    the facts."""
    (trial,) = rows.trials
    roles = kept.table("roles", lambda: candidates(store, profile=profile))
    for title, table in _maps(roles, partial(_stored_attention, store)):
        kept.table(title, partial(pd.DataFrame, table))
    seen = attention_table(store, None)
    kept.put("heads", seen.assign(trial=trial.name))
    batch = trial.batch[:_SHOWN_ROWS]
    texts = token_texts(batch.inputs, None, rows.words)
    shown = Shown(trial.name, trial.about, batch, texts)
    for name, table in shown_tables(store, [shown]).items():
        kept.put(name, table)
    spec = (store.manifest["plan"].get("model") or {}).get("spec") or {}
    groups = [{"kind": trial.name, "about": trial.about, "effect": None}]
    told = "roles are candidates: no model was run, so no cause is known"
    return {"family": "", "vocabulary": 0, "context": 0, "ran": False, "groups": groups,
            "causal": bool(spec.get("causal", True)), "notes": [*rows.notes, told]}  # fmt: skip


def _first_words(evidence: Evidence) -> str:
    """Return in words which heads attend most to the previous token and to what followed equal
    tokens."""
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
    return "; ".join([*words, "roles: what is lost without each"])


def _maps(
    roles: pd.DataFrame, mean: Callable[[int, int], np.ndarray | None]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield (name, table) for each role of heads: mean attention, one line per head and query.

    The columns are ``head`` (with the role's targets, and its best status if that is not
    confirmed), ``query`` and ``key 0``, ``key 1`` and so on.

    Args:
        roles: A role table.
        mean: A function from layer and head to mean attention ``[query, key]``, or None if it is
            not known.
    """
    heads = roles[roles["component"] == "head"]
    for role, rows in heads.groupby("role", sort=False):
        order = rows.assign(rank=by_status(rows["status"]), size=-rows["strength"].abs())
        order = order.sort_values(["rank", "size"], kind="stable")
        maps: list[pd.DataFrame] = []
        for _, own in order.groupby(["layer", "head"], sort=False):
            layer, head = int(own["layer"].iloc[0]), int(own["head"].iloc[0])
            pattern = mean(layer, head) if len(maps) < _MAPS else None
            if pattern is not None:
                targets = list(dict.fromkeys(target for target in own["target"] if target))
                best = min(own["status"], key=STATUSES.index)
                told = [f"L{layer}H{head}", *targets, *[f"({best})"] * (best != "confirmed")]
                keys = [f"key {key}" for key in range(pattern.shape[1])]
                lines = pd.DataFrame(pattern, columns=keys)
                lines.insert(0, "query", range(len(lines)))
                lines.insert(0, "head", " ".join(told))
                maps.append(lines)
        if maps:
            yield f"attention-{role}", pd.concat(maps, ignore_index=True)


def _mean_attention(run: Run, layer: int, head: int) -> np.ndarray:
    site = Site(layer, "pattern", head)
    return _mean(run.at([site])[site].double().cpu().numpy(), run.batch.mask.numpy())


def _stored_attention(store: ActivationStore, layer: int, head: int) -> np.ndarray | None:
    """Return a head's mean attention from a store; None if its pattern is not stored."""
    hook, kept = Site(layer, "pattern").name, store.manifest["plan"].get("heads")
    if not {hook} & {*store.hooks, *store.aliases} or (kept is not None and head not in kept):
        return None
    place = head if kept is None else list(kept).index(head)
    pattern = store.activation(hook, heads=[place])[:, 0].astype(np.float64)
    known = all("mask" in part.shapes for part in store.parts)
    return _mean(pattern, store.mask() if known else np.ones(pattern.shape[:2], dtype=bool))


def _mean(pattern: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the mean share of attention ``[query, key]`` over rows; queries after a row's last
    scored position are not counted."""
    total = pattern.sum(axis=-1, keepdims=True)
    share = np.divide(pattern, total, out=np.zeros_like(pattern), where=total > 0)
    counted = np.flip(np.logical_or.accumulate(np.flip(mask, 1), axis=1), 1)[..., None]
    mean: np.ndarray = (share * counted).sum(0) / np.maximum(counted.sum(0), 1)
    return mean


def decodability_table(model: Any, batch: Batch) -> pd.DataFrame:
    """Measure how well each scalar latent is linearly decodable along the residual stream.

    Returns:
        Columns ``latent``, ``site`` and ``score`` (held-out r², for classes balanced accuracy);
        empty without such latents, or without hooks of the stream.
    """
    names = [
        name
        for name, value in batch.latents.items()
        if value.ndim == 2 and float(value[batch.mask].double().std()) > 0
    ]
    after = {"head": "resid_mid", "ffn": "resid_post"}
    sites = [Site(p.layer, after[p.kind]).name for p in components(model)]
    sites = list(dict.fromkeys([Site(0, "resid_pre").name, *sites]))
    sites = [site for site in sites if site in model.hook_dict]
    if not names or not sites:
        return pd.DataFrame()
    samples = collect(model, batch, sites)
    rows = [
        {"latent": name, "site": hook, "score": _read(samples, hook, name)}
        for hook in sites
        for name in samples.latents
        if name in names
    ]
    return pd.DataFrame(rows)


def _read(samples: Samples, hook: str, name: str) -> float:
    probe = probe_for(samples.kinds[name])
    features, latent = samples.features[hook], samples.latents[name]
    return decode(features, latent, probe=probe, groups=samples.groups).score
