"""Find the role of every component of a model, or as far as a store can tell.

    find_roles(model, rows, profile=TASK, memories=…, answers=…)    from a model that can be run
    find_roles(store, profile=…), candidates(store)                 behaviour alone: no causes

A role table has a row a component and role: strength is the role's own number, p and q the largest
of the tests it rests on, ``effect`` the last cause's score, ``evidence`` a sentence with all of
them, ``missing`` what could not be tested. Which roles there are is in
:mod:`probes.roles.registry`; on which rows, in which unit and with which floors they are sought, in
the profile (:mod:`probes.roles.profile`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from interp.errors import ArgumentError, HookError
from interp.hooks.capture import evaluating
from interp.interventions.components import components
from interp.store import ActivationStore
from interp.store.attention_mask import AttentionMask, attention_mask_of, mask_from_patterns
from interp.store.rows import read_batches, scored_mask
from interp.tasks.base import Batch, Memory
from interp.tasks.counterfactual import Variable
from probes.roles.decision import decide
from probes.roles.detectors.mixtures import lagged_contents
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence
from probes.roles.examined import Examined, Watch
from probes.roles.groups import with_groups
from probes.roles.profile import TASK, Profile
from probes.roles.reader import FOLDS, Reader, residual_sites
from probes.roles.registry import ROLES
from probes.roles.specificity import with_controls
from probes.roles.views import View, language_views, task_views

__all__ = ["candidates", "decided", "evidence_of", "find_roles"]

_FEW = 4
"""Rows on which it is seen which keys a query may attend to."""

_WEIGHTS = ("blocks", "ln_final", "unembed")
_MEMORY = ("memory-location", "memory-correction")
_SELECTED = ("fixed-position", "token-comparison", "positional-periodic")
_LOOSE = {
    "dense": ("symbol-equality", *_SELECTED, *_MEMORY),
    "local": _MEMORY,
    "fixed-position": _MEMORY,
    "token-comparison": ("symbol-equality",),
    "positional-periodic": _MEMORY,
}
"""Role → the roles beside which it says nothing new."""
_OWN = {
    "successor": ("copying",),
    "counting": ("dense", "uniform"),
    "memory-mixture": (
        "dense",
        "uniform",
        "local",
        "previous-token",
        "sink",
        *_SELECTED,
        *_MEMORY,
    ),
}
"""Role → the roles that say nothing new beside it where it is confirmed."""

Named = Mapping[str, Batch]
"""Rows by kind, for the profile ``language``: ``repeated``, ``shuffled`` and others."""


def find_roles(
    model: Any,
    rows: Batch | Named,
    *,
    profile: Profile = TASK,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    sought: Sequence[Variable] = (),
    targets: bool = True,
    seed: int = 0,
    watch: Watch = iter,
) -> pd.DataFrame:
    """Find the roles of every head, FFN and layer.

    Args:
        model: A hooked model; it is run in evaluation mode. Of a wrapped module the attention roles
            are told; those that are read off weights are not.
        rows: Rows of a task, with the latents that are named: at least two, and at least eight for
            memories and answers. For the profile ``language``: tokens that repeat, or rows by kind
            (:func:`probes.roles.trials.token_trials`).
        profile: On which rows roles are looked for, in which unit effects are measured, and the
            floors.
        memories: The contents that the task says are fetched.
        answers: Latent → the latents that it is computed from.
        sought: Latents by whose exchange the role of a head is decided
            (:func:`interp.tasks.counterfactual.sought_of`).
        targets: Whether the targets may be read. One role of a task needs them: without an
            induction head's attention the loss must rise. If they are not known, a change of the
            output must do.
        seed: Seed of the permutations, the repeated rows and the fresh models.
        watch: Wraps the loop over heads, for a progress bar.

    Returns:
        Columns :data:`~probes.roles.decision.ROLE_COLUMNS`, and ``tests``: JSON text, every test
        that a row rests on with its score, floor, p, q and 95 % interval. ``attrs["lacks"]`` names
        roles that could not be looked for, with the reason.

    Raises:
        ArgumentError: for a module without hooks; for latents to be read of a wrapped one; for
            too few rows, or rows that do not fit the profile; for a model whose attention or output
            is not finite on them.
        HookError: for a model whose attention patterns no hook shows.
    """
    known = memories, answers or {}, sought
    with evaluating(model):
        evidence = evidence_of(
            model, rows, profile, latents=any(map(bool, known)), targets=targets, seed=seed
        )
        return decided(evidence, *known, watch=watch)


def evidence_of(
    model: Any,
    rows: Batch | Named,
    profile: Profile,
    *,
    latents: bool = False,
    targets: bool = True,
    stores: Mapping[str, ActivationStore] | None = None,
    seed: int = 0,
) -> Evidence:
    """Prepare the evidence for a model on a profile's rows; nothing is run yet.

    Args:
        model, rows, profile, targets, seed: The arguments of :func:`find_roles`.
        latents: Whether the residual stream is to be read by probes.
        stores: Kind of rows → a store with the patterns on these rows, to be read instead.

    Raises:
        ArgumentError, HookError: as :func:`find_roles`, before anything is run.
    """
    first = rows if isinstance(rows, Batch) else next(iter(rows.values()), None)
    _check(model, 0 if first is None else len(first), latents, profile)
    mask = AttentionMask() if first is None else _mask_of(model, first)
    if profile.unit == "variance":
        if not isinstance(rows, Batch):
            raise ArgumentError("rows must be one batch for profile 'task', got several: give one")
        views = task_views(rows, causal=mask.causal, seed=seed)
    else:
        views = language_views(rows, seed=seed)
    sites = [hook for _, hook in residual_sites(model)] if latents else []
    sites += [hook.replace("resid_post", "mlp_out") for hook in sites if "resid_post" in hook]
    return Evidence(
        model,
        views,
        profile,
        targets=targets,
        stores=stores,
        sites=sites,
        mask=mask,
        seed=seed,
    )


def decided(
    evidence: Evidence,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    sought: Sequence[Variable] = (),
    *,
    watch: Watch = iter,
) -> pd.DataFrame:
    """The role table of some evidence; see :func:`find_roles`."""
    effects = Effects(evidence) if evidence.model is not None else None
    read = effects is not None and (memories or answers or sought)
    reader = None
    if read and effects is not None:
        rows = evidence.views["given"].batch
        reader = Reader(evidence, effects, lagged_contents(rows, memories))
    of = Examined(evidence, effects, reader, memories, answers or {}, sought, watch)
    asked = [role for role in ROLES.values() if evidence.profile.name in role.profiles]
    detectors = dict.fromkeys(detector for role in asked for detector in role.detectors)
    names = {role.name for role in asked}
    found = [one for detector in detectors for one in detector(of) if one.role in names]
    if effects is not None:
        found = with_controls(with_groups(found, effects), effects)
    table = _named(decide(found, level=evidence.profile.level), evidence.lacks)
    table.attrs["lacks"] = dict(evidence.lacks)
    return table


def candidates(store: ActivationStore, *, profile: Profile = TASK) -> pd.DataFrame:
    """Find roles from a store's patterns alone, so that they are candidates at most.

    Roles that need other rows than the store's are left out.

    Args:
        store: A store with ``attn.hook_pattern`` of the layers of interest.
        profile: The profile; ``language`` where the rows are tokens that repeat.

    Raises:
        HookError: if no layer's ``attn.hook_pattern`` is stored.
    """
    inputs, mask = torch.from_numpy(store.inputs()), torch.from_numpy(scored_mask(store))
    batch, seen = Batch(inputs, inputs, mask), attention_mask_of(store)
    causal = seen is None or seen.causal
    kind = profile.rows["own"]
    view = task_views(batch, causal=causal)["given"] if kind == "given" else View(batch, mask)
    return decided(Evidence(None, {kind: view}, profile, stores={kind: store}))


def _mask_of(model: Any, rows: Batch) -> AttentionMask:
    """Which keys a query may attend to: what the model's spec says, or what its patterns show."""
    told = attention_mask_of(model)
    if told is not None:
        return told
    layers = {part.layer for part in components(model) if part.kind == "head"}
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in sorted(layers)]
    (some,) = read_batches(model, rows[:_FEW], hooks, batch=_FEW)
    return mask_from_patterns(some.activations.values())


