"""Find the role of every component of a model, or as far as a store of activations allows.

    find_roles(model, rows, profile=TASK, memories=…, answers=…)    from a model that can be run
    find_roles(store, profile=…), candidates(store)                 behaviour alone: no causes

A role table has one row per component and role. ``strength`` is the role's own number, ``p`` and
``q`` are the largest of the tests that the role rests on, ``effect`` is the score of the last
causal test, ``evidence`` a sentence with all tests, ``missing`` what could not be tested. The roles
are listed in :mod:`probes.roles.registry`; the rows on which they are tested, the unit of effects
and the floors are in the profile (:mod:`probes.roles.profile`).

Several roles describe the same head more or less strictly. A head that compares tokens is no longer
only ``dense``; a head with a part in a memory's kernel is neither ``dense`` nor ``local``; a head
that shares several memories with others has none of its own. The looser roles are left out of the
table. That a head has the stricter role does not show that it does nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp.errors import need, refuse_unless
from interp.hooks.capture import evaluating
from interp.run.gate import admit_batch
from interp.store import ActivationStore
from interp.store.rows import attention_mask_of, scored_mask
from interp.tasks.base import Batch, Memory
from interp.tasks.counterfactual import Variable
from probes.roles.ability import count_causes
from probes.roles.decision import Found, Lacking, decide
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence
from probes.roles.examined import Examined, Watch
from probes.roles.gathering import Named, evidence_of
from probes.roles.groups import with_groups
from probes.roles.profile import LANGUAGE, PROFILES, TASK, Profile, outputs_of, profile_of
from probes.roles.reader import Reader
from probes.roles.registry import ROLES
from probes.roles.specificity import with_controls
from probes.roles.views import View, task_views

_MEMORY = ("memory-location", "memory-correction")
_SELECTED = ("fixed-position", "token-comparison", "positional-periodic")
_LOOSE = {
    "dense": ("symbol-equality", *_SELECTED, *_MEMORY),
    "local": _MEMORY,
    "fixed-position": _MEMORY,
    "token-comparison": ("symbol-equality",),
    "positional-periodic": _MEMORY,
}
"""Role → stricter roles. If a component also has one of these, the role adds nothing and its row is
left out."""
_OWN = {
    **dict.fromkeys(("readout", "gating", "unmixing", "sharpening"), ("passing-on", "lookup")),
    **dict.fromkeys(
        (
            "previous-token",
            "sink",
            "local",
            "uniform",
            "duplicate-token",
            "induction",
            "symbol-equality",
            *_SELECTED,
            *_MEMORY,
        ),
        ("positional",),
    ),
    "successor": ("copying",),
    "counting": ("dense", "uniform"),
    "memory-mixture": (
        "dense",
        "uniform",
        "local",
        "previous-token",
        "sink",
        "positional",
        *_SELECTED,
        *_MEMORY,
    ),
}
"""Role → looser roles. If the role is confirmed for a component, rows of the looser ones add
nothing and are left out."""


def find_roles(
    model: Any,
    rows: Any,
    *,
    profile: Profile | str | None = None,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    sought: Sequence[Variable] = (),
    targets: bool = True,
    seed: int = 0,
    watch: Watch = iter,
) -> pd.DataFrame:
    """Find the roles of every head, FFN and layer.

    Args:
        model: A hooked model; it is run in evaluation mode. A wrapped module gets only the roles
            that need no weights, such as the attention roles.
        rows: Rows of a task, with the latents that ``memories``, ``answers`` and ``sought`` name:
            at least two, and at least eight for those. For the profile ``language``: tokens that
            repeat, or rows by kind (:func:`probes.roles.trials.token_trials`). Token ids ``[row,
            pos]``, or what a tokenizer returns, are rows whose targets are the next tokens.
        profile: The profile, or its name, ``task`` or ``language``: on which rows roles are tested,
            the unit of effects, and the floors. By default ``language`` if the rows' targets are
            the next tokens, no memories, answers or sought latents are given and the model can
            predict every token, else ``task``.
        memories: The contents that the task says are fetched.
        answers: Latent → the latents that it is computed from.
        sought: Latents whose exchange between rows decides the role of a head
            (:func:`interp.tasks.counterfactual.role_variables`).
        targets: Whether the targets may be used. Of a task's roles only induction needs them:
            without the head's attention the loss must rise. If they may not be used, the output
            must change instead.
        seed: Seed of the permutations, the repeated rows and the freshly initialised models.
        watch: A wrapper around the loops over kinds of roles and over heads, for a progress bar.

    Returns:
        Columns :data:`~probes.roles.decision.ROLE_COLUMNS`, and ``tests``: JSON text, every test
        that a row rests on with its score, floor, p, q and 95 % interval. ``attrs["lacks"]`` names
        the roles that could not be tested for, with the reason.

    Raises:
        ArgumentError: for a module without hooks; for memories, answers or sought latents of a
            wrapped module; for memories or answers that name no latent of the rows; for too few
            rows, or rows that do not fit the profile; for a model whose attention or output is not
            finite on them.
        HookError: for a model without hooks at its attention patterns.
    """
    known = memories, answers or {}, sought
    given, chosen = _rows_and_profile(model, rows, profile, of_task=any(map(bool, known)))
    with evaluating(model):
        evidence = evidence_of(
            model,
            given,
            chosen,
            latents=any(map(bool, known)),
            memories=memories,
            answers=answers,
            targets=targets,
            seed=seed,
        )
        return role_table(examine(evidence, *known, watch=watch), chosen)


def _rows_and_profile(
    model: Any, rows: Any, profile: Profile | str | None, *, of_task: bool
) -> tuple[Batch | Named, Profile]:
    """Return the rows as a batch (or batches by kind) and the profile, with defaults filled in."""
    ids = isinstance(rows, Tensor | list) or (isinstance(rows, Mapping) and "input_ids" in rows)
    if isinstance(profile, str):
        rule = f"must be one of {', '.join(PROFILES)}"
        need("find_roles", profile in PROFILES, "profile", rule, profile, "choose one")
        profile = PROFILES[profile]
    good = profile is None or isinstance(profile, Profile)
    refuse_unless(good, "profile", "must be a Profile, or its name", profile, "see pl.roles")
    given = admit_batch(model, rows) if ids else rows
    if profile is not None or of_task:
        return given, profile or TASK
    if not isinstance(given, Batch):
        return given, LANGUAGE
    return given, profile_of(given, outputs_of(model))


def examine(
    evidence: Evidence,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    sought: Sequence[Variable] = (),
    *,
    watch: Watch = iter,
) -> list[Found | Lacking]:
    """Run the tests of every role of the profile on every component.

    Args:
        evidence: The model and its rows, or the stored attention of its heads.
        memories, answers, sought, watch: As for :func:`find_roles`.

    Returns:
        One finding for each component and role that was tested, whether its tests pass or not; then
        the roles that could not be tested for, with the reason.
    """
    effects = Effects(evidence) if evidence.model is not None else None
    reader = None
    if effects is not None and (memories or answers or sought):
        reader = Reader(evidence, effects, memories)
    of = Examined(evidence, effects, reader, memories, answers or {}, sought, watch)
    asked = [role for role in ROLES.values() if evidence.profile.name in role.profiles]
    detectors = dict.fromkeys(detector for role in asked for detector in role.detectors)
    names = {role.name for role in asked}
    told = [one for detector in watch([*detectors]) for one in detector(of)]
    unknown = sorted({one.role for one in told if isinstance(one, Found)} - set(ROLES))
    rule = "must be the name of a registered role"
    need("find_roles", not unknown, "role of a Found", rule, unknown, "name the Role alike")
    found = [one for one in told if isinstance(one, Found) and one.role in names]
    if effects is not None:
        found = count_causes(evidence, found)
    for settle in watch([with_groups, with_controls] if effects is not None else []):
        found = settle(found, effects)
    evidence.close_controls()
    return [*found, *(one for one in told if isinstance(one, Lacking))]


def role_table(told: Sequence[Found | Lacking], profile: Profile) -> pd.DataFrame:
    """Make the role table of what :func:`examine` returned.

    Args:
        told: The findings, and the roles that could not be tested for.
        profile: The profile, whose level every q must stay below.

    Returns:
        The role table, without the looser roles of components that have a stricter one.
        ``attrs["lacks"]`` holds role → why it could not be tested for.
    """
    lacks = {one.role: one.reason for one in told if isinstance(one, Lacking)}
    found = [one for one in told if isinstance(one, Found)]
    table = _without_loose_names(decide(found, level=profile.level), lacks)
    table.attrs["lacks"] = lacks
    return table


def _without_loose_names(roles: pd.DataFrame, lacks: Mapping[str, str]) -> pd.DataFrame:
    """Return the role table without the looser roles of components that have a stricter one.

    If the stricter role could not be tested for (``lacks``), the looser one stays, and ``missing``
    says so.
    """
    where = ["component", "layer", "head"]
    places = pd.MultiIndex.from_frame(roles[where])
    loose = pd.Series(False, index=roles.index)
    for role, strict in _LOOSE.items():
        named = roles.loc[roles["role"].isin(strict), where]
        loose |= (roles["role"] == role) & places.isin(pd.MultiIndex.from_frame(named))
    for role, others in _OWN.items():
        named = roles.loc[(roles["role"] == role) & (roles["status"] == "confirmed"), where]
        loose |= roles["role"].isin(others) & places.isin(pd.MultiIndex.from_frame(named))
    teams, heads = pd.MultiIndex.from_frame(roles[["role", "group"]]), roles["component"] == "head"
    loose |= (roles["component"] == "group") & ~teams.isin(teams[heads & ~loose])
    return _standing_in(roles[~loose].reset_index(drop=True), lacks)


def _standing_in(roles: pd.DataFrame, lacks: Mapping[str, str]) -> pd.DataFrame:
    """Return the role table with a note in ``missing`` of looser roles on which stricter ones could
    not be tested for."""
    for role, strict in _LOOSE.items():
        unseen = [one for one in strict if one in lacks]
        reasons = [f"{one} (in whose place this may stand): {lacks[one]}" for one in unseen]
        rows = roles["role"] == role
        if reasons and rows.any():
            told = [[text, *reasons] for text in roles.loc[rows, "missing"]]
            roles.loc[rows, "missing"] = ["; ".join(filter(None, one)) for one in told]
    return roles


def candidates(store: ActivationStore, *, profile: Profile = TASK) -> pd.DataFrame:
    """Find candidate roles of heads from stored attention patterns, without running a model.

    Only behaviour is tested. Causal tests need the model, so no role can be confirmed. Roles that
    need rows of another kind than the store's are left out.

    Args:
        store: A store with ``attn.hook_pattern`` of the layers of interest.
        profile: The profile; use the profile ``language`` if the rows are repeated tokens.

    Returns:
        The role table.

    Raises:
        HookError: if no layer's ``attn.hook_pattern`` is stored.
    """
    inputs, mask = torch.from_numpy(store.inputs()), torch.from_numpy(scored_mask(store))
    batch, seen = Batch(inputs, inputs, mask), attention_mask_of(store)
    causal = seen is None or seen.causal
    kind = profile.rows["own"]
    view = task_views(batch, causal=causal)["given"] if kind == "given" else View(batch, mask)
    evidence = Evidence(None, {kind: view}, profile, stores={kind: store})
    return role_table(examine(evidence), profile)