def _check(model: Any, rows: int, latents: bool, profile: Profile) -> None:
    least = FOLDS if latents else 2
    if rows < least:
        why = "probes are fitted on some and judged on others" if latents else "they are compared"
        raise ArgumentError(f"rows must be at least {least} rows ({why}), got {rows}: add rows")
    kind = type(model).__name__
    if not hasattr(model, "hook_dict"):
        raise ArgumentError(
            f"model must have hooks, got a plain {kind}: wrap it first (interp.models.wrap; see "
            "docs/howto-wrap)"
        )
    if latents and profile.unit != "variance":
        raise ArgumentError("memories and answers must be left out for profile 'language'")
    if latents and not all(hasattr(model, name) for name in _WEIGHTS):
        raise ArgumentError(
            f"memories and answers must be left out for {kind}: their roles are read off W_O and "
            "the unembedding, which a wrapped module does not name"
        )
    layers = sorted({part.layer for part in components(model) if part.kind == "head"})
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    lacking = [name for name in patterns if name not in model.hook_dict]
    if lacking:
        raise HookError(
            f"roles need the attention patterns, and {kind} has no hook {', '.join(lacking)}: wrap "
            "the place where they are; a fused attention computes none (see docs/howto-wrap)"
        )


def _named(roles: pd.DataFrame, lacks: Mapping[str, str]) -> pd.DataFrame:
    """Without the loose names of heads that have a stricter one: a head that compares tokens is not
    ``dense``, one that has its part in a memory's kernel neither that nor ``local``, and one that
    shares several memories with others has none of its own. Where the stricter role could not be
    looked for, the loose row stays and says so."""
    where = ["component", "layer", "head"]
    places = pd.MultiIndex.from_frame(roles[where])
    loose = pd.Series(False, index=roles.index)
    for role, strict in _LOOSE.items():
        named = roles.loc[roles["role"].isin(strict), where]
        loose |= (roles["role"] == role) & places.isin(pd.MultiIndex.from_frame(named))
    for role, others in _OWN.items():
        named = roles.loc[(roles["role"] == role) & (roles["status"] == "confirmed"), where]
        loose |= roles["role"].isin(others) & places.isin(pd.MultiIndex.from_frame(named))
    return _standing_in(roles[~loose].reset_index(drop=True), lacks)


def _standing_in(roles: pd.DataFrame, lacks: Mapping[str, str]) -> pd.DataFrame:
    """The table, in which rows of a loose name say which stricter roles could not be looked for."""
    for role, strict in _LOOSE.items():
        unseen = [one for one in strict if one in lacks]
        reasons = [f"{one} (in whose place this may stand): {lacks[one]}" for one in unseen]
        rows = roles["role"] == role
        if reasons and rows.any():
            told = [[text, *reasons] for text in roles.loc[rows, "missing"]]
            roles.loc[rows, "missing"] = ["; ".join(filter(None, one)) for one in told]
    return roles
